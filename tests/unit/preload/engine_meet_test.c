/* SPDX-License-Identifier: MIT */
/* Two ends of which the one has made many data calls before the other has made its first: they meet by the real rendezvous. */
#define _GNU_SOURCE
#include "met_testing.h"

#define EARLY_CALLS 20000 /* of an end that is fast, before the other process has woken up */
#define CALLS_MAX (8 * EARLY_CALLS)

static void step(int end)
{
	engine_step(conns[end], atomic_load(&conns[end]->engine), ends[end]);
}

static void meet_behind_early_calls(int early)
{
	for (int i = 0; i < EARLY_CALLS; i++)
		step(early);
	for (int i = 0; i < CALLS_MAX && !(engine_has_met(conns[0]) && engine_has_met(conns[1])); i++) {
		step(1 - early);
		step(early);
	}
	assert_true(engine_has_met(conns[0]));
	assert_true(engine_has_met(conns[1]));
}

static void connecting_end_waits_for_one_that_comes_late(void **state)
{
	meet_behind_early_calls(0);
}

static void accepting_end_waits_for_one_that_comes_late(void **state)
{
	meet_behind_early_calls(1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(connecting_end_waits_for_one_that_comes_late, open_apart, close_ends),
		cmocka_unit_test_setup_teardown(accepting_end_waits_for_one_that_comes_late, open_apart, close_ends),
	};

	use_rings(65536);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
