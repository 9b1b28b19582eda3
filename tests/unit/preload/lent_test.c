/* SPDX-License-Identifier: MIT */
/* Engines that a process has made and its children hold longer: it gets them back, and none that somebody may use yet. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fork_testing.h"
#include "pair_testing.h"
#include "preload/choose.h"
#include "preload/engine.h"
#include "preload/real.h"

#define SLAB 64 /* engines that are made at a time */
#define CONNECTIONS (10 * SLAB)
#define MANY (3 * SLAB)

static int fds[2];
static int to_parent[2], to_child[2];

static struct engine *engine_of(int fd)
{
	return atomic_load(&table_conn(fd)->engine);
}

static int open_ends(void **state)
{
	alarm(HANG_SECONDS);
	engine_after_fork(); /* what others have left is not asked for */
	return pipe(to_parent) || pipe(to_child) ? -1 : 0;
}

static int close_ends(void **state)
{
	for (int i = 0; i < 2; i++) {
		close(to_parent[i]);
		close(to_child[i]);
	}
	return 0;
}

/* A connection whose other end has no zc. */
static void begin(int pair[2])
{
	connect_pair(pair);
	conn_open(pair[1], ROLE_SERVER, NULL);
	assert_non_null(engine_of(pair[1]));
}

static void let_go(int *fd)
{
	conn_close(*fd);
	close(*fd);
	*fd = -1;
}

static void tell(const int *pipe)
{
	if (write(pipe[1], "", 1) != 1)
		abort();
}

static void hear(const int *pipe)
{
	char byte;

	if (read(pipe[0], &byte, 1) != 1)
		abort();
}

static void assert_ends_well(pid_t child)
{
	int status = -1;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void closes(void)
{
	conn_close(fds[1]);
}

static void ends(void)
{
	conn_each(engine_goes);
}

static void is_killed(void)
{
	kill(getpid(), SIGKILL);
}

/* Has a child, which holds connections of its own meanwhile, that ends all by itself. */
static void has_a_grandchild(void)
{
	pid_t child;
	int own[2];

	begin(own);
	child = fork_child();
	if (!child) {
		conn_close(fds[1]);
		conn_close(own[1]);
		_exit(0);
	}
	conn_close(fds[1]);
	conn_close(own[1]);
	if (waitpid(child, NULL, 0) != child)
		abort();
}

/* As a server with a child for each connection. Returns how many engines there were. */
static int serve(void (*how)(void))
{
	static struct engine *seen[CONNECTIONS];
	int count = 0;

	for (int i = 0; i < CONNECTIONS; i++) {
		struct engine *engine;
		int k = 0;
		pid_t child;

		begin(fds);
		engine = engine_of(fds[1]);
		while (k < count && seen[k] != engine)
			k++;
		if (k == count)
			seen[count++] = engine;
		child = fork_child();
		if (!child) {
			hear(to_child);
			how();
			_exit(0);
		}
		let_go(&fds[1]);
		close(fds[0]);
		tell(to_child);
		assert_int_equal(waitpid(child, NULL, 0), child);
	}
	return count;
}

static void engines_come_back_from_children_that_close(void **state)
{
	assert_in_range(serve(closes), 1, SLAB);
}

static void engines_come_back_from_children_that_end(void **state)
{
	assert_in_range(serve(ends), 1, SLAB);
}

static void engines_come_back_from_children_that_are_killed(void **state)
{
	assert_in_range(serve(is_killed), 1, SLAB);
}

static void engines_come_back_from_grandchildren(void **state)
{
	assert_in_range(serve(has_a_grandchild), 1, SLAB);
}

/* Whether one of so many connections, all at once, gets this engine. */
static bool comes_again(const struct engine *engine, int count)
{
	static int many[2 * MANY][2];
	bool again = false;

	for (int i = 0; i < count; i++) {
		begin(many[i]);
		close(many[i][0]);
		again |= engine_of(many[i][1]) == engine;
	}
	for (int i = 0; i < count; i++)
		let_go(&many[i][1]);
	return again;
}

/* A child hears first that its parent has let go, does this, says so, and hears when to end. */
static pid_t fork_that(void (*first)(void), void (*then)(void))
{
	pid_t child = fork_child();

	if (child)
		return child;
	hear(to_child);
	first();
	tell(to_parent);
	hear(to_child);
	then();
	_exit(0);
}

static void nothing(void)
{
}

static void uses_and_closes(void)
{
	struct conn *conn = table_conn(fds[1]);
	struct engine *engine = engine_enter(conn, fds[1]);

	if (!engine || atomic_load(&engine->holders.count) != 1 || atomic_load(&engine->state) == ENGINE_FREE)
		abort();
	engine_leave(conn);
	conn_close(fds[1]);
}

static void comes_back(void)
{
	conn_each(engine_stays);
	uses_and_closes();
}

static void leaves_to_a_grandchild(void)
{
	if (fork_child()) { /* dies, and says nothing: its child does */
		kill(getpid(), SIGKILL);
		abort();
	}
}

static void stays_until(void (*first)(void), void (*then)(void))
{
	struct engine *engine;
	pid_t child;

	begin(fds);
	engine = engine_of(fds[1]);
	child = fork_that(first, then);
	let_go(&fds[1]);
	close(fds[0]);
	tell(to_child);
	hear(to_parent);
	assert_false(comes_again(engine, MANY));
	tell(to_child);
	assert_ends_well(child);
	assert_true(comes_again(engine, 2 * MANY)); /* more than there are */
}

static void engine_of_a_living_child_stays(void **state)
{
	stays_until(nothing, uses_and_closes);
}

/* As one does whose exec fails: the descriptors are its own again. */
static void engine_of_one_that_may_hold_it_again_stays(void **state)
{
	stays_until(ends, comes_back);
}

static void engine_of_a_living_grandchild_stays(void **state)
{
	struct engine *engine;
	pid_t child;
	char byte;

	begin(fds);
	engine = engine_of(fds[1]);
	child = fork_that(leaves_to_a_grandchild, uses_and_closes);
	let_go(&fds[1]);
	close(fds[0]);
	tell(to_child);
	hear(to_parent);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_false(comes_again(engine, MANY));
	/* The last one that has the pipe is the grandchild, who ends well or says nothing. */
	tell(to_child);
	close(to_parent[1]);
	assert_int_equal(read(to_parent[0], &byte, 1), 0);
	assert_true(comes_again(engine, 2 * MANY)); /* more than there are */
}

/* A child makes its own: what its parent has let it have never is another connection's there. */
static void children_make_their_own(void **state)
{
	struct engine *engine;
	pid_t child;

	begin(fds);
	engine = engine_of(fds[1]);
	child = fork_child();
	if (!child) {
		hear(to_child);
		conn_close(fds[1]);
		_exit(comes_again(engine, MANY) ? 1 : 0);
	}
	let_go(&fds[1]);
	close(fds[0]);
	tell(to_child);
	assert_ends_well(child);
}

static int start(void **state)
{
	settings.path = PATH_BSDP;
	settings.ring_bytes = 4096;
	real_resolve();
	return stats_start() || table_start();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(engines_come_back_from_children_that_close),
		TEST(engines_come_back_from_children_that_end),
		TEST(engines_come_back_from_children_that_are_killed),
		TEST(engines_come_back_from_grandchildren),
		TEST(engine_of_a_living_child_stays),
		TEST(engine_of_one_that_may_hold_it_again_stays),
		TEST(engine_of_a_living_grandchild_stays),
		TEST(children_make_their_own),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
