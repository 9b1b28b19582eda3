/* SPDX-License-Identifier: MIT */
/* Which process goes on with a connection after a fork: none whose numbers of zerocopy are behind the kernel's. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "fork_testing.h"
#include "preload/real.h"

enum { TAKEN, SHARED };

static int ends[2];
static struct conn *conn;

struct relative {
	pid_t process;
	int go[2];
};

static int connect_ends(void **state)
{
	if ((!stats && stats_start()) || (!table && table_start()))
		return -1;
	alarm(HANG_SECONDS);
	connect_pair(ends);
	conn_open(ends[0], ROLE_CLIENT, NULL);
	conn = table_conn(ends[0]);
	return conn ? 0 : -1;
}

static int close_ends(void **state)
{
	close_pair(ends);
	return 0;
}

/* Of this process: may it go on as before? */
static int take(void)
{
	if (conn_take_token(conn))
		return conn_active(conn) ? TAKEN : -1;
	return conn_active(conn) ? -1 : SHARED;
}

/* Sends with MSG_ZEROCOPY, whose notices have all come. */
static void send_numbered(uint32_t count)
{
	assert_int_equal(take(), TAKEN);
	conn->zerocopy.next += count;
	conn->zerocopy.oldest += count;
}

static struct relative fork_relative(void)
{
	struct relative child;
	char byte;

	assert_int_equal(pipe(child.go), 0);
	child.process = fork_child();
	if (!child.process) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* where a test has failed, nobody tells it */
		_exit(read(child.go[0], &byte, 1) == 1 ? take() : -1);
	}
	return child;
}

/* It sends for the first time. */
static int take_by(struct relative *child)
{
	int status;

	assert_int_equal(write(child->go[1], "", 1), 1);
	assert_int_equal(waitpid(child->process, &status, 0), child->process);
	close(child->go[0]);
	close(child->go[1]);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void older_child_does_not_go_on_from_numbers_that_were_used(void **state)
{
	struct relative older = fork_relative(), younger;

	send_numbered(3);
	younger = fork_relative();
	assert_int_equal(take_by(&older), SHARED);
	assert_int_equal(take_by(&younger), SHARED);
	assert_int_equal(take(), SHARED);
}

static void younger_child_has_the_numbers_and_goes_on(void **state)
{
	struct relative older = fork_relative(), younger;

	send_numbered(3);
	younger = fork_relative();
	assert_int_equal(take_by(&younger), TAKEN);
	assert_int_equal(take_by(&older), SHARED);
	assert_int_equal(take(), SHARED);
}

static void parent_goes_on_behind_its_own_sends(void **state)
{
	struct relative older = fork_relative(), younger;

	send_numbered(3);
	younger = fork_relative();
	send_numbered(2);
	assert_int_equal(take_by(&younger), SHARED);
	assert_int_equal(take_by(&older), SHARED);
	assert_int_equal(take(), SHARED);
}

/* Also what was numbered before the first fork. */
static void older_child_goes_on_where_nothing_was_numbered_since(void **state)
{
	struct relative older, younger;

	send_numbered(3);
	older = fork_relative();
	send_numbered(0); /* copied, or held */
	younger = fork_relative();
	assert_int_equal(take_by(&older), TAKEN);
	assert_int_equal(take_by(&younger), SHARED);
	assert_int_equal(take(), SHARED);
}

/* It goes on, and forks, and its own parent is the older one. */
static int send_and_fork(void)
{
	int taken = take();
	pid_t child;

	conn->zerocopy.oldest = ++conn->zerocopy.next;
	child = fork_child();
	if (!child)
		_exit(0);
	return waitpid(child, NULL, 0) == child ? taken : -1;
}

static void parent_does_not_go_on_from_numbers_that_its_child_has_used(void **state)
{
	pid_t child = fork_child();
	int status;

	if (!child)
		_exit(send_and_fork());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0); /* TAKEN */
	assert_int_equal(take(), SHARED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(older_child_does_not_go_on_from_numbers_that_were_used),
		TEST(younger_child_has_the_numbers_and_goes_on),
		TEST(parent_goes_on_behind_its_own_sends),
		TEST(older_child_goes_on_where_nothing_was_numbered_since),
		TEST(parent_does_not_go_on_from_numbers_that_its_child_has_used),
	};

	settings.path = PATH_ZEROCOPY;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
