/* SPDX-License-Identifier: MIT */
/*
 * The guard of guard.h: the lock, the records, and what happens on a fault.
 *
 * The lock is a futex that is only held with all signals blocked, so that a signal handler that sends cannot meet it in its
 * own thread. While it is held nothing touches program memory that could be guarded; the stack is such memory, and is
 * therefore touched as deep as we will need it before the lock is taken.
 *
 * An owner may go away as soon as its last record is released, so guard_release() waits for a call of the owner's poll()
 * that runs on another thread (a "visit"); poll() never waits, hence nobody waits in a circle.
 */
#define _GNU_SOURCE
#include "rdma/guard.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/settings.h"
#include "rdma/guard_internal.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_NEED 32768
#else
#define STACK_NEED 4096
#endif
#define RUN_PAGES_MAX 64
#define COST_CLASSES 20
#define FREE_LOCK 0
#define HELD 1
#define CONTENDED 2

int (*guard_install_handler)(void);

static enum guard_kind asked = GUARD_AUTO;
static const struct guard_backend *_Atomic backend;
static _Atomic uint32_t lock_word;

/* A page that the kernel wipes in the child of a fork: tells a child that was made behind everybody's back. */
static _Atomic uint32_t *same_process;

/* A call of an owner's poll() that is running. */
struct visit {
	void *owner;
	int thread;
	struct visit *next;
};
static struct visit *visits;

static _Atomic uint64_t protect_ns[COST_CLASSES], release_ns[COST_CLASSES];

/* The lock ------------------------------------------------------------------------------------------------------------- */

static uint64_t signals_block(void)
{
	uint64_t all = ~0ull, before = 0;

	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&before, sizeof(all), 0, 0);
	return before;
}

static void signals_restore(uint64_t mask)
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

static void lock_take(void)
{
	uint32_t expected = FREE_LOCK;

	if (atomic_compare_exchange_strong(&lock_word, &expected, HELD))
		return;
	while (atomic_exchange(&lock_word, CONTENDED) != FREE_LOCK)
		sys_call(SYS_futex, (long)&lock_word, FUTEX_WAIT_PRIVATE, CONTENDED, 0, 0, 0);
}

static void lock_give(void)
{
	if (atomic_exchange(&lock_word, FREE_LOCK) == CONTENDED)
		sys_call(SYS_futex, (long)&lock_word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
}

/* The child has no guards: its pages are its own, and what protects them is the parent's. */
static void become_child(void)
{
	const struct guard_backend *kind = atomic_load(&backend);

	atomic_store(same_process, 1);
	visits = NULL;
	memory_close();
	if (kind)
		kind->child();
	for (struct guard_record *record = guard_all; record; record = record->next)
		while (record->covers)
			cover_remove(record->covers);
}

uint64_t guard_lock(void)
{
	uint64_t mask = signals_block();

	/* Under mprotect stacks are not guarded, and the lock may be taken on a small signal stack. */
	if (atomic_load_explicit(&backend, memory_order_relaxed) == &guard_backend_uffd)
		stack_touch();
	if (same_process && !atomic_load_explicit(same_process, memory_order_relaxed)) {
		atomic_store(&lock_word, FREE_LOCK); /* of a thread that this process does not have */
		lock_take();
		become_child();
	} else {
		lock_take();
	}
	return mask;
}

void guard_unlock(uint64_t mask)
{
	lock_give();
	signals_restore(mask);
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
	return which == &guard_backend_uffd ? GUARD_UFFD : which == &guard_backend_mprotect ? GUARD_MPROTECT : GUARD_OFF;
}

/* Takes `which` into use if it can be had. Returns 0 or -ENOTSUP. */
static int backend_use(const struct guard_backend *which)
{
	int rc = which ? which->available() : -ENOTSUP;

	if (!rc)
		atomic_store(&backend, which);
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
		atomic_store(&backend, NULL);
		log_info("no guard: asked for kind %d, error %d", (int)kind, -rc);
		return -ENOTSUP;
	}
	log_info("guard: %s", atomic_load(&backend)->name);
	return (int)kind_of(atomic_load(&backend));
}

