/* SPDX-License-Identifier: MIT */
/* What sg holds and what it lets go at once: the rhythm of sends, over a real connection on the loopback. */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "preload/real.h"
#include "preload/send.h"
#include "pair_testing.h"
#include "reuse_testing.h"

#define HOLD_US 500000 /* long enough that nothing expires while a test looks, however busy the machine is */

static int ends[2];
static struct conn *conn;

static int connect_ends(void **state)
{
	if ((!stats && stats_start()) || (!table && table_start()))
		return -1;
	connect_pair(ends);
	conn_open(ends[0], ROLE_CLIENT, false);
	conn = table_conn(ends[0]);
	return conn ? 0 : -1;
}

static int close_ends(void **state)
{
	close_pair(ends);
	return 0;
}

static ssize_t send_text(const char *text)
{
	struct iovec iov = { (void *)text, strlen(text) };

	return send_by_path(conn, ends[0], &iov, 1, 0);
}

/* The same, right after the one before, however busy the machine is. */
static ssize_t send_close_by(const char *text)
{
	atomic_store(&conn->sg.last_ns, clock_now());
	return send_text(text);
}

static uint32_t held(void)
{
	return atomic_load(&conn->sg.held);
}

static void expect_received(const char *text)
{
	char got[256];

	assert_int_equal(read(ends[1], got, strlen(text)), strlen(text));
	assert_memory_equal(got, text, strlen(text));
}

static void first_send_of_a_turn_leaves_at_once(void **state)
{
	assert_int_equal(send_text("a"), SEND_BY_KERNEL);
	assert_int_equal(held(), 0);
}

static void request_and_reply_are_never_held(void **state)
{
	for (int i = 0; i < 50; i++) {
		assert_int_equal(send_text("request"), SEND_BY_KERNEL);
		sg_turn_ends(conn);
	}
}

static void close_neighbours_are_held_and_leave_in_order(void **state)
{
	assert_int_equal(send_text("a"), SEND_BY_KERNEL);
	assert_int_equal(send_close_by("bc"), 2);
	assert_int_equal(send_close_by("def"), 3);
	assert_int_equal(held(), 5);
	sg_before_wait();
	assert_int_equal(held(), 0);
	expect_received("bcdef");
}

static void a_burst_is_expected_after_a_burst(void **state)
{
	send_text("a");
	for (int i = 0; i < 4; i++)
		assert_int_equal(send_close_by("b"), 1);
	sg_before_wait();
	assert_int_equal(send_text("c"), 1);
	assert_int_equal(held(), 1);
}

static void a_larger_send_takes_along_what_is_held(void **state)
{
	static char large[8192];
	struct iovec iov = { large, sizeof(large) };
	char got[2 + sizeof(large)];

	memset(large, 'x', sizeof(large));
	send_text("a");
	assert_int_equal(send_close_by("bc"), 2);
	assert_int_equal(send_by_path(conn, ends[0], &iov, 1, 0), sizeof(large));
	assert_int_equal(held(), 0);
	assert_int_equal(recv(ends[1], got, sizeof(got), MSG_WAITALL), sizeof(got));
	assert_memory_equal(got, "bcx", 3);
}

static void time_up_hands_over_without_any_call(void **state)
{
	send_text("a");
	assert_int_equal(send_close_by("hello"), 5);
	expect_received("hello"); /* blocks until the flusher has done its work */
}

static void full_send_buffer_is_not_held_in_front_of(void **state)
{
	int small = 4608;

	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	send_text("a");
	assert_int_equal(send_close_by("b"), SEND_BY_KERNEL);
	assert_true(atomic_load(&stats->slot[conn->slot].reason[REASON_SG_BACKED_UP]) > 0);
}

static void holding_that_never_pays_is_switched_off(void **state)
{
	struct lock_hold hold;

	for (int i = 0; i < 8; i++) {
		assert_true(lock_take(&conn->lock, &hold));
		conn->sg.batch = 1;
		sg_expired(conn);
		lock_give(&conn->lock, &hold);
	}
	send_text("a");
	assert_int_equal(send_close_by("b"), SEND_BY_KERNEL);
	assert_true(atomic_load(&stats->slot[conn->slot].reason[REASON_SG_LATE]) > 0);
}

