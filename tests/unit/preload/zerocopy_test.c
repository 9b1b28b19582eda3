/* SPDX-License-Identifier: MIT */
/*
 * Sends in parts, head and tail copied and pages between them, over a real connection on the loopback: they are one run of
 * segments, whatever the peer acknowledges between two parts. A filter of the sending thread's stops it in front of its calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "pair_testing.h"
#include "preload/real.h"
#include "preload/zerocopy.h"
#include "rdma/guard.h"
#include "reuse_testing.h"

#define PAGE 4096ul
#define BYTES (64 * PAGE)
#define HEAD (PAGE - 16) /* of a buffer that begins 16 bytes into a page, as malloc's do */
#define TAIL 16

static char buffer[BYTES + 2 * PAGE] __attribute__((aligned(4096)));
static char got[BYTES];
static int ends[2];
static struct conn *conn;

struct sender {
	size_t bytes;
	int flags;
	ssize_t sent;
	_Atomic int stops; /* the filter's descriptor + 1, -1: no filter to be had */
};

static int connect_ends(void **state)
{
	if ((!stats && stats_start()) || (!table && table_start()))
		return -1;
	guard_start(GUARD_AUTO); /* without, the pages are copied, in the same parts */
	connect_pair(ends);
	conn_open(ends[0], ROLE_CLIENT, false);
	conn = table_conn(ends[0]);
	for (size_t i = 0; i < sizeof(buffer); i++)
		buffer[i] = (char)(i % 251);
	return conn ? 0 : -1;
}

static int close_ends(void **state)
{
	close_pair(ends);
	return 0;
}

static int option(int name)
{
	int value = -1;
	socklen_t bytes = sizeof(value);

	assert_int_equal(getsockopt(ends[0], IPPROTO_TCP, name, &value, &bytes), 0);
	return value;
}

static int bytes_of(unsigned long what)
{
	int bytes = -1;

	assert_int_equal(ioctl(ends[0], what, &bytes), 0);
	return bytes;
}

static ssize_t send_buffer(size_t offset, size_t bytes, int flags)
{
	struct iovec iov = { buffer + offset, bytes };

	return zerocopy_send(conn, ends[0], &iov, 1, flags);
}

/* The peer takes all that it is sent, until all of that is acknowledged. Returns how many bytes it has by then. */
static size_t drain(size_t have)
{
	for (;;) {
		ssize_t more = recv(ends[1], got + have, sizeof(got) - have, MSG_DONTWAIT);

		if (more > 0)
			have += (size_t)more;
		else if (bytes_of(SIOCOUTQ) == bytes_of(SIOCOUTQNSD))
			return have;
		else
			sched_yield(); /* acknowledged after 40 ms at the latest */
	}
}

static int stop_at_sendmsg(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
}

static void *run_sender(void *argument)
{
	struct sender *sender = argument;
	int stops = stop_at_sendmsg();

	atomic_store(&sender->stops, stops < 0 ? -1 : stops + 1);
	if (stops >= 0)
		sender->sent = send_buffer(16, sender->bytes, sender->flags);
	return NULL;
}

static pthread_t start(struct sender *sender)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, run_sender, sender), 0);
	while (!atomic_load(&sender->stops))
		sched_yield();
	if (atomic_load(&sender->stops) < 0) {
		pthread_join(thread, NULL);
		skip();
	}
	return thread;
}

/* The sender is in front of a call. Returns its number. */
static uint64_t await_call(const struct sender *sender)
{
	struct seccomp_notif call = { 0 };

	while (ioctl(sender->stops - 1, SECCOMP_IOCTL_NOTIF_RECV, &call))
		assert_int_equal(errno, EINTR);
	return call.id;
}

