/* SPDX-License-Identifier: MIT */
/*
 * Pieces of one size, from slabs that are never unmapped: whoever reads one that was given back meanwhile reads a piece of the
 * same kind. What a piece holds when it is taken is what it held when it was given, or zeroes.
 */
#ifndef ZC_PRELOAD_POOL_H
#define ZC_PRELOAD_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preload/lock.h"

struct pool {
	size_t bytes;  /* of a piece */
	size_t link;   /* where in it a `void *` is that only the pool uses, while it is free */
	uint32_t each; /* pieces in a slab */
	uint32_t slabs_max;
	int sharing; /* of the memory: MAP_PRIVATE or MAP_SHARED */
	void **slab; /* room for slabs_max, for somebody who walks through them; NULL: nobody does */
	_Atomic uint32_t slabs;
	/* Whether one that was lent is nobody's any more. Under the lock; NULL: none ever is lent. */
	bool (*is_back)(void *piece);
	struct lock lock; /* of the free ones, and of those that are lent */
	void *free;
	void *lent, *lent_last; /* the first of them is asked for first */
	uint32_t lent_count;
};

/* Returns a piece, or NULL. */
void *pool_take(struct pool *pool);

/* Gives a piece back. It is lost if a signal handler does so in the middle of a pool_take. */
void pool_give(struct pool *pool, void *piece);

/*
 * The same for one that other processes may use yet: it is free once they don't, which is asked when the free ones have run out. Only a piece
 * that this process has taken, and whose link nobody else writes.
 */
void pool_lend(struct pool *pool, void *piece);

/* In the child of a fork: what there was is its parent's, who would hand out the same pieces. */
void pool_after_fork(struct pool *pool);

#endif
