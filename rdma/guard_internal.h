/* SPDX-License-Identifier: MIT */
/*
 * Inside the guard. guard.c keeps the lock and the records, guard_fault.c does what a fault asks for; guard_cover.c knows
 * which pages are covered by which record; guard_stacks.c which memory is a thread's stack; guard_memory.c asks the kernel what lies at an address and replaces pages;
 * guard_uffd.c and guard_mprotect.c are the two ways of protecting, behind struct guard_backend; guard_off.c is none.
 *
 * Books and kernel may disagree: a program can unmap, drop or replace guarded memory where nobody sees it (free() of a large
 * block does). Hence the rule that all code here keeps: before a page is replaced or its protection is changed, the kernel
 * is asked whether the page is still the one that was protected. The books only ever say where to look.
 *
 * Everything below is called with the guard's lock held, but where it says otherwise.
 */
#ifndef ZC_RDMA_GUARD_INTERNAL_H
#define ZC_RDMA_GUARD_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "common/stats.h"
#include "common/sys.h"
#include "rdma/guard.h"

#define GUARD_PAGE_SHIFT 12
#define GUARD_PAGE ((uintptr_t)1 << GUARD_PAGE_SHIFT)

struct guard_backend {
	const char *name;
	/* Looks whether it can be had, and leaves nothing behind. Returns 0 or -ENOTSUP. */
	int (*available)(void);
	/* Opens what it needs; idempotent. Without the lock. Returns 0, -ENOTSUP or another -errno. */
	int (*start)(void);
	/* Returns whether start() still holds (a handler thread may have gone home). */
	bool (*ready)(void);
	/* Protects, and makes sure that all pages are private anonymous, present and now protected. Or leaves all as it was. */
	int (*protect)(uintptr_t start, uintptr_t end);
	/* Makes pages that are still protected ordinary again. Errors leave them protected, for stray() to find. */
	void (*unprotect)(uintptr_t start, uintptr_t end);
	/* Gives the program fresh pages with the same bytes in place of those still protected; unprotects the rest. */
	void (*take)(uintptr_t start, uintptr_t end);
	/*
	 * The same for pages none of which is protected, while a fork may copy the process at any moment. Returns 0 or -errno.
	 * NULL where the child of a fork does not inherit the protection.
	 */
	int (*renew)(uintptr_t start, uintptr_t end);
	/* Makes [start, end) one mapping, where take() leaves more of them. Returns 0 or -errno. */
	int (*join)(uintptr_t start, uintptr_t end);
	/* A write to a page that no record covers faulted. Returns whether the writer may try again. */
	bool (*stray)(uintptr_t page);
	/*
	 * In the child of a fork: forgets what belongs to the parent. If guard_forks is not 0 the fork was announced: nothing was
	 * under guard, and the books can't be read. Otherwise they are all there is to go by.
	 */
	void (*child)(void);
	int (*descriptors)(int *out, int count);
};

extern const struct guard_backend guard_backend_uffd;
extern const struct guard_backend guard_backend_mprotect;
extern const struct guard_backend guard_backend_off;
extern const struct guard_backend *_Atomic guard_backend_now; /* the one in use, or NULL */

/* How many threads are between guard_before_fork() and guard_after_fork(). Raised under the lock; a child begins with 0. */
extern _Atomic unsigned int guard_forks;

/* Another userfaultfd has registered memory: until it is 0, nothing is unregistered that is not in the books. By later.c. */
extern _Atomic unsigned int guard_keeps_untidy;

/* A userfaultfd that sees the kernel's faults too, or -errno. */
long guard_open_userfaultfd(void);

/* guard.c: the lock. Signals are blocked while it is held. */
uint64_t guard_lock(void);
void guard_unlock(uint64_t mask);
/* The lock alone, for who has blocked signals already; and the blocking alone. */
void guard_lock_take(void);
void guard_lock_give(void);
uint64_t guard_signals_block(void);
void guard_signals_restore(uint64_t mask);
/* Waits until no other thread is in poll() of this owner, unless this one is; gives the lock away meanwhile. */
void guard_visits_wait(void *owner);
/* In a child: the threads that were in poll() are not here. */
void guard_visits_forget(void);
/* Makes those pages of [start, end) ordinary that no record covers. */
void guard_free_uncovered(uintptr_t start, uintptr_t end);
/* Takes all guarded pages of [start, end) away from their owners. */
void guard_take(uintptr_t start, uintptr_t end);
/* Without the lock: handles a write fault at `page`. Returns whether it was ours and the writer may go on. */
bool guard_fault(uintptr_t page);
/* Without the lock: asks all owners whether work has come to an end. */
void guard_poll_owners(void);

/* guard_cover.c -------------------------------------------------------------------------------------------------------- */

