/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/gate.h"

#include <limits.h>
#include <time.h>

#include "common/clock.h"
#include "preload/lock.h"

#define PATIENCE_NS (10 * NS_PER_SEC) /* for those inside: one may be stopped, and the fork goes on */
#define LOOK_NS (10 * NS_PER_MS)

static _Atomic uint32_t inside; /* threads */
static _Atomic uint32_t closed;

static void wait_while(_Atomic uint32_t *word, uint32_t value)
{
	const struct timespec most = { .tv_nsec = LOOK_NS };

	sys_call(SYS_futex, (long)word, FUTEX_WAIT_PRIVATE, (long)value, (long)&most, 0, 0);
}

static void wake(_Atomic uint32_t *word)
{
	sys_call(SYS_futex, (long)word, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

static void step_out(void)
{
	if (atomic_fetch_sub(&inside, 1) == 1 && atomic_load(&closed))
		wake(&inside);
}

/* Signals wait with their handlers, as with a lock: one that forked would wait for its own thread. */
void gate_enter(void)
{
	bool waits = !lock_depth;

	lock_deeper();
	for (;;) {
		atomic_fetch_add(&inside, 1);
		if (!waits || !atomic_load(&closed))
			return;
		step_out();
		wait_while(&closed, 1);
	}
}

void gate_leave(void)
{
	step_out();
	lock_less_deep();
}

void gate_close(void)
{
	uint64_t until = 0;
	uint32_t there;

	atomic_store(&closed, 1);
	while ((there = atomic_load(&inside))) {
		if (!until)
			until = clock_now() + PATIENCE_NS;
		else if (clock_now() > until)
			break;
		wait_while(&inside, there);
	}
}

bool gate_has_others(void)
{
	return atomic_load(&inside);
}

void gate_open(bool child)
{
	if (child)
		atomic_store(&inside, 0);
	atomic_store(&closed, 0);
	if (!child)
		wake(&closed);
}
