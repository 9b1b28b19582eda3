/* SPDX-License-Identifier: MIT */
/*
 * The guard of guard.h: the lock, the choice of an implementation, and the records. Faults are in guard_fault.c.
 *
 * The lock is a futex that is only held with all signals blocked, so that a signal handler that sends cannot meet it in its
 * own thread. While it is held nothing touches program memory that could be guarded; the stack is such memory, and is
 * therefore touched as deep as we will need it before the lock is taken.
 */
#define _GNU_SOURCE
#include "rdma/guard.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>

#include "common/clock.h"
#include "common/cost.h"
#include "common/log.h"
#include "common/settings.h"
#include "rdma/guard_internal.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_NEED 32768
#else
#define STACK_NEED 4096
#endif
#define FREE_LOCK 0
#define HELD 1
#define CONTENDED 2

int (*guard_install_handler)(void);

static enum guard_kind asked = GUARD_AUTO;
const struct guard_backend *_Atomic guard_backend_now;
_Atomic unsigned int guard_forks;
static _Atomic uint32_t lock_word;

/* A page that the kernel wipes in the child of a fork: tells a child that was made behind everybody's back. */
static _Atomic uint32_t *same_process;

static struct cost protecting, releasing;

/* The lock ------------------------------------------------------------------------------------------------------------- */

uint64_t guard_signals_block(void)
{
	uint64_t all = ~0ull, before = 0;

	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof(all), 0, 0);
	return before;
}

void guard_signals_restore(uint64_t mask)
{
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof(mask), 0, 0);
}

static __attribute__((noinline)) char stack_touch(void)
{
	volatile char room[STACK_NEED];

	room[0] = 0;
	room[STACK_NEED - 1] = 0;
	return room[0];
}

void guard_lock_take(void)
{
	uint32_t expected = FREE_LOCK;

	if (atomic_compare_exchange_strong(&lock_word, &expected, HELD))
		return;
	while (atomic_exchange(&lock_word, CONTENDED) != FREE_LOCK)
		sys_call(SYS_futex, (long)&lock_word, FUTEX_WAIT_PRIVATE, CONTENDED, 0, 0, 0);
}

