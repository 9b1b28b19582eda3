/* SPDX-License-Identifier: MIT */
/*
 * The lock of a connection: a futex word that holds its owner's thread id. It is held for bounded work only, never across a
 * call that may wait. While it is held all signals are blocked if the program has handlers, so that a handler that sends on
 * the same connection finds it free; a thread that meets its own lock all the same (its handler was installed a moment ago)
 * is told so instead of waiting for itself.
 */
#ifndef ZC_PRELOAD_LOCK_H
#define ZC_PRELOAD_LOCK_H

#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/sys.h"

#define LOCK_WAITERS 0x80000000u

struct lock {
	_Atomic uint32_t word; /* 0 or thread id, with LOCK_WAITERS */
};

/* What lock_take keeps for lock_give: the signal mask of before. */
struct lock_hold {
	uint64_t mask;
	bool masked;
};

extern __thread uint32_t lock_thread __attribute__((tls_model("initial-exec")));
extern _Atomic bool lock_handlers; /* the program has signal handlers */

static inline uint32_t lock_self(void)
{
	if (__builtin_expect(!lock_thread, 0))
		lock_thread = (uint32_t)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	return lock_thread;
}

static inline void lock_mask(struct lock_hold *hold)
{
	static const uint64_t all = ~0ull;

	hold->masked = atomic_load_explicit(&lock_handlers, memory_order_relaxed);
	if (hold->masked)
		sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&hold->mask, sizeof(all), 0, 0);
}

static inline void lock_unmask(const struct lock_hold *hold)
{
	if (hold->masked)
		sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&hold->mask, 0, sizeof(hold->mask), 0, 0);
}

static inline bool lock_try(struct lock *lock)
{
	uint32_t free = 0;

	return atomic_compare_exchange_strong_explicit(&lock->word, &free, lock_self(), memory_order_acquire,
						       memory_order_relaxed);
}

/* Takes the lock. Returns false if this thread has it already; then nothing is to be given back. */
bool lock_wait(struct lock *lock);

static inline bool lock_take(struct lock *lock, struct lock_hold *hold)
{
	lock_mask(hold);
	if (__builtin_expect(lock_try(lock), 1) || lock_wait(lock))
		return true;
	lock_unmask(hold);
	return false;
}

static inline void lock_give(struct lock *lock, const struct lock_hold *hold)
{
	uint32_t was = atomic_exchange_explicit(&lock->word, 0, memory_order_release);

	if (was & LOCK_WAITERS)
		sys_call(SYS_futex, (long)&lock->word, FUTEX_WAKE, 1, 0, 0, 0);
	lock_unmask(hold);
}

#endif
