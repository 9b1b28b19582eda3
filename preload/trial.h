/* SPDX-License-Identifier: MIT */
/*
 * Which of several ways to send is the best here, by trying: each way gets some sends in a row, and what counts is the time
 * from one send to the next, for that is what the program waits for, whoever needs it: a copy, a guard, faults, the peer. One
 * connection at a time tries, and all take what was the best; after a while it is tried again, ever more seldom as long as the
 * same one wins. Until anything is known, all others go the first way.
 * Pure bookkeeping; the clock is the caller's.
 */
#ifndef ZC_PRELOAD_TRIAL_H
#define ZC_PRELOAD_TRIAL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TRIAL_WAYS 3
#define TRIAL_WINDOW_SENDS 16u
#define TRIAL_WINDOW_BYTES (4u << 20)
#define TRIAL_CLASSES 8 /* of sizes, by powers of two from 64 KiB on */

/* What the connections of a process know together. */
struct trial_knowledge {
	struct {
		_Atomic uint32_t best;	   /* way, plus 1; 0: not known */
		_Atomic uint64_t again_ns; /* when it is to be tried the next time; UINT64_MAX: somebody is at it */
		_Atomic uint64_t since_ns; /* he has begun */
		_Atomic uint64_t calm_ns;
		const struct trial *_Atomic sender; /* who sent last: compared, never followed */
		_Atomic uint64_t others_ns;	    /* when it was another one than before; 0: never */
		_Atomic uint32_t gain;		    /* for which the first way was left, one in so many; 0: not known */
		/* Of the last time that it was tried, for who wants to know why. */
		_Atomic uint64_t tries, cost[TRIAL_WAYS]; /* ns for 1024 bytes; 0: not known */
	} classes[TRIAL_CLASSES];
};

/* What one connection tries, in its own lock. */
struct trial {
	int class; /* that it tries, plus 1; 0: none */
	unsigned int run, way;
	unsigned int left;	   /* sends of the present run */
	uint64_t cost[TRIAL_WAYS]; /* ns for 1024 bytes, of the best run; 0: not known */
	/* the present run */
	uint64_t ns, bytes;
	uint32_t sends;
	/* the send before this one */
	int last; /* its class, plus 1 */
	uint64_t last_ns;
	size_t last_bytes;
};

/* Returns the way for a send of so many bytes that begins at `now` (ns). Zeroes are a beginning. */
unsigned int trial_next(struct trial *trial, struct trial_knowledge *knowledge, size_t bytes, uint64_t now);

/* Returns the best way for so many bytes of those before `way`, which is out of the question for other reasons. */
unsigned int trial_best_before(const struct trial_knowledge *knowledge, size_t bytes, unsigned int way);

#endif