static void error_of_held_bytes_is_told_by_the_next_call(void **state)
{
	struct linger reset = { 1, 0 };

	send_text("a");
	assert_int_equal(send_close_by("b"), 1);
	setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(ends[1]);
	ends[1] = dup(ends[0]);
	sg_before_wait();
	assert_int_equal(held(), 0);
	struct iovec iov = { (void *)"c", 1 };
	assert_true(send_by_path(conn, ends[0], &iov, 1, MSG_NOSIGNAL) < 0);
}

static void close_hands_over(void **state)
{
	send_text("a");
	assert_int_equal(send_close_by("last words"), 10);
	conn_close(ends[0]);
	expect_received("last words");
	conn_open(ends[0], ROLE_CLIENT, false);
}

/* What its parent's threads have opened since is not there: the number may be another connection. */
static void child_of_vfork_flushes_nothing(void **state)
{
	int others[2], status;
	char byte;
	pid_t child;

	assert_true(conn_process_is_ours());
	connect_pair(others);
	send_text("a");
	assert_int_equal(send_close_by("hello"), 5);
	child = vfork();
	if (!child) {
		dup2(others[0], ends[0]);
		sg_flush_all();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(recv(others[1], &byte, 1, MSG_DONTWAIT), -1);
	expect_received("hello");
	close_pair(others);
}

static __typeof__(real) kernel;

/* The kernel waits for room at the socket that it was when the call began, and there is some now. */
static int wait_while_number_is_reused(struct pollfd *fds, nfds_t count, int ms)
{
	struct pollfd old = fds[0];

	assert_false(reuse.done);
	reuse_number(fds[0].fd);
	old.fd = reuse.kept;
	reuse_make_room(ends[1], NULL, 0);
	return kernel.poll(&old, 1, -1);
}

/* Bytes are held, and the kernel takes no more: an acknowledgement or two make no room. */
static void hold_in_front_of_a_full_buffer(void)
{
	static char much[65536];
	const int small = 4608;

	while (send(ends[0], much, sizeof(much), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	atomic_store(&conn->sg.room, INT64_MAX); /* as it was thought a moment ago */
	assert_int_equal(send_text("a"), SEND_BY_KERNEL);
	assert_int_equal(send_close_by("bc"), 2);
}

/* A larger send, as the program's own call goes on with it; what is held goes first, and waits. */
static void send_and_lose_number(bool same_place)
{
	static char large[8192];
	struct iovec iov = { large, sizeof(large) };
	ssize_t rc;

	reuse.done = false;
	reuse.same_place = same_place;
	hold_in_front_of_a_full_buffer();
	kernel = real;
	real.poll = wait_while_number_is_reused;
	rc = send_by_path(conn, ends[0], &iov, 1, MSG_NOSIGNAL);
	real = kernel;
	if (rc == SEND_BY_KERNEL)
		rc = send(ends[0], large, sizeof(large), MSG_NOSIGNAL);
	assert_true(reuse.done);
	assert_nothing_came(ends[0]);
	assert_int_equal(rc, -EBADF);
}

static void send_behind_held_bytes_ends_when_its_number_is_another_connection(void **state)
{
	send_and_lose_number(false);
	assert_ptr_not_equal(table_conn(ends[0]), conn);
	close(reuse.kept);
	reuse_ends();
}

static void send_behind_held_bytes_ends_when_another_connection_has_its_number_and_its_place(void **state)
{
	send_and_lose_number(true);
	assert_ptr_equal(table_conn(ends[0]), conn);
	close(reuse.kept);
	reuse_ends();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(first_send_of_a_turn_leaves_at_once),
		TEST(request_and_reply_are_never_held),
		TEST(close_neighbours_are_held_and_leave_in_order),
		TEST(a_burst_is_expected_after_a_burst),
		TEST(a_larger_send_takes_along_what_is_held),
		TEST(time_up_hands_over_without_any_call),
		TEST(full_send_buffer_is_not_held_in_front_of),
		TEST(holding_that_never_pays_is_switched_off),
		TEST(error_of_held_bytes_is_told_by_the_next_call),
		TEST(close_hands_over),
		TEST(child_of_vfork_flushes_nothing),
		TEST(send_behind_held_bytes_ends_when_its_number_is_another_connection),
		TEST(send_behind_held_bytes_ends_when_another_connection_has_its_number_and_its_place),
	};

	real_resolve();
	settings.path = PATH_SG;
	settings.sg_hold_us = HOLD_US;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
