/* SPDX-License-Identifier: MIT */
/*
 * Connections on the ring that several processes hold, some of which are killed: a lock that died is a reset for everybody,
 * and whoever is left is the last one to close. Both ends are here, over a real connection on the loopback.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "preload/choose.h"
#include "preload/engine.h"
#include "preload/evict.h"
#include "preload/real.h"
#include "preload/send.h"
#include "fork_testing.h"
#include "pair_testing.h"

static int client, server;
static int to_parent[2], to_child[2];

static void refused(const char *message)
{
	print_message("%s\n", message);
}

static ssize_t send_byte(int fd)
{
	struct conn *conn = table_conn(fd);
	struct iovec iov = { (void *)"x", 1 };
	ssize_t rc = send_by_path(conn, fd, &iov, 1, MSG_NOSIGNAL);

	if (rc == ENGINE_BY_KERNEL) {
		__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conn, fd, 0);

		raw.done = send(fd, "x", 1, MSG_NOSIGNAL);
		rc = raw.done < 0 ? -errno : raw.done;
	}
	return rc;
}

static ssize_t receive_byte(int fd)
{
	struct conn *conn = table_conn(fd);
	char byte;
	struct iovec iov = { &byte, 1 };
	ssize_t rc = engine_recv(conn, fd, &iov, 1, 0);

	if (rc == ENGINE_BY_KERNEL || (rc == -EDEADLK && !engine_has_met(conn))) {
		__attribute__((cleanup(engine_raw_recv_ends))) struct engine_raw raw = engine_raw_recv_begins(conn, fd);

		raw.done = recv(fd, &byte, 1, 0);
		rc = raw.done < 0 ? -errno : raw.done;
	}
	return rc;
}

static struct engine *engine_of(int fd)
{
	return atomic_load(&table_conn(fd)->engine);
}

static bool sends_by_ring(int fd)
{
	return engine_met(engine_of(fd)) && atomic_load(&engine_of(fd)->channel.out.shared->on_ring);
}

static int connect_ends(void **state)
{
	int ends[2];

	alarm(HANG_SECONDS);
	if (pipe(to_parent) || pipe(to_child))
		return -1;
	connect_pair(ends);
	client = ends[0];
	server = ends[1];
	conn_open(client, ROLE_CLIENT, false);
	conn_open(server, ROLE_SERVER, false);
	for (int i = 0; i < 100 && !(sends_by_ring(client) && sends_by_ring(server)); i++) {
		if (send_byte(client) != 1 || receive_byte(server) != 1 || send_byte(server) != 1 ||
		    receive_byte(client) != 1)
			return -1;
	}
	return sends_by_ring(client) && sends_by_ring(server) ? 0 : -1;
}

static void close_end(int *fd)
{
	if (*fd < 0)
		return;
	conn_close(*fd);
	close(*fd);
	*fd = -1;
}

static int close_ends(void **state)
{
	close_end(&client);
	close_end(&server);
	for (int i = 0; i < 2; i++) {
		close(to_parent[i]);
		close(to_child[i]);
	}
	return 0;
}

static void tell(const int *pipe)
{
	assert_int_equal(write(pipe[1], "", 1), 1);
}

static void hear(const int *pipe)
{
	char byte;

	assert_int_equal(read(pipe[0], &byte, 1), 1);
}

/* It is dead from here on, but still somebody's child. */
static void kill_unreaped(pid_t child)
{
	siginfo_t info;

	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
}

/* A child is killed while it has this lock. */
static void lose(struct lock *lock)
{
	struct lock_hold hold;
	pid_t child = fork_child();

	if (!child) {
		if (!lock_take(lock, &hold))
			_exit(1);
		tell(to_parent);
		pause();
	}
	hear(to_parent);
	kill_unreaped(child);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_not_equal(atomic_load(&lock->word), 0);
}

/* The connection is at its end, for both of its ends, and in the way of one that was reset. */
static void assert_reset(void)
{
	assert_false(engine_has_met(table_conn(server)));
	assert_int_equal(send_byte(server), -EPIPE);
	assert_int_equal(receive_byte(client), -ECONNRESET);
	assert_int_equal(send_byte(client), -EPIPE);
}

static void test_a_receive_finds_its_lock_lost(void **state)
{
	assert_int_equal(send_byte(client), 1);
	lose(&engine_of(server)->in);
	assert_int_equal(receive_byte(server), -ECONNRESET);
	assert_reset();
}

static void test_a_send_finds_its_lock_lost(void **state)
{
	lose(&engine_of(server)->out);
	assert_int_equal(send_byte(server), -ECONNRESET);
	assert_reset();
}

static void test_one_process_finds_what_another_has_found(void **state)
{
	pid_t child;
	int status;

	child = fork_child();
	if (!child) {
		hear(to_child);
		_exit(send_byte(server) == -ECONNRESET ? 0 : 1);
	}
	lose(&engine_of(server)->out);
	/* Found, but not seen to: as if that process had died at once. */
	atomic_store(&engine_of(server)->out.word, LOCK_LOST);
	tell(to_child);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_reset();
}

static void test_a_close_finds_its_lock_lost(void **state)
{
	lose(&engine_of(server)->in);
	close_end(&server);
	assert_int_equal(receive_byte(client), -ECONNRESET);
}

