/* SPDX-License-Identifier: MIT */
/* A receive returns all that is there, also where the stream goes from TCP to the ring, or back: less would say that there is no more. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "met_testing.h"
#include "preload/evict.h"
#include "preload/guest.h"

#define RING 65536
#define ALL (RING + 8192) /* what TCP takes of it, the receiver has a window for */
#define ROOM (4 << 20)

static char *room;

static int connect_small(void **state)
{
	use_rings(RING);
	room = malloc(ROOM);
	return !room || connect_ends(state);
}

static int open_small(void **state)
{
	use_rings(RING);
	room = malloc(ROOM);
	return !room || open_apart(state);
}

static int close_small(void **state)
{
	free(room);
	return close_ends(state);
}

/* More than the ring takes: the rest goes by TCP. */
static size_t overflow(char *data, size_t most)
{
	int on = 1;
	ssize_t rc;

	assert_int_equal(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	for (size_t i = 0; i < most; i++)
		data[i] = (char)(i * 7 + i / 251);
	rc = send_bytes(0, data, most);
	assert_true(rc > RING);
	assert_false(atomic_load(&lane_from(0)->shared->on_ring));
	return (size_t)rc;
}

static void test_from_the_ring_to_tcp(void **state)
{
	char *data = malloc(ALL);
	size_t sent = overflow(data, ALL);

	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), sent);
	assert_memory_equal(room, data, sent);
	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), -EAGAIN);
	free(data);
}

static void test_no_more_than_is_asked_for(void **state)
{
	char *data = malloc(ALL);
	size_t sent = overflow(data, ALL), wanted = sent - 1;

	assert_int_equal(receive_some(1, room, wanted, MSG_DONTWAIT), wanted);
	assert_memory_equal(room, data, wanted);
	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), 1);
	assert_int_equal(room[0], data[wanted]);
	free(data);
}

static void test_memory_that_is_not_there_is_of_this_call_alone(void **state)
{
	char *data = malloc(ALL);
	size_t sent = overflow(data, ALL);
	ssize_t part = receive_some(1, room, ROOM, MSG_DONTWAIT | MSG_PEEK); /* up to the border */
	struct iovec iov[] = { { room, (size_t)part }, { NULL, ROOM } };

	assert_true(part > 0 && (size_t)part < sent);
	assert_int_equal(engine_recv(conns[1], ends[1], iov, 2, MSG_DONTWAIT), part);
	assert_int_equal(receive_some(1, room + part, ROOM - (size_t)part, MSG_DONTWAIT), sent - (size_t)part);
	assert_memory_equal(room, data, sent);
	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), -EAGAIN);
	free(data);
}

static void test_the_end_behind_the_border_is_the_next_calls(void **state)
{
	char *data = malloc(ALL);
	size_t sent = overflow(data, ALL);

	assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
	assert_int_equal(receive_some(1, room, ROOM, 0), sent);
	assert_int_equal(receive_some(1, room, ROOM, 0), 0);
	free(data);
}

/* The connecting end sends, and is answered; only the first of its bytes is received until its lane is on the ring. */
static size_t enter_over_unread(void)
{
	size_t sent = 0;
	char byte;

	for (int i = 0; i < 200; i++) {
		bool on_ring = engine_has_met(conns[0]) && atomic_load(&lane_from(0)->shared->on_ring);

		byte = (char)('a' + sent % 23);
		assert_int_equal(send_whole(0, (char[]){ byte, 0 }), 1);
		sent++;
		if (on_ring)
			return sent;
		if (i == 0)
			assert_int_equal(receive_some(1, &byte, 1, 0), 1);
		assert_int_equal(send_whole(1, "y"), 1);
		assert_int_equal(receive_some(0, &byte, 1, 0), 1);
	}
	fail_msg("the lane is not on its ring");
	return 0;
}

