/* SPDX-License-Identifier: MIT */
/* A consumer that leaves the ring: what it keeps, what the producer takes back, and when nobody has to count any more. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ring_testing.h"

/* Puts bytes of the stream and says what the consumer has of them. */
static ssize_t put_from(uint64_t position, size_t bytes)
{
	static uint8_t data[2000];
	struct iovec iov = { data, bytes };

	fill(data, position, bytes);
	assert_int_equal(lane_put(&lane, &iov, 1, 0), bytes);
	return lane_leaves(&lane) ? lane_left(&lane, bytes) : (ssize_t)bytes;
}

static int get_bytes(uint8_t *data, size_t room, size_t *got)
{
	struct iovec iov = { data, room };

	return lane_get(&lane, &iov, 1, false, got);
}

/* Ten bytes for a consumer that sleeps, and leaves. */
static void put_and_leave(void)
{
	assert_true(lane_take_over(&lane));
	lane_arm(&lane);
	assert_int_equal(put_from(0, 10), 10);
	lane_leave(&lane);
}

/* What was in the ring, and the end of it. */
static void get_the_last(void)
{
	uint8_t data[3000];
	size_t got;

	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_DATA);
	assert_int_equal(got, 10);
	assert_true(right(data, 0, 10));
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_RAW);
}

static void a_consumer_that_leaves_keeps_what_was_there_and_no_more(void **state)
{
	uint8_t data[3000];
	size_t got;

	assert_true(lane_take_over(&lane));
	assert_int_equal(put_from(0, 1000), 1000);
	assert_int_equal(get_bytes(data, 300, &got), LANE_DATA);
	lane_leave(&lane);
	lane_arm(&lane);
	assert_false(lane_must_ring(&lane));
	assert_int_equal(put_from(1000, 500), 0);
	assert_false(lane_take_over(&lane));
	assert_int_equal(lane_unread(&lane), 700);
	assert_false(lane_is_over(&lane));
	assert_false(lane_is_empty(&lane));
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_DATA);
	assert_int_equal(got, 700);
	assert_true(right(data, 300, 700));
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_RAW);
	assert_true(lane_is_over(&lane));
	assert_true(lane_raw_begins(&lane));
	lane_raw_ends(&lane, 500);
}

static void a_producer_says_where_the_ring_ends_for_a_consumer_that_has_not(void **state)
{
	uint8_t data[3000];
	size_t got;

	assert_true(lane_take_over(&lane));
	assert_int_equal(put_from(0, 1000), 1000);
	atomic_store(&lane.shared->leave, 1); /* and was stopped there */
	assert_int_equal(put_from(1000, 500), 500);
	assert_false(lane_take_over(&lane));
	lane_leave(&lane);
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_DATA);
	assert_int_equal(got, 1500);
	assert_true(right(data, 0, 1500));
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_RAW);
	assert_true(lane_is_over(&lane));
}

static void the_end_of_a_ring_comes_after_every_doorbell(void **state)
{
	uint8_t data[3000];
	size_t got;

	assert_true(lane_take_over(&lane));
	assert_int_equal(put_from(0, 10), 10);
	lane_arm(&lane);
	assert_true(lane_must_ring(&lane));
	lane_leave(&lane);
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_DATA);
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_EMPTY); /* who knows whether the stream takes it */
	lane_rang(&lane, true);
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_RAW);
	assert_int_equal(lane_bells_sure(&lane), 1);
	assert_false(lane_is_over(&lane));
	lane_saw_bells(&lane, 1);
	assert_true(lane_is_over(&lane));
}

/* Of several processes that receive on a connection one may leave while another sleeps. */
static void whoever_sleeps_beside_one_that_leaves_is_woken_for_what_was_there(void **state)
{
	put_and_leave();
	assert_true(lane_must_ring(&lane));
	lane_rang(&lane, true);
	get_the_last();
	assert_int_equal(lane_bells_sure(&lane), 1);
}

static void the_bell_goes_with_the_last_of_the_ring(void **state)
{
	put_and_leave();
	get_the_last();
	assert_true(lane_is_over(&lane));
	assert_false(lane_must_ring(&lane));
}

static void raw_bytes_before_a_takeover_come_first_though_the_consumer_leaves(void **state)
{
	uint8_t data[3000];
	size_t got;

	lane_sent_raw(&lane, 100);
	assert_true(lane_take_over(&lane));
	assert_int_equal(put_from(100, 50), 50);
	lane_leave(&lane);
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_RAW);
	assert_false(lane_is_over(&lane));
	assert_int_equal(lane_raw_max(&lane), 100);
	assert_true(lane_raw_begins(&lane));
	lane_raw_ends(&lane, 100);
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_DATA);
	assert_true(got == 50 && right(data, 100, 50));
	assert_int_equal(get_bytes(data, sizeof(data), &got), LANE_RAW);
	assert_true(lane_is_over(&lane));
}

static void a_producer_believes_no_end_that_can_not_be(void **state)
{
	assert_true(lane_take_over(&lane));
	assert_int_equal(put_from(0, 1000), 1000);
	lane_leave(&lane);
	atomic_store(&lane.shared->end, 16); /* of what it had before */
	assert_int_equal(put_from(1000, 500), -EPROTO);
	atomic_store(&lane.shared->end, atomic_load(&lane.shared->tail) + 64);
	assert_int_equal(put_from(1500, 5), -EPROTO);
	atomic_store(&lane.shared->end, atomic_load(&lane.shared->tail) - 8);
	assert_int_equal(lane_left(&lane, 5), -EPROTO);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_lane, drop_lane)
	const struct CMUnitTest tests[] = {
		TEST(a_consumer_that_leaves_keeps_what_was_there_and_no_more),
		TEST(a_producer_says_where_the_ring_ends_for_a_consumer_that_has_not),
		TEST(the_end_of_a_ring_comes_after_every_doorbell),
		TEST(whoever_sleeps_beside_one_that_leaves_is_woken_for_what_was_there),
		TEST(the_bell_goes_with_the_last_of_the_ring),
		TEST(raw_bytes_before_a_takeover_come_first_though_the_consumer_leaves),
		TEST(a_producer_believes_no_end_that_can_not_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