/* Makes what guard_start() chose ready for use; a child that lost its rights falls from userfaultfd to mprotect. */
static int backend_ready(void)
{
	const struct guard_backend *kind = atomic_load(&backend);
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
	return atomic_load_explicit(&backend, memory_order_relaxed) == &guard_backend_mprotect;
}

int guard_descriptors(int *out, int count)
{
	const struct guard_backend *kind = atomic_load(&backend);
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

static unsigned int cost_class(size_t bytes)
{
	size_t pages = bytes >> GUARD_PAGE_SHIFT;
	unsigned int class = pages ? 63u - (unsigned int)__builtin_clzll(pages) : 0;

	return class < COST_CLASSES ? class : COST_CLASSES - 1;
}

/* Running average over some 16 samples; the first counts in full. */
static void cost_add(_Atomic uint64_t *average, uint64_t ns)
{
	uint64_t old = atomic_load_explicit(average, memory_order_relaxed);
	uint64_t next = old ? old - old / 16 + ns / 16 : ns;

	atomic_store_explicit(average, next ? next : 1, memory_order_relaxed);
}

uint64_t guard_cost_ns(size_t bytes)
{
	unsigned int class = cost_class(bytes);

	return atomic_load_explicit(&protect_ns[class], memory_order_relaxed) +
	       atomic_load_explicit(&release_ns[class], memory_order_relaxed);
}

/* Records -------------------------------------------------------------------------------------------------------------- */

void guard_free_uncovered(uintptr_t start, uintptr_t end)
{
	while (start < end) {
		struct guard_cover *cover = cover_first(start, end);

		if (!cover) {
			atomic_load(&backend)->unprotect(start, end);
			return;
		}
		if (cover->start > start)
			atomic_load(&backend)->unprotect(start, cover->start);
		start = cover->end;
	}
}

static int protect_locked(struct guard_record *record)
{
	const struct guard_backend *kind = atomic_load(&backend);
	int rc;

	if (kind == &guard_backend_off)
		return 0;
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
		if (atomic_load(&backend)->ready())
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
		cost_add(&protect_ns[cost_class(bytes)], clock_now() - began);
	return rc;
}

int guard_pinned(struct guard_record *record)
{
	uint64_t mask;
	int rc;

	if (!atomic_load(&record->taken))
		return 0;
	rc = lock_ready(&mask);
	if (rc)
		return rc;
	atomic_store(&record->taken, false);
	/* Over what is left of its covers. A page that was pinned before it was taken is guarded for nothing: that can't be told. */
	rc = protect_locked(record);
	guard_unlock(mask);
	return rc;
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
	guard_unlock(mask);
}

static bool is_visited(void *owner, int self)
{
	for (struct visit *visit = visits; visit; visit = visit->next)
		if (visit->owner == owner && visit->thread != self)
			return true;
	return false;
}

/* Waits until no other thread is in poll() of this owner. With the lock, which it gives away meanwhile. */
static void visits_wait(void *owner)
{
	int self;

	if (!visits)
		return;
	self = (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	while (is_visited(owner, self)) {
		lock_give();
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		lock_take();
	}
}

void guard_release(struct guard_record *record)
{
	uint64_t began = clock_now(), mask;
	size_t bytes = record->end - record->start;

	mask = guard_lock();
	uncover(record);
	visits_wait(record->owner);
	record_free(record);
	guard_unlock(mask);
	cost_add(&release_ns[cost_class(bytes)], clock_now() - began);
}

/* Taking pages away ---------------------------------------------------------------------------------------------------- */

struct taking {
	uintptr_t start;
	uintptr_t end;
	bool pinned;
};

static void take_for_owner(struct guard_cover *cover, void *arg)
{
	struct taking *taking = arg;
	struct guard_record *record = cover->record;
	uintptr_t start = cover->start > taking->start ? cover->start : taking->start;
	uintptr_t end = cover->end < taking->end ? cover->end : taking->end;

	atomic_store(&record->taken, true);
	if (record->ops && record->ops->take_copy)
		record->ops->take_copy(record->owner, record, (const void *)start, end - start);
	else
		taking->pinned = true;
}

/* Takes [start, end) away from all records that cover it. */
static void take(uintptr_t start, uintptr_t end)
{
	struct taking taking = { start, end, false };
	struct guard_cover *cover;

	cover_each(start, end, take_for_owner, &taking);
	guard_count(STAT_PROCESS_FAULT_COPIES, (end - start) >> GUARD_PAGE_SHIFT);
	if (taking.pinned)
		atomic_load(&backend)->take(start, end);
	else
		atomic_load(&backend)->unprotect(start, end);
	while ((cover = cover_find(start, end))) {
		uintptr_t lost = end;

		/* Out of memory for the books: what can't be booked is taken as well. Fresh pages do no record harm. */
		if (cover_cut(cover, start, end, &lost))
			atomic_load(&backend)->take(end, lost);
	}
}

void guard_settle(const void *start, size_t bytes)
{
	uintptr_t from = (uintptr_t)start & ~(GUARD_PAGE - 1);
	uintptr_t to = (uintptr_t)start + bytes;
	struct guard_cover *cover;
	uint64_t mask;

	if (!bytes || !guard_active())
		return;
	to = to < (uintptr_t)start || to > UINTPTR_MAX - GUARD_PAGE ? UINTPTR_MAX & ~(GUARD_PAGE - 1) :
								      (to + GUARD_PAGE - 1) & ~(GUARD_PAGE - 1);
	mask = guard_lock();
	if (cover_find(from, to))
		guard_count(STAT_PROCESS_SETTLES, 1);
	while ((cover = cover_find(from, to)))
		take(cover->start > from ? cover->start : from, cover->end < to ? cover->end : to);
	guard_unlock(mask);
}

int guard_join(const void *start, size_t bytes)
{
	const struct guard_backend *kind = atomic_load(&backend);
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

void guard_forget(const void *start, size_t bytes)
{
	/*
	 * Nothing to do: what the kernel drops with the pages, both implementations notice by themselves, because they must
	 * for calls that nobody announces; and the call that was announced may yet fail and leave all as it was.
	 */
	(void)start;
	(void)bytes;
}

void guard_settle_owner(void *owner)
{
	uint64_t mask = guard_lock();
	struct guard_record *next;

	for (struct guard_record *record = guard_all; record; record = record->next)
		while (record->owner == owner && record->covers)
			take(record->covers->start, record->covers->end);
	visits_wait(owner);
	for (struct guard_record *record = guard_all; record; record = next) {
		next = record->next;
		if (record->owner == owner)
			record_free(record);
	}
	guard_unlock(mask);
}

/* Faults --------------------------------------------------------------------------------------------------------------- */

/* Calls the owner's poll() without the lock; in and out with it. Signals stay blocked. */
static void visit_owner(struct guard_record *record, bool fault)
{
	struct visit visit = { record->owner, (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0), visits };
	const struct guard_owner_ops *ops = record->ops;
	bool tell = fault && !record->told && ops->faulted;

	visits = &visit;
	record->told |= fault;
	lock_give();
	if (tell)
		ops->faulted(visit.owner, record);
	if (ops->poll)
		ops->poll(visit.owner);
	lock_take();
	for (struct visit **at = &visits; *at; at = &(*at)->next)
		if (*at == &visit) {
			*at = visit.next;
			break;
		}
}

/*
 * Block-on-write: asks the owners of the page until it is free or time is up. A record waits so only once, however many of
 * its pages are written to: a program that rewrites its whole buffer must not pay for each page.
 */
static void block_on_write(uintptr_t page)
{
	uint64_t limit = settings.block_us * NS_PER_US;
	struct guard_cover *cover;
	uint64_t began = clock_now(), now = began;

	while ((cover = cover_find(page, page + GUARD_PAGE))) {
		struct guard_record *record = cover->record;

		if (!record->ops)
			return;
		visit_owner(record, true);
		cover = cover_find(page, page + GUARD_PAGE);
		if (!cover)
			return;
		now = clock_now();
		if (now - began + cover->record->waited_ns >= limit) {
			cover->record->waited_ns += now - began;
			return;
		}
		lock_give();
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		lock_take();
	}
}

/* How much to take at one time: a program that writes through its buffer in order gets ever longer runs. */
static uintptr_t run_end(uintptr_t page)
{
	struct guard_cover *cover = cover_find(page, page + GUARD_PAGE);
	struct guard_record *record = cover->record;
	uintptr_t end;

	if (record->run_next == page && record->run_pages)
		record->run_pages = record->run_pages < RUN_PAGES_MAX ? record->run_pages * 2 : RUN_PAGES_MAX;
	else
		record->run_pages = 1;
	end = page + (record->run_pages << GUARD_PAGE_SHIFT);
	if (end > cover->end)
		end = cover->end;
	record->run_next = end;
	return end;
}

static void clear_told(struct guard_cover *cover, void *arg)
{
	cover->record->told = false;
}

bool guard_fault(uintptr_t page)
{
	uint64_t mask = guard_lock();
	bool ours = true;

	if (!cover_find(page, page + GUARD_PAGE)) {
		ours = atomic_load(&backend)->stray(page);
		goto unlock;
	}
	guard_count(STAT_PROCESS_FAULTS, 1);
	cover_each(page, page + GUARD_PAGE, clear_told, NULL);
	block_on_write(page);
	if (cover_find(page, page + GUARD_PAGE))
		take(page, run_end(page));
	else
		guard_count(STAT_PROCESS_FAULT_WAITS, 1);
unlock:
	guard_unlock(mask);
	return ours;
}

void guard_poll_owners(void)
{
	static uint64_t round; /* under the lock */
	uint64_t mask = guard_lock();
	struct guard_record *record;

	round++;
	for (record = guard_all; record;) {
		struct guard_record *other;
		void *owner = record->owner;

		if (record->polled == round || !record->ops || !record->covers) {
			record = record->next;
			continue;
		}
		for (other = record; other; other = other->next)
			if (other->owner == owner)
				other->polled = round;
		visit_owner(record, false);
		record = guard_all; /* the list may have changed */
	}
	guard_unlock(mask);
}

bool guard_handle_signal(int signal, siginfo_t *info, void *context)
{
	uint64_t mask;
	bool ours;

	if (signal != SIGSEGV || !guard_needs_settling() || info->si_code != SEGV_ACCERR)
		return false;
#if defined(__x86_64__)
	if (!(((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2)) /* not a write */
		return false;
#endif
	mask = signals_block();
	ours = guard_fault((uintptr_t)info->si_addr & ~(GUARD_PAGE - 1));
	signals_restore(mask);
	return ours;
}

/* fork ----------------------------------------------------------------------------------------------------------------- */

static uint64_t fork_mask;

void guard_before_fork(void)
{
	uint64_t mask = guard_lock();

	fork_mask = mask;
}

void guard_after_fork(bool in_child)
{
	uint64_t mask = fork_mask;

	if (in_child && same_process)
		become_child();
	guard_unlock(mask);
}

/* Off: for showing that tests notice when there is no guard (debug builds). --------------------------------------------- */

static int off_start(void)
{
	return 0;
}

static bool off_ready(void)
{
	return true;
}

static int off_protect(uintptr_t start, uintptr_t end)
{
	return 0;
}

static void off_range(uintptr_t start, uintptr_t end)
{
}

static int off_join(uintptr_t start, uintptr_t end)
{
	return -EINVAL;
}

static bool off_stray(uintptr_t page)
{
	return false;
}

static void off_child(void)
{
}

static int off_descriptors(int *out, int count)
{
	return 0;
}

const struct guard_backend guard_backend_off = {
	.name = "off",
	.available = off_start,
	.start = off_start,
	.ready = off_ready,
	.protect = off_protect,
	.unprotect = off_range,
	.take = off_range,
	.join = off_join,
	.stray = off_stray,
	.child = off_child,
	.descriptors = off_descriptors,
};