void guard_lock_give(void)
{
	if (atomic_exchange(&lock_word, FREE_LOCK) == CONTENDED)
		sys_call(SYS_futex, (long)&lock_word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

/*
 * The child has no guards: its pages are its own, and what protects them is the parent's. The books may be as another thread
 * of the parent had them in the middle of a change, and not even of one moment: they begin anew, and nothing of them is used.
 */
static void become_child(void)
{
	const struct guard_backend *kind = atomic_load(&guard_backend_now);

	atomic_store(same_process, 1);
	guard_visits_forget();
	memory_close();
	if (kind)
		kind->child();
	books_forget();
	guard_stacks_child();
	atomic_store(&guard_forks, 0);
}

uint64_t guard_lock(void)
{
	uint64_t mask = guard_signals_block();

	/* Under mprotect stacks are not guarded, and the lock may be taken on a small signal stack. */
	if (atomic_load_explicit(&guard_backend_now, memory_order_relaxed) == &guard_backend_uffd)
		stack_touch();
	if (same_process && !atomic_load_explicit(same_process, memory_order_relaxed)) {
		atomic_store(&lock_word, FREE_LOCK); /* of a thread that this process does not have */
		guard_lock_take();
		become_child();
	} else {
		guard_lock_take();
	}
	return mask;
}

void guard_unlock(uint64_t mask)
{
	guard_lock_give();
	guard_signals_restore(mask);
}

/* Choosing ------------------------------------------------------------------------------------------------------------- */

static const struct guard_backend *backend_of(enum guard_kind kind)
{
	switch (kind) {
	case GUARD_UFFD:
		return &guard_backend_uffd;
	case GUARD_MPROTECT:
		return &guard_backend_mprotect;
	case GUARD_OFF:
		return settings_guard_can_be_off() ? &guard_backend_off : NULL;
	default:
		return NULL;
	}
}

static enum guard_kind kind_of(const struct guard_backend *which)
{
	return which == &guard_backend_uffd	? GUARD_UFFD :
	       which == &guard_backend_mprotect ? GUARD_MPROTECT :
						  GUARD_OFF;
}

/* Takes `which` into use if it can be had. Returns 0 or -ENOTSUP. */
static int backend_use(const struct guard_backend *which)
{
	int rc = which ? which->available() : -ENOTSUP;

	if (!rc)
		atomic_store(&guard_backend_now, which);
	return rc;
}

static int canary_start(void)
{
	long at;

	if (same_process)
		return 0;
	at = sys_call(SYS_mmap, 0, GUARD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at < 0 && at > -4096)
		return -ENOMEM;
	sys_call(SYS_madvise, at, GUARD_PAGE, MADV_WIPEONFORK, 0, 0, 0);
	atomic_store((_Atomic uint32_t *)at, 1);
	same_process = (_Atomic uint32_t *)at;
	return 0;
}

int guard_start(enum guard_kind kind)
{
	int rc = canary_start();

	if (rc)
		return rc;
	asked = kind;
	if (kind == GUARD_AUTO) {
		rc = backend_use(&guard_backend_uffd);
		if (rc)
			rc = backend_use(&guard_backend_mprotect);
	} else {
		rc = backend_use(backend_of(kind));
	}
	if (rc) {
		atomic_store(&guard_backend_now, NULL);
		log_info("no guard: asked for kind %d, error %d", (int)kind, -rc);
		return -ENOTSUP;
	}
	log_info("guard: %s", atomic_load(&guard_backend_now)->name);
	return (int)kind_of(atomic_load(&guard_backend_now));
}

/* Makes what guard_start() chose ready for use; a child that lost its rights falls from userfaultfd to mprotect. */
static int backend_ready(void)
{
	const struct guard_backend *kind = atomic_load(&guard_backend_now);
	int rc;

	if (!kind)
		return -ENOTSUP;
	rc = kind->start();
	if (rc == -ENOTSUP && asked == GUARD_AUTO && kind == &guard_backend_uffd)
		rc = backend_use(&guard_backend_mprotect);
	else
		return rc;
	return rc ? rc : guard_backend_mprotect.start();
}

bool guard_needs_settling(void)
{
	return atomic_load_explicit(&guard_backend_now, memory_order_relaxed) == &guard_backend_mprotect;
}

bool guard_may_use_signal(void)
{
	const struct guard_backend *kind = atomic_load_explicit(&guard_backend_now, memory_order_acquire);

	return kind == &guard_backend_mprotect || (kind == &guard_backend_uffd && asked == GUARD_AUTO);
}

int guard_descriptors(int *out, int count)
{
	const struct guard_backend *kind = atomic_load(&guard_backend_now);
	int fds[8], used = 0, found = 0;

	found = memory_descriptors(fds, 8);
	if (kind)
		found += kind->descriptors(fds + found, 8 - found);
	for (int i = 0; i < found && used < count; i++)
		if (fds[i] >= 0)
			out[used++] = fds[i];
	return used;
}

/* Costs ---------------------------------------------------------------------------------------------------------------- */

uint64_t guard_cost_ns(size_t bytes)
{
	return cost_of(&protecting, bytes) + cost_of(&releasing, bytes);
}

/* Records -------------------------------------------------------------------------------------------------------------- */

void guard_free_uncovered(uintptr_t start, uintptr_t end)
{
	while (start < end) {
		struct guard_cover *cover = cover_first(start, end);

		if (!cover) {
			atomic_load(&guard_backend_now)->unprotect(start, end);
			return;
		}
		if (cover->start > start)
			atomic_load(&guard_backend_now)->unprotect(start, cover->start);
		start = cover->end;
	}
}

static int protect_locked(struct guard_record *record)
{
	const struct guard_backend *kind = atomic_load(&guard_backend_now);
	int rc;

	if (kind == &guard_backend_off)
		return 0;
	if (guard_stacks_touch(record->start, record->end, true))
		return -EINVAL;
	/* Each guarded range splits mappings, and the program needs its own share of them. */
	if (atomic_load(&guard_records) >= memory_mappings_max() / 8)
		return -ENOMEM;
	rc = kind->protect(record->start, record->end);
	if (rc)
		return rc;
	rc = cover_add(record, record->start, record->end);
	if (rc)
		guard_free_uncovered(record->start, record->end);
	return rc;
}

/* Takes the lock with the backend ready for use. Returns 0, or -errno without the lock. */
static int lock_ready(uint64_t *mask)
{
	for (;;) {
		int rc = backend_ready();

		if (rc)
			return rc;
		*mask = guard_lock();
		if (atomic_load(&guard_backend_now)->ready())
			return 0;
		guard_unlock(*mask); /* the handler thread went home in between */
	}
}

int guard_protect(void *start, size_t bytes, const struct guard_owner_ops *ops, void *owner, struct guard_record **out)
{
	uintptr_t from = (uintptr_t)start, to = from + bytes;
	uint64_t began = clock_now(), mask;
	struct guard_record *record;
	int rc;

	if (!bytes || to < from || from % GUARD_PAGE || bytes % GUARD_PAGE)
		return -EINVAL;
	rc = lock_ready(&mask);
	if (rc)
		return rc;
	rc = -EPERM;
	if (guard_needs_settling() && mask & 1ull << (SIGSEGV - 1))
		goto unlock;
	rc = -EAGAIN;
	if (atomic_load(&guard_forks))
		goto unlock;
	rc = -ENOMEM;
	record = record_new();
	if (!record)
		goto unlock;
	record->ops = ops;
	record->owner = owner;
	record->start = from;
	record->end = to;
	rc = protect_locked(record);
	if (rc) {
		record_free(record);
		goto unlock;
	}
	*out = record;
	guard_count(STAT_PROCESS_GUARDS, 1);
	guard_count(STAT_PROCESS_GUARD_BYTES, bytes);
unlock:
	guard_unlock(mask);
	if (!rc)
		cost_add(&protecting, bytes, clock_now() - began);
	return rc;
}

int guard_pinned(struct guard_record *record)
{
	const struct guard_backend *kind;
	uint64_t mask;
	int rc;

	if (!atomic_load(&record->taken))
		return 0;
	rc = lock_ready(&mask);
	if (rc)
		return rc;
	if (!record_is_here(record))
		goto unlock;
	atomic_store(&record->taken, false);
	/* Over what is left of its covers. A page that was pinned before it was taken is guarded for nothing: that can't be told. */
	kind = atomic_load(&guard_backend_now);
	/* During a fork: its child must not find it under guard, so what was pinned is replaced now. */
	if (!atomic_load(&guard_forks) || !kind->renew)
		rc = protect_locked(record);
	else if (!record_is_lent(record))
		rc = kind->renew(record->start, record->end);
unlock:
	guard_unlock(mask);
	return rc;
}

bool guard_holds(const void *start, size_t bytes)
{
	const uint64_t all = PAGEMAP_PRESENT | PAGEMAP_FILE | PAGEMAP_UFFD_WP;
	uintptr_t from = (uintptr_t)start, to = from + bytes;
	uint64_t mask;
	bool holds;

	if (!guard_active() || atomic_load(&guard_backend_now) != &guard_backend_uffd || from % GUARD_PAGE ||
	    bytes % GUARD_PAGE || to <= from)
		return false;
	mask = guard_lock();
	holds = memory_open() >= 0 && memory_pages_are(from, to, all, PAGEMAP_PRESENT | PAGEMAP_UFFD_WP);
	guard_unlock(mask);
	return holds;
}

/* Ends all covers of a record and frees the pages. */
static void uncover(struct guard_record *record)
{
	while (record->covers) {
		uintptr_t start = record->covers->start, end = record->covers->end;

		cover_remove(record->covers);
		guard_free_uncovered(start, end);
	}
}

void guard_shrink(struct guard_record *record, size_t bytes)
{
	uint64_t mask = guard_lock();
	uintptr_t from = record->start + ((bytes + GUARD_PAGE - 1) & ~(GUARD_PAGE - 1));

	if (!record_is_here(record))
		goto unlock;
	/* A mapping that was moved has covers elsewhere: those stay until the record ends. */
	for (struct guard_cover *cover = record->covers, *next; cover; cover = next) {
		uintptr_t start = cover->start > from ? cover->start : from, end = cover->end, unused;

		next = cover->record_next;
		if (cover->start < record->start || end > record->end || start >= end)
			continue;
		cover_cut(cover, start, end, &unused);
		guard_free_uncovered(start, end);
	}
	if (from < record->end)
		record->end = from;
unlock:
	guard_unlock(mask);
}

void guard_release(struct guard_record *record)
{
	uint64_t began = clock_now(), mask;
	size_t bytes = record->end - record->start;

	mask = guard_lock();
	if (record_is_here(record)) {
		uncover(record);
		guard_visits_wait(record->owner);
		record_free(record);
	}
	guard_unlock(mask);
	cost_add(&releasing, bytes, clock_now() - began);
}

/* Mappings --------------------------------------------------------------------------------------------------------- */

int guard_join(const void *start, size_t bytes)
{
	const struct guard_backend *kind = atomic_load(&guard_backend_now);
	uintptr_t from = (uintptr_t)start, to = from + ((bytes + GUARD_PAGE - 1) & ~(GUARD_PAGE - 1));
	uint64_t mask;
	int rc;

	if (!kind || from % GUARD_PAGE || to <= from)
		return -EINVAL;
	mask = guard_lock();
	rc = cover_find(from, to) ? -EBUSY : kind->join(from, to);
	guard_unlock(mask);
	return rc;
}

/* fork ----------------------------------------------------------------------------------------------------------------- */

/*
 * libc's fork waits for malloc's locks, and who holds one of those may have faulted and be waiting for ours. So ours is not
 * held over it. Instead nothing is under guard then: who faults has to do with the lock alone, and the child has ordinary pages.
 */
void guard_before_fork(void)
{
	uint64_t mask = guard_lock();

	if (guard_active())
		guard_take(0, UINTPTR_MAX & ~(GUARD_PAGE - 1));
	atomic_fetch_add(&guard_forks, 1);
	guard_unlock(mask);
}

void guard_after_fork(bool in_child)
{
	if (!in_child) {
		atomic_fetch_sub(&guard_forks, 1);
		return;
	}
	/* Not if a handler of pthread_atfork() has used the guard already. Where the kernel wipes nothing, it is done here. */
	if (same_process && atomic_load(&guard_forks))
		atomic_store(same_process, 0);
	guard_unlock(guard_lock());
}
