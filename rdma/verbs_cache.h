/* SPDX-License-Identifier: MIT */
/*
 * Registered memory, kept for the next time: regions by address, found by the interval that they have to cover. Those in use
 * are counted; the ones that are not go, the least recently used first, when the bytes that may be pinned run out (or the
 * device or the kernel refuses to pin more), and when the program gives memory back, so that no region outlives its mapping: the
 * device would go on with the old pages.
 *
 * Knows no device: who makes it says how memory is registered. Threads: calls are serialised by the caller.
 */
#ifndef ZC_RDMA_VERBS_CACHE_H
#define ZC_RDMA_VERBS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VERBS_CACHE_REGIONS 512u
#define VERBS_CACHE_EXACT 0x100u /* of rights: nothing but these bytes is registered, as another may use the region */

struct verbs_region {
	uintptr_t start, end;
	void *handle;	/* of whoever registers */
	uint64_t stamp; /* of the last use */
	uint32_t users;
	uint32_t rights;
	bool stale; /* its memory was given back: goes with its last user, found by nobody */
};

struct verbs_cache_ops {
	/* Registers: whole pages, but for VERBS_CACHE_EXACT. Returns 0 or -errno; -ENOMEM and -EAGAIN: after others have gone it may be possible. */
	int (*add)(void *context, uintptr_t start, size_t bytes, uint32_t rights, void **handle);
	void (*drop)(void *context, void *handle);
	/* Whether it can do either now; what is to be dropped stays until it can. NULL: always. */
	bool (*may)(void);
};

/* Bytes that all caches of a process may have registered; they are pinned, and counted against one limit. */
struct verbs_budget {
	size_t bytes_max;
	size_t bytes;
};

/* Whether as much as is registered then could be registered again: for what is a saving only. */
bool verbs_budget_spares(const struct verbs_budget *budget, size_t bytes);

struct verbs_cache {
	const struct verbs_cache_ops *ops;
	void *context;
	struct verbs_budget *budget;
	uint64_t uses;
	uint32_t count;
	bool owes; /* some are stale and unused, and could not be dropped when they became that */
	struct verbs_region *region[VERBS_CACHE_REGIONS]; /* by start */
	uintptr_t reach[VERBS_CACHE_REGIONS];		  /* how far those up to here come, at most */
};

void verbs_cache_open(struct verbs_cache *cache, const struct verbs_cache_ops *ops, void *context,
		      struct verbs_budget *budget);

/*
 * Finds or makes a region with these rights that covers the bytes. Returns 0, -ENOMEM (the budget or the limit is used up by
 * what is in use, or it is not there, and may not be made now), -EFAULT, or another -errno of add(). Ownership: verbs_cache_put().
 */
int verbs_cache_get(struct verbs_cache *cache, uintptr_t start, size_t bytes, uint32_t rights,
		    struct verbs_region **out);
void verbs_cache_put(struct verbs_cache *cache, struct verbs_region *region);

/* The program changes what is mapped there. Returns regions that are in use all the same, and go when they no longer are. */
unsigned int verbs_cache_invalidate(struct verbs_cache *cache, uintptr_t start, size_t bytes);

/* Drops the unused region that was used least recently. Returns whether there was any. */
bool verbs_cache_shrink(struct verbs_cache *cache);

/* Drops all. No region may be in use. */
void verbs_cache_close(struct verbs_cache *cache);

#endif
