/* SPDX-License-Identifier: MIT */
/* The choice by trying, against programs of which it is known what is best for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "preload/trial.h"

static struct trial trial;
static struct trial_knowledge knowledge;
static uint64_t now;
static unsigned int taken[TRIAL_WAYS];

static int fresh(void **state)
{
	trial = (struct trial){ 0 };
	memset(&knowledge, 0, sizeof(knowledge));
	now = 1;
	return 0;
}

/* So many sends of a program whose send by way i takes cost[i] us, now and then a busy moment longer. */
static void sends(unsigned int count, size_t bytes, const unsigned int *cost)
{
	for (int way = 0; way < TRIAL_WAYS; way++)
		taken[way] = 0;
	for (unsigned int i = 0; i < count; i++) {
		unsigned int way = trial_next(&trial, &knowledge, bytes, now);

		assert_true(way < TRIAL_WAYS);
		taken[way]++;
		now += cost[way] * NS_PER_US + (rand() % 1000 ? 0 : 3 * NS_PER_MS);
	}
}

static void best_way_is_taken_most_of_the_time(void **state)
{
	for (unsigned int best = 0; best < TRIAL_WAYS; best++) {
		unsigned int cost[TRIAL_WAYS] = { 150, 150, 150 };

		cost[best] = 100;
		fresh(state);
		sends(20000, 65536, cost);
		assert_true(taken[best] > 17000);
	}
}

static void what_was_tried_is_told(void **state)
{
	const unsigned int cost[TRIAL_WAYS] = { 300, 100, 200 };

	sends(2000, 1 << 20, cost);
	/* Buffers of 1 MiB are the class behind those below 128, 256, 512 and 1024 KiB. */
	assert_int_equal(atomic_load(&knowledge.classes[4].best), 2);
	assert_true(atomic_load(&knowledge.classes[4].tries) > 0);
	for (int way = 0; way < TRIAL_WAYS; way++) {
		uint64_t told = atomic_load(&knowledge.classes[4].cost[way]), right = cost[way] * NS_PER_US / 1024;

		assert_true(told >= right && told <= right + right / 2);
	}
	assert_int_equal(atomic_load(&knowledge.classes[0].tries), 0);
}

static void next_best_is_known_too(void **state)
{
	const unsigned int cost[TRIAL_WAYS] = { 300, 200, 100 }, little[TRIAL_WAYS] = { 300, 290, 100 };

	assert_int_equal(trial_best_before(&knowledge, 65536, 2), 0);
	sends(2000, 65536, cost);
	assert_int_equal(trial_best_before(&knowledge, 65536, 2), 1);
	assert_int_equal(trial_best_before(&knowledge, 65536, 1), 0);
	assert_int_equal(trial_best_before(&knowledge, 1 << 20, 2), 0);
	sends(2000, 1 << 20, little);
	assert_int_equal(trial_best_before(&knowledge, 1 << 20, 2), 0); /* no clear gain */
}

static void program_that_changes_is_followed(void **state)
{
	const unsigned int before[] = { 200, 100, 150 }, after[] = { 200, 400, 150 };

	sends(2000, 65536, before);
	assert_true(taken[1] > 1600);
	sends(20000, 65536, after);
	sends(20000, 65536, after);
	assert_true(taken[2] > 18000);
}

static void sizes_are_told_apart(void **state)
{
	const unsigned int small[] = { 100, 200, 300 }, large[] = { 300, 200, 100 };

	sends(5000, 65536, small);
	sends(5000, 1 << 20, large);
	assert_true(taken[2] > 4000);
	sends(5000, 65536, small);
	assert_true(taken[0] > 4000);
}

static void pauses_of_the_program_say_nothing(void **state)
{
	unsigned int last = 0;

	/* Way 1 is the best; whatever comes before a pause is not to blame for it. */
	for (int i = 0; i < 20000; i++) {
		last = trial_next(&trial, &knowledge, 65536, now);
		now += last == 1 ? 100 * NS_PER_US : 150 * NS_PER_US;
		if (last == 1 && i % 3 == 0)
			now += NS_PER_SEC;
	}
	assert_int_equal(knowledge.classes[0].best, 1 + 1);
}

static void one_connection_tries_for_all(void **state)
{
	const unsigned int cost[] = { 200, 100, 150 };
	struct trial other = { 0 };
	unsigned int others[TRIAL_WAYS] = { 0 };

	for (int i = 0; i < 1000; i++) {
		now += cost[trial_next(&trial, &knowledge, 65536, now)] * NS_PER_US;
		others[trial_next(&other, &knowledge, 65536, now)]++;
	}
	assert_int_equal(others[2], 0);
	assert_true(others[0] < 400 && others[1] > 600);
}

static void small_gain_is_for_who_is_alone(void **state)
{
	const unsigned int cost[] = { 1000, 900, 1000 };
	struct trial other = { 0 };

	sends(20000, 65536, cost);
	assert_true(taken[1] > 17000);
	fresh(state);
	for (int i = 0; i < 2000; i++) {
		unsigned int way = trial_next(&trial, &knowledge, 65536, now);

		trial_next(&other, &knowledge, 65536, now);
		now += cost[way] * NS_PER_US;
	}
	assert_int_equal(knowledge.classes[0].best, 1);
	/* When the other one has gone, it is found at the next trial. */
	sends(20000, 65536, cost);
	assert_true(taken[1] > 15000);
}

static void connection_that_ends_in_mid_trial_is_followed_by_another(void **state)
{
	const unsigned int cost[] = { 200, 100, 150 };

	sends(5, 65536, cost);
	trial = (struct trial){ 0 };
	sends(20000, 65536, cost);
	sends(20000, 65536, cost);
	assert_true(taken[1] > 19000);
}

static void any_size_has_its_class(void **state)
{
	for (unsigned int shift = 0; shift < 64; shift++)
		assert_true(trial_next(&trial, &knowledge, (size_t)1 << shift, now) < TRIAL_WAYS);
	assert_true(trial_next(&trial, &knowledge, SIZE_MAX, now) < TRIAL_WAYS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(best_way_is_taken_most_of_the_time, fresh),
		cmocka_unit_test_setup(what_was_tried_is_told, fresh),
		cmocka_unit_test_setup(next_best_is_known_too, fresh),
		cmocka_unit_test_setup(program_that_changes_is_followed, fresh),
		cmocka_unit_test_setup(sizes_are_told_apart, fresh),
		cmocka_unit_test_setup(pauses_of_the_program_say_nothing, fresh),
		cmocka_unit_test_setup(one_connection_tries_for_all, fresh),
		cmocka_unit_test_setup(small_gain_is_for_who_is_alone, fresh),
		cmocka_unit_test_setup(connection_that_ends_in_mid_trial_is_followed_by_another, fresh),
		cmocka_unit_test_setup(any_size_has_its_class, fresh),
	};

	srand(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
