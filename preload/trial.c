/* SPDX-License-Identifier: MIT */
#include "preload/trial.h"

#include <stdbool.h>

#include "common/clock.h"

#define RUN_WINDOWS 3 /* that a run fills with its sends; the first of them tells of the way before */
#define ROUNDS 2      /* a run may meet a busy moment: the better one counts */
#define CALM_FIRST (NS_PER_SEC / 2)
#define CALM_MAX (64 * NS_PER_SEC)
#define PAUSE_NS (20 * NS_PER_MS) /* the program did something else */
#define LOST_NS NS_PER_SEC	  /* who has not come to an end until then sends no more */
#define TRYING UINT64_MAX
/* The first way is left for a gain of such a share: of one that others send beside, and of one that is alone. */
#define GAIN_AMONG_OTHERS 4
#define GAIN_ALONE 16

static int class_of(size_t bytes)
{
	int power = 0;

	while (power + 1 < TRIAL_CLASSES && bytes >> (17 + power))
		power++;
	return power;
}

/* Sends that may be under way before one has to wait for the peer: only behind them it shows what a way is worth. */
static unsigned int window(const struct trial *trial)
{
	size_t sends = TRIAL_WINDOW_BYTES / trial->last_bytes;

	return sends < 4 ? 4 : sends < TRIAL_WINDOW_SENDS ? (unsigned int)sends : TRIAL_WINDOW_SENDS;
}

/* The send before this one has cost so much. */
static void book(struct trial *trial, uint64_t ns)
{
	if (trial->sends++ < window(trial) || ns > PAUSE_NS)
		return;
	trial->ns += ns;
	trial->bytes += trial->last_bytes;
}

static void end_run(struct trial *trial)
{
	uint64_t cost = trial->bytes ? trial->ns * 1024 / trial->bytes : 0;
	uint64_t *known = &trial->cost[trial->way];

	if (cost && (!*known || cost < *known))
		*known = cost;
}

/*
 * What another way costs the connections beside it, in turns of a core that they share, is not seen here: where there are some, the
 * first way is left for a clear gain only.
 */
static unsigned int best_of(const uint64_t *cost, unsigned int ways, uint32_t gain)
{
	uint64_t least = cost[0] - cost[0] / gain;
	unsigned int best = 0;

	for (unsigned int way = 1; way < ways; way++) {
		if (cost[way] && (!cost[0] || cost[way] < least)) {
			least = cost[way];
			best = way;
		}
	}
	return best;
}

/* Whether a way needs no second run. */
static bool is_hopeless(const struct trial *trial, unsigned int way, uint64_t best)
{
	return trial->run >= TRIAL_WAYS && trial->cost[way] > 4 * best;
}

/* Returns false when all runs are done. */
static bool begin_run(struct trial *trial)
{
	uint64_t best = trial->cost[best_of(trial->cost, TRIAL_WAYS, GAIN_ALONE)];

	for (; trial->run < ROUNDS * TRIAL_WAYS; trial->run++) {
		unsigned int way = trial->run % TRIAL_WAYS;

		if (is_hopeless(trial, way, best))
			continue;
		trial->run++;
		trial->way = way;
		trial->left = RUN_WINDOWS * window(trial);
		trial->ns = trial->bytes = trial->sends = 0;
		return true;
	}
	return false;
}

/* Takes it on to try, if it is time and nobody else does. */
static bool claim(struct trial *trial, struct trial_knowledge *knowledge, int class, uint64_t now)
{
	_Atomic uint64_t *again = &knowledge->classes[class].again_ns;
	uint64_t when = atomic_load_explicit(again, memory_order_relaxed);

	if (when == TRYING ? now - atomic_load(&knowledge->classes[class].since_ns) < LOST_NS : now < when)
		return false;
	/* Before it is claimed: whoever finds it claimed looks how long. */
	atomic_store(&knowledge->classes[class].since_ns, now);
	if (when != TRYING && !atomic_compare_exchange_strong(again, &when, TRYING))
		return false;
	trial->class = class + 1;
	trial->run = 0;
	for (int way = 0; way < TRIAL_WAYS; way++)
		trial->cost[way] = 0;
	return begin_run(trial);
}