/* Pages [start, end) of one record that are still guarded for it. A cover lies in one region of the address space. */
struct guard_cover {
	uintptr_t start;
	uintptr_t end;
	struct guard_record *record;
	struct guard_cover *next, **link;		/* of its region */
	struct guard_cover *record_next, **record_link; /* of its record */
};

struct guard_record {
	const struct guard_owner_ops *ops;
	void *owner;
	uintptr_t start;
	uintptr_t end;
	struct guard_cover *covers;
	struct guard_record *next, **link; /* of all records */
	uintptr_t run_next;		   /* where a program that overwrites the buffer in order faults next */
	size_t run_pages;
	uint64_t waited_ns;   /* block-on-write is granted once, not for each page */
	unsigned int process; /* guard_process when it was made */
	uint64_t polled;      /* number of the last round of guard_poll_owners() */
	_Atomic bool taken;   /* a page was taken away since it was protected */
	bool told;	      /* ops->faulted() has been called for the current fault */
};

/* Whether the record's bytes are where the program has them, and nowhere else. */
static inline bool record_is_lent(const struct guard_record *record)
{
	return record->ops && record->ops->take_copy;
}

extern struct guard_record *guard_all; /* every record that was not released */
extern unsigned int guard_process;     /* how often books_forget() has begun anew */

/* Returns whether the record is in the books; the child of a fork may yet hold one of its parent's, which it only may look at. */
static inline bool record_is_here(const struct guard_record *record)
{
	return record->process == guard_process;
}

/* In a child: begins with empty books, whatever state they are in. Their memory is never used again. */
void books_forget(void);

struct guard_record *record_new(void);
void record_free(struct guard_record *record);

/* Covers [start, end) for the record. Returns 0 or -ENOMEM; then nothing is covered. */
int cover_add(struct guard_record *record, uintptr_t start, uintptr_t end);
void cover_remove(struct guard_cover *cover);
/* Returns any cover that touches [start, end), NULL if none does. */
struct guard_cover *cover_find(uintptr_t start, uintptr_t end);
/* Returns the cover with the lowest start of those that touch [start, end), NULL if none does. */
struct guard_cover *cover_first(uintptr_t start, uintptr_t end);
/* Calls visit() for each cover that touches [start, end); it may not add or remove covers. */
void cover_each(uintptr_t start, uintptr_t end, void (*visit)(struct guard_cover *cover, void *arg), void *arg);
/*
 * Cuts [start, end) out of the cover. Returns 0, or -ENOMEM when there was no memory for the part behind; then the cover
 * ends at `start`, and *lost_end says up to where the caller has to take the pages too.
 */
int cover_cut(struct guard_cover *cover, uintptr_t start, uintptr_t end, uintptr_t *lost_end);
/* Books that the program moved [from, from + bytes) to `to`. */
void cover_move(uintptr_t from, uintptr_t to, size_t bytes);

/* guard_stacks.c ------------------------------------------------------------------------------------------------------- */

/* Returns whether [start, end) touches the stack of a thread that has not ended; `but_own`: of another one than this thread. */
bool guard_stacks_touch(uintptr_t start, uintptr_t end, bool but_own);
/* In a child: it has one thread. */
void guard_stacks_child(void);

/* guard_memory.c ------------------------------------------------------------------------------------------------------- */

struct guard_mapping {
	uintptr_t start;
	uintptr_t end;
	int protection; /* PROT_* */
	bool plain;	/* private anonymous memory with pages of the usual size */
};

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_FILE (1ull << 61)
#define PAGEMAP_UFFD_WP (1ull << 57)

/* Opens /proc/self/pagemap and /proc/self/maps. Idempotent; without the lock. Returns 0 or -errno. */
int memory_open(void);
void memory_close(void);
int memory_descriptors(int *out, int count);

/* Returns whether the pagemap bits under `mask` are `want` for all pages of [start, end). */
bool memory_pages_are(uintptr_t start, uintptr_t end, uint64_t mask, uint64_t want);
/* Finds the mapping at `address`, or the next one above. Returns 0, -ENOENT if there is none, or another -errno. */
int memory_mapping(uintptr_t address, struct guard_mapping *out);
/* Copies program memory that may vanish meanwhile. Returns 0 or -EFAULT. */
int memory_copy(void *to, uintptr_t from, size_t bytes);
/*
 * Puts fresh writable pages with the bytes at `from` in place of [start, end), atomically for other threads. Calls sure()
 * right before, which says whether the old pages are still the ones to replace. Returns 0, -ECANCELED or another -errno.
 */
int memory_replace(uintptr_t start, uintptr_t end, uintptr_t from, bool (*sure)(uintptr_t start, uintptr_t end));
/* Returns how many mappings the process has. */
unsigned long memory_mappings(void);
/* Returns how many it may have (vm.max_map_count). */
unsigned long memory_mappings_max(void);

static inline void guard_count(enum stat_process id, uint64_t value)
{
	if (stats)
		stats_process(id, value);
}

#endif
