/* SPDX-License-Identifier: MIT */
/*
 * The guard: memory that the program has given to a send stays as it was until its owner is done with it, whatever the
 * program does in the meantime (Balaji et al., "Asynchronous Zero-copy Communication for Synchronous Sockets in the
 * Sockets Direct Protocol over InfiniBand", 2006: memory-protect, block-on-write, copy-on-write).
 *
 * A record covers whole pages. A write to a guarded page, by any thread, faults; the guard asks the record's owner for a
 * bounded time whether it is done (block-on-write), then takes the page away from it (copy-on-write), so that nobody waits
 * for a peer. Two implementations: userfaultfd write-protect (writes by the kernel on the program's behalf wait too), and
 * mprotect with SIGSEGV (writes by the kernel fail with EFAULT, so that calls which make the kernel write must call
 * guard_settle() first).
 *
 * Only present pages of private anonymous memory are guarded; for all others guard_protect() says -EINVAL. So it does for
 * the stacks of other threads, whose pages libc drops when they end, and under mprotect for all stacks: the kernel can't
 * deliver a signal on a stack that it may not write to.
 * Records may overlap: a page is free again when no record covers it.
 *
 * Threads: all functions may be called by any thread; none may be called while writing to guarded memory. Signals are
 * blocked while the guard's lock is held. No function uses malloc, stdio or a libc symbol that could be intercepted.
 */
#ifndef ZC_RDMA_GUARD_H
#define ZC_RDMA_GUARD_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum guard_kind { GUARD_AUTO, GUARD_UFFD, GUARD_MPROTECT, GUARD_OFF }; /* order of ZC_GUARD in settings.def */

struct guard_record;

/* What an owner of records offers; both run on the thread that handles the fault, possibly in a signal handler. */
struct guard_owner_ops {
	/*
	 * Asks whether work has come to an end, without waiting; it may call guard_release() for any record of its own.
	 * Called without the guard's lock.
	 */
	void (*poll)(void *owner);
	/*
	 * Copies [page, page + bytes) of the record to where the owner's reader will look from now on, and waits only for a
	 * copy that is running. NULL means that the owner's pages are pinned by the kernel or a device: then the guard
	 * replaces the page under the program instead, and the owner keeps the old one.
	 */
	void (*take_copy)(void *owner, struct guard_record *record, const void *page, size_t bytes);
	/* Tells that one write to a page of the record faulted; for the decision to fall back. May be NULL. */
	void (*faulted)(void *owner, struct guard_record *record);
};

/*
 * Chooses the implementation: `kind` as set by ZC_GUARD; GUARD_AUTO takes userfaultfd where it is to be had. Nothing else
 * happens before the first guard_protect(). Returns the kind in use, or -ENOTSUP when the one asked for can't be had.
 */
int guard_start(enum guard_kind kind);

/*
 * Guards all whole pages of [start, start + bytes), which must be page-aligned. Returns 0 with a record; -EINVAL when a page
 * is not private anonymous and present; -ENOTSUP when no guard is to be had; -EPERM when the guard is
 * mprotect and the caller has SIGSEGV blocked, as its next write would be the end of the process; -EAGAIN while a fork is under way (or the
 * guard is just being made ready by another thread); -ENOMEM and others as the kernel says.
 * Ownership: the owner calls guard_release() once. `owner` must outlive the record.
 */
int guard_protect(void *start, size_t bytes, const struct guard_owner_ops *ops, void *owner, struct guard_record **out);

/*
 * To be called once the kernel or device has the pages of a record (after the sendmsg with MSG_ZEROCOPY, before the send of
 * the program returns). A thread that wrote between guard_protect() and the pinning was given a fresh page, and it is that
 * page which was pinned then: such pages are put under guard again. One load when there are none. Returns 0 or -errno as
 * guard_protect(); then the owner has to assume that the bytes may still change.
 */
int guard_pinned(struct guard_record *record);

/* Gives the pages behind the first `bytes` (rounded up to whole pages) of the record free again: they were not sent. */
void guard_shrink(struct guard_record *record, size_t bytes);

