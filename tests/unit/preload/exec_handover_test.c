/* SPDX-License-Identifier: MIT */
/*
 * A connection with unread bytes between an exec's begin and what becomes of it: where they can't go along, it is reset by the exec
 * itself, and by nothing if that fails. The kernel's part of an exec, which closes what is close-on-exec, is played here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "met_testing.h"
#include "preload/actions.h"
#include "preload/exec.h"
#include "preload/exec_names.h"
#include "rdma/lane_record.h"

#define NUMBERS 2048 /* that anything here may have */
#define TEXT "unread"

enum { PEER, OWN };

static char *const nothing[] = { NULL };
static char *preloaded[] = { NULL, NULL };
static const struct target_name program = { .dir = AT_FDCWD, .path = "/bin/true" };
static struct exec exec;

static int use_small_rings(void **state)
{
	static char variable[4096 + 16] = "LD_PRELOAD=";

	use_rings(1 << 20);
	preloaded[0] = variable;
	if (readlink("/proc/self/exe", variable + strlen(variable), 4096) < 0)
		return -1;
	target_start(); /* the test itself is the library */
	return 0;
}

/* The program's end has bytes that nobody has received; the other is not the new program's. */
static int leave_unread(void **state)
{
	if (connect_ends(state) || fcntl(ends[PEER], F_SETFD, FD_CLOEXEC) < 0)
		return -1;
	return send_whole(PEER, TEXT) == sizeof(TEXT) - 1 ? 0 : -1;
}

static int state_of(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t bytes = sizeof(info);

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
	return info.tcpi_state;
}

/* Descriptors of the program's connection, but for one, that an exec leaves open, and those that it closes. */
static void count_descriptors(int but, int *stay, int *go)
{
	const uint64_t cookie = atomic_load(&conns[OWN]->cookie);

	*stay = *go = 0;
	for (int fd = 0; fd < NUMBERS; fd++) {
		int flags = fd == but ? -1 : fcntl(fd, F_GETFD);

		if (flags < 0 || conn_cookie_of(fd) != cookie)
			continue;
		if (flags & FD_CLOEXEC)
			++*go;
		else
			++*stay;
	}
}

static void close_on_exec(void)
{
	const uint64_t cookie = atomic_load(&conns[OWN]->cookie);

	for (int fd = 0; fd < NUMBERS; fd++) {
		int flags = fcntl(fd, F_GETFD);

		if (flags >= 0 && flags & FD_CLOEXEC && conn_cookie_of(fd) == cookie)
			close(fd);
	}
}

static struct linger linger_of(int fd)
{
	struct linger linger = { 0 };
	socklen_t bytes = sizeof(linger);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &bytes), 0);
	return linger;
}

/* Nothing has happened to it: its number, its orders, its bytes, and those that come. */
static void goes_on(void)
{
	char data[32];
	int stay, go;

	count_descriptors(-1, &stay, &go);
	assert_int_equal(stay, 1);
	assert_int_equal(go, 0);
	assert_int_equal(fcntl(ends[OWN], F_GETFD), 0);
	assert_int_equal(conn_cookie_of(ends[OWN]), atomic_load(&conns[OWN]->cookie));
	assert_int_equal(linger_of(ends[OWN]).l_onoff, 1);
	assert_int_equal(linger_of(ends[OWN]).l_linger, 7);
	assert_int_equal(receive_some(OWN, data, sizeof(data), 0), sizeof(TEXT) - 1);
	assert_memory_equal(data, TEXT, sizeof(TEXT) - 1);
	assert_int_equal(send_whole(PEER, "more"), 4);
	assert_int_equal(receive_some(OWN, data, sizeof(data), 0), 4);
	assert_memory_equal(data, "more", 4);
}

static void asks_to_linger(void)
{
	const struct linger orders = { .l_onoff = 1, .l_linger = 7 };

	assert_int_equal(setsockopt(ends[OWN], SOL_SOCKET, SO_LINGER, &orders, sizeof(orders)), 0);
}

/* A program without the library: what is at the number is there, and no connection. */
static void an_exec_that_fails_gives_it_back(void **state)
{
	int stay, go;

	asks_to_linger();
	exec_begins(&exec, &program, nothing);
	count_descriptors(-1, &stay, &go);
	assert_int_equal(stay, 0);
	assert_int_equal(go, 1);
	assert_int_equal(fcntl(ends[OWN], F_GETFD), 0);
	assert_int_equal(state_of(ends[OWN]), TCP_CLOSE);
	assert_int_equal(state_of(ends[PEER]), TCP_ESTABLISHED);
	exec_failed(&exec);
	goes_on();
}

