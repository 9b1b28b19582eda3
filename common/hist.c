/* SPDX-License-Identifier: MIT */
#include "common/hist.h"

#include <string.h>

void hist_reset(struct hist *hist)
{
	memset(hist, 0, sizeof(*hist));
	hist->min = UINT64_MAX;
}

static unsigned int bucket_of(uint64_t value)
{
	unsigned int power, index;

	if (value < HIST_SUB)
		return (unsigned int)value;
	power = 63u - (unsigned int)__builtin_clzll(value) - HIST_SUB_BITS;
	index = (power + 1) * HIST_SUB + (unsigned int)((value >> power) - HIST_SUB);
	return index < HIST_BUCKETS ? index : HIST_BUCKETS - 1;
}

/* Returns the largest value that falls into the bucket. */
static uint64_t bucket_top(unsigned int index)
{
	unsigned int power = index / HIST_SUB;

	if (!power)
		return index;
	return (((uint64_t)(index % HIST_SUB) + HIST_SUB + 1) << (power - 1)) - 1;
}

void hist_record(struct hist *hist, uint64_t value)
{
	hist->count++;
	hist->sum += (double)value;
	if (value < hist->min)
		hist->min = value;
	if (value > hist->max)
		hist->max = value;
	hist->buckets[bucket_of(value)]++;
}

void hist_add(struct hist *into, const struct hist *from)
{
	into->count += from->count;
	into->sum += from->sum;
	if (from->min < into->min)
		into->min = from->min;
	if (from->max > into->max)
		into->max = from->max;
	for (unsigned int i = 0; i < HIST_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
}

uint64_t hist_percentile(const struct hist *hist, double percent)
{
	uint64_t wanted = (uint64_t)(percent / 100.0 * (double)hist->count + 0.5);
	uint64_t seen = 0;

	if (!hist->count)
		return 0;
	if (!wanted)
		wanted = 1;
	for (unsigned int i = 0; i < HIST_BUCKETS; i++) {
		seen += hist->buckets[i];
		if (seen >= wanted)
			return bucket_top(i) < hist->max ? bucket_top(i) : hist->max;
	}
	return hist->max;
}

double hist_mean(const struct hist *hist)
{
	return hist->count ? hist->sum / (double)hist->count : 0.0;
}
