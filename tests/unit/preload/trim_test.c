/* SPDX-License-Identifier: MIT */
/* When the memory of idle rings goes: both ends of a connection are here, and sleeps are what the test says. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include "met_testing.h"

#include "../rdma/resident_testing.h"
#include "common/clock.h"
#include "preload/trim.h"

#define RING (256u << 10)
#define BYTES 40000

static char sent[BYTES], got[BYTES];

static int connect_idle(void **state)
{
	settings.idle_ms = 1;
	memset(sent, 'a', sizeof(sent));
	return connect_ends(state);
}

static size_t resident(int end)
{
	return resident_bytes(lane_from(end)->ring, RING);
}

static void take_all(int end)
{
	size_t there = 0;

	while (there < BYTES) {
		ssize_t now = receive_some(end, got + there, BYTES - there, 0);

		assert_true(now > 0);
		there += (size_t)now;
	}
	assert_memory_equal(sent, got, BYTES);
}

static void send_all(int end)
{
	assert_int_equal(send_bytes(end, sent, BYTES), BYTES);
}

/* As long as there is something to look at later, the sleep has an end. Returns how often it had one. */
static int sleep_for_ever(void)
{
	int times = 0;
	uint64_t until;

	while ((until = trim_before_sleep(UINT64_MAX)) != UINT64_MAX) {
		times++;
		while (clock_now() < until)
			cpu_relax();
	}
	return times;
}

/* The sleeper that was to look may be one that is no more: then the next one that is late does it. */
static void sleep_until_forgotten(void)
{
	do {
		sleep_for_ever();
	} while (atomic_load(&conns[0]->moved) || atomic_load(&conns[1]->moved));
}

static void sleeps_give_the_memory_of_both_ends_back(void **state)
{
	for (int end = 0; end < 2; end++) {
		send_all(end);
		take_all(1 - end);
		assert_true(resident(end) >= BYTES);
	}
	assert_true(sleep_for_ever() > 0);
	assert_int_equal(resident(0), 0);
	assert_int_equal(resident(1), 0);
	assert_int_equal(sleep_for_ever(), 0);
}

static void bytes_go_on_afterwards(void **state)
{
	for (int i = 0; i < 10; i++) {
		send_all(0);
		take_all(1);
		sleep_for_ever();
		assert_int_equal(resident(0), 0);
	}
}

static void unread_bytes_keep_memory_and_wake_nobody(void **state)
{
	send_all(0);
	sleep_for_ever(); /* comes to an end */
	assert_true(resident(0) >= BYTES);
	take_all(1);
	while (resident(0))
		sleep_for_ever();
}

static void *receive_one(void *unused)
{
	char byte;

	return receive_some(1, &byte, 1, 0) == 1 ? &sent : NULL;
}

static void a_receive_that_waits_gives_memory_back_meanwhile(void **state)
{
	pthread_t receiver;
	void *right;

	send_all(1);
	take_all(0);
	assert_true(resident(1) >= BYTES);
	assert_int_equal(pthread_create(&receiver, NULL, receive_one, NULL), 0);
	while (resident(1))
		sched_yield();
	assert_int_equal(send_whole(0, "x"), 1);
	pthread_join(receiver, &right);
	assert_non_null(right);
}

static void a_closed_connection_is_forgotten(void **state)
{
	send_all(0);
	close_ends(state);
	sleep_until_forgotten();
	assert_int_equal(connect_ends(state), 0);
}

static void nothing_is_given_back_where_that_is_off(void **state)
{
	sleep_until_forgotten();
	settings.idle_ms = 0;
	send_all(0);
	take_all(1);
	assert_int_equal(sleep_for_ever(), 0);
	assert_true(resident(0) >= BYTES);
}

/* The last but one: what is due stays so for a long time. */
static void one_sleeper_is_enough(void **state)
{
	uint64_t first, other;

	sleep_until_forgotten();
	settings.idle_ms = 60000;
	send_all(0);

	first = trim_before_sleep(UINT64_MAX);
	assert_true(first < UINT64_MAX);
	assert_int_equal(trim_before_sleep(UINT64_MAX), first);
	other = clock_now() - 1;
	assert_int_equal(trim_before_sleep(other), other);
	take_all(1);
}

/* Else it would wait for as long as the one before this has said. */
static void a_receive_that_must_not_wait_does_not(void **state)
{
	char byte;

	settings.idle_ms = 3600000;
	assert_int_equal(send_whole(0, "x"), 1);
	assert_true(atomic_load(&conns[0]->moved));
	engine_switch_back(conns[1], atomic_load(&conns[1]->engine), ends[1]);
	assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(receive_some(0, &byte, 1, 0), -EAGAIN);
	assert_false(atomic_load(&lane_from(1)->shared->from_ring));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_idle, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(sleeps_give_the_memory_of_both_ends_back),
		TEST(bytes_go_on_afterwards),
		TEST(unread_bytes_keep_memory_and_wake_nobody),
		TEST(a_receive_that_waits_gives_memory_back_meanwhile),
		TEST(a_closed_connection_is_forgotten),
		TEST(nothing_is_given_back_where_that_is_off),
		TEST(one_sleeper_is_enough),
		TEST(a_receive_that_must_not_wait_does_not),
	};

	use_rings(RING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