static void its_reset_comes_by_the_exec(void **state)
{
	char byte;

	exec_begins(&exec, &program, nothing);
	close_on_exec();
	assert_int_equal(recv(ends[PEER], &byte, 1, 0), -1);
	assert_int_equal(errno, ECONNRESET);
	exec_failed(&exec); /* not so: it lets go of what it has */
}

/* No number may be as high as the library's own; or there is none at all. */
static void limited(bool full)
{
	struct rlimit before, limit;
	int fds[256], count = 0;

	asks_to_linger();
	getrlimit(RLIMIT_NOFILE, &before);
	limit = (struct rlimit){ 200, before.rlim_max };
	setrlimit(RLIMIT_NOFILE, &limit);
	while (full && (fds[count] = dup(ends[PEER])) >= 0)
		count++;
	exec_begins(&exec, &program, nothing);
	assert_int_equal(fcntl(ends[OWN], F_GETFD), full ? FD_CLOEXEC : 0);
	assert_int_equal(state_of(ends[PEER]), TCP_ESTABLISHED);
	exec_failed(&exec);
	while (count)
		close(fds[--count]);
	setrlimit(RLIMIT_NOFILE, &before);
	goes_on();
}

static void so_where_numbers_are_low(void **state)
{
	limited(false);
}

static void so_where_there_are_no_numbers(void **state)
{
	limited(true);
}

/* Another thread closes it meanwhile, and its number is a file's. */
static void a_number_that_is_anothers_stays_that(void **state)
{
	int other, stay, go;

	exec_begins(&exec, &program, nothing);
	conn_close(ends[OWN]);
	other = open("/dev/null", O_RDONLY);
	assert_int_equal(dup2(other, ends[OWN]), ends[OWN]);
	exec_failed(&exec);
	count_descriptors(-1, &stay, &go);
	assert_int_equal(stay + go, 0);
	assert_int_equal(conn_cookie_of(ends[OWN]), 0);
	assert_int_not_equal(fcntl(ends[OWN], F_GETFL), -1);
	close(other);
}

/* More of them than are told: none may be the new program's, with the bytes that come behind those which it lacks. */
static void many_numbers(char *const envp[])
{
	const int last = ends[OWN] + EXEC_NAMES_MAX;

	for (int fd = ends[OWN] + 1; fd <= last; fd++)
		assert_true(fcntl(ends[OWN], F_DUPFD, 20) >= 20);
	exec_begins(&exec, &program, envp);
	assert_int_equal(state_of(ends[OWN]), TCP_CLOSE);
	assert_int_not_equal(state_of(ends[PEER]), TCP_ESTABLISHED);
	exec_failed(&exec);
	for (int fd = 20; fd < NUMBERS; fd++) {
		if (conn_cookie_of(fd) == atomic_load(&conns[OWN]->cookie))
			close(fd);
	}
}

static void under_too_many_numbers_it_is_reset_at_once(void **state)
{
	many_numbers(nothing);
}

static void under_too_many_numbers_it_is_not_carried(void **state)
{
	many_numbers(preloaded);
}

/* Numbers that are not known of, and more than are followed. */
static void under_all_numbers_it_is_reset_by_the_exec(void **state)
{
	int stay, go;

	asks_to_linger();
	for (int i = 0; i < 12; i++) {
		int fd = fcntl(ends[OWN], F_DUPFD, 20);

		if (i % 2)
			conn_dup(ends[OWN], fd);
	}
	assert_int_equal(dup2(ends[OWN], 400), 400);
	conn_dup(ends[OWN], 400);
	exec_begins(&exec, &program, nothing);
	count_descriptors(-1, &stay, &go);
	assert_int_equal(stay, 0);
	exec_failed(&exec);
	count_descriptors(-1, &stay, &go);
	assert_int_equal(stay, 14);
	for (int fd = 20; fd < NUMBERS; fd++) {
		if (conn_cookie_of(fd) != atomic_load(&conns[OWN]->cookie))
			continue;
		conn_close(fd);
		close(fd);
	}
	goes_on();
}

