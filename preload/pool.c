/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/pool.h"

#include "common/sys.h"

static void **link_of(const struct pool *pool, void *piece)
{
	return (void **)((char *)piece + pool->link);
}

static void grow(struct pool *pool)
{
	uint32_t count = atomic_load(&pool->slabs);
	char *slab = count < pool->slabs_max ? sys_map(pool->each * pool->bytes, pool->sharing) : NULL;

	if (!slab)
		return;
	for (uint32_t i = 0; i < pool->each; i++) {
		*link_of(pool, slab + i * pool->bytes) = pool->free;
		pool->free = slab + i * pool->bytes;
	}
	if (pool->slab)
		pool->slab[count] = slab;
	atomic_store(&pool->slabs, count + 1);
}

void *pool_take(struct pool *pool)
{
	struct lock_hold hold;
	void *piece;

	if (!lock_take(&pool->lock, &hold))
		return NULL;
	if (!pool->free)
		grow(pool);
	piece = pool->free;
	if (piece)
		pool->free = *link_of(pool, piece);
	lock_give(&pool->lock, &hold);
	return piece;
}

void pool_give(struct pool *pool, void *piece)
{
	struct lock_hold hold;

	if (!lock_take(&pool->lock, &hold))
		return;
	*link_of(pool, piece) = pool->free;
	pool->free = piece;
	lock_give(&pool->lock, &hold);
}
