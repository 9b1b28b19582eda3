/* SPDX-License-Identifier: MIT */
/*
 * The lane: seeded schedules of both ends over a TCP stream that is a small queue, two threads over a real socket, and
 * hostile contents. ZC_TEST_SEED repeats a schedule; a failure prints its seed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "ring_testing.h"

#define BELL 0xbe
#define STREAM 60000u /* bytes of one schedule */
#define SCHEDULES 400

/* A seeded schedule ------------------------------------------------------------------------------------------------ */

struct schedule {
	uint64_t first, seed;
	uint8_t tcp[512];
	size_t tcp_used;
	uint64_t sent, got;
	bool asleep; /* the consumer sleeps until the stream has something */
	unsigned int moves, rings;
};

static size_t below(struct schedule *s, size_t limit)
{
	return random_below(&s->seed, limit);
}

static void check_at(const struct schedule *s, bool holds, const char *what, int line)
{
	if (holds)
		return;
	print_error("line %d: %s: seed %lu, at %lu of %lu bytes sent\n", line, what, s->first, s->got, s->sent);
	fail();
}
#define check(s, condition) check_at((s), (condition), #condition, __LINE__)

static size_t tcp_put(struct schedule *s, const uint8_t *from, size_t bytes)
{
	size_t free = sizeof(s->tcp) - s->tcp_used;

	bytes = bytes < free ? bytes : free;
	memcpy(s->tcp + s->tcp_used, from, bytes);
	s->tcp_used += bytes;
	return bytes;
}

static size_t tcp_get(struct schedule *s, uint8_t *to, size_t bytes)
{
	bytes = bytes < s->tcp_used ? bytes : s->tcp_used;
	memcpy(to, s->tcp, bytes);
	memmove(s->tcp, s->tcp + bytes, s->tcp_used - bytes);
	s->tcp_used -= bytes;
	return bytes;
}

static void ring_if_needed(struct schedule *s)
{
	static const uint8_t bell = BELL;

	if (lane_must_ring(&lane)) {
		lane_rang(&lane, tcp_put(s, &bell, 1) == 1);
		s->rings++;
	}
}

static bool on_ring(void)
{
	return atomic_load(&lane.shared->on_ring);
}

static void produce(struct schedule *s)
{
	uint8_t data[3000];
	size_t bytes = 1 + below(s, below(s, 4) ? 200 : sizeof(data));
	ssize_t put;

	if (s->sent + bytes > STREAM)
		bytes = STREAM - s->sent;
	if (!below(s, 5) && (on_ring() ? lane_switch(&lane) : lane_take_over(&lane))) {
		s->moves++;
		if (on_ring())
			ring_if_needed(s);
	}
	fill(data, s->sent, bytes);
	if (!on_ring()) {
		put = (ssize_t)tcp_put(s, data, bytes);
		lane_sent_raw(&lane, (size_t)put);
	} else {
		struct iovec iov[2] = { { data, bytes / 2 }, { data + bytes / 2, bytes - bytes / 2 } };
		size_t skip = below(s, bytes);

		/* In two calls, as a caller does whose first was cut short. */
		iov[0].iov_len = iov[0].iov_len ? iov[0].iov_len : 0;
		put = lane_put(&lane, &(struct iovec){ data, skip }, 1, 0);
		check(s, put >= 0);
		if (put == (ssize_t)skip) {
			ssize_t more = lane_put(&lane, iov, 2, skip);

			check(s, more >= 0);
			put += more;
		}
		if (put)
			ring_if_needed(s);
	}
	s->sent += (uint64_t)put;
}

static void take(struct schedule *s, const uint8_t *data, size_t bytes)
{
	check(s, right(data, s->got, bytes));
	s->got += bytes;
}

/* What the kernel has for a consumer that is awake: doorbells, or raw bytes. Returns whether there was something. */
static bool consume_tcp(struct schedule *s, bool raw)
{
	uint8_t data[700];
	uint64_t bells = lane_bells_due(&lane);
	size_t limit = bells ? (size_t)(bells < sizeof(data) ? bells : sizeof(data)) : 1 + below(s, sizeof(data));
	size_t got, most;

	if (bells) {
		got = tcp_get(s, data, limit);
		for (size_t i = 0; i < got; i++)
			check(s, data[i] == BELL);
		lane_saw_bells(&lane, got);
		return got > 0;
	}
	/* The producer may move between what the consumer looks at and what it does. */
	if (s->sent < STREAM && !below(s, 3))
		produce(s);
	most = raw ? lane_raw_begins(&lane) : 0;
	if (!most)
		return false;
	if (most < limit)
		limit = most;
	if (s->sent < STREAM && !below(s, 3))
		produce(s);
	got = tcp_get(s, data, limit);
	lane_raw_ends(&lane, got);
	take(s, data, got);
	return got > 0;
}

