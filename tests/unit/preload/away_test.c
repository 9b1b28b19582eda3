/* SPDX-License-Identifier: MIT */
/* When a lane stays on TCP for a while, and when it comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "preload/away.h"

#define MANY 10000

/* Sends that TCP has until the ring is tried again. */
static uint32_t spell(struct away *away)
{
	uint32_t sends = 0;

	while (away_stays(away))
		sends++;
	away_ends(away);
	return sends;
}

/* Puts until the ring is left; MANY: it is not. */
static uint32_t puts_until_it_leaves(struct away *away, uint32_t came)
{
	for (uint32_t i = 0; i < MANY; i++) {
		if (came)
			away_came(away, came);
		if (away_at_put(away))
			return i;
	}
	return MANY;
}

static void answers_by_tcp_end_a_stay_on_the_ring(void **state)
{
	struct away away = { 0 };

	assert_in_range(puts_until_it_leaves(&away, AWAY_CAME_RAW), 1, 100);
	assert_in_range(spell(&away), 1, 100);
}

static void answers_by_the_ring_do_not(void **state)
{
	struct away away = { 0 };

	assert_int_equal(puts_until_it_leaves(&away, AWAY_CAME_BY_RING), MANY);
	assert_int_equal(puts_until_it_leaves(&away, AWAY_CAME_BY_RING | AWAY_CAME_RAW), MANY);
	assert_int_equal(puts_until_it_leaves(&away, 0), MANY);
}

static void a_stream_with_an_answer_now_and_then_stays_on_the_ring(void **state)
{
	struct away away = { 0 };

	for (uint32_t i = 0; i < MANY; i++) {
		if (i % 4 == 0)
			away_came(&away, AWAY_CAME_RAW);
		assert_false(away_at_put(&away));
	}
}

static void requests_in_two_pieces_count_as_requests(void **state)
{
	struct away away = { 0 };
	uint32_t i = 0;

	for (; i < MANY; i++) {
		if (i % 2)
			away_came(&away, AWAY_CAME_RAW);
		if (away_at_put(&away))
			break;
	}
	assert_in_range(i, 1, 100);
}

static void the_ring_is_tried_ever_more_seldom(void **state)
{
	struct away away = { 0 };
	uint32_t last = 0, now = 0;

	for (int i = 0; i < 20; i++) {
		assert_int_not_equal(puts_until_it_leaves(&away, AWAY_CAME_RAW), MANY);
		now = spell(&away);
		assert_true(now >= last);
		last = now;
	}
	assert_in_range(now, 1000, MANY);
	/* One that was of use for long begins anew. */
	assert_int_equal(puts_until_it_leaves(&away, AWAY_CAME_BY_RING), MANY);
	assert_int_not_equal(puts_until_it_leaves(&away, AWAY_CAME_RAW), MANY);
	assert_in_range(spell(&away), 1, 100);
}

static void short_stays_end_for_a_while(void **state)
{
	struct away away = { 0 };
	uint32_t stays = 0;

	while (!away_stays(&away) && stays < MANY) {
		away_ends(&away);
		assert_false(away_at_put(&away));
		away_interrupted(&away);
		stays++;
	}
	assert_in_range(stays, 2, 10);
}

static void long_stays_do_not(void **state)
{
	struct away away = { 0 };

	for (int i = 0; i < 100; i++) {
		assert_false(away_stays(&away));
		away_ends(&away);
		for (int put = 0; put < 100; put++)
			assert_false(away_at_put(&away));
		away_interrupted(&away);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answers_by_tcp_end_a_stay_on_the_ring),
		cmocka_unit_test(answers_by_the_ring_do_not),
		cmocka_unit_test(a_stream_with_an_answer_now_and_then_stays_on_the_ring),
		cmocka_unit_test(requests_in_two_pieces_count_as_requests),
		cmocka_unit_test(the_ring_is_tried_ever_more_seldom),
		cmocka_unit_test(short_stays_end_for_a_while),
		cmocka_unit_test(long_stays_do_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