/* Ends a record: its owner no longer needs the pages. Safe in a signal handler that does not hold the guard's lock. */
void guard_release(struct guard_record *record);

/*
 * Takes all guarded pages in [start, start + bytes) away from their owners at once, by copy, so that the range is ordinary
 * memory again. To be called before a call that has the kernel write there (mprotect guard) or changes the mapping's
 * nature (mprotect), and with (NULL, SIZE_MAX) before exec-like events. Records stay valid until their owner releases them.
 */
void guard_settle(const void *start, size_t bytes);

/*
 * Makes ordinary writable memory one mapping again where the mprotect guard has replaced pages in it. mremap wants that and
 * says EFAULT otherwise: to be called then, after guard_settle(), before the second attempt. Whole pages. Returns 0, -EINVAL
 * when there is other memory in the range, or another -errno.
 */
int guard_join(const void *start, size_t bytes);

/*
 * To be called before [start, start + bytes) goes away or is replaced (munmap, mmap over it, free). Owners with take_copy()
 * have nothing but these pages: they copy all that the range touches, and the pages are ordinary ones then, so that the call
 * announced may as well fail. Pinned pages outlive their mapping, and stay as they are: that they are gone, both
 * implementations notice by themselves. One load when no owner has take_copy().
 */
void guard_forget(const void *start, size_t bytes);

/*
 * Returns whether the kernel has all of [start, start + bytes) under guard now, whatever the books say: then nobody has written there, or
 * put other memory in its place, since it was put under guard. Whole pages, and userfaultfd alone; false otherwise.
 */
bool guard_holds(const void *start, size_t bytes);

/* As guard_settle() for the pages of all records of one owner, whose reader keeps the old ones; then ends the records. */
void guard_settle_owner(void *owner);

/*
 * A thread that begins: [low, high) is its stack, or more than that. Called by the thread itself, before the program runs on
 * it; when the thread ends, nothing is to be told. The second: there is a thread that could not tell; nothing is guarded from
 * now on.
 */
void guard_stack_begins(uintptr_t low, uintptr_t high);
void guard_stacks_unknown(void);

/*
 * fork: the first settles everything, and until the second nothing is guarded anew, so that the child sees no half-done
 * page; no lock is held between the two. The child starts without guards. Any number of threads may fork at a time.
 */
void guard_before_fork(void);
void guard_after_fork(bool in_child);

/*
 * The mprotect guard's share in SIGSEGV. The preload keeps what the program installed by sigaction or signal, and passes
 * on what is not ours. Returns true if the fault was the guard's and the program may go on.
 */
bool guard_handle_signal(int signal, siginfo_t *info, void *context);

/*
 * Called by the guard when it needs SIGSEGV for itself, once; set by the preload, which installs a handler that calls
 * guard_handle_signal() and chains to the program's own. Returns 0 or -errno. NULL: the guard installs one itself.
 */
extern int (*guard_install_handler)(void);

/* Running average of the cost of protect + release, ns, by measurement in this process; 0 before the first. */
uint64_t guard_cost_ns(size_t bytes);

/* Descriptors of ours, -1 if none, at most `count`: callers keep them out of the guest's hands. Returns how many. */
int guard_descriptors(int *out, int count);

/* How many records exist, for the fast test of guard_active(). */
extern _Atomic unsigned long guard_records;

/* How many of them are of owners with take_copy(). */
extern _Atomic unsigned long guard_lent;

/* Returns whether anything is under guard: one relaxed load. */
static inline bool guard_active(void)
{
	return atomic_load_explicit(&guard_records, memory_order_relaxed) != 0;
}

/* Returns whether bytes would be lost with the program's memory, if guard_forget() is not called: one relaxed load. */
static inline bool guard_lends(void)
{
	return __builtin_expect(atomic_load_explicit(&guard_lent, memory_order_relaxed) != 0, 0);
}

/* Returns whether the kernel's own writes to guarded memory would fail with EFAULT (mprotect). */
bool guard_needs_settling(void);

/* Returns whether writes may come to be told by SIGSEGV: by mprotect, or where it is what is left when userfaultfd can't be had. */
bool guard_may_use_signal(void);

#endif