static void consume(struct schedule *s)
{
	uint8_t data[5000];
	struct iovec iov = { data, 1 + below(s, sizeof(data)) };
	bool peek = !below(s, 6);
	size_t got;
	int rc;

	if (s->asleep && !s->tcp_used)
		return;
	s->asleep = false;
	rc = lane_get(&lane, &iov, 1, peek, &got);
	check(s, rc >= 0);
	if (rc == LANE_DATA) {
		if (peek)
			check(s, right(data, s->got, got));
		else
			take(s, data, got);
		return;
	}
	if (consume_tcp(s, rc == LANE_RAW))
		return;
	s->asleep = lane_arm(&lane);
}

static void run_schedule(uint64_t seed)
{
	struct schedule s = { .first = seed, .seed = seed * 0x9e3779b97f4a7c15ull + 1 };
	unsigned int idle = 0;

	while (s.got < STREAM) {
		uint64_t before = s.got + s.sent;
		size_t favour = below(&s, 16);

		for (size_t i = below(&s, 8); i; i--) {
			if (s.sent < STREAM && below(&s, 16) < favour)
				produce(&s);
			else
				consume(&s);
		}
		/* A lost wake-up shows as a consumer that sleeps for good while the producer has nothing more to do. */
		idle = before == s.got + s.sent ? idle + 1 : 0;
		check(&s, idle <= 5000);
	}
	check(&s, s.moves > 2);
}

static void every_schedule_delivers_every_byte(void **state)
{
	const char *given = getenv("ZC_TEST_SEED");
	uint64_t first = given ? strtoull(given, NULL, 0) : 1;

	for (uint64_t seed = first; seed < first + (given ? 1 : SCHEDULES); seed++) {
		if (seed != first) {
			drop_lane(state);
			assert_int_equal(make_lane(state), 0);
		}
		run_schedule(seed);
	}
}

/* Two threads over a socket ---------------------------------------------------------------------------------------- */

#define THREAD_STREAM (64u << 20)

static int ends[2];

static void wait_for(int fd, short events)
{
	struct pollfd wait = { .fd = fd, .events = events };

	while (poll(&wait, 1, -1) < 0 && errno == EINTR)
		;
}

static void thread_rings(void)
{
	uint8_t bell = BELL;

	if (lane_must_ring(&lane))
		lane_rang(&lane, send(ends[0], &bell, 1, MSG_DONTWAIT) == 1);
}

/* Sends as a preloaded program would: the ring while it has room, then TCP until the consumer has caught up. */
static void *thread_produces(void *unused)
{
	static uint8_t data[300000];
	struct schedule s = { .seed = 42 };
	uint64_t sent = 0;

	while (sent < THREAD_STREAM) {
		size_t bytes = 1 + below(&s, below(&s, 8) ? 2000 : sizeof(data));
		ssize_t put = 0;

		bytes = bytes < THREAD_STREAM - sent ? bytes : THREAD_STREAM - sent;
		fill(data, sent, bytes);
		if (lane_take_over(&lane)) {
			put = lane_put(&lane, &(struct iovec){ data, bytes }, 1, 0);
			thread_rings();
			if (put < 0 || (!put && !lane_switch(&lane)))
				break;
		}
		if (!on_ring() && !put) {
			put = send(ends[0], data, bytes, 0);
			lane_sent_raw(&lane, (size_t)put);
		}
		sent += (uint64_t)put;
	}
	shutdown(ends[0], SHUT_WR);
	return unused;
}

