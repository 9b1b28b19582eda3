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

static void append(struct pool *pool, void *piece)
{
	*link_of(pool, piece) = NULL;
	if (pool->lent)
		*link_of(pool, pool->lent_last) = piece;
	else
		pool->lent = piece;
	pool->lent_last = piece;
	pool->lent_count++;
}

/*
 * Asks for some of those that are lent: no more than a slab has, which are as many takes, and who is not back goes behind the others. Returns
 * how many are back.
 */
static uint32_t take_back(struct pool *pool)
{
	uint32_t looks = pool->lent_count < pool->each ? pool->lent_count : pool->each, back = 0;

	while (looks--) {
		void *piece = pool->lent;

		pool->lent = *link_of(pool, piece);
		pool->lent_count--;
		if (!pool->is_back(piece)) {
			append(pool, piece);
			continue;
		}
		*link_of(pool, piece) = pool->free;
		pool->free = piece;
		back++;
	}
	return back;
}

/* A few that are back would make the next look come soon: then there are more slabs, until a quarter of those that are lent is. */
static void refill(struct pool *pool)
{
	if (take_back(pool) <= pool->each / 4)
		grow(pool);
}

void *pool_take(struct pool *pool)
{
	struct lock_hold hold;
	void *piece;

	if (!lock_take(&pool->lock, &hold))
		return NULL;
	if (!pool->free)
		refill(pool);
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

void pool_lend(struct pool *pool, void *piece)
{
	struct lock_hold hold;

	if (!lock_take(&pool->lock, &hold))
		return;
	append(pool, piece);
	lock_give(&pool->lock, &hold);
}

void pool_after_fork(struct pool *pool)
{
	atomic_store(&pool->lock.word, 0);
	atomic_store(&pool->slabs, 0);
	pool->free = pool->lent = pool->lent_last = NULL;
	pool->lent_count = 0;
}
