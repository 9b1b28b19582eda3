/* SPDX-License-Identifier: MIT */
/* The memory of a ring that is given back: only when nothing is in it, and what comes afterwards is right. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "resident_testing.h"
#include "ring_testing.h"

#define LARGE (256u << 10)
#define BYTES (48u << 10)

static uint64_t put_so_far, got_so_far;

static int make_large(void **state)
{
	put_so_far = got_so_far = 0;
	if (channel_make(&channel, LARGE) < 0)
		return -1;
	lane = channel.out;
	atomic_store(&lane.shared->reader, 1);
	return lane_take_over(&lane) ? 0 : -1;
}

static void put_bytes(size_t bytes)
{
	static uint8_t data[BYTES];
	struct iovec iov = { data, bytes };

	fill(data, put_so_far, bytes);
	assert_int_equal(lane_put(&lane, &iov, 1, 0), bytes);
	put_so_far += bytes;
}

static void get_bytes(size_t bytes)
{
	static uint8_t data[BYTES];
	struct iovec iov = { data, bytes };
	size_t got;

	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), LANE_DATA);
	assert_int_equal(got, bytes);
	assert_true(right(data, got_so_far, bytes));
	got_so_far += bytes;
}

static void an_empty_ring_gives_all_its_memory_back(void **state)
{
	put_bytes(BYTES);
	get_bytes(BYTES);
	assert_true(resident_bytes(lane.ring, LARGE) >= BYTES);
	assert_true(lane_trim(&lane));
	assert_int_equal(resident_bytes(lane.ring, LARGE), 0);
}

static void bytes_that_come_afterwards_are_right(void **state)
{
	for (int i = 0; i < 20; i++) { /* around the ring's end, too */
		put_bytes(BYTES - 100);
		get_bytes(BYTES - 100);
		assert_true(lane_trim(&lane));
	}
}

static void a_ring_with_unread_bytes_keeps_them(void **state)
{
	put_bytes(BYTES);
	assert_false(lane_trim(&lane));
	get_bytes(BYTES - 1);
	assert_false(lane_trim(&lane));
	get_bytes(1);
	assert_true(lane_trim(&lane));
}

static void a_head_that_a_peer_has_made_up_keeps_the_memory(void **state)
{
	put_bytes(BYTES);
	get_bytes(BYTES);
	atomic_store(&lane.shared->head, atomic_load(&lane.shared->tail) + 16);
	assert_false(lane_trim(&lane));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_large, drop_lane)
	const struct CMUnitTest tests[] = {
		TEST(an_empty_ring_gives_all_its_memory_back),
		TEST(bytes_that_come_afterwards_are_right),
		TEST(a_ring_with_unread_bytes_keeps_them),
		TEST(a_head_that_a_peer_has_made_up_keeps_the_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
