/* SPDX-License-Identifier: MIT */
/*
 * The lock of a connection: a futex word that holds its owner's thread id. It is held for bounded work only, never across a
 * call that may wait. A signal that comes while it is held waits with its handler, so that one that sends on the same
 * connection finds it free; a thread that meets its own lock all the same (in the handler of a fault, or in one that was
 * installed behind our back) is told so instead of waiting for itself.
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

/* Nothing is kept between the two; it makes a lock_give without its lock_take a mistake that the compiler finds. */
struct lock_hold {
	struct lock *lock;
};

extern __thread uint32_t lock_thread __attribute__((tls_model("initial-exec")));

/* Locks that the thread has; a signal that comes meanwhile waits until there is none (calls_signal.c). */
extern __thread uint32_t lock_depth __attribute__((tls_model("initial-exec")));
extern __thread uint64_t lock_signals __attribute__((tls_model("initial-exec"))); /* which ones wait: a kernel's sigset */

static inline uint32_t lock_self(void)
{
	if (__builtin_expect(!lock_thread, 0))
		lock_thread = (uint32_t)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	return lock_thread;
}

/* Lets in the signals that have waited. */
void lock_let_signals_in(void);

static inline void lock_deeper(void)
{
	lock_depth++;
	atomic_signal_fence(memory_order_seq_cst);
}

static inline void lock_less_deep(void)
{
	atomic_signal_fence(memory_order_seq_cst);
	lock_depth--;
	atomic_signal_fence(memory_order_seq_cst);
	if (__builtin_expect(lock_signals != 0, 0) && !lock_depth)
		lock_let_signals_in();
}

static inline bool lock_free_now(struct lock *lock)
{
	uint32_t free = 0;

	return atomic_compare_exchange_strong_explicit(&lock->word, &free, lock_self(), memory_order_acquire,
						       memory_order_relaxed);
}

/* Takes the lock. Returns false if this thread has it already; then nothing is to be given back. */
bool lock_wait(struct lock *lock);

static inline bool lock_take(struct lock *lock, struct lock_hold *hold)
{
	lock_deeper();
	hold->lock = lock;
	if (__builtin_expect(lock_free_now(lock), 1) || lock_wait(lock))
		return true;
	lock_less_deep();
	return false;
}

/* Takes the lock if nobody has it. */
static inline bool lock_try(struct lock *lock, struct lock_hold *hold)
{
	lock_deeper();
	hold->lock = lock;
	if (lock_free_now(lock))
		return true;
	lock_less_deep();
	return false;
}

static inline void lock_give(struct lock *lock, const struct lock_hold *hold)
{
	uint32_t was = atomic_exchange_explicit(&lock->word, 0, memory_order_release);

	if (was & LOCK_WAITERS)
		sys_call(SYS_futex, (long)&lock->word, FUTEX_WAKE, 1, 0, 0, 0);
	lock_less_deep();
}

#endif
