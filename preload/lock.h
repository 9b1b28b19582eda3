/* SPDX-License-Identifier: MIT */
/*
 * The lock of a connection: a futex word that holds its owner's thread id. It is held for bounded work only, never across a
 * call that may wait. A signal that comes while it is held waits with its handler, so that one that sends on the same
 * connection finds it free; a thread that meets its own lock all the same (in the handler of a fault, or in one that was
 * installed behind our back) is told so instead of waiting for itself.
 *
 * A lock in memory that processes share may have a holder that is killed. Whoever has waited for it for a while asks whether
 * the holder still exists. If not, the lock is lost, for good: what it protects may be half done, and nobody ever takes it
 * again. So it can do no harm to be wrong about that; the connection is given up (engine_lost).
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
#include "preload/unseen.h"

#define LOCK_WAITERS 0x80000000u
#define LOCK_LOST 0x7fffffffu	  /* in place of a thread id; no thread has it */
#define LOCK_PATIENCE_NS 50000000 /* until a waiter asks whether the holder still exists */

enum lock_kind {
	LOCK_PRIVATE, /* in memory of one process: it ends with its holder */
	LOCK_SHARED,
	LOCK_FAR, /* by processes that don't know each other's thread ids, in several pid namespaces: nobody asks */
};

struct lock {
	_Atomic uint32_t word; /* 0, or thread id or LOCK_LOST, with LOCK_WAITERS */
	_Atomic uint32_t kind; /* enum lock_kind; looked at by waiters only */
};

/* Nothing is kept between the two; it makes a lock_give without its lock_take a mistake that the compiler finds. */
struct lock_hold {
	struct lock *lock;
};

extern __thread uint32_t lock_thread __attribute__((tls_model("initial-exec")));

/* Locks that the thread has; a signal that comes meanwhile waits until there is none (calls_signal.c). */
extern __thread uint32_t lock_depth __attribute__((tls_model("initial-exec")));
extern __thread uint64_t lock_signals
	__attribute__((tls_model("initial-exec"))); /* which ones wait: a kernel's sigset */

uint32_t lock_learn_self(void);

static inline uint32_t lock_self(void)
{
	return __builtin_expect(lock_thread != 0, 1) && !unseen_fork() ? lock_thread : lock_learn_self();
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

/* Whether its holder was killed: lock_take() fails from now on. */
static inline bool lock_is_lost(struct lock *lock)
{
	return (atomic_load(&lock->word) & ~LOCK_WAITERS) == LOCK_LOST;
}

#define LOCK_FOREVER UINT64_MAX

/*
 * Takes the lock, until `until` (ns, clock_now()) or LOCK_FOREVER. Returns false if this thread has it already, if it is lost, or if it is
 * somebody's still; then nothing is to be given back.
 */
bool lock_wait(struct lock *lock, uint64_t until);

static inline bool lock_take(struct lock *lock, struct lock_hold *hold)
{
	lock_deeper();
	hold->lock = lock;
	if (__builtin_expect(lock_free_now(lock), 1) || lock_wait(lock, LOCK_FOREVER))
		return true;
	lock_less_deep();
	return false;
}

/* The same of somebody who has others to serve. */
static inline bool lock_take_until(struct lock *lock, struct lock_hold *hold, uint64_t until)
{
	lock_deeper();
	hold->lock = lock;
	if (lock_free_now(lock) || lock_wait(lock, until))
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
