/* SPDX-License-Identifier: MIT */
/* Sources that are fetched before they are asked for (ZC_RECV_ASYNC between hosts; avail.h). */
#define _GNU_SOURCE
#include "avail_testing.h"

static void slots_and_area_are_used_again_ahead(void **state)
{
	use_again(true);
	assert_true(ahead.begun > 10);
	assert_true(ahead.waits > 0);
	assert_true(far.sources_in.later > 0);
}

/* Announces three, and receives the first one. */
static void receive_first_of_three(void)
{
	far.sources_in.ahead = true;
	announce_at(program, 10000);
	put(7);
	announce_at(program + 10000, 10000);
	announce_at(program + 20000, 10000);
	must_take(10000, 10000);
	assert_int_equal(ahead.begun, 1);
	assert_int_equal(ahead.count, 3); /* bytes of two, and their words */
	assert_int_equal(direct, 10000);
	gets = 0;
}

static void what_comes_next_is_fetched_meanwhile(void **state)
{
	receive_first_of_three();
	come(false);
	come(true);
	must_take(10007, 10007);
	must_take(10000, 10000);
	assert_int_equal(gets, 0);
	assert_int_equal(ahead.waits, 0);
	assert_int_equal(direct, 10000);
	assert_int_equal(far.sources_in.later, 20000);
	assert_int_equal(far.sources_in.fetched, 30000);
	tell();
	assert_int_equal(source_outstanding(out), 0);
}

/* Behind the record a READ may have no memory any more, at either end. */
static void no_record_is_passed_before_its_bytes_are_here(void **state)
{
	receive_first_of_three();
	must_take(20007, 20007);
	assert_int_equal(ahead.waits, 1);
	assert_int_equal(ahead.count, 0);
	assert_int_equal(gets, 0);
}

/* The rest of a source is not fetched together with those that are on their way. */
static void part_of_a_source_does_not_draw_in_those_behind_it(void **state)
{
	far.sources_in.ahead = true;
	announce_at(program, 20000);
	announce_at(program + 20000, 20000);
	must_take(17000, 17000);
	assert_int_equal(ahead.count, 2); /* bytes and word of the second */
	must_take(23000, 23000);
	assert_int_equal(direct, 20000);
	assert_int_equal(ahead.waits, 1);
	assert_int_equal(far.sources_in.later, 20000);
}

static void look_waits_for_them_too(void **state)
{
	size_t count;

	receive_first_of_three();
	assert_int_equal(take(20007, true, &count), LANE_DATA);
	assert_int_equal(count, 20007);
	assert_int_equal(ahead.waits, 1);
	must_take(20007, 20007);
}

static void bytes_that_were_kept_before_they_came_are_read_again(void **state)
{
	receive_first_of_three();
	assert_int_equal(source_keep_all(out), 0);
	memset(program, 0xdd, MOST);
	come(false);
	come(true);
	must_take(20007, 20007);
	assert_true(gets > 0);
	assert_int_equal(far.sources_in.later, 0);
}

static void bytes_that_were_kept_while_they_came_are_read_again(void **state)
{
	receive_first_of_three();
	come(false);
	assert_int_equal(source_keep(out, 3), 0);
	memset(program + 20000, 0xdd, 10000);
	come(true);
	must_take(20007, 20007);
	assert_int_equal(gets, 1);
	assert_int_equal(far.sources_in.later, 10000);
}

static void what_could_not_be_begun_is_fetched_when_it_is_asked_for(void **state)
{
	far.sources_in.ahead = true;
	ahead.fail_at = 2; /* the words are missing */
	announce_at(program, 10000);
	announce_at(program + 10000, 10000);
	announce_at(program + 20000, 10000);
	must_take(10000, 10000);
	assert_int_equal(ahead.count, 2);
	source_keep_all(out);
	memset(program, 0xdd, MOST);
	ahead.room = 0;
	must_take(20000, 20000);
	assert_int_equal(far.sources_in.later, 0);
}

static void no_more_than_half_of_the_area_is_fetched_ahead(void **state)
{
	far.sources_in.ahead = true;
	for (int i = 0; i < 5; i++)
		announce_at(program + i * 12000, 12000);
	must_take(12000, 12000);
	assert_int_equal(ahead.count, 3);
	come(false);
	come(true);
	must_take(12000, 12000); /* and the next, while this is copied */
	assert_int_equal(ahead.begun, 2);
	assert_int_equal(ahead.count, 3);
	must_take(36000, 36000);
}

static void no_more_is_begun_than_the_device_allows(void **state)
{
	far.sources_in.ahead = true;
	ahead.room = 3;
	for (int i = 0; i < 4; i++)
		announce_at(program + i * 12000, 12000);
	must_take(12000, 12000);
	assert_int_equal(ahead.count, 2);
	must_take(36000, 36000);
}

static void what_is_on_its_way_when_the_queue_pair_breaks_is_not_here(void **state)
{
	size_t count;

	receive_first_of_three();
	come(false);
	come(true);
	break_it();
	assert_int_equal(lane_unread_all(in), 7);
	must_take(MOST, 7);
	assert_int_equal(take(MOST, false, &count), LANE_EMPTY);
	assert_int_equal(lane_unread_all(in), 0);
	avail_cut(in);
	lane_leave(in);
	assert_int_equal(take(MOST, false, &count), LANE_RAW);
}

static void all_is_here_before_a_switch_counts(void **state)
{
	receive_first_of_three();
	assert_int_equal(avail_fetch_all(in), 0);
	assert_int_equal(ahead.waits, 1);
	assert_int_equal(gets, 0);
	break_it();
	must_take(20007, 20007);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, make_both, drop_both)
		CASE(slots_and_area_are_used_again_ahead),
		CASE(what_comes_next_is_fetched_meanwhile),
		CASE(no_record_is_passed_before_its_bytes_are_here),
		CASE(part_of_a_source_does_not_draw_in_those_behind_it),
		CASE(look_waits_for_them_too),
		CASE(bytes_that_were_kept_before_they_came_are_read_again),
		CASE(bytes_that_were_kept_while_they_came_are_read_again),
		CASE(what_could_not_be_begun_is_fetched_when_it_is_asked_for),
		CASE(no_more_than_half_of_the_area_is_fetched_ahead),
		CASE(no_more_is_begun_than_the_device_allows),
		CASE(what_is_on_its_way_when_the_queue_pair_breaks_is_not_here),
		CASE(all_is_here_before_a_switch_counts),
#undef CASE
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
