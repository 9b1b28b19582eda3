/* SPDX-License-Identifier: MIT */
/* When a lane leaves TCP: both ends of a real connection in this process, the one's bytes still in the stream. */
#define _GNU_SOURCE
#include <pthread.h>

#include "met_testing.h"

#define PIECE 4096	   /* nothing that is held to be gathered */
#define AHEAD (64 * PIECE) /* raw bytes that the receiver has yet to receive when it begins */
#define SENDS_MAX 100000
#define GOES 400 /* either thread may get no processor for a moment */
#define MESSAGE 64
#define MOVE_RELAXES 20	  /* some hundred ns */
#define PATIENT_NS 100000 /* of a send, at least, where it waits */

static char piece[PIECE];

/* By TCP. */
static void send_raw(size_t bytes)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conns[0], ends[0], 0);

	raw.done = send(ends[0], piece, bytes, MSG_NOSIGNAL);
	assert_int_equal(raw.done, bytes);
}

/* A receiver's share of the lane, as one leaves it that is busy with small messages, until the lane is on the ring. */
static void *receive_slowly(void *unused)
{
	struct lane_shared *shared = lane_from(0)->shared;

	while (!atomic_load(&shared->on_ring) &&
	       atomic_load(&shared->received) + MESSAGE <= atomic_load(&shared->sent)) {
		for (int i = 0; i < MOVE_RELAXES; i++)
			cpu_relax();
		atomic_fetch_add(&shared->received, MESSAGE);
	}
	return NULL;
}

static void send_one(void)
{
	ssize_t rc = send_bytes(0, piece, PIECE);

	if (rc == SEND_BY_KERNEL)
		send_raw(PIECE);
	else
		assert_int_equal(rc, PIECE);
}

/* As many bytes are in the stream, and its receiver is behind the ring's. */
static void put_raw_ahead(void)
{
	char byte;

	assert_true(lane_switch(lane_from(0)));
	assert_int_equal(receive_some(1, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	for (size_t sent = 0; sent < AHEAD; sent += PIECE)
		send_raw(PIECE);
}

/* Returns what was still ahead of the ring when the lane went there. */
static uint64_t ahead_at_takeover(void)
{
	struct lane_shared *shared = lane_from(0)->shared;
	uint64_t received;
	pthread_t receiver;

	put_raw_ahead();
	received = atomic_load(&shared->received);
	assert_int_equal(pthread_create(&receiver, NULL, receive_slowly, NULL), 0);
	while (atomic_load(&shared->received) == received)
		cpu_relax();
	for (int i = 0; i < SENDS_MAX && !atomic_load(&shared->on_ring); i++)
		send_one();
	assert_int_equal(pthread_join(receiver, NULL), 0);
	assert_true(atomic_load(&shared->on_ring));
	return atomic_load(&shared->sent) - atomic_load(&shared->received);
}

/* Far less than at the beginning; not all: then it had come before this end did anything. */
static bool is_near(uint64_t ahead)
{
	return ahead > AHEAD / 16 && ahead <= AHEAD / 2;
}

static void busy_receiver_is_let_come_near_the_ring(void **state)
{
	uint64_t ahead = AHEAD;

	for (int go = 0; go < GOES && !is_near(ahead); go++) {
		assert_int_equal(connect_ends(state), 0);
		ahead = ahead_at_takeover();
		close_ends(state);
	}
	assert_true(is_near(ahead));
}

static void receiver_that_sleeps_is_not_waited_for(void **state)
{
	struct engine *engine = atomic_load(&conns[0]->engine);

	put_raw_ahead();
	lane_arm(lane_from(0));
	send_one();
	assert_true(atomic_load(&lane_from(0)->shared->on_ring));
	assert_true(engine->behind_ns < PATIENT_NS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(busy_receiver_is_let_come_near_the_ring),
		cmocka_unit_test_setup_teardown(receiver_that_sleeps_is_not_waited_for, connect_ends, close_ends),
	};

	use_rings(65536);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
