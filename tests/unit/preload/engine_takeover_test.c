/* SPDX-License-Identifier: MIT */
/* When a lane leaves TCP: both ends of a real connection in this process, the one's bytes still in the stream. */
#define _GNU_SOURCE
#include <signal.h>
#include <time.h>

#include "met_testing.h"

#define PIECE 4096	   /* nothing that is held to be gathered */
#define AHEAD (64 * PIECE) /* raw bytes that the receiver has yet to receive when it begins */
#define SENDS_MAX 100000
#define GOES 8 /* this process may get no processor for a moment, and nothing moves meanwhile */
#define MOVE_NS 10000
#define MOVE_BYTES 512
#define PATIENT_NS 100000 /* of a send, at least, where it waits */

static char piece[PIECE];

/* By TCP. */
static void send_raw(size_t bytes)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conns[0], ends[0], 0);

	raw.done = send(ends[0], piece, bytes, MSG_NOSIGNAL);
	assert_int_equal(raw.done, bytes);
}

/* A receiver's share of the lane, as one leaves it that is busy with small messages: so much at each tick of the timer,
 * until the lane is on the ring. */
static void receive_some_more(int number)
{
	struct lane_shared *shared = lane_from(0)->shared;

	if (!atomic_load(&shared->on_ring) && atomic_load(&shared->received) + MOVE_BYTES <= atomic_load(&shared->sent))
		atomic_fetch_add(&shared->received, MOVE_BYTES);
}

static void set_timer(timer_t timer, long ns)
{
	const struct itimerspec every = { { 0, ns }, { 0, ns } };

	assert_int_equal(timer_settime(timer, 0, &every, NULL), 0);
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
static uint64_t ahead_at_takeover(timer_t timer)
{
	struct lane_shared *shared = lane_from(0)->shared;

	put_raw_ahead();
	set_timer(timer, MOVE_NS);
	for (int i = 0; i < SENDS_MAX && !atomic_load(&shared->on_ring); i++)
		send_one();
	set_timer(timer, 0);
	assert_true(atomic_load(&shared->on_ring));
	return atomic_load(&shared->sent) - atomic_load(&shared->received);
}

static void busy_receiver_is_let_come_near_the_ring(void **state)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct sigaction action = { .sa_handler = receive_some_more, .sa_flags = SA_RESTART };
	uint64_t ahead = AHEAD;
	timer_t timer;

	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	for (int go = 0; go < GOES && ahead > AHEAD / 2; go++) {
		assert_int_equal(connect_ends(state), 0);
		ahead = ahead_at_takeover(timer);
		close_ends(state);
	}
	timer_delete(timer);
	assert_in_range(ahead, 0, AHEAD / 2);
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
