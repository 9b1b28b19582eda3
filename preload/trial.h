/* SPDX-License-Identifier: MIT */
/*
 * Which of several ways to send is the best here, by trying: each way gets some sends in a row, and what counts is the time
 * from one send to the next, for that is what the program waits for, whoever needs it: a copy, a guard, faults, the peer. The
 * best one is then taken for a while, twice as long each time that it turns out best again; after that all are tried again.
 * Pure bookkeeping, in whoever's lock; the clock is the caller's.
 */
#ifndef ZC_PRELOAD_TRIAL_H
#define ZC_PRELOAD_TRIAL_H

#include <stddef.h>
#include <stdint.h>

#define TRIAL_WAYS 3
#define TRIAL_CLASSES 8 /* of sizes, by powers of two from 64 KiB on */

struct trial_class {
	uint64_t cost[TRIAL_WAYS]; /* ns for 1024 bytes, of the better of two runs; 0: not known */
	uint32_t left;		   /* sends of the present run */
	uint32_t calm;		   /* length of the next run of the best one */
	uint8_t run;		   /* of the trial; at its end the best one's */
	uint8_t way;
	uint8_t best;
	/* the present run */
	uint64_t ns, bytes;
	uint32_t sends;
};

struct trial {
	struct trial_class classes[TRIAL_CLASSES];
	struct trial_class *last;
	uint64_t last_ns;
	size_t last_bytes;
};

/* Returns the way for a send of so many bytes that begins at `now` (ns). Zeroes are a trial that has not begun. */
unsigned int trial_next(struct trial *trial, size_t bytes, uint64_t now);

#endif