/* Another thread closes it meanwhile: as any close with unread bytes. */
static void closed_meanwhile_it_is_reset(void **state)
{
	char byte;

	exec_begins(&exec, &program, nothing);
	conn_close(ends[OWN]);
	close(ends[OWN]);
	exec_failed(&exec);
	assert_int_equal(recv(ends[PEER], &byte, 1, 0), -1);
	assert_int_equal(errno, ECONNRESET);
}

/* Under one number of two: it goes on as the program wants it. */
static void under_another_number_it_goes_on(void **state)
{
	int other = fcntl(ends[OWN], F_DUPFD, 20), before = ends[OWN];

	conn_dup(ends[OWN], other);
	asks_to_linger();
	exec_begins(&exec, &program, nothing);
	conn_close(before);
	close(before);
	ends[OWN] = other;
	exec_failed(&exec);
	assert_int_equal(atomic_load(&stats->slot[conns[OWN]->slot].reason[REASON_LOST]), 0);
	goes_on();
}

/* And another connection has its number and its place in memory: it gets none of its bytes. */
static void another_in_its_place_gets_nothing(void **state)
{
	struct conn *before = conns[OWN];
	int peer = ends[PEER], own;
	char data[32];

	exec_begins(&exec, &program, preloaded);
	conn_close(ends[OWN]);
	close(ends[OWN]);
	assert_int_equal(connect_ends(state), 0);
	assert_true(conns[OWN] == before || conns[PEER] == before);
	own = conns[OWN] == before ? OWN : PEER;
	exec_failed(&exec);
	assert_int_equal(receive_some(own, data, sizeof(data), MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(send_whole(1 - own, "its own"), 7);
	assert_int_equal(receive_some(own, data, sizeof(data), 0), 7);
	assert_memory_equal(data, "its own", 7);
	conn_close(peer);
	close(peer);
}

/* A hostile peer's: what was taken out before it is found is nowhere, so that nothing may come in its place. */
static void bytes_that_were_taken_and_can_not_go_are_missed(void **state)
{
	struct lane *out = lane_from(PEER);
	static char data[100000];
	uint64_t at;

	assert_int_equal(send_bytes(PEER, data, sizeof(data)), sizeof(data));
	at = atomic_load(&out->shared->tail);
	assert_int_equal(send_whole(PEER, TEXT), sizeof(TEXT) - 1);
	assert_true(atomic_load(&out->shared->tail) > at);
	record_at(out, at)->bytes = UINT32_MAX;
	exec_begins(&exec, &program, preloaded);
	exec_failed(&exec);
	assert_int_equal(state_of(ends[OWN]), TCP_CLOSE);
	assert_int_not_equal(state_of(ends[PEER]), TCP_ESTABLISHED);
	assert_true(receive_some(OWN, data, 1, 0) <= 0);
}

/* Children that are and children that are not. */
static void spawns_that_fail_have_no_child(void **state)
{
	static int actions;

	actions_add(&actions, ends[OWN], 100);
	exec_spawns(&exec, &program, preloaded, &actions);
	assert_int_equal(atomic_load(&conns[OWN]->spawned), 1);
	exec_spawned(&exec, false);
	assert_int_equal(atomic_load(&conns[OWN]->spawned), 0);
	exec_spawns(&exec, &program, preloaded, &actions);
	exec_spawned(&exec, true);
	assert_int_equal(atomic_load(&conns[OWN]->spawned), 1);
	assert_true(fcntl(STDIN_FILENO, F_GETFD) >= 0);
	actions_forget(&actions);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, leave_unread, close_ends)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_exec_that_fails_gives_it_back),
		TEST(its_reset_comes_by_the_exec),
		TEST(so_where_numbers_are_low),
		TEST(so_where_there_are_no_numbers),
		TEST(a_number_that_is_anothers_stays_that),
		TEST(under_too_many_numbers_it_is_reset_at_once),
		TEST(under_too_many_numbers_it_is_not_carried),
		TEST(under_all_numbers_it_is_reset_by_the_exec),
		TEST(closed_meanwhile_it_is_reset),
		TEST(under_another_number_it_goes_on),
		TEST(another_in_its_place_gets_nothing),
		TEST(bytes_that_were_taken_and_can_not_go_are_missed),
		TEST(spawns_that_fail_have_no_child),
	};

	return cmocka_run_group_tests(tests, use_small_rings, NULL);
}
