/* SPDX-License-Identifier: MIT */
/* The cache of registered memory, with a device that keeps a list: what it has registered is compared with what it should. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "rdma/verbs_cache.h"

#define PAGE 4096u
#define REGISTERED_MAX 1024

static struct {
	uintptr_t start;
	size_t bytes;
} registered[REGISTERED_MAX];
static size_t registered_bytes, limit;
static unsigned int additions;

static int add(void *context, uintptr_t start, size_t bytes, uint32_t rights, void **handle)
{
	if (registered_bytes + bytes > limit)
		return -ENOMEM;
	for (size_t i = 0; i < REGISTERED_MAX; i++) {
		if (!registered[i].bytes) {
			registered[i].start = start;
			registered[i].bytes = bytes;
			registered_bytes += bytes;
			additions++;
			*handle = &registered[i];
			return 0;
		}
	}
	return -EMFILE;
}

static void drop(void *context, void *handle)
{
	size_t i = (size_t)((char *)handle - (char *)registered) / sizeof(*registered);

	assert_true(registered[i].bytes);
	registered_bytes -= registered[i].bytes;
	registered[i].bytes = 0;
}

static bool may_change = true;

static bool may(void)
{
	return may_change;
}

static const struct verbs_cache_ops ops = { add, drop, may };
static struct verbs_budget budget;
static struct verbs_cache cache;

static int open_cache(void **state)
{
	limit = SIZE_MAX;
	additions = 0;
	budget = (struct verbs_budget){ .bytes_max = 64 * PAGE };
	verbs_cache_open(&cache, &ops, NULL, &budget);
	return 0;
}

static int close_cache(void **state)
{
	verbs_cache_close(&cache);
	return registered_bytes || budget.bytes ? -1 : 0;
}

static struct verbs_region *get(uintptr_t start, size_t bytes)
{
	struct verbs_region *region;

	assert_int_equal(verbs_cache_get(&cache, start, bytes, 1, &region), 0);
	assert_true(region->start <= start && region->end >= start + bytes);
	return region;
}

static void use(uintptr_t start, size_t bytes)
{
	verbs_cache_put(&cache, get(start, bytes));
}

static void memory_is_registered_once(void **state)
{
	use(0x100010, 5000);
	use(0x100010, 5000);
	use(0x100000, 2 * PAGE);
	use(0x101fff, 1);
	assert_int_equal(additions, 1);
	use(0x101fff, 2);
	assert_int_equal(additions, 2);
}

static void region_that_covers_is_found_behind_others(void **state)
{
	use(0x100000, 32 * PAGE);
	use(0x0ff000, 2 * PAGE);
	additions = 0;
	/* A second inside the first is made only by other rights. */
	struct verbs_region *region;
	assert_int_equal(verbs_cache_get(&cache, 0x108000, PAGE, 2, &region), 0);
	verbs_cache_put(&cache, region);
	assert_int_equal(additions, 1);
	use(0x109000, 10 * PAGE);
	use(0x11f000, PAGE);
	assert_int_equal(additions, 1);
}

static void least_recently_used_goes_first(void **state)
{
	for (uintptr_t i = 0; i < 4; i++)
		use(0x100000 + i * 0x100000, 16 * PAGE);
	use(0x100000, PAGE);
	additions = 0;
	use(0x900000, PAGE);
	use(0x100000, PAGE);
	use(0x300000, PAGE);
	assert_int_equal(additions, 1);
	use(0x200000, PAGE);
	assert_int_equal(additions, 2);
}

static void used_regions_stay(void **state)
{
	struct verbs_region *first = get(0x100000, 40 * PAGE), *second;

	assert_int_equal(verbs_cache_get(&cache, 0x800000, 40 * PAGE, 1, &second), -ENOMEM);
	assert_int_equal(verbs_cache_get(&cache, 0x800000, 65 * PAGE, 1, &second), -ENOMEM);
	verbs_cache_put(&cache, first);
	use(0x800000, 40 * PAGE);
}

static void half_of_the_budget_is_spared(void **state)
{
	assert_true(verbs_budget_spares(&budget, 32 * PAGE));
	assert_false(verbs_budget_spares(&budget, 33 * PAGE));
	assert_false(verbs_budget_spares(&budget, SIZE_MAX));
	use(0x100000, 8 * PAGE);
	assert_true(verbs_budget_spares(&budget, 24 * PAGE));
	assert_false(verbs_budget_spares(&budget, 25 * PAGE));
	use(0x200000, 32 * PAGE);
	assert_false(verbs_budget_spares(&budget, PAGE));
}

static void limit_of_the_system_makes_room_too(void **state)
{
	use(0x100000, 8 * PAGE);
	limit = 10 * PAGE;
	use(0x800000, 8 * PAGE);
	assert_int_equal(registered_bytes, 8 * PAGE);
}