static void let_go(const struct sender *sender, uint64_t id)
{
	struct seccomp_notif_resp go = { .id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

	assert_int_equal(ioctl(sender->stops - 1, SECCOMP_IOCTL_NOTIF_SEND, &go), 0);
}

static void acknowledged_parts_leave_no_small_segment(void **state)
{
	struct sender sender = { .bytes = BYTES };
	pthread_t thread = start(&sender);
	size_t after_head, have;
	int head, rest;
	uint64_t call;

	let_go(&sender, await_call(&sender)); /* head */
	call = await_call(&sender);
	after_head = drain(0);
	head = bytes_of(SIOCOUTQNSD);
	let_go(&sender, call); /* pages */
	call = await_call(&sender);
	have = drain(after_head);
	rest = bytes_of(SIOCOUTQNSD);
	let_go(&sender, call);	    /* tail */
	pthread_join(thread, NULL); /* before anything may fail: it would stand there for ever */
	close(sender.stops - 1);
	assert_int_equal(after_head, 0); /* less than a segment */
	assert_int_equal(head, HEAD);
	assert_true(have > 0 && have < BYTES - TAIL);
	assert_int_equal(rest, BYTES - TAIL - have);
	assert_int_equal(sender.sent, BYTES);
	assert_int_equal(bytes_of(SIOCOUTQNSD), 0);
	assert_int_equal(drain(have), BYTES);
	assert_memory_equal(got, buffer + 16, BYTES);
	assert_int_equal(option(TCP_CORK), 0);
	while (zerocopy_used(conn)) /* the pages are let go of, too */
		zerocopy_harvest_now(conn);
}

static void the_head_leaves_when_the_pages_find_no_room(void **state)
{
	const int small = 4608;
	ssize_t sent;

	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	sent = send_buffer(16, BYTES, MSG_DONTWAIT);
	assert_true(sent > 0 && sent < (ssize_t)BYTES);
	assert_int_equal(drain(0), sent);
	assert_int_equal(bytes_of(SIOCOUTQNSD), 0);
}

static void a_full_buffer_leaves_nothing_behind(void **state)
{
	size_t all = 0, have = 0;
	ssize_t sent;

	while ((sent = send_buffer(16, BYTES, MSG_DONTWAIT)) > 0) {
		assert_int_equal(option(TCP_CORK), 0);
		all += (size_t)sent;
	}
	assert_true(sent == -EAGAIN || sent == -EOPNOTSUPP); /* the latter where there is no guard */
	assert_int_equal(option(TCP_CORK), 0);
	while (have < all) {
		sent = recv(ends[1], got, sizeof(got), 0);
		assert_true(sent > 0);
		have += (size_t)sent;
	}
}

static void a_cork_of_the_programs_stays(void **state)
{
	const int on = 1;
	size_t have;

	assert_int_equal(setsockopt(ends[0], IPPROTO_TCP, TCP_CORK, &on, sizeof(on)), 0);
	assert_int_equal(send_buffer(16, BYTES, MSG_DONTWAIT), BYTES);
	assert_int_equal(option(TCP_CORK), 1);
	have = drain(0);
	assert_int_equal(bytes_of(SIOCOUTQNSD), BYTES - have);
	assert_true(have < BYTES);
}

/* As one of the first part is, too, if the window has grown meanwhile. */
static void the_end_leaves_behind_a_small_segment(void **state)
{
	const size_t bytes = 6 * PAGE;
	const int off = 0;

	do {
		assert_int_equal(setsockopt(ends[1], IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off)), 0);
		assert_int_equal(send(ends[0], "s", 1, 0), 1);
		assert_int_equal(recv(ends[1], got, 1, 0), 1);
	} while (!bytes_of(SIOCOUTQ)); /* acknowledged at once */
	assert_int_equal(send_buffer(16, bytes, 0), bytes);
	assert_int_equal(bytes_of(SIOCOUTQNSD), 0);
	assert_int_equal(option(TCP_CORK), 0);
	assert_int_equal(option(TCP_NODELAY), 0);
	assert_int_equal(drain(0), bytes);
	assert_memory_equal(got, buffer + 16, bytes);
}

