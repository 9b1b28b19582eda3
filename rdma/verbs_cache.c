/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/verbs_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096u /* a larger one of the system only rounds more than needed */

static uintptr_t page_of(uintptr_t address)
{
	return address & ~(uintptr_t)(PAGE - 1);
}

static uintptr_t page_end(uintptr_t end)
{
	return page_of(end + PAGE - 1);
}

/* What counts against the limit. */
static size_t pinned(const struct verbs_region *region)
{
	return page_end(region->end) - page_of(region->start);
}

bool verbs_budget_spares(const struct verbs_budget *budget, size_t bytes)
{
	return bytes <= budget->bytes_max / 2 && budget->bytes <= budget->bytes_max / 2 - bytes;
}

void verbs_cache_open(struct verbs_cache *cache, const struct verbs_cache_ops *ops, void *context,
		      struct verbs_budget *budget)
{
	memset(cache, 0, sizeof(*cache));
	cache->ops = ops;
	cache->context = context;
	cache->budget = budget;
}

/* Returns how many regions start before the address. */
static uint32_t starts_before(const struct verbs_cache *cache, uintptr_t address)
{
	uint32_t low = 0, high = cache->count;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (cache->region[middle]->start < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void note_reach(struct verbs_cache *cache, uint32_t from)
{
	for (uint32_t i = from; i < cache->count; i++) {
		uintptr_t before = i ? cache->reach[i - 1] : 0;

		cache->reach[i] = before > cache->region[i]->end ? before : cache->region[i]->end;
	}
}

static void insert(struct verbs_cache *cache, struct verbs_region *region)
{
	uint32_t at = starts_before(cache, region->start);

	memmove(cache->region + at + 1, cache->region + at, (cache->count - at) * sizeof(*cache->region));
	cache->region[at] = region;
	cache->count++;
	note_reach(cache, at);
}

static void drop_at(struct verbs_cache *cache, uint32_t at)
{
	struct verbs_region *region = cache->region[at];

	cache->count--;
	memmove(cache->region + at, cache->region + at + 1, (cache->count - at) * sizeof(*cache->region));
	note_reach(cache, at);
	cache->ops->drop(cache->context, region->handle);
	cache->budget->bytes -= pinned(region);
	free(region);
}

static bool may_change(const struct verbs_cache *cache)
{
	return !cache->ops->may || cache->ops->may();
}

static void drop_owed(struct verbs_cache *cache)
{
	if (__builtin_expect(!cache->owes, 1) || !may_change(cache))
		return;
	cache->owes = false;
	for (uint32_t i = cache->count; i-- > 0;) {
		if (cache->region[i]->stale && !cache->region[i]->users)
			drop_at(cache, i);
	}
}

static struct verbs_region *find(const struct verbs_cache *cache, uintptr_t start, uintptr_t end, uint32_t rights)
{
	for (uint32_t i = starts_before(cache, start + 1); i-- > 0 && cache->reach[i] >= end;) {
		struct verbs_region *region = cache->region[i];

		if (region->end < end || region->stale || (region->rights & rights) != rights)
			continue;
		if (!(rights & VERBS_CACHE_EXACT) || (region->start == start && region->end == end))
			return region;
	}
	return NULL;
}

bool verbs_cache_shrink(struct verbs_cache *cache)
{
	uint32_t oldest = cache->count;

	if (!may_change(cache))
		return false;
	for (uint32_t i = 0; i < cache->count; i++) {
		if (!cache->region[i]->users &&
		    (oldest == cache->count || cache->region[i]->stamp < cache->region[oldest]->stamp))
			oldest = i;
	}
	if (oldest == cache->count)
		return false;
	drop_at(cache, oldest);
	return true;
}

/* Registers, after as many others have gone as must. */
static int add(struct verbs_cache *cache, struct verbs_region *region)
{
	struct verbs_budget *budget = cache->budget;
	size_t bytes = pinned(region);
	int rc;

	if (bytes > budget->bytes_max)
		return -ENOMEM;
	while (cache->count == VERBS_CACHE_REGIONS || budget->bytes + bytes > budget->bytes_max) {
		if (!verbs_cache_shrink(cache))
			return -ENOMEM;
	}
	do {
		rc = cache->ops->add(cache->context, region->start, region->end - region->start, region->rights,
				     &region->handle);
	} while ((rc == -ENOMEM || rc == -EAGAIN) && verbs_cache_shrink(cache));
	if (!rc)
		budget->bytes += bytes;
	return rc;
}

int verbs_cache_get(struct verbs_cache *cache, uintptr_t start, size_t bytes, uint32_t rights,
		    struct verbs_region **out)
{
	uintptr_t first = rights & VERBS_CACHE_EXACT ? start : page_of(start);
	uintptr_t end = rights & VERBS_CACHE_EXACT ? start + bytes : page_end(start + bytes);
	struct verbs_region *region;
	int rc;

	if (!bytes || end <= start)
		return -EINVAL;
	drop_owed(cache);
	region = find(cache, start, start + bytes, rights);
	if (!region) {
		region = may_change(cache) ? malloc(sizeof(*region)) : NULL;
		if (!region)
			return -ENOMEM;
		*region = (struct verbs_region){ .start = first, .end = end, .rights = rights };
		rc = add(cache, region);
		if (rc < 0) {
			free(region);
			return rc;
		}
		insert(cache, region);
	}
	region->users++;
	region->stamp = ++cache->uses;
	*out = region;
	return 0;
}

void verbs_cache_put(struct verbs_cache *cache, struct verbs_region *region)
{
	drop_owed(cache);
	if (--region->users || !region->stale)
		return;
	cache->owes |= !may_change(cache);
	for (uint32_t i = starts_before(cache, region->start); !cache->owes && i < cache->count; i++) {
		if (cache->region[i] == region) {
			drop_at(cache, i);
			return;
		}
	}
}

unsigned int verbs_cache_invalidate(struct verbs_cache *cache, uintptr_t start, size_t bytes)
{
	uintptr_t end = start + bytes < start ? UINTPTR_MAX : start + bytes;
	bool may = true, asked = false;
	unsigned int used = 0;

	for (uint32_t i = starts_before(cache, end); i-- > 0 && cache->reach[i] > start;) {
		struct verbs_region *region = cache->region[i];

		if (region->end <= start)
			continue;
		if (!region->users && !asked) {
			may = may_change(cache);
			asked = true;
		}
		if (!region->users && may) {
			drop_at(cache, i);
			continue;
		}
		region->stale = true;
		cache->owes |= !region->users;
		used += region->users != 0;
	}
	return used;
}

void verbs_cache_close(struct verbs_cache *cache)
{
	while (cache->count)
		drop_at(cache, cache->count - 1);
}