static void threads_deliver_every_byte(void **state)
{
	static uint8_t data[100000];
	pthread_t producer;
	uint64_t at = 0;
	bool ended = false;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	assert_int_equal(pthread_create(&producer, NULL, thread_produces, NULL), 0);
	while (!ended || lane_backlog(&lane) > 0) {
		size_t got;
		int rc = lane_get(&lane, &(struct iovec){ data, sizeof(data) }, 1, false, &got);
		uint64_t bells, most;
		ssize_t raw;

		assert_true(rc >= 0);
		if (rc == LANE_DATA) {
			assert_true(right(data, at, got));
			at += got;
			continue;
		}
		if (!lane_arm(&lane))
			continue;
		wait_for(ends[1], POLLIN);
		bells = lane_bells_sure(&lane);
		if (!bells && lane_bells_due(&lane))
			bells = 1; /* there was something, and the producer was still at it */
		most = bells ? bells : rc == LANE_EMPTY ? 0 : lane_raw_begins(&lane);
		if (!most) {
			/* The end, or bytes behind a SWITCH. */
			ended = recv(ends[1], data, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
			continue;
		}
		raw = recv(ends[1], data, most < sizeof(data) ? most : sizeof(data), MSG_DONTWAIT);
		if (bells) {
			lane_saw_bells(&lane, raw > 0 ? (uint64_t)raw : 0);
			continue;
		}
		lane_raw_ends(&lane, raw > 0 ? (size_t)raw : 0);
		ended = raw == 0;
		assert_true(right(data, at, raw > 0 ? (size_t)raw : 0));
		at += raw > 0 ? (uint64_t)raw : 0;
	}
	pthread_join(producer, NULL);
	assert_int_equal(at, THREAD_STREAM);
	close(ends[0]);
	close(ends[1]);
}

/* Rules and hostile contents --------------------------------------------------------------------------------------- */

static void receive_raw(size_t bytes)
{
	assert_true(lane_raw_begins(&lane));
	lane_raw_ends(&lane, bytes);
}

static void raw_bytes_before_a_takeover_come_first(void **state)
{
	uint8_t data[8] = "abcdefg", out[8];
	size_t got;

	lane_sent_raw(&lane, 10);
	receive_raw(3);
	assert_true(lane_take_over(&lane));
	assert_int_equal(lane_put(&lane, &(struct iovec){ data, 8 }, 1, 0), 8);
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_RAW);
	assert_int_equal(lane_raw_max(&lane), 7);
	assert_true(lane_arm(&lane)); /* what wakes is a raw byte */
	assert_int_equal(lane_unread(&lane), 0);
	receive_raw(6);
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_RAW);
	assert_int_equal(lane_raw_max(&lane), 1);
	receive_raw(1);
	assert_false(lane_arm(&lane));
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_DATA);
	assert_int_equal(got, 8);
}

static void takes_over_again_only_when_the_switch_was_seen(void **state)
{
	uint8_t data[8] = "abcdefg", out[8];
	size_t got;

	assert_true(lane_take_over(&lane));
	assert_int_equal(lane_put(&lane, &(struct iovec){ data, 8 }, 1, 0), 8);
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_DATA);
	assert_true(lane_switch(&lane));
	assert_false(lane_take_over(&lane));
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_RAW);
	assert_true(lane_take_over(&lane));
}

static void takes_over_only_with_a_reader_that_is_in_no_raw_receive(void **state)
{
	atomic_store(&lane.shared->reader, 0);
	assert_false(lane_take_over(&lane));
	atomic_store(&lane.shared->reader, 1);
	assert_true(lane_raw_begins(&lane));
	assert_false(lane_take_over(&lane));
	lane_raw_ends(&lane, 0);
	assert_true(lane_take_over(&lane));
	assert_false(lane_raw_begins(&lane));
}

static void raw_bytes_behind_a_switch_come_after_the_ring(void **state)
{
	uint8_t data[8] = "abcdefg", out[8];
	size_t got;

	assert_true(lane_take_over(&lane));
	assert_int_equal(lane_put(&lane, &(struct iovec){ data, 8 }, 1, 0), 8);
	assert_true(lane_switch(&lane));
	assert_false(lane_raw_begins(&lane));
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_DATA);
	assert_int_equal(got, 8);
	assert_int_equal(lane_get(&lane, &(struct iovec){ out, 8 }, 1, false, &got), LANE_RAW);
	receive_raw(1);
}