static void given_back_memory_is_registered_anew(void **state)
{
	struct verbs_region *used = get(0x200000, 2 * PAGE);

	use(0x100000, 4 * PAGE);
	use(0x300000, PAGE);
	assert_int_equal(verbs_cache_invalidate(&cache, 0x103000, 0x200000 + PAGE - 0x103000), 1);
	assert_int_equal(registered_bytes, 3 * PAGE);
	additions = 0;
	use(0x300000, PAGE);
	assert_int_equal(additions, 0);
	use(0x200000, 2 * PAGE);
	assert_int_equal(additions, 1);
	verbs_cache_put(&cache, used);
	assert_int_equal(registered_bytes, 3 * PAGE);
	assert_int_equal(verbs_cache_invalidate(&cache, 0, SIZE_MAX), 0);
	assert_int_equal(registered_bytes, 0);
}

static void nothing_changes_while_it_may_not(void **state)
{
	struct verbs_region *used = get(0x100000, PAGE), *none;
	size_t before;

	use(0x200000, PAGE);
	before = registered_bytes;
	additions = 0;
	may_change = false;
	use(0x200000, PAGE); /* is there */
	assert_int_equal(verbs_cache_get(&cache, 0x300000, PAGE, 1, &none), -ENOMEM);
	assert_int_equal(verbs_cache_invalidate(&cache, 0x100000, 2 * 0x100000), 1);
	verbs_cache_put(&cache, used);
	assert_int_equal(verbs_cache_get(&cache, 0x200000, PAGE, 1, &none), -ENOMEM); /* and is found by nobody more */
	assert_int_equal(additions, 0);
	assert_int_equal(registered_bytes, before);
	may_change = true;
	assert_int_equal(verbs_cache_invalidate(&cache, 0x100000, 2 * 0x100000), 0);
	assert_int_equal(registered_bytes, 0);
}

static void full_table_makes_room(void **state)
{
	budget.bytes_max = SIZE_MAX;
	for (uintptr_t i = 0; i < VERBS_CACHE_REGIONS + 50; i++)
		use(0x100000 + i * 2 * PAGE, PAGE);
	assert_int_equal(cache.count, VERBS_CACHE_REGIONS);
}

/* Against a plain list: what is found covers, is not stale, and no byte of what was given back is left but in use. */
static void anything_goes(void **state)
{
	struct verbs_region *used[16] = { 0 };
	unsigned int seed = 99;

	for (int i = 0; i < 20000; i++) {
		uintptr_t start = 0x100000 + (uintptr_t)(rand_r(&seed) % 200) * 1000;
		size_t bytes = 1 + (size_t)rand_r(&seed) % 20000;
		int at = rand_r(&seed) % 16;

		if (used[at]) {
			verbs_cache_put(&cache, used[at]);
			used[at] = NULL;
		} else if (rand_r(&seed) % 4) {
			if (verbs_cache_get(&cache, start, bytes, 1, &used[at]) < 0)
				used[at] = NULL;
			else
				assert_true(!used[at]->stale && used[at]->start <= start &&
					    used[at]->end >= start + bytes);
		} else {
			verbs_cache_invalidate(&cache, start, bytes);
			for (uint32_t k = 0; k < cache.count; k++)
				assert_true(cache.region[k]->end <= start || cache.region[k]->start >= start + bytes ||
					    (cache.region[k]->stale && cache.region[k]->users));
		}
		assert_true(registered_bytes == budget.bytes && budget.bytes <= budget.bytes_max);
	}
	for (int at = 0; at < 16; at++) {
		if (used[at])
			verbs_cache_put(&cache, used[at]);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_cache, close_cache)

/* What is to go while that may not be goes with the next call in which it may. */
static void region_let_go_in_a_handler_goes_later(void **state)
{
	struct verbs_region *region = get(0x100000, PAGE);

	assert_int_equal(verbs_cache_invalidate(&cache, 0x100000, PAGE), 1);
	may_change = false;
	verbs_cache_put(&cache, region);
	may_change = true;
	assert_int_equal(registered_bytes, PAGE);
	use(0x900000, PAGE);
	assert_int_equal(registered_bytes, PAGE);
	assert_int_equal(cache.count, 1);
}

static void unused_region_found_stale_in_a_handler_goes_later(void **state)
{
	use(0x100000, PAGE);
	may_change = false;
	assert_int_equal(verbs_cache_invalidate(&cache, 0x100000, PAGE), 0);
	may_change = true;
	use(0x900000, PAGE);
	assert_int_equal(registered_bytes, PAGE);
}

static void nothing_is_dropped_for_room_in_a_handler(void **state)
{
	use(0x100000, PAGE);
	may_change = false;
	assert_false(verbs_cache_shrink(&cache));
	may_change = true;
	assert_int_equal(registered_bytes, PAGE);
	assert_true(verbs_cache_shrink(&cache));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_is_registered_once),
		TEST(region_that_covers_is_found_behind_others),
		TEST(least_recently_used_goes_first),
		TEST(used_regions_stay),
		TEST(half_of_the_budget_is_spared),
		TEST(limit_of_the_system_makes_room_too),
		TEST(given_back_memory_is_registered_anew),
		TEST(nothing_changes_while_it_may_not),
		TEST(region_let_go_in_a_handler_goes_later),
		TEST(unused_region_found_stale_in_a_handler_goes_later),
		TEST(nothing_is_dropped_for_room_in_a_handler),
		TEST(full_table_makes_room),
		TEST(anything_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
