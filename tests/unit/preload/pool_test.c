/* SPDX-License-Identifier: MIT */
/* Pieces from slabs: each is somebody's alone, comes again when it was given back, and there are no more than there may be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "preload/pool.h"

#define EACH 5
#define SLABS 3

struct piece {
	uint64_t number;
	void *next;
	char more[40];
};

static void *slabs[SLABS];
static struct pool pool;

static int make_pool(void **state)
{
	pool = (struct pool){
		.bytes = sizeof(struct piece),
		.link = offsetof(struct piece, next),
		.each = EACH,
		.slabs_max = SLABS,
		.sharing = *state ? MAP_SHARED : MAP_PRIVATE,
		.slab = slabs,
	};
	return 0;
}

static int drop_pool(void **state)
{
	for (uint32_t i = 0; i < atomic_load(&pool.slabs); i++)
		munmap(slabs[i], EACH * sizeof(struct piece));
	return 0;
}

/* Takes all that there are and writes all over each. */
static void take_all(struct piece **all)
{
	for (uint64_t i = 0; i < EACH * SLABS; i++) {
		all[i] = pool_take(&pool);
		assert_non_null(all[i]);
		memset(all[i], 0xff, sizeof(*all[i]));
		all[i]->number = i;
	}
}

static void pieces_are_apart_and_as_many_as_there_may_be(void **state)
{
	struct piece *all[EACH * SLABS];

	take_all(all);
	assert_null(pool_take(&pool));
	assert_int_equal(atomic_load(&pool.slabs), SLABS);
	for (uint64_t i = 0; i < EACH * SLABS; i++)
		assert_int_equal(all[i]->number, i);
}

static void what_was_given_comes_again(void **state)
{
	struct piece *all[EACH * SLABS], *again[3];

	take_all(all);
	pool_give(&pool, all[2]);
	pool_give(&pool, all[7]);
	pool_give(&pool, all[14]);
	for (int i = 0; i < 3; i++)
		again[i] = pool_take(&pool);
	assert_ptr_equal(again[0], all[14]);
	assert_ptr_equal(again[1], all[7]);
	assert_ptr_equal(again[2], all[2]);
	assert_int_equal(again[1]->number, 7); /* but for the link, as it was */
	assert_null(pool_take(&pool));
}

static void slabs_hold_every_piece(void **state)
{
	struct piece *all[EACH * SLABS];
	unsigned int seen = 0;

	take_all(all);
	for (int i = 0; i < SLABS; i++) {
		for (int k = 0; k < EACH; k++)
			seen |= 1u << ((struct piece *)slabs[i])[k].number;
	}
	assert_int_equal(seen, (1u << EACH * SLABS) - 1);
}

static void shared_pieces_are_both_processes(void **state)
{
	struct piece *piece = pool_take(&pool);
	pid_t child = fork();

	if (!child) {
		piece->number = 42;
		_exit(0);
	}
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(piece->number, 42);
}

/* A handler that comes in the middle gets nothing, rather than to wait for itself. */
static void a_pool_in_use_by_oneself_gives_nothing(void **state)
{
	struct lock_hold hold;
	void *piece = pool_take(&pool);

	assert_true(lock_take(&pool.lock, &hold));
	assert_null(pool_take(&pool));
	pool_give(&pool, piece); /* lost */
	lock_give(&pool.lock, &hold);
	assert_ptr_not_equal(pool_take(&pool), piece);
}

static bool all_back;
static int asked;

static bool is_back(void *piece)
{
	asked++;
	return all_back || ((struct piece *)piece)->number == 1;
}

/* Takes all and lends them. */
static void lend_all(void)
{
	struct piece *all[EACH * SLABS];

	pool.is_back = is_back;
	all_back = false;
	asked = 0;
	take_all(all);
	for (int i = 0; i < EACH * SLABS; i++)
		pool_lend(&pool, all[i]);
}

static void what_was_lent_comes_again_once_it_is_back(void **state)
{
	struct piece *all[EACH * SLABS];

	lend_all();
	assert_int_equal(((struct piece *)pool_take(&pool))->number, 1);
	assert_null(pool_take(&pool));
	all_back = true;
	for (int i = 0; i < EACH * SLABS - 1; i++) {
		all[i] = pool_take(&pool);
		assert_non_null(all[i]);
		for (int k = 0; k < i; k++)
			assert_ptr_not_equal(all[i], all[k]);
	}
	assert_null(pool_take(&pool));
}

/* A look costs what there is in a slab, however many are lent, and all have their turn. */
static void few_are_asked_for_at_a_time(void **state)
{
	lend_all();
	assert_non_null(pool_take(&pool));
	assert_int_equal(asked, EACH);
	for (int i = 1; i <= SLABS; i++) {
		assert_null(pool_take(&pool));
		assert_int_equal(asked, EACH + EACH * i);
	}
}

/* Where one at a time comes back, there is more rather than a look for each. */
static void there_are_more_where_few_come_back(void **state)
{
	struct piece *piece[EACH];

	pool.is_back = is_back;
	all_back = false;
	asked = 0;
	for (int i = 0; i < EACH; i++) {
		piece[i] = pool_take(&pool);
		piece[i]->number = (uint64_t)i;
	}
	for (int i = 0; i < EACH; i++)
		pool_lend(&pool, piece[i]);
	for (int i = 0; i < EACH + 1; i++)
		assert_non_null(pool_take(&pool));
	assert_int_equal(asked, EACH);
	assert_int_equal(atomic_load(&pool.slabs), 2);
}

static void a_child_begins_with_nothing(void **state)
{
	lend_all();
	all_back = true;
	pool_after_fork(&pool);
	assert_int_equal(atomic_load(&pool.slabs), 0);
	pool.slab = NULL; /* the old ones are unmapped by what is there */
	assert_non_null(pool_take(&pool));
	assert_int_equal(asked, 0);
	pool.slab = slabs;
	atomic_store(&pool.slabs, SLABS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_pool, drop_pool)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pieces_are_apart_and_as_many_as_there_may_be),
		TEST(what_was_given_comes_again),
		TEST(slabs_hold_every_piece),
		cmocka_unit_test_prestate_setup_teardown(shared_pieces_are_both_processes, make_pool, drop_pool, slabs),
		TEST(what_was_lent_comes_again_once_it_is_back),
		TEST(few_are_asked_for_at_a_time),
		TEST(there_are_more_where_few_come_back),
		TEST(a_child_begins_with_nothing),
		TEST(a_pool_in_use_by_oneself_gives_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
