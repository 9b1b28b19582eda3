/* SPDX-License-Identifier: MIT */
/* The numbers of a connection: one that names it is known as long as there is any, however many there were. */
#define _GNU_SOURCE
#include <fcntl.h>

#include "pair_testing.h"
#include "preload/real.h"

#define NUMBERS (CONN_DESCRIPTORS + 3) /* with its first one; some are too many to be followed */

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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(number_that_was_too_many_is_known_when_the_first_ones_are_closed),
		TEST(first_number_is_known_when_those_that_were_too_many_are_closed),
		TEST(number_that_is_made_when_few_are_left_is_known),
	};

	settings.path = PATH_ZEROCOPY;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
