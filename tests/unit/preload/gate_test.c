/* SPDX-License-Identifier: MIT */
/* A process that forks while its other threads open and close connections: each is the child's, too, or is not there. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/sys.h"
#include "common/thread.h"
#include "fork_testing.h"
#include "pair_testing.h"
#include "preload/apart.h"
#include "preload/choose.h"
#include "preload/far.h"
#include "preload/far_internal.h"
#include "preload/watch.h"

#define FORKS 200
#define SET_FORKS 1000
#define CLOSINGS 200000
#define THREADS 2
#define NUMBERS 2000 /* of sets */
#define STACK_BYTES (256 * 1024)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FORKS_OF_MANY_THREADS() skip() /* the sanitizer's own locks do not live through them */
#else
#define FORKS_OF_MANY_THREADS()
#endif

static _Atomic bool stopping;
static _Atomic uint32_t opened;

static void *open_and_close(void *unused)
{
	int fds[2];

	while (!atomic_load(&stopping)) {
		connect_pair(fds);
		conn_open(fds[0], ROLE_CLIENT, false);
		conn_open(fds[1], ROLE_SERVER, false);
		atomic_fetch_add(&opened, 1);
		for (int i = 0; i < 2; i++) {
			conn_close(fds[i]);
			close(fds[i]);
		}
	}
	return unused;
}

/* Whether this process counts as a holder of all that it has. */
static bool holds_all(void)
{
	struct conn *conn;

	for (uint32_t at = 0; (conn = conn_next(&at));) {
		if (!atomic_load(&conn->engine) || !conn->holder.counts)
			return false;
	}
	return true;
}

/* What a child makes of what it has. */
static bool child_finds(bool (*look)(void))
{
	int status = -1;
	uint64_t number;
	pid_t child;

	number = conn_before_fork();
	child = fork();
	conn_after_fork(child, number);
	if (!child)
		_exit(look() ? 0 : 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	return status == 0;
}

/* Forks while threads are at something. Returns how many children found what they should. */
static int fork_while(void *(*busy)(void *), bool (*look)(void), int forks)
{
	pthread_t threads[THREADS];
	int whole = 0;

	atomic_store(&stopping, false);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, busy, NULL), 0);
	for (int i = 0; i < forks; i++) {
		uint32_t before = atomic_load(&opened);

		while (atomic_load(&opened) == before) /* they are at it */
			sched_yield();
		whole += child_finds(look);
	}
	atomic_store(&stopping, true);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return whole;
}

static void connections_neither_begin_nor_end_during_a_fork(void **state)
{
	FORKS_OF_MANY_THREADS();
	assert_int_equal(fork_while(open_and_close, holds_all, FORKS), FORKS);
}

static _Atomic int next_number = NUMBERS;

/* Numbers that nobody opens: only the table is looked at. */
static void *open_and_close_sets(void *unused)
{
	int fd = atomic_fetch_add(&next_number, 1);

	while (!atomic_load(&stopping)) {
		set_open(fd);
		conn_close(fd);
		atomic_fetch_add(&opened, 1);
	}
	return unused;
}

static bool sets_are_single(void)
{
	for (int fd = NUMBERS; fd < NUMBERS + THREADS; fd++)
		conn_close(fd);
	for (int fd = NUMBERS; fd < NUMBERS + 4; fd++)
		set_open(fd);
	for (int a = NUMBERS; a < NUMBERS + 4; a++) {
		for (int b = NUMBERS; b < a; b++) {
			if (table_set(a) == table_set(b))
				return false;
		}
	}
	return true;
}

static void epoll_sets_end_before_a_fork_or_after_it(void **state)
{
	FORKS_OF_MANY_THREADS();
	assert_int_equal(fork_while(open_and_close_sets, sets_are_single, SET_FORKS), SET_FORKS);
}

/* As a thread does that duplicates whatever there is, while others close it. */
static void *duplicate_sets(void *unused)
{
	while (!atomic_load(&stopping)) {
		conn_dup(NUMBERS, NUMBERS + 10);
		conn_close(NUMBERS + 10);
		atomic_fetch_add(&opened, 1);
	}
	return unused;
}

