/* SPDX-License-Identifier: MIT */
/*
 * A latency histogram after HdrHistogram (G. Tene): log-linear buckets, 64 to each power of two, so that every value is
 * kept within 1/64 (1.6 %) of itself; no allocation, constant-time recording. Units: whatever is recorded, usually ns.
 */
#ifndef ZC_COMMON_HIST_H
#define ZC_COMMON_HIST_H

#include <stdint.h>

#define HIST_SUB_BITS 6
#define HIST_SUB (1u << HIST_SUB_BITS)
#define HIST_POWERS 42 /* up to 2^47: more than a day in ns */
#define HIST_BUCKETS ((HIST_POWERS + 1) * HIST_SUB)

struct hist {
	uint64_t count;
	uint64_t min;
	uint64_t max;
	double sum;
	uint64_t buckets[HIST_BUCKETS];
};

void hist_reset(struct hist *hist);
void hist_record(struct hist *hist, uint64_t value);

/* Adds all of `from` to `into`. */
void hist_add(struct hist *into, const struct hist *from);

/* Returns the value below or at which `percent` (0 to 100) of all recorded ones lie; 0 when empty. */
uint64_t hist_percentile(const struct hist *hist, double percent);
double hist_mean(const struct hist *hist);

#endif
