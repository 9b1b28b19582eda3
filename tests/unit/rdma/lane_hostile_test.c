/* SPDX-License-Identifier: MIT */
/*
 * A peer who owns the memory as well as we do, and writes what he likes into it while we work: positions that go back, that
 * jump, that are not aligned, records that lie, all of it while it is read. Another process does so at full speed. No call may
 * touch memory outside of the ring and the caller's own, take more than it was given, or fail to return.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "lane_testing.h"
#include "stream_testing.h"

#define RING 8192u
#define MOST 6000u
#define ROUNDS 1000000	/* at least: the peer may have had no processor meanwhile */
#define ROUNDS_EACH 256 /* after which the peer is let in, should there be one core only */
#define SEEN 200	/* calls, at least, that got as far as to copy bytes; and as many refusals */

static struct lonely_lane lonely;
static struct lane lane;
static uint8_t *data;
static pid_t peer;
static uint64_t random_state;

static uint64_t next_random(void)
{
	return random_next(&random_state);
}

static size_t below(size_t limit)
{
	return random_below(&random_state, limit);
}

static uint64_t a_lie(uint64_t now)
{
	static const uint64_t small[] = { 0, 1, 4, 7, 8, 16, 24, 4096, RING - 8, RING - 1, RING, RING + 8, 2 * RING };
	uint64_t by = small[below(sizeof(small) / sizeof(*small))];

	switch (below(6)) {
	case 0:
		return by;
	case 1:
		return now + by;
	case 2:
		return now - by;
	case 3:
		return -by;
	case 4:
		return now & ~7ull;
	default:
		return next_random();
	}
}

static void lie_in_a_field(void)
{
	struct lane_shared *shared = lane.shared;
	_Atomic uint64_t *wide[] = { &shared->tail,	&shared->sent,	     &shared->bells,	 &shared->head,
				     &shared->received, &shared->bells_seen, &shared->bells_skip };
	_Atomic uint32_t *narrow[] = { &shared->on_ring, &shared->intent,  &shared->raw,
				       &shared->armed,	 &shared->ringing, &shared->taken };
	_Atomic uint16_t *flags[] = { &shared->from_ring, &shared->reader };
	static const size_t positions[] = { 0 /* tail */, 3 /* head */, 12 /* taken */ };
	size_t which = below(30);

	/* The positions most of the time: they decide what is touched. */
	if (which >= 15)
		which = positions[which % 3];
	if (which < 7)
		atomic_store_explicit(wide[which], a_lie(atomic_load(wide[which])), memory_order_relaxed);
	else if (which < 13)
		atomic_store_explicit(narrow[which - 7], (uint32_t)a_lie(atomic_load(narrow[which - 7])),
				      memory_order_relaxed);
	else
		atomic_store_explicit(flags[which - 13], (uint16_t)a_lie(atomic_load(flags[which - 13])),
				      memory_order_relaxed);
}

static void lie_in_the_ring(void)
{
	uint64_t at = (atomic_load(&lane.shared->head) & (RING - 1)) & ~7ull;
	volatile uint32_t *record = (volatile uint32_t *)(lane.ring + (below(4) ? at : below(RING) & ~7ull));

	record[0] = below(8) ? 1 + (uint32_t)below(3) : (uint32_t)next_random();
	record[1] = (uint32_t)a_lie(record[1]);
}

/* What a lane has that has come into use, so that the calls get further than to the first check. */
static void tell_the_truth(void)
{
	uint64_t at = below(RING) & ~7ull, published = below(RING) & ~7ull;
	volatile uint32_t *record = (volatile uint32_t *)(lane.ring + at);

	record[0] = 1;
	record[1] = (uint32_t)below(published + 1);
	atomic_store(&lane.shared->from_ring, 1);
	atomic_store(&lane.shared->on_ring, 1);
	atomic_store(&lane.shared->taken, 0);
	atomic_store(&lane.shared->head, at);
	atomic_store(&lane.shared->tail, at + published);
}

static void lie(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_state = (uint64_t)getpid() | 1;
	for (;;) {
		for (size_t i = below(6) ? below(3) : below(40); i; i--)
			below(3) ? lie_in_a_field() : lie_in_the_ring();
		tell_the_truth();
		for (size_t i = below(2000); i; i--)
			atomic_signal_fence(memory_order_seq_cst);
	}
}

static int meet_a_liar(void **state)
{
	if (!lonely_make(&lonely, RING, RING))
		return -1;
	lane = lonely.lane;
	data = bytes_before_gap(MOST);
	random_state = 42;
	peer = data ? fork() : -1;
	if (!peer)
		lie();
	return peer < 0;
}

static int leave_the_liar(void **state)
{
	kill(peer, SIGKILL);
	waitpid(peer, NULL, 0);
	lonely_end(&lonely);
	return 0;
}

/* Up to three parts that end with the memory that there is. Returns how many bytes. */
static size_t some_parts(struct iovec *iov)
{
	size_t bytes = below(MOST + 1), first = below(bytes + 1), second = below(bytes - first + 1);
	uint8_t *at = data + MOST - bytes;

	iov[0] = (struct iovec){ at, first };
	iov[1] = (struct iovec){ at + first, second };
	iov[2] = (struct iovec){ at + first + second, bytes - first - second };
	return bytes;
}

static void receives_survive(void **state)
{
	unsigned int data_seen = 0, refused = 0;

	for (unsigned int i = 0; i < ROUNDS || data_seen <= SEEN || refused <= SEEN; i++) {
		struct iovec iov[3];
		size_t bytes = some_parts(iov), got = SIZE_MAX;
		int rc = lane_get(&lane, iov, 3, i % 4 == 0, &got);

		assert_true(rc == LANE_DATA || rc == LANE_EMPTY || rc == LANE_RAW || rc == -EPROTO);
		assert_true(got <= bytes);
		assert_true(lane_unread(&lane) <= RING);
		assert_true(lane_bells_due(&lane) <= LANE_BELLS_MAX && lane_bells_sure(&lane) <= LANE_BELLS_MAX);
		lane_saw_bells(&lane, below(3));
		if (lane_raw_begins(&lane))
			lane_raw_ends(&lane, below(100));
		lane_arm(&lane);
		if (i % ROUNDS_EACH == 0)
			sched_yield();
		data_seen += rc == LANE_DATA;
		refused += rc == -EPROTO;
	}
}

static void sends_survive(void **state)
{
	unsigned int put = 0, refused = 0;

	for (unsigned int i = 0; i < ROUNDS || put <= SEEN || refused <= SEEN; i++) {
		struct iovec iov[3];
		size_t bytes = some_parts(iov), skip = below(bytes + 1);
		ssize_t room = lane_room(&lane), backlog = lane_backlog(&lane), done;

		assert_true(room == -EPROTO || (room >= 0 && room <= RING));
		assert_true(backlog == -EPROTO || (backlog >= 0 && backlog <= RING));
		lane_take_over(&lane);
		done = lane_put(&lane, iov, 3, skip);
		assert_true(done == -EPROTO || (done >= 0 && (size_t)done <= bytes - skip));
		if (lane_must_ring(&lane))
			lane_rang(&lane, below(2));
		if (!below(4))
			lane_switch(&lane);
		lane_sent_raw(&lane, below(100));
		if (i % ROUNDS_EACH == 0)
			sched_yield();
		put += done > 0;
		refused += done == -EPROTO;
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, meet_a_liar, leave_the_liar)
	const struct CMUnitTest tests[] = {
		TEST(receives_survive),
		TEST(sends_survive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
