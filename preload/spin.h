/* SPDX-License-Identifier: MIT */
/*
 * How long a wait looks again and again before it sleeps. Hints: several threads may change one at a time.
 *
 * On one host what pays has all its time, what does not becomes ever shorter, then seldom. Between hosts no answer comes before a round
 * trip is over, so a shorter wait is of no use: it has all its time or, after some in vain, is seldom.
 */
#ifndef ZC_PRELOAD_SPIN_H
#define ZC_PRELOAD_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SPIN_LEAST_NS 1000u /* shorter than that it is seldom: */
#define SPIN_SKIPPED 32u    /* waits, in between */
#define SPIN_AGAIN_NS 4000u /* then it begins with */
#define SPIN_VAIN_MAX 16u   /* of those that have all their time, in a row */

struct spin {
	_Atomic uint32_t ns;   /* of the next one */
	_Atomic uint32_t skip; /* waits that do not */
	_Atomic uint32_t vain; /* in a row */
};

static inline uint32_t spin_get(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void spin_set(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Returns whether the next wait spins. */
static inline bool spin_may(struct spin *spin)
{
	uint32_t skip = spin_get(&spin->skip);

	if (skip)
		spin_set(&spin->skip, skip - 1);
	return !skip;
}

static inline void spin_ends(struct spin *spin, bool paid, uint32_t most_ns)
{
	uint32_t half = spin_get(&spin->ns) / 2;
	bool seldom = !paid && half < SPIN_LEAST_NS;

	spin_set(&spin->ns, paid ? most_ns : seldom ? SPIN_AGAIN_NS : half);
	if (seldom)
		spin_set(&spin->skip, SPIN_SKIPPED);
}

/* Between hosts. */
static inline void spin_ends_far(struct spin *spin, bool paid, uint32_t most_ns)
{
	uint32_t vain = spin_get(&spin->vain);

	spin_set(&spin->ns, most_ns);
	if (paid) {
		spin_set(&spin->vain, 0);
		spin_set(&spin->skip, 0);
	} else if (vain < SPIN_VAIN_MAX) {
		spin_set(&spin->vain, vain + 1);
	} else {
		spin_set(&spin->skip, SPIN_SKIPPED);
	}
}

#endif
