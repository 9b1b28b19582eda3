/* SPDX-License-Identifier: MIT */
/* What a sender can read again out of its own ring, whatever its consumer has told. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rdma/channel.h"
#include "rdma/verbs_replay.h"
#include "stream_testing.h"

#define RING 65536u

/* The ends' own memory, as verbs has it: what is written here reaches `far` when carry() is called. */
static struct channel near, far;
static uint64_t arrived;

static int make_both(void **state)
{
	arrived = 0;
	return channel_make(&near, RING) < 0 || channel_make(&far, RING) < 0 ? -1 : 0;
}

static int drop_both(void **state)
{
	channel_close(&near);
	channel_close(&far);
	return 0;
}

static size_t put(size_t bytes)
{
	uint8_t data[RING];
	struct iovec iov = { data, bytes };
	uint64_t sent = atomic_load(&near.out.shared->sent);

	fill(data, sent, bytes);
	return (size_t)lane_put(&near.out, &iov, 1, 0);
}

static void carry(void)
{
	uint64_t tail = atomic_load(&near.out.shared->tail);

	for (; arrived < tail; arrived++)
		far.out.ring[arrived % RING] = near.out.ring[arrived % RING];
	atomic_store(&far.out.shared->tail, tail);
}

static void consume(size_t bytes)
{
	uint8_t data[RING];
	struct iovec iov = { data, bytes };
	size_t got;

	assert_int_equal(lane_get(&far.out, &iov, 1, false, &got), LANE_DATA);
	assert_int_equal(got, bytes);
}

static void tell(void)
{
	struct lane_shared *from = far.out.shared, *to = near.out.shared;

	atomic_store(&to->head, atomic_load(&from->head));
	atomic_store(&to->received, atomic_load(&from->received));
	atomic_store(&to->taken, atomic_load(&from->taken));
	atomic_store(&to->from_ring, atomic_load(&from->from_ring));
}

/* Replays from a position and compares to the end. */
static void must_replay(uint64_t from)
{
	uint64_t sent = atomic_load(&near.out.shared->sent);
	uint8_t data[RING];
	ssize_t got = verbs_replay(&near.out, NULL, from, data, sizeof(data));

	assert_int_equal(got, sent - from);
	for (ssize_t i = 0; i < got; i++)
		assert_int_equal(data[i], byte_at(from + (uint64_t)i));
}

static void take_over(void)
{
	atomic_store(&near.out.shared->reader, 1);
	assert_true(lane_take_over(&near.out));
}

static void every_unconfirmed_byte_is_read_again(void **state)
{
	unsigned int seed = 4711;
	uint64_t received = 0;

	take_over();
	for (int round = 0; round < 300; round++) {
		size_t bytes = 1 + (size_t)rand_r(&seed) % 9000;

		put(bytes);
		carry();
		bytes = (size_t)(atomic_load(&near.out.shared->sent) - received);
		bytes = bytes / 2 + (round % 3 == 0);
		if (bytes) {
			consume(bytes);
			received += bytes;
		}
		/* What the consumer has told is older than what it has. */
		must_replay(received);
		must_replay(atomic_load(&near.out.shared->received));
		if (round % 5 == 0)
			tell();
		must_replay(received);
	}
}

static void confirmed_and_unsent_positions_are_refused(void **state)
{
	uint8_t data[16];

	take_over();
	put(1000);
	carry();
	consume(500);
	tell();
	assert_int_equal(verbs_replay(&near.out, NULL, 499, data, sizeof(data)), -ERANGE);
	assert_int_equal(verbs_replay(&near.out, NULL, 500, data, sizeof(data)), sizeof(data));
	assert_int_equal(verbs_replay(&near.out, NULL, 1000, data, sizeof(data)), 0);
	assert_int_equal(verbs_replay(&near.out, NULL, 1001, data, sizeof(data)), -ERANGE);
}

static void replay_ends_where_the_lane_went_back(void **state)
{
	uint8_t data[4096];

	take_over();
	put(100);
	assert_true(lane_switch(&near.out));
	lane_sent_raw(&near.out, 50);
	assert_int_equal(verbs_replay(&near.out, NULL, 40, data, sizeof(data)), 60);
	assert_int_equal(data[0], byte_at(40));
}

/* The consumer has left raw bytes unread, and with them what lies before and behind them in the ring. */
static void replay_begins_behind_the_last_takeover(void **state)
{
	struct verbs_entry entry;
	uint8_t data[4096];

	take_over();
	put(100);
	assert_true(lane_switch(&near.out));
	lane_sent_raw(&near.out, 50);
	carry();
	consume(60);
	tell();
	atomic_store(&near.out.shared->head, atomic_load(&near.out.shared->tail)); /* else no TAKEOVER */
	take_over();
	tell();
	entry = (struct verbs_entry){ atomic_load(&near.out.shared->tail), 150 };
	put(200);
	assert_int_equal(verbs_replay(&near.out, &entry, 149, data, sizeof(data)), -ERANGE);
	assert_int_equal(verbs_replay(&near.out, &entry, 150, data, sizeof(data)), 200);
	assert_int_equal(data[0], byte_at(150));
	assert_int_equal(verbs_replay(&near.out, &entry, 170, data, sizeof(data)), 180);
	assert_int_equal(data[0], byte_at(170));
}

static void nonsense_of_the_consumer_is_refused(void **state)
{
	uint8_t data[4096];

	take_over();
	put(100);
	atomic_store(&near.out.shared->head, 8);
	assert_int_equal(verbs_replay(&near.out, NULL, 0, data, sizeof(data)), -EPROTO);
	atomic_store(&near.out.shared->head, 1ull << 40);
	assert_int_equal(verbs_replay(&near.out, NULL, 0, data, sizeof(data)), -EPROTO);
	atomic_store(&near.out.shared->head, 0);
	atomic_store(&near.out.shared->taken, 1u << 30);
	atomic_store(&near.out.shared->from_ring, 1);
	assert_int_equal(verbs_replay(&near.out, NULL, 0, data, sizeof(data)), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_unconfirmed_byte_is_read_again, make_both, drop_both),
		cmocka_unit_test_setup_teardown(confirmed_and_unsent_positions_are_refused, make_both, drop_both),
		cmocka_unit_test_setup_teardown(replay_ends_where_the_lane_went_back, make_both, drop_both),
		cmocka_unit_test_setup_teardown(replay_begins_behind_the_last_takeover, make_both, drop_both),
		cmocka_unit_test_setup_teardown(nonsense_of_the_consumer_is_refused, make_both, drop_both),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