static void a_full_ring_still_has_room_for_the_switch(void **state)
{
	static uint8_t data[2 * RING];
	size_t got;

	assert_true(lane_take_over(&lane));
	assert_int_equal(lane_get(&lane, &(struct iovec){ data, 1 }, 1, false, &got), LANE_EMPTY);
	assert_true(lane_put(&lane, &(struct iovec){ data, sizeof(data) }, 1, 0) > (ssize_t)RING / 2);
	assert_int_equal(lane_put(&lane, &(struct iovec){ data, 1 }, 1, 0), 0);
	assert_true(lane_switch(&lane));
}

static void nonsense_is_refused(void **state)
{
	static uint8_t large[RING];
	uint8_t data[64];
	struct iovec iov = { data, sizeof(data) };
	struct lane_shared before;
	uint32_t *record = (uint32_t *)lane.ring;
	size_t got;

	/* Positions that can't be. */
	atomic_store(&lane.shared->tail, RING + 16);
	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), -EPROTO);
	atomic_store(&lane.shared->tail, 12);
	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), -EPROTO);
	atomic_store(&lane.shared->tail, 0);
	atomic_store(&lane.shared->head, 16);
	assert_int_equal(lane_backlog(&lane), -EPROTO);
	/* It is looked at when what is known of it leaves too little room. */
	assert_int_equal(lane_put(&lane, &(struct iovec){ large, sizeof(large) }, 1, 0), -EPROTO);
	atomic_store(&lane.shared->head, 0);
	/* Records that can't be: unknown, data before a TAKEOVER, longer than what is published, a second TAKEOVER. */
	before = *lane.shared;
	atomic_store(&lane.shared->tail, 32);
	record[0] = 77;
	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), -EPROTO);
	record[0] = 1;
	record[1] = 8;
	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), -EPROTO);
	*lane.shared = before;
	assert_true(lane_take_over(&lane));
	atomic_store(&lane.shared->tail, 48);
	record[4] = 1;
	record[5] = 0xffffffff;
	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), -EPROTO);
	record[4] = 2;
	assert_int_equal(lane_get(&lane, &iov, 1, false, &got), -EPROTO);
}

static void sizes_out_of_range_are_refused(void **state)
{
	struct channel other;

	assert_int_equal(channel_make(&other, 0), -EINVAL);
	assert_int_equal(channel_make(&other, 4095), -EINVAL);
	assert_int_equal(channel_make(&other, 6000), -EINVAL);
	assert_int_equal(channel_make(&other, 2 * LANE_RING_MAX), -EINVAL);
}

/* A ring is there twice, also with its neighbours in the segment; the areas are not in it. */
static void every_part_of_a_channel_is_mapped_where_it_belongs(void **state)
{
	struct channel peer;

	assert_int_equal(channel_take(&peer, channel.fd), 0);
	for (uint32_t i = 0; i < RING; i += 512) {
		channel.out.ring[i] = 1;
		assert_int_equal(peer.in.ring[i + RING], 1);
		channel.in.ring[i + RING] = 2;
		assert_int_equal(peer.out.ring[i], 2);
		assert_int_equal(channel.out.ring[i + RING], 1);
	}
	for (uint32_t i = 0; i < SOURCE_AREA_BYTES; i += 65536 - 64) {
		channel.out.area[i] = 3;
		channel.in.area[i] = 4;
		assert_int_equal(peer.in.area[i], 3);
		assert_int_equal(peer.out.area[i], 4);
	}
	assert_int_equal(channel.out.ring[0], 1);
	assert_int_equal(peer.out.ring[RING - 512], 2);
	channel_close(&peer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_lane, drop_lane)
	const struct CMUnitTest tests[] = {
		TEST(every_schedule_delivers_every_byte),
		TEST(threads_deliver_every_byte),
		TEST(raw_bytes_before_a_takeover_come_first),
		TEST(takes_over_again_only_when_the_switch_was_seen),
		TEST(takes_over_again_only_when_the_switch_was_seen),
		TEST(takes_over_only_with_a_reader_that_is_in_no_raw_receive),
		TEST(raw_bytes_behind_a_switch_come_after_the_ring),
		TEST(a_full_ring_still_has_room_for_the_switch),
		TEST(nonsense_is_refused),
		TEST(sizes_out_of_range_are_refused),
		TEST(every_part_of_a_channel_is_mapped_where_it_belongs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
