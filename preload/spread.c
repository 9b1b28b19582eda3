/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/spread.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/guest.h"

#define PAUSE_FIRST_NS (5 * NS_PER_MS) /* between two moves, then ever longer: the scheduler may know better */
#define PAUSE_MAX_NS (1000 * NS_PER_MS)
#define SERVER_PATIENCE_NS (5 * NS_PER_MS) /* the connecting end moves first; it may be bound to its core */

/* What sched_getcpu says, plus one: 0 is for not known. */
static uint32_t here(void)
{
	int saved = errno, cpu = sched_getcpu();

	errno = saved;
	return cpu < 0 ? 0 : (uint32_t)cpu + 1;
}

void spread_tell(struct engine *engine)
{
	struct lane_shared *out = engine->channel.out.shared;
	uint32_t cpu = here();

	if (atomic_load_explicit(&out->cpu, memory_order_relaxed) != cpu)
		atomic_store_explicit(&out->cpu, cpu, memory_order_relaxed);
}

#define MASK_LONGS 128 /* 8192 cores */

static long mask_get(unsigned long *mask)
{
	return sys_call(SYS_sched_getaffinity, 0, MASK_LONGS * sizeof(*mask), (long)mask, 0, 0, 0);
}

static bool mask_set(const unsigned long *mask, long bytes)
{
	return sys_call(SYS_sched_setaffinity, 0, bytes, (long)mask, 0, 0, 0) >= 0;
}

/*
 * Lets the thread run where it might before. Linux keeps a mask that was asked for, and does not go beyond it when the thread's
 * cpuset grows later: a thread that had asked for none must be left asking for every core, not for those of today. A mask of the
 * program's own shows by being narrower than that. It is put back, as is the old one whenever that can't be told.
 */
static void restore(const unsigned long *before, long bytes)
{
	unsigned long every[MASK_LONGS], now[MASK_LONGS];

	memset(every, 0xff, (size_t)bytes);
	if (mask_set(every, bytes) && mask_get(now) == bytes && !memcmp(now, before, (size_t)bytes))
		return;
	mask_set(before, bytes);
}

/* Moves this thread off its core, and lets it run everywhere again that it may. */
static void move_away(void)
{
	unsigned long all[MASK_LONGS] = { 0 }, others[MASK_LONGS];
	long bytes = mask_get(all);
	uint32_t cpu = here(), cores = 0;

	if (bytes <= 0 || !cpu || cpu - 1 >= bytes * 8)
		return;
	for (long i = 0; i < bytes / (long)sizeof(all[0]); i++)
		cores += (uint32_t)__builtin_popcountl(all[i]);
	if (cores < 2)
		return;
	memcpy(others, all, (size_t)bytes);
	others[(cpu - 1) / 64] &= ~(1ul << ((cpu - 1) % 64));
	if (mask_set(others, bytes))
		restore(all, bytes);
}

/* Of this thread: it is what moves, whatever the number of its connections. */
static __thread struct {
	uint64_t together_since; /* on one core with a peer */
	uint64_t next, pause;
} moves __attribute__((tls_model("initial-exec")));

bool spread_apart(struct engine *engine)
{
	uint32_t there = atomic_load_explicit(&engine->channel.in.shared->cpu, memory_order_relaxed);
	uint64_t now;

	if (!there || there != here()) {
		moves.together_since = 0;
		return true;
	}
	now = clock_now();
	if (!moves.together_since)
		moves.together_since = now + (engine->role == ROLE_SERVER ? SERVER_PATIENCE_NS : 0);
	if (now < moves.together_since || now < moves.next || guest_sandboxed())
		return false;
	moves.pause = moves.pause ? moves.pause * 2 : PAUSE_FIRST_NS;
	if (moves.pause > PAUSE_MAX_NS)
		moves.pause = PAUSE_MAX_NS;
	moves.next = now + moves.pause;
	move_away();
	moves.together_since = 0;
	return there != here();
}
