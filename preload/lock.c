/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/lock.h"

#include <errno.h>
#include <limits.h>
#include <sys/uio.h>
#include <time.h>

#include "common/clock.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/signals.h"

__thread uint32_t lock_thread __attribute__((tls_model("initial-exec")));
__thread uint32_t lock_depth __attribute__((tls_model("initial-exec")));
__thread uint64_t lock_signals __attribute__((tls_model("initial-exec")));
__thread uint32_t signals_run __attribute__((tls_model("initial-exec")));
__thread uint32_t signals_end_calls __attribute__((tls_model("initial-exec")));

uint32_t lock_learn_self(void)
{
	uint32_t self;

	unseen_settle();
	if (lock_thread && guest_sandboxed())
		return lock_thread;
	self = (uint32_t)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);

	/* A child of vfork has its parent's thread variables, in which its own number would stay behind: one of nobody. */
	if (guest_sandboxed() || conn_process() == (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0))
		lock_thread = self;
	return self;
}

void lock_let_signals_in(void)
{
	uint64_t waiting = lock_signals;

	lock_signals = 0;
	sys_call(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&waiting, 0, sizeof(waiting), 0, 0);
}

/*
 * Whether a thread will never run again. There is none of that number; or it has no memory any more: the main thread of a process
 * that nobody has waited for yet keeps its number, and is found by kill(), but gives up its memory when it dies. The byte that is
 * asked for is the lock's own, which all its users have at this place.
 */
static bool is_gone(struct lock *lock, uint32_t thread)
{
	char byte;
	struct iovec here = { &byte, 1 }, there = { lock, 1 };

	if (guest_sandboxed())
		return false; /* can't be asked */
	return sys_call(SYS_kill, thread, 0, 0, 0, 0, 0) == -ESRCH ||
	       sys_call(SYS_process_vm_readv, thread, (long)&here, 1, (long)&there, 1, 0) == -ESRCH;
}

/* What was the holder's when it died is nobody's from now on. */
static void lose(struct lock *lock, uint32_t word)
{
	if (atomic_compare_exchange_strong(&lock->word, &word, LOCK_LOST))
		sys_call(SYS_futex, (long)&lock->word, FUTEX_WAKE, INT_MAX, 0, 0, 0);
}

struct patience {
	uint32_t word; /* as long as the lock's stays what it is, */
	uint64_t since;
	uint64_t until; /* LOCK_FOREVER, or when the wait is over */
};

/* Sleeps until the lock is given back. Returns whether it was not, for so long that it is time to ask for the holder. */
static bool sleeps_long(struct lock *lock, uint32_t word, struct patience *patience)
{
	struct timespec most = { .tv_nsec = LOCK_PATIENCE_NS };
	bool asks = atomic_load(&lock->kind) != LOCK_PRIVATE, ends = patience->until != LOCK_FOREVER;
	uint64_t now = asks || ends ? clock_now() : 0;

	if (ends && patience->until < now + LOCK_PATIENCE_NS)
		most.tv_nsec = patience->until > now ? (long)(patience->until - now) : 0;
	if (asks && patience->word != word) {
		patience->word = word;
		patience->since = now;
	}
	sys_call(SYS_futex, (long)&lock->word, FUTEX_WAIT, (long)(int)word, asks || ends ? (long)&most : 0, 0, 0);
	/* By the clock, for signals may end each sleep. */
	if (!asks || clock_now() - patience->since < LOCK_PATIENCE_NS)
		return false;
	patience->word = 0;
	/* Looked at once more: whoever does not share our numbers says so before it takes the lock. */
	return atomic_load(&lock->kind) == LOCK_SHARED;
}

/* Whether the lock that has this thread's number is this thread's. If it has no other, that was one of the same number. */
static bool is_own(struct lock *lock)
{
	return lock_depth > 1 || atomic_load(&lock->kind) == LOCK_PRIVATE;
}

bool lock_wait(struct lock *lock, uint64_t until)
{
	struct patience patience = { .until = until };
	uint32_t self = lock_self();

	for (;;) {
		uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);
		uint32_t holder = word & ~LOCK_WAITERS;

		if (!word) {
			/* Taken as contended: we can't know who else sleeps. */
			if (atomic_compare_exchange_weak_explicit(&lock->word, &word, self | LOCK_WAITERS,
								  memory_order_acquire, memory_order_relaxed))
				return true;
			continue;
		}
		if (holder == LOCK_LOST) {
			engine_lost(lock);
			return false;
		}
		if (holder == self && is_own(lock))
			return false;
		if (!(word & LOCK_WAITERS) && !atomic_compare_exchange_weak(&lock->word, &word, word | LOCK_WAITERS))
			continue;
		/* With the mark set: the wake may have been ours, and others sleep yet. */
		if (until != LOCK_FOREVER && clock_now() >= until)
			return false;
		word |= LOCK_WAITERS;
		if (sleeps_long(lock, word, &patience) && (holder == self || is_gone(lock, holder)))
			lose(lock, word);
	}
}
