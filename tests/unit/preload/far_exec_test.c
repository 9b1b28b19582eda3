/* SPDX-License-Identifier: MIT */
/* A program is executed by a child while the peer, whose queue pair has broken, is to send by TCP what it had promised. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "far_pair_testing.h"
#include "preload/exec.h"

/* What the connecting end has put since is on its way by TCP, and the accepting end has heard of that. */
static int promise(void **state)
{
	if (begin(NULL))
		return -1;
	exchange();
	cut();
	put(CLIENT, PART);
	break_both();
	serve(CLIENT);
	serve(SERVER);
	return far_part_is_owed(&engine_of(SERVER)->far, &engine_of(SERVER)->channel.in) ? 0 : -1;
}

/* As inetd does it: the connection is the new program's standard input, or it has it by chance. */
static void execute(bool by_vfork, bool handed)
{
	static const struct target_name name = { .dir = AT_FDCWD, .path = "/bin/true" };
	const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 100);
	struct exec exec;
	int status;
	pid_t child = by_vfork ? vfork() : fork();

	if (!child) {
		if (handed) {
			dup2(ends[SERVER], STDIN_FILENO);
			conn_dup(ends[SERVER], STDIN_FILENO);
		}
		exec_begins(&exec, &name, environ);
		/* Else it would be the parent's, too: it has one memory with its child of vfork. */
		if (handed)
			conn_close(STDIN_FILENO);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	dup2(input, STDIN_FILENO);
	close(input);
}

/* By calls that this process's library does not see. */
static void new_program_receives(void)
{
	char data[PART];

	assert_int_equal(real.recv(ends[SERVER], data, sizeof(data), MSG_WAITALL), PART);
	for (int i = 0; i < PART; i++)
		assert_int_equal((uint8_t)data[i], byte_at(CLIENT, received[SERVER] + (uint64_t)i));
}

/* Whether the socket, which the new program has yet, is to be reset by its end. */
static bool close_resets(void)
{
	struct linger orders = { 0 };
	socklen_t bytes = sizeof(orders);

	engine_goes(conns[SERVER]);
	assert_int_equal(getsockopt(ends[SERVER], SOL_SOCKET, SO_LINGER, &orders, &bytes), 0);
	return orders.l_onoff && !orders.l_linger;
}

/* As unread bytes would be, which these are about to be. */
static void close_before_it_has_come_is_a_reset(void **state)
{
	assert_true(close_resets());
}

static void close_behind_an_exec_of_a_child_of_vfork_is_none(void **state)
{
	execute(true, true);
	new_program_receives();
	assert_false(close_resets());
}

static void close_behind_an_exec_of_a_child_is_none(void **state)
{
	execute(false, true);
	new_program_receives();
	assert_false(close_resets());
}

static void close_behind_an_exec_that_got_it_by_its_number_is_none(void **state)
{
	execute(true, false);
	new_program_receives();
	assert_false(close_resets());
}

static ssize_t ends_with(void)
{
	char data[PART];
	ssize_t rc;

	close(ends[CLIENT]);
	while ((rc = receive_some(SERVER, data, sizeof(data), 0)) > 0)
		;
	return rc;
}

static void end_behind_what_the_new_program_took_is_one(void **state)
{
	execute(true, true);
	new_program_receives();
	assert_int_equal(ends_with(), 0);
}

/* The child has the socket, and no use for it. */
static void end_before_all_has_come_is_none_though_a_child_has_the_socket(void **state)
{
	engine_of(SERVER)->far.owed += PART;
	execute(false, false);
	assert_int_equal(ends_with(), -ECONNRESET);
}

/* Nothing of this process is for the next program. */
static int close_on_exec(void **state)
{
	if (begin(NULL))
		return -1;
	exchange();
	for (int end = 0; end < 2; end++)
		fcntl(ends[end], F_SETFD, FD_CLOEXEC);
	return 0;
}

static void fail_to_execute(const char *path)
{
	const struct target_name name = { .dir = AT_FDCWD, .path = path };
	struct exec exec;

	exec_begins(&exec, &name, environ);
	exec_failed(&exec);
}

/* As a search along PATH does many times. */
static void where_there_is_no_program_nothing_is_let_go(void **state)
{
	fail_to_execute("/nowhere/program");
	for (int end = 0; end < 2; end++) {
		put(end, PART);
		assert_true(on_ring(end));
		take_all(1 - end);
	}
}

/* The peer had heard that nobody reads any more. */
static void connection_goes_on_behind_an_exec_that_has_failed(void **state)
{
	engine_goes(conns[SERVER]);
	engine_stays(conns[SERVER]);
	for (int i = 0; i < 3; i++) {
		put(CLIENT, PART);
		take_all(SERVER);
		put(SERVER, PART);
		take_all(CLIENT);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, promise, finish)
		CASE(close_before_it_has_come_is_a_reset),
		CASE(close_behind_an_exec_of_a_child_of_vfork_is_none),
		CASE(close_behind_an_exec_of_a_child_is_none),
		CASE(close_behind_an_exec_that_got_it_by_its_number_is_none),
		CASE(end_behind_what_the_new_program_took_is_one),
		CASE(end_before_all_has_come_is_none_though_a_child_has_the_socket),
		cmocka_unit_test_setup_teardown(where_there_is_no_program_nothing_is_let_go, close_on_exec, finish),
		cmocka_unit_test_setup_teardown(connection_goes_on_behind_an_exec_that_has_failed, close_on_exec,
						finish),
#undef CASE
	};

	use_rings(1 << 19);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
