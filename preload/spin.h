/* SPDX-License-Identifier: MIT */
/*
 * How long a wait looks again and again before it sleeps. Hints: several threads may change one at a time.
 *
 * On one host what pays has all its time, what does not becomes ever shorter, then seldom. Between hosts no answer comes before a round
 * trip is over, so a shorter wait is of no use: it has all its time or, after some in vain, is seldom.
 */
#ifndef ZC_PRELOAD_SPIN_H
#define ZC_PRELOAD_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_LEAST_NS 1000u /* shorter than that it is seldom: */
#define SPIN_SKIPPED 32u    /* waits, in between */
#define SPIN_AGAIN_NS 4000u /* then it begins with */
#define SPIN_VAIN_MAX 16u   /* of those that have all their time, in a row */

struct spin {
	uint32_t ns;   /* of the next one */
	uint32_t skip; /* waits that do not */
	uint32_t vain; /* in a row */
};

/* Returns whether the next wait spins. */
static inline bool spin_may(struct spin *spin)
{
	if (!spin->skip)
		return true;
	spin->skip--;
	return false;
}

static inline void spin_ends(struct spin *spin, bool paid, uint32_t most_ns)
{
	if (paid) {
		spin->ns = most_ns;
	} else if ((spin->ns /= 2) < SPIN_LEAST_NS) {
		spin->ns = SPIN_AGAIN_NS;
		spin->skip = SPIN_SKIPPED;
	}
}

/* Between hosts. */
static inline void spin_ends_far(struct spin *spin, bool paid, uint32_t most_ns)
{
	spin->ns = most_ns;
	if (paid) {
		spin->vain = spin->skip = 0;
	} else if (spin->vain < SPIN_VAIN_MAX) {
		spin->vain++;
	} else {
		spin->skip = SPIN_SKIPPED;
	}
}

#endif