static void duplicate_of_a_set_that_is_closed_is_none(void **state)
{
	pthread_t thread;

	atomic_store(&stopping, false);
	assert_int_equal(pthread_create(&thread, NULL, duplicate_sets, NULL), 0);
	for (uint32_t i = 0; i < CLOSINGS; i++) {
		set_open(NUMBERS);
		conn_close(NUMBERS);
	}
	atomic_store(&stopping, true);
	pthread_join(thread, NULL);
	assert_true(sets_are_single());
}

static void fork_opens_and_closes_what_its_handlers_want(void **state)
{
	uint64_t number;
	int fds[2];

	connect_pair(fds);
	number = conn_before_fork();
	conn_open(fds[0], ROLE_CLIENT, false); /* must not wait for its own thread */
	conn_close(fds[0]);
	conn_after_fork(-1, number);
	close_pair(fds);
}

static void *open_and_close_one(void *unused)
{
	int fds[2];

	connect_pair(fds);
	conn_open(fds[0], ROLE_CLIENT, false);
	conn_close(fds[0]);
	close_pair(fds);
	return unused;
}

static void run_in_thread(void *(*what)(void *))
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, what, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Its handlers may wait for those, and fork. */
static void parent_lets_others_go_on_before_it_knows_its_child(void **state)
{
	uint64_t number;

	alarm(HANG_SECONDS);
	number = conn_before_fork();
	conn_doubles();
	run_in_thread(open_and_close_one);
	assert_true(child_finds(holds_all));
	run_in_thread(open_and_close_one);
	conn_child_is(-1, number);
	run_in_thread(open_and_close_one);
	alarm(0);
}

/* Forks that are under way at a time, as by the handlers of others: their numbers. */
static void begin_forks(uint64_t *numbers, int count)
{
	for (int i = 0; i < count; i++) {
		numbers[i] = conn_before_fork();
		conn_doubles();
	}
}

/* Whichever is over first, one that fails has no heir, and costs the others none. */
static void fork_that_fails_has_no_heir(void **state)
{
	uint64_t numbers[CONN_HEIRS + 1];
	const pid_t child = INT32_MAX; /* nobody's */
	struct engine *engine;
	int fds[2];

	connect_pair(fds);
	conn_open(fds[0], ROLE_CLIENT, false);
	engine = atomic_load(&table_conn(fds[0])->engine);
	for (int order = 0; order < 2; order++) {
		begin_forks(numbers, 2);
		assert_int_equal(atomic_load(&engine->holders.count), 3);
		conn_child_is(-1, numbers[order]);
		assert_int_equal(atomic_load(&engine->holders.count), 2);
		conn_child_is(-1, numbers[!order]);
		assert_int_equal(atomic_load(&engine->holders.count), 1);
	}
	for (int order = 0; order < 2; order++) {
		uint64_t *known = (uint64_t *)engine->holders.known, before[HOLDERS_KNOWN];

		memcpy(before, known, sizeof(before));
		begin_forks(numbers, 2);
		for (int at = 0, its = 0; at < HOLDERS_KNOWN; at++) {
			if (known[at] != before[at] && its++ != order) /* of the fork that does not fail */
				before[at] = known[at] | (uint32_t)child;
		}
		conn_child_is(-1, numbers[order]);
		conn_child_is(child, numbers[!order]);
		assert_memory_equal(known, before, sizeof(before));
		assert_int_equal(holders_alive(&engine->holders, &table_conn(fds[0])->holder), 1);
	}
	/* Where there are too many to keep, what is in doubt counts. */
	begin_forks(numbers, CONN_HEIRS + 1);
	for (int i = 0; i <= CONN_HEIRS; i++)
		conn_child_is(-1, numbers[i]);
	assert_int_equal(atomic_load(&engine->holders.count), 2);
	conn_close(fds[0]);
	close_pair(fds);
}

/* Within what a fork prepares, as a signal's handler may: nothing is let go of by that. */
static void fork_within_a_fork_leaves_it_what_it_holds(void **state)
{
	uint64_t outer, inner;
	uint32_t held;

	alarm(HANG_SECONDS);
	outer = conn_before_fork();
	held = lock_depth;
	inner = conn_before_fork();
	conn_after_fork(-1, inner);
	assert_int_equal(lock_depth, held);
	conn_after_fork(-1, outer);
	assert_int_equal(lock_depth, 0);
	run_in_thread(open_and_close_one);
	assert_true(child_finds(holds_all));
	alarm(0);
}

