/* SPDX-License-Identifier: MIT */
#include "preload/lock.h"

#include "preload/signals.h"

__thread uint32_t lock_thread __attribute__((tls_model("initial-exec")));
__thread uint32_t lock_depth __attribute__((tls_model("initial-exec")));
__thread uint64_t lock_signals __attribute__((tls_model("initial-exec")));
__thread uint32_t signals_run __attribute__((tls_model("initial-exec")));
__thread uint32_t signals_end_calls __attribute__((tls_model("initial-exec")));

void lock_let_signals_in(void)
{
	uint64_t waiting = lock_signals;

	lock_signals = 0;
	sys_call(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&waiting, 0, sizeof(waiting), 0, 0);
}

bool lock_wait(struct lock *lock)
{
	uint32_t self = lock_self();

	for (;;) {
		uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);

		if (!word) {
			/* Taken as contended: we can't know who else sleeps. */
			if (atomic_compare_exchange_weak_explicit(&lock->word, &word, self | LOCK_WAITERS,
								  memory_order_acquire, memory_order_relaxed))
				return true;
			continue;
		}
		if ((word & ~LOCK_WAITERS) == self)
			return false;
		if (!(word & LOCK_WAITERS) &&
		    !atomic_compare_exchange_weak(&lock->word, &word, word | LOCK_WAITERS))
			continue;
		sys_call(SYS_futex, (long)&lock->word, FUTEX_WAIT, (long)(int)(word | LOCK_WAITERS), 0, 0, 0);
	}
}