static void conclude(struct trial *trial, struct trial_knowledge *knowledge, uint64_t now)
{
	int class = trial->class - 1;
	bool alone =
		atomic_load(&knowledge->classes[class].others_ns) < atomic_load(&knowledge->classes[class].since_ns);
	uint32_t gain = alone ? GAIN_ALONE : GAIN_AMONG_OTHERS;
	uint32_t best = best_of(trial->cost, TRIAL_WAYS, gain) + 1;
	uint32_t before = atomic_load(&knowledge->classes[class].best);
	uint64_t calm = atomic_load(&knowledge->classes[class].calm_ns);

	calm = before == best && calm ? 2 * calm : CALM_FIRST;
	calm = calm < CALM_MAX ? calm : CALM_MAX;
	trial->class = 0;
	for (int way = 0; way < TRIAL_WAYS; way++)
		atomic_store(&knowledge->classes[class].cost[way], trial->cost[way]);
	atomic_fetch_add(&knowledge->classes[class].tries, 1);
	atomic_store(&knowledge->classes[class].gain, gain);
	atomic_store(&knowledge->classes[class].best, best);
	atomic_store(&knowledge->classes[class].calm_ns, calm);
	atomic_store(&knowledge->classes[class].again_ns, now + calm);
}

/* Sizes have changed: somebody else may have more of these. */
static void abandon(struct trial *trial, struct trial_knowledge *knowledge, uint64_t now)
{
	atomic_store(&knowledge->classes[trial->class - 1].again_ns, now);
	trial->class = 0;
}

/* Somebody sends so many bytes: is it another one than the last time? */
static void note_sender(const struct trial *trial, struct trial_knowledge *knowledge, int class, uint64_t now)
{
	const struct trial *before = atomic_load_explicit(&knowledge->classes[class].sender, memory_order_relaxed);

	if (before == trial)
		return;
	atomic_store_explicit(&knowledge->classes[class].sender, trial, memory_order_relaxed);
	if (before)
		atomic_store_explicit(&knowledge->classes[class].others_ns, now, memory_order_relaxed);
}

unsigned int trial_next(struct trial *trial, struct trial_knowledge *knowledge, size_t bytes, uint64_t now)
{
	int class = class_of(bytes);
	uint32_t best;

	note_sender(trial, knowledge, class, now);
	if (trial->class && trial->class != class + 1)
		abandon(trial, knowledge, now);
	/* Between sends of different sizes the time is neither's. */
	if (trial->class == class + 1 && trial->last == class + 1)
		book(trial, now - trial->last_ns);
	trial->last = class + 1;
	trial->last_ns = now;
	trial->last_bytes = bytes;
	if (trial->class == class + 1 && !trial->left) {
		end_run(trial);
		if (!begin_run(trial))
			conclude(trial, knowledge, now);
	}
	if (trial->class == class + 1 || (!trial->class && claim(trial, knowledge, class, now))) {
		trial->left--;
		return trial->way;
	}
	best = atomic_load_explicit(&knowledge->classes[class].best, memory_order_relaxed);
	return best ? best - 1 : 0;
}

unsigned int trial_best_before(const struct trial_knowledge *knowledge, size_t bytes, unsigned int way)
{
	int class = class_of(bytes);
	uint32_t gain = atomic_load_explicit(&knowledge->classes[class].gain, memory_order_relaxed);
	uint64_t cost[TRIAL_WAYS];

	for (unsigned int i = 0; i < way; i++)
		cost[i] = atomic_load_explicit(&knowledge->classes[class].cost[i], memory_order_relaxed);
	return best_of(cost, way, gain ? gain : GAIN_AMONG_OTHERS);
}
