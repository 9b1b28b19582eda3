/* SPDX-License-Identifier: MIT */
/* The numbers of a connection: one that names it is known as long as there is any, however many there were. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "pair_testing.h"
#include "preload/real.h"

#define NUMBERS (CONN_DESCRIPTORS + 3) /* with its first one; some are too many to be followed */
#define TURNS 1000

static int ends[2], numbers[NUMBERS];
static struct conn *conn;

static int connect_ends(void **state)
{
	if ((!stats && stats_start()) || (!table && table_start()))
		return -1;
	connect_pair(ends);
	conn_open(ends[0], ROLE_CLIENT, NULL);
	conn = table_conn(ends[0]);
	numbers[0] = ends[0];
	for (int i = 1; conn && i < NUMBERS; i++) {
		numbers[i] = dup(ends[0]);
		conn_dup(ends[0], numbers[i]);
	}
	return conn ? 0 : -1;
}

static int close_ends(void **state)
{
	close(ends[1]);
	return 0;
}

static void close_number(int at)
{
	conn_close(numbers[at]);
	close(numbers[at]);
}

static void assert_known(void)
{
	int fd = conn_fd(conn);

	assert_true(fd >= 0);
	assert_ptr_equal(table_conn(fd), conn);
	assert_int_not_equal(fcntl(fd, F_GETFD), -1);
}

static void assert_closed(void)
{
	for (int i = 0; i < NUMBERS; i++)
		assert_null(table_conn(numbers[i]));
	assert_int_equal(conn_fd(conn), -1);
	assert_int_equal(atomic_load(&conn->mode), CONN_FREE);
}

static void number_that_was_too_many_is_known_when_the_first_ones_are_closed(void **state)
{
	for (int i = 0; i < NUMBERS; i++) {
		assert_known();
		close_number(i);
	}
	assert_closed();
}

static void first_number_is_known_when_those_that_were_too_many_are_closed(void **state)
{
	for (int i = NUMBERS - 1; i >= 0; i--) {
		assert_known();
		close_number(i);
	}
	assert_closed();
}

static void number_that_is_made_when_few_are_left_is_known(void **state)
{
	for (int i = 0; i < CONN_DESCRIPTORS; i++)
		close_number(i);
	numbers[0] = dup(numbers[NUMBERS - 1]);
	conn_dup(numbers[NUMBERS - 1], numbers[0]);
	for (int i = CONN_DESCRIPTORS; i < NUMBERS; i++) {
		close_number(i);
		assert_known();
	}
	close_number(0);
	assert_closed();
}

static _Atomic bool asking, over;

/* As the library's own thread asks, while the program closes. Returns whether there was none. */
static void *ask_for_number(void *unused)
{
	bool none = false;

	atomic_store(&asking, true);
	while (!atomic_load(&over))
		none |= conn_fd(conn) < 0;
	return none ? conn : unused;
}

static int make_number(int from, int least)
{
	int fd = fcntl(from, F_DUPFD, least);

	assert_true(fd >= 0);
	conn_dup(from, fd);
	return fd;
}

/* The first ones are closed. One that was too many takes their place, far behind them, so that it takes time to be found. */
static void replace_first_numbers(void)
{
	int last = make_number(numbers[0], (int)sysconf(_SC_OPEN_MAX) / 4 * 3);

	for (int i = 0; i < CONN_DESCRIPTORS; i++)
		close_number(i);
	numbers[0] = last;
	for (int i = 1; i < CONN_DESCRIPTORS; i++)
		numbers[i] = make_number(last, 0);
}

static void there_is_a_number_at_any_time(void **state)
{
	void *none;
	pthread_t asks;

	for (int i = CONN_DESCRIPTORS; i < NUMBERS; i++)
		close_number(i);
	assert_int_equal(pthread_create(&asks, NULL, ask_for_number, NULL), 0);
	while (!atomic_load(&asking))
		sched_yield();
	for (int i = 0; i < TURNS; i++)
		replace_first_numbers();
	atomic_store(&over, true);
	pthread_join(asks, &none);
	assert_null(none);
	for (int i = 0; i < CONN_DESCRIPTORS; i++)
		close_number(i);
	assert_closed();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(number_that_was_too_many_is_known_when_the_first_ones_are_closed),
		TEST(first_number_is_known_when_those_that_were_too_many_are_closed),
		TEST(number_that_is_made_when_few_are_left_is_known),
		TEST(there_is_a_number_at_any_time),
	};

	settings.path = PATH_ZEROCOPY;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
