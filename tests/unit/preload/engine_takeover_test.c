/* SPDX-License-Identifier: MIT */
/* When a lane leaves TCP: both ends of a real connection in this process, the one's bytes still in the stream. */
#define _GNU_SOURCE
#include <net/if.h>
#include <sched.h>
#include <time.h>

#include "common/clock.h"
#include "met_testing.h"
#include "preload/engine_out.h"
#include "preload/evict.h"
#include "preload/guest.h"

#define PIECE 4096	   /* nothing that is held to be gathered */
#define AHEAD (64 * PIECE) /* raw bytes that the receiver has yet to receive when it begins */
#define SENDS_MAX 1000
#define MESSAGE 64
#define LOOK_NS NS_PER_US /* of the clock below, from one look to the next */
#define PATIENT_NS 100000 /* of a send, at least, where it waits */

static char piece[PIECE + 1];

/*
 * This program's clock, in the place of the library's: as a wait is made of looks at it, each look is a share of the receiver's
 * time, and what happens does not hang on who gets a processor.
 */
static _Thread_local struct lane_shared *received_slowly; /* by a receiver that takes a message each look */
static _Thread_local uint64_t looked_at;		  /* not 0: time is what has been looked at */

uint64_t clock_now(void)
{
	struct timespec now;

	if (!looked_at) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		return (uint64_t)now.tv_sec * NS_PER_SEC + (uint64_t)now.tv_nsec;
	}
	if (received_slowly && atomic_load(&received_slowly->received) + MESSAGE <= atomic_load(&received_slowly->sent))
		atomic_fetch_add(&received_slowly->received, MESSAGE);
	return looked_at += LOOK_NS;
}

/* By TCP. */
static void send_raw(size_t bytes)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conns[0], ends[0], 0);

	raw.done = send(ends[0], piece, bytes, MSG_NOSIGNAL);
	assert_int_equal(raw.done, bytes);
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

static void busy_receiver_is_let_come_near_the_ring(void **state)
{
	struct lane_shared *shared = lane_from(0)->shared;

	put_raw_ahead();
	looked_at = clock_now();
	received_slowly = shared;
	for (int i = 0; i < SENDS_MAX && !atomic_load(&shared->on_ring); i++)
		send_one();
	received_slowly = NULL;
	looked_at = 0;
	assert_true(atomic_load(&shared->on_ring));
	assert_true(atomic_load(&shared->sent) - atomic_load(&shared->received) <= AHEAD / 2);
}

static void receiver_that_stands_still_is_hardly_waited_for(void **state)
{
	struct engine *engine = atomic_load(&conns[0]->engine);
	uint64_t before = engine->behind_ns;

	put_raw_ahead();
	looked_at = clock_now();
	send_one();
	looked_at = 0;
	assert_true(atomic_load(&lane_from(0)->shared->on_ring));
	assert_true(engine->behind_ns > before);
	assert_true(engine->behind_ns < before + PATIENT_NS);
}

static void large_sends_do_not_wait(void **state)
{
	struct engine *engine = atomic_load(&conns[0]->engine);
	uint64_t before = engine->behind_ns;

	put_raw_ahead();
	looked_at = clock_now();
	received_slowly = lane_from(0)->shared;
	send_bytes(0, piece, sizeof(piece));
	received_slowly = NULL;
	looked_at = 0;
	assert_true(atomic_load(&lane_from(0)->shared->on_ring));
	assert_int_equal(engine->behind_ns, before);
}

static void connection_that_stays_on_tcp_does_not_wait(void **state)
{
	struct engine *engine = atomic_load(&conns[0]->engine);

	put_raw_ahead();
	evict_out(conns[0], engine, ends[0]);
	looked_at = clock_now();
	assert_false(engine_takes_over(conns[0], engine, ends[0], PIECE));
	assert_int_equal(engine->behind_since, 0);
	looked_at = 0;
}

/* In seccomp's strict mode to look at the clock is a fault. */
static void send_in_a_sandbox_does_not_look_at_the_clock(void **state)
{
	uint64_t before;

	put_raw_ahead();
	before = looked_at = clock_now();
	atomic_store(&guest_sandbox, true);
	assert_int_equal(send_bytes(0, piece, PIECE), SEND_BY_KERNEL);
	atomic_store(&guest_sandbox, false);
	assert_int_equal(looked_at, before);
	looked_at = 0;
}

