/* SPDX-License-Identifier: MIT */
#include "preload/trial.h"

#include "common/clock.h"

#define RUN 16	 /* sends */
#define WARM 4	 /* of them, that tell more of the way before */
#define ROUNDS 2 /* a run may meet a busy moment: the better one counts */
#define CALM_FIRST 256
#define CALM_MAX 16384
#define PAUSE_NS (20 * NS_PER_MS) /* the program did something else */

static struct trial_class *class_of(struct trial *trial, size_t bytes)
{
	unsigned int class = 0;

	while (class + 1 < TRIAL_CLASSES && bytes >> (17 + class))
		class ++;
	return &trial->classes[class];
}

/* The send before this one has cost so much. */
static void book(struct trial_class *class, uint64_t ns, size_t bytes)
{
	if (class->sends++ < WARM || ns > PAUSE_NS)
		return;
	class->ns += ns;
	class->bytes += bytes;
}

static void end_run(struct trial_class *class)
{
	uint64_t cost = class->bytes ? class->ns * 1024 / class->bytes : 0;
	uint64_t *known = &class->cost[class->way];

	if (cost && (!*known || cost < *known))
		*known = cost;
	class->ns = class->bytes = class->sends = 0;
}

static uint8_t best_of(const struct trial_class *class)
{
	uint8_t best = 0;

	for (uint8_t way = 1; way < TRIAL_WAYS; way++) {
		if (class->cost[way] && (!class->cost[best] || class->cost[way] < class->cost[best]))
			best = way;
	}
	return best;
}

static void begin_run(struct trial_class *class)
{
	if (class->run < ROUNDS * TRIAL_WAYS) {
		if (!class->run) {
			for (int way = 0; way < TRIAL_WAYS; way++)
				class->cost[way] = 0;
		}
		class->way = class->run++ % TRIAL_WAYS;
		class->left = RUN;
		return;
	}
	class->run = 0;
	class->way = best_of(class);
	class->calm = class->calm && class->way == class->best ? 2 * class->calm : CALM_FIRST;
	if (class->calm > CALM_MAX)
		class->calm = CALM_MAX;
	class->best = class->way;
	class->left = class->calm;
}

unsigned int trial_next(struct trial *trial, size_t bytes, uint64_t now)
{
	struct trial_class *class = class_of(trial, bytes);

	/* Between sends of different sizes the time is neither's. */
	if (trial->last == class)
		book(class, now - trial->last_ns, trial->last_bytes);
	trial->last = class;
	trial->last_ns = now;
	trial->last_bytes = bytes;
	if (!class->left) {
		end_run(class);
		begin_run(class);
	}
	class->left--;
	return class->way;
}