/* A child that holds the connections until it is killed. */
static pid_t fork_idle(void)
{
	pid_t child = fork_child();

	if (child)
		return child;
	for (;;)
		pause();
}

static uint32_t holders_of(int fd)
{
	return atomic_load(&engine_of(fd)->holders.count);
}

/* The last close, with a byte unread in the ring, is a reset; and nothing of the connection is left behind. */
static void assert_last_close(void)
{
	struct engine *engine = engine_of(server);

	assert_int_equal(send_byte(client), 1);
	assert_true(evict_has_rest(engine));
	close_end(&server);
	assert_int_equal(atomic_load(&engine->state), ENGINE_FREE);
	assert_int_equal(receive_byte(client), -ECONNRESET);
}

static void test_the_last_but_for_killed_ones(void **state)
{
	pid_t children[3];

	for (int i = 0; i < 3; i++)
		children[i] = fork_idle();
	assert_int_equal(holders_of(server), 4);
	for (int i = 0; i < 3; i++) {
		kill_unreaped(children[i]);
		assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
	}
	assert_last_close();
}

static void test_the_last_but_for_one_that_nobody_has_waited_for(void **state)
{
	pid_t child = fork_idle();

	kill_unreaped(child);
	assert_last_close();
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* The one that is left is a child, and what was killed its brother. */
static void test_the_last_is_a_child(void **state)
{
	pid_t brother = fork_idle();
	pid_t child = fork_child();
	int status;

	if (!child) {
		hear(to_child);
		_exit(holders_alive(&engine_of(server)->holders, &table_conn(server)->holder) == 1 ? 0 : 1);
	}
	kill_unreaped(brother);
	assert_int_equal(send_byte(client), 1);
	close_end(&server);
	tell(to_child);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(waitpid(brother, NULL, 0), brother);
}

static void test_a_living_one_goes_on(void **state)
{
	pid_t child = fork_child();
	int status;

	if (!child) {
		hear(to_child);
		_exit(receive_byte(server) == 1 && send_byte(server) == 1 ? 0 : 1);
	}
	assert_int_equal(send_byte(client), 1);
	close_end(&server);
	tell(to_child);
	assert_int_equal(receive_byte(client), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void test_those_elsewhere_are_not_asked_for(void **state)
{
	pid_t child = fork_idle();

	atomic_store(&engine_of(server)->holders.far, true);
	kill_unreaped(child);
	assert_int_equal(holders_alive(&engine_of(server)->holders, &table_conn(server)->holder), 2);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

static void test_a_fork_that_fails_is_no_holder(void **state)
{
	conn_after_fork(-1, conn_before_fork());
	assert_int_equal(holders_of(server), 1);
	assert_last_close();
}

/* More than there are places: those without one count until they leave by themselves. */
static void test_there_are_more_than_places(void **state)
{
	pid_t children[HOLDERS_KNOWN + 4];
	const int count = HOLDERS_KNOWN + 4;
	struct holder *self = &table_conn(server)->holder;

	for (int i = 0; i < count; i++)
		children[i] = fork_idle();
	assert_int_equal(holders_of(server), count + 1);
	for (int i = 0; i < count; i++) {
		kill_unreaped(children[i]);
		assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
	}
	assert_int_equal(holders_alive(&engine_of(server)->holders, self), count + 1 - (HOLDERS_KNOWN - 1));
}

/* A child in another pid namespace has other numbers: it says so. */
/* In a process of its own: once its children are in a namespace whose init has ended, it can have no more. */
static int has_a_child_far_away(void)
{
	pid_t child;
	int status;

	if (unshare(CLONE_NEWPID) < 0)
		return 77;
	child = fork_child();
	if (!child)
		_exit(getpid() == 1 && atomic_load(&engine_of(server)->holders.far) &&
				      atomic_load(&engine_of(server)->in.kind) == LOCK_FAR ?
			      0 :
			      1);
	return waitpid(child, &status, 0) != child || status || fork() >= 0;
}

static void test_a_child_far_away_says_so(void **state)
{
	pid_t near = fork_child();
	int status;

	if (!near)
		_exit(has_a_child_far_away());
	assert_int_equal(waitpid(near, &status, 0), near);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

static int start(void **state)
{
	setenv("ZC_PATH", "bsdp", 1);
	real_resolve();
	settings_load(refused);
	choose_start(refused);
	return stats_start() < 0 || table_start() < 0 ? -1 : 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(test_a_receive_finds_its_lock_lost),
		TEST(test_a_send_finds_its_lock_lost),
		TEST(test_one_process_finds_what_another_has_found),
		TEST(test_a_close_finds_its_lock_lost),
		TEST(test_the_last_but_for_killed_ones),
		TEST(test_the_last_but_for_one_that_nobody_has_waited_for),
		TEST(test_the_last_is_a_child),
		TEST(test_a_living_one_goes_on),
		TEST(test_those_elsewhere_are_not_asked_for),
		TEST(test_a_fork_that_fails_is_no_holder),
		TEST(test_there_are_more_than_places),
		TEST(test_a_child_far_away_says_so),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
