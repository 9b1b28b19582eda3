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
static _Atomic bool awaited;

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
	if (atomic_fetch_sub(&inside, 1) == 1 && (atomic_load(&closed) || atomic_load(&awaited)))
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

static void wait_for_all(uint64_t ns)
{
	uint64_t until = 0;
	uint32_t there;

	while ((there = atomic_load(&inside))) {
		if (!until)
			until = clock_now() + ns;
		else if (clock_now() > until)
			break;
		wait_while(&inside, there);
	}
}

void gate_close(void)
{
	atomic_store(&closed, 1);
	wait_for_all(PATIENCE_NS);
}

void gate_await(uint64_t ns)
{
	atomic_store(&awaited, true);
	wait_for_all(ns);
	atomic_store(&awaited, false);
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
