/* SPDX-License-Identifier: MIT */
/*
 * What an engine makes of a peer that was killed, stopped or hostile at the worst moment: both ends of a real connection in this
 * process, met by the real rendezvous, and one end's share of the lanes left as such a peer leaves it.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "met_testing.h"

#define LARGE (1 << 20)

/* As a kill does: the kernel ends the stream, and nobody tidies up. */
static void die(int end)
{
	shutdown(ends[end], SHUT_WR);
}

static void bytes_go_by_the_ring(void **state)
{
	char got[8];
	uint64_t before = atomic_load(&lane_from(0)->shared->tail);

	assert_int_equal(send_whole(0, "hello"), 5);
	assert_true(atomic_load(&lane_from(0)->shared->tail) > before);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 5);
	assert_memory_equal(got, "hello", 5);
}

static void end_of_a_peer_that_was_killed_while_it_rang_is_told(void **state)
{
	char byte;

	atomic_store(&lane_from(0)->shared->ringing, 1);
	assert_int_equal(engine_look(conns[1], ends[1]), ENGINE_SPURIOUS);
	die(0);
	assert_int_equal(engine_look(conns[1], ends[1]), ENGINE_NOT_OURS);
	assert_int_equal(receive_some(1, &byte, 1, 0), 0);
}

static void end_of_a_peer_that_was_killed_while_it_took_over_is_told(void **state)
{
	char byte;

	assert_true(lane_switch(lane_from(0)));
	assert_int_equal(receive_some(1, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	atomic_store(&lane_from(0)->shared->intent, 1);
	assert_int_equal(receive_some(1, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	die(0);
	assert_int_equal(receive_some(1, &byte, 1, 0), 0);
}

static void bytes_before_a_takeover_that_never_comes_are_received(void **state)
{
	char got[8];

	assert_true(lane_switch(lane_from(0)));
	assert_int_equal(receive_some(1, got, 1, MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(send(ends[0], "abc", 3, 0), 3);
	lane_sent_raw(lane_from(0), 3);
	atomic_store(&lane_from(0)->shared->intent, 1);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 3);
	assert_memory_equal(got, "abc", 3);
	assert_int_equal(receive_some(1, got, 1, MSG_DONTWAIT), -EAGAIN);
}

static void error_that_a_doorbell_meets_is_the_send_s(void **state)
{
	struct linger reset = { 1, 0 };

	atomic_store(&lane_from(0)->shared->armed, 1);
	setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	shutdown(ends[1], SHUT_RD);
	dup2(ends[0], ends[1]); /* closes it, as a kill does, with a reset */
	assert_int_equal(send_whole(0, "lost"), -ECONNRESET);
	assert_int_equal(send_whole(0, "lost"), -EPIPE);
}

/* Shows that it moves, and takes nothing. */
static _Atomic bool moving;

static void *move(void *lane)
{
	atomic_store(&((struct lane *)lane)->shared->raw, 1);
	while (atomic_load(&moving))
		atomic_fetch_add(&((struct lane *)lane)->shared->received, 1);
	return NULL;
}

static void peer_that_moves_and_gets_nowhere_does_not_hold_a_send(void **state)
{
	static char data[LARGE];
	struct lane *lane = lane_from(0);
	pthread_t peer;

	atomic_store(&lane->shared->armed, 0);
	atomic_store(&moving, true);
	assert_int_equal(pthread_create(&peer, NULL, move, lane), 0);
	while (!atomic_load(&lane->shared->raw))
		cpu_relax();
	while (atomic_load(&lane->shared->on_ring))
		assert_true(send_bytes(0, data, LARGE) > 0);
	atomic_store(&moving, false);
	pthread_join(peer, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(bytes_go_by_the_ring),
		TEST(end_of_a_peer_that_was_killed_while_it_rang_is_told),
		TEST(end_of_a_peer_that_was_killed_while_it_took_over_is_told),
		TEST(bytes_before_a_takeover_that_never_comes_are_received),
		TEST(error_that_a_doorbell_meets_is_the_send_s),
		TEST(peer_that_moves_and_gets_nowhere_does_not_hold_a_send),
	};

	settings.path = PATH_BSDP;
	settings.ring_bytes = LARGE;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
