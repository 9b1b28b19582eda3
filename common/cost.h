/* SPDX-License-Identifier: MIT */
/*
 * What something costs in this process, by measurement: a running average over some 16 samples for each class of sizes (powers of two of
 * 4 KiB); the first counts in full. Any thread, no lock: of two that add at a time one may be lost.
 */
#ifndef ZC_COMMON_COST_H
#define ZC_COMMON_COST_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define COST_CLASSES 20u

struct cost {
	_Atomic uint64_t ns[COST_CLASSES];
};

static inline unsigned int cost_class(size_t bytes)
{
	size_t pages = bytes >> 12;
	unsigned int class = pages ? 63u - (unsigned int)__builtin_clzll(pages) : 0;

	return class < COST_CLASSES ? class : COST_CLASSES - 1;
}

static inline void cost_add(struct cost *cost, size_t bytes, uint64_t ns)
{
	_Atomic uint64_t *average = &cost->ns[cost_class(bytes)];
	uint64_t old = atomic_load_explicit(average, memory_order_relaxed);
	uint64_t next = old ? old - old / 16 + ns / 16 : ns;

	atomic_store_explicit(average, next ? next : 1, memory_order_relaxed);
}

/* Returns ns; 0 before the first sample. */
static inline uint64_t cost_of(const struct cost *cost, size_t bytes)
{
	return atomic_load_explicit(&cost->ns[cost_class(bytes)], memory_order_relaxed);
}

#endif