static void test_from_tcp_to_the_ring(void **state)
{
	size_t sent = enter_over_unread();

	assert_true(sent > 2);
	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), sent - 1);
	for (size_t i = 1; i < sent; i++)
		assert_int_equal(room[i - 1], (char)('a' + i % 23));
	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), -EAGAIN);
}

static void test_a_peek_stays_where_it_is(void **state)
{
	size_t sent = enter_over_unread();
	ssize_t seen = receive_some(1, room, ROOM, MSG_DONTWAIT | MSG_PEEK);

	assert_true(seen > 0 && (size_t)seen < sent);
	assert_int_equal(room[0], 'b');
	assert_int_equal(receive_some(1, room, ROOM, MSG_DONTWAIT), sent - 1);
}

static void test_in_a_sandbox_the_kernel_waits_for_the_rest(void **state)
{
	char *data = malloc(ALL);
	size_t sent = overflow(data, ALL);

	evict_all_of(conns[1]);
	atomic_store(&guest_sandbox, true);
	errno = EXDEV;
	assert_int_equal(receive_some(1, room, sent - 1, MSG_WAITALL), sent - 1);
	assert_int_equal(errno, EXDEV);
	assert_memory_equal(room, data, sent - 1);
	assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
	assert_int_equal(receive_some(1, room, ROOM, MSG_WAITALL), 1);
	atomic_store(&guest_sandbox, false);
	free(data);
}

/* As where other processes hold the connection, too: what is raw is counted, for there may be bytes in the ring behind it. */
static void test_in_a_sandbox_a_lane_that_stays_is_counted(void **state)
{
	char *data = malloc(ALL);
	uint64_t before = atomic_load(&lane_from(0)->shared->received);
	size_t sent = overflow(data, ALL);

	atomic_store(&guest_sandbox, true);
	assert_int_equal(receive_some(1, room, sent, MSG_WAITALL), sent);
	atomic_store(&guest_sandbox, false);
	assert_memory_equal(room, data, sent);
	assert_int_equal(atomic_load(&lane_from(0)->shared->received) - before, sent);
	free(data);
}

static void test_in_a_sandbox_a_reset_behind_the_border_is_the_next_calls(void **state)
{
	assert_int_equal(send_whole(0, "data"), 4);
	evict_out(conns[0], atomic_load(&conns[0]->engine), ends[0]);
	evict_all_of(conns[1]);
	evict_reset(conns[0], ends[0]);
	atomic_store(&guest_sandbox, true);
	errno = EXDEV;
	assert_int_equal(receive_some(1, room, ROOM, MSG_WAITALL), 4);
	assert_int_equal(errno, EXDEV);
	assert_memory_equal(room, "data", 4);
	assert_int_equal(receive_some(1, room, ROOM, MSG_WAITALL), -ECONNRESET);
	assert_int_equal(receive_some(1, room, ROOM, MSG_WAITALL), 0);
	atomic_store(&guest_sandbox, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_from_the_ring_to_tcp, connect_small, close_small),
		cmocka_unit_test_setup_teardown(test_no_more_than_is_asked_for, connect_small, close_small),
		cmocka_unit_test_setup_teardown(test_memory_that_is_not_there_is_of_this_call_alone, connect_small,
						close_small),
		cmocka_unit_test_setup_teardown(test_the_end_behind_the_border_is_the_next_calls, connect_small,
						close_small),
		cmocka_unit_test_setup_teardown(test_in_a_sandbox_the_kernel_waits_for_the_rest, connect_small,
						close_small),
		cmocka_unit_test_setup_teardown(test_in_a_sandbox_a_lane_that_stays_is_counted, connect_small,
						close_small),
		cmocka_unit_test_setup_teardown(test_in_a_sandbox_a_reset_behind_the_border_is_the_next_calls,
						connect_small, close_small),
		cmocka_unit_test_setup_teardown(test_from_tcp_to_the_ring, open_small, close_small),
		cmocka_unit_test_setup_teardown(test_a_peek_stays_where_it_is, open_small, close_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