static void *do_nothing(void *unused)
{
	return unused;
}

/* Past libc: who has the loader locked is not in the child, and it would wait for that thread. Returns how the child has ended. */
static int fork_unseen(void)
{
	int status = -1;
	pid_t child = (pid_t)sys_call(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);

	if (!child) {
		conn_after_unseen_fork();
		_exit(thread_start(do_nothing, NULL, STACK_BYTES) == -EAGAIN && !far_ready() ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

/* Has the plug-in tell when it is in the middle of that, by the end that is returned. */
static int be_told(const char *what)
{
	int ends[2];
	char fd[16];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	ends[1] = apart_keep(ends[1]); /* the program's own are not where the plug-in is loaded */
	snprintf(fd, sizeof(fd), "%d", ends[1]);
	setenv(what, fd, 1);
	return ends[0];
}

static int load_slowly(const char *what)
{
	int told = be_told(what);
	char byte;

	assert_true(far_ready());
	assert_int_equal(read(told, &byte, 1), 1);
	return told;
}

/* Returns how it has ended. */
static int end_child(void (*before)(void))
{
	int status = -1;
	uint64_t number;
	pid_t child;

	number = conn_before_fork();
	child = fork();
	conn_after_fork(child, number);
	if (!child) {
		before();
		exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void be_in_the_middle(void)
{
	load_slowly("SLOW_OWNER");
}

static void process_that_ends_waits_for_what_is_loaded(void **state)
{
	assert_int_equal(end_child(be_in_the_middle), 0);
}

static void load_late(void)
{
	int told = be_told("SLOW_PLUG_IN");
	char byte;

	if (!far_ready() && !far_failed()) /* the agent may have found it out by then */
		_exit(97);
	while (!far_failed())
		sched_yield();
	if (recv(told, &byte, 1, MSG_DONTWAIT) == 1)
		_exit(98);
}

static void have_it_loaded_late(void)
{
	atexit(load_late);
	far_open_begin(); /* whose turn comes first */
}

static void process_that_ends_loads_no_more(void **state)
{
	FORKS_OF_MANY_THREADS(); /* nor does a thread begin behind the sanitizer's own end */
	assert_int_equal(end_child(have_it_loaded_late), 0);
}

/* Its agent has begun to load the plug-in when it forks. Returns how the child has ended; *unseen: that of a fork past libc. */
static int fork_while_loading(int *unseen)
{
	int status = -1, told = load_slowly("SLOW_PLUG_IN");
	uint64_t number;
	pid_t child;

	*unseen = fork_unseen();
	number = conn_before_fork();
	child = fork();
	conn_after_fork(child, number);
	if (!child)
		exit(0); /* the loader's lists are walked through */
	assert_int_equal(write(told, "", 1), 1);
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void loading_is_over_in_a_child_or_unseen_and_then_it_starts_no_thread(void **state)
{
	int unseen = -1;

	FORKS_OF_MANY_THREADS();
	assert_int_equal(fork_while_loading(&unseen), 0);
	assert_int_equal(unseen, 0);
}

static int start(void **state)
{
	settings.path = PATH_BSDP;
	settings.ring_bytes = 4096;
	return stats_start() || table_start();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connections_neither_begin_nor_end_during_a_fork),
		cmocka_unit_test(epoll_sets_end_before_a_fork_or_after_it),
		cmocka_unit_test(duplicate_of_a_set_that_is_closed_is_none),
		cmocka_unit_test(fork_opens_and_closes_what_its_handlers_want),
		cmocka_unit_test(parent_lets_others_go_on_before_it_knows_its_child),
		cmocka_unit_test(fork_that_fails_has_no_heir),
		cmocka_unit_test(fork_within_a_fork_leaves_it_what_it_holds),
		cmocka_unit_test(process_that_ends_waits_for_what_is_loaded),
		cmocka_unit_test(process_that_ends_loads_no_more),
		cmocka_unit_test(loading_is_over_in_a_child_or_unseen_and_then_it_starts_no_thread),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