/* The ring's last doorbell is not acknowledged yet: Nagle's algorithm would hold the raw bytes behind it. */
static void small_raw_send_does_not_wait_behind_a_doorbell(void **state)
{
	lane_arm(&atomic_load(&conns[1]->engine)->channel.in);
	acknowledge_late(ends[1]);
	assert_int_equal(send_bytes(0, piece, MESSAGE), MESSAGE);
	send_raw(MESSAGE);
	assert_false(atomic_load(&lane_from(0)->shared->on_ring));
	assert_int_equal(held_back(ends[0]), 0);
	assert_int_equal(nodelay_of(ends[0]), 0);
}

/* In a network that is this program's own: its one address. */
static void set_address(bool there)
{
	struct ifreq ask = { .ifr_name = "lo" };
	struct sockaddr_in address = { .sin_family = AF_INET };
	int any = socket(AF_INET, SOCK_DGRAM, 0);

	address.sin_addr.s_addr = there ? htonl(INADDR_LOOPBACK) : INADDR_ANY;
	memcpy(&ask.ifr_addr, &address, sizeof(address));
	assert_int_equal(ioctl(any, SIOCSIFADDR, &ask), 0);
	if (there) {
		ask.ifr_flags = IFF_UP;
		assert_int_equal(ioctl(any, SIOCSIFFLAGS, &ask), 0);
	}
	close(any);
}

static bool own_network;

/* This program does not leave it again. */
static int connect_in_network(void **state)
{
	own_network = own_network || !unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET);
	if (own_network)
		set_address(true);
	return connect_ends(state);
}

/* Raw pieces, the first and the last of which can't leave the host: the kernel counts them, and again when they can. All are received. */
static void send_in_outages(int end)
{
	char byte;

	assert_true(lane_switch(lane_from(end)));
	assert_int_equal(receive_some(1 - end, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	for (int i = 0; i < 3; i++) {
		struct engine_raw raw;

		set_address(i == 1);
		raw = engine_raw_begins(conns[end], ends[end], 0);
		raw.done = send(ends[end], piece, PIECE, MSG_NOSIGNAL);
		engine_raw_ends(&raw);
		assert_int_equal(raw.done, PIECE);
	}
	set_address(true);
	for (int taken = 0; taken < 3 * PIECE;) {
		ssize_t rc = receive_some(1 - end, piece, PIECE, 0);

		assert_true(rc > 0);
		taken += (int)rc;
	}
}

static bool comes_to_the_ring(int end)
{
	struct lane_shared *shared = lane_from(end)->shared;
	char byte;

	for (int i = 0; i < SENDS_MAX && !atomic_load(&shared->on_ring); i++)
		assert_true(send_whole(end, "x") == 1 && receive_some(1 - end, &byte, 1, 0) == 1);
	return atomic_load(&shared->on_ring);
}

static void outage_keeps_no_lane_on_tcp(void **state)
{
	if (!own_network)
		skip(); /* not allowed here */
	for (int end = 0; end < 2; end++) {
		send_in_outages(end);
		assert_true(comes_to_the_ring(end));
	}
}

static void byte_of_somebody_else_does_behind_an_outage_too(void **state)
{
	char byte;

	if (!own_network)
		skip();
	send_in_outages(0);
	assert_int_equal(send(ends[0], "s", 1, 0), 1);
	assert_int_equal(recv(ends[1], &byte, 1, 0), 1);
	assert_false(comes_to_the_ring(0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(busy_receiver_is_let_come_near_the_ring, connect_ends, close_ends),
		cmocka_unit_test_setup_teardown(receiver_that_stands_still_is_hardly_waited_for, connect_ends,
						close_ends),
		cmocka_unit_test_setup_teardown(large_sends_do_not_wait, connect_ends, close_ends),
		cmocka_unit_test_setup_teardown(connection_that_stays_on_tcp_does_not_wait, connect_ends, close_ends),
		cmocka_unit_test_setup_teardown(send_in_a_sandbox_does_not_look_at_the_clock, connect_ends, close_ends),
		cmocka_unit_test_setup_teardown(small_raw_send_does_not_wait_behind_a_doorbell, connect_ends,
						close_ends),
		cmocka_unit_test_setup_teardown(outage_keeps_no_lane_on_tcp, connect_in_network, close_ends),
		cmocka_unit_test_setup_teardown(byte_of_somebody_else_does_behind_an_outage_too, connect_in_network,
						close_ends),
	};

	use_rings(65536);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