static void an_option_of_the_programs_stays(void **state)
{
	const int on = 1;

	assert_int_equal(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	assert_int_equal(send_buffer(16, 6 * PAGE, 0), 6 * PAGE);
	assert_int_equal(bytes_of(SIOCOUTQNSD), 0);
	assert_int_equal(option(TCP_NODELAY), 1);
}

static void an_error_takes_the_cork_away(void **state)
{
	assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
	assert_int_equal(send_buffer(16, BYTES, MSG_NOSIGNAL), -EPIPE);
	assert_int_equal(option(TCP_CORK), 0);
}

static __typeof__(real) kernel;
static size_t taken; /* by the old peer */

/* The call was the old socket's when it began, and there is room now. */
static ssize_t wait_while_number_is_reused(int fd, const void *data, size_t bytes, int flags)
{
	if (reuse.done)
		return kernel.send(fd, data, bytes, flags);
	reuse_number(fd);
	taken = reuse_make_room(ends[1], got, sizeof(got));
	return kernel.send(reuse.kept, data, bytes, flags);
}

static ssize_t send_and_lose_number(bool same_place)
{
	const int small = 4608;
	ssize_t sent;

	reuse.done = false;
	reuse.same_place = same_place;
	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	kernel = real;
	real.send = wait_while_number_is_reused;
	sent = send_buffer(16, BYTES, MSG_NOSIGNAL);
	real = kernel;
	assert_true(reuse.done);
	return sent;
}

/* What it has sent is the old peer's, and nothing else. */
static void assert_old_peer_has(ssize_t sent)
{
	ssize_t more;

	close(reuse.kept);
	while ((more = recv(ends[1], got + taken, sizeof(got) - taken, 0)) > 0)
		taken += (size_t)more;
	assert_int_equal(more, 0);
	assert_true(sent > 0 && sent < (ssize_t)BYTES);
	assert_int_equal(taken, sent);
	assert_memory_equal(got, buffer + 16, taken);
}

static void send_ends_when_its_number_is_another_connection(void **state)
{
	ssize_t sent = send_and_lose_number(false);

	assert_ptr_not_equal(table_conn(ends[0]), conn);
	assert_nothing_came(ends[0]);
	assert_old_peer_has(sent);
	reuse_ends();
}

static void send_ends_when_another_connection_has_its_number_and_its_place(void **state)
{
	ssize_t sent = send_and_lose_number(true);

	assert_ptr_equal(table_conn(ends[0]), conn);
	assert_nothing_came(ends[0]);
	assert_old_peer_has(sent);
	reuse_ends();
}

/* The old one fails, as another thread has shut it before. */
static ssize_t fail_while_number_is_reused(int fd, const void *data, size_t bytes, int flags)
{
	if (reuse.done)
		return kernel.send(fd, data, bytes, flags);
	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	reuse_number(fd);
	return kernel.send(reuse.kept, data, bytes, flags);
}

static void error_of_a_send_is_not_told_to_the_next_connection(void **state)
{
	const int small = 4608;

	reuse.done = false;
	reuse.same_place = true;
	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	kernel = real;
	real.send = fail_while_number_is_reused;
	assert_true(send_buffer(16, BYTES, MSG_NOSIGNAL) > 0);
	real = kernel;
	assert_ptr_equal(table_conn(ends[0]), conn);
	assert_int_equal(atomic_load(&conn->sg.error), 0);
	close(reuse.kept);
	reuse_ends();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(acknowledged_parts_leave_no_small_segment),
		TEST(the_head_leaves_when_the_pages_find_no_room),
		TEST(a_full_buffer_leaves_nothing_behind),
		TEST(a_cork_of_the_programs_stays),
		TEST(the_end_leaves_behind_a_small_segment),
		TEST(an_option_of_the_programs_stays),
		TEST(an_error_takes_the_cork_away),
		TEST(send_ends_when_its_number_is_another_connection),
		TEST(send_ends_when_another_connection_has_its_number_and_its_place),
		TEST(error_of_a_send_is_not_told_to_the_next_connection),
	};

	real_resolve();
	settings.path = PATH_ZEROCOPY;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
