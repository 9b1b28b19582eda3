/* SPDX-License-Identifier: MIT */
/* Small sends that take the short way (engine_join.c): whole, counted, and never at an engine that ends. */
#define _GNU_SOURCE
#include <pthread.h>

#include "met_testing.h"
#include "preload/engine_join.h"

#define SENDERS 2
#define SENDS 20000

/* One of two threads that send on one connection at the same time: its number, then how many it has sent. */
static void *send_numbers(void *arg)
{
	uint32_t message[2] = { (uint32_t)(uintptr_t)arg, 0 };

	while (message[1] < SENDS) {
		ssize_t rc = send_bytes(0, message, sizeof(message));

		/* A full ring, and what the other thread has left on TCP: what the program's own call would do. */
		if (rc == SEND_BY_KERNEL) {
			__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw =
				engine_raw_begins(conns[0], ends[0], 0);

			rc = raw.done = send(ends[0], message, sizeof(message), MSG_NOSIGNAL);
			stats_sent(conns[0]->slot, PATH_COPY, sizeof(message), 1);
		}
		if (rc != sizeof(message))
			return (void *)(intptr_t)(rc ? rc : -EIO);
		message[1]++;
	}
	return NULL;
}

static uint64_t counted(enum stat_path what)
{
	const struct stats_slot *slot = &stats->slot[conns[0]->slot];

	return atomic_load(&slot->path[PATH_BSDP][what]) + atomic_load(&slot->path[PATH_COPY][what]);
}

static void sends_of_two_threads_are_whole_and_counted(void **state)
{
	uint64_t calls = counted(STAT_PATH_CALLS), bytes = counted(STAT_PATH_BYTES);
	uint32_t message[2], next[SENDERS] = { 0 };
	pthread_t senders[SENDERS];
	void *rc;

	for (uintptr_t i = 0; i < SENDERS; i++)
		assert_int_equal(pthread_create(&senders[i], NULL, send_numbers, (void *)i), 0);
	for (int i = 0; i < SENDERS * SENDS; i++) {
		for (size_t done = 0; done < sizeof(message);) {
			ssize_t got = receive_some(1, (char *)message + done, sizeof(message) - done, 0);

			assert_true(got > 0);
			done += (size_t)got;
		}
		assert_true(message[0] < SENDERS);
		assert_int_equal(message[1], next[message[0]]++);
	}
	for (int i = 0; i < SENDERS; i++) {
		assert_int_equal(pthread_join(senders[i], &rc), 0);
		assert_null(rc);
	}
	assert_true(counted(STAT_PATH_CALLS) - calls >= SENDERS * SENDS); /* one that met a full ring counts as two */
	assert_int_equal(counted(STAT_PATH_BYTES) - bytes, SENDERS * SENDS * sizeof(message));
}

/* Somebody who has the lock `out`, as a send has that is inside, until another waits for it, or `over` comes first. */
struct inside {
	struct lock *lock;
	_Atomic bool has, over;
	bool awaited;
};

static void *be_inside(void *arg)
{
	struct inside *inside = arg;
	struct lock_hold hold;

	if (!lock_take(inside->lock, &hold))
		return NULL;
	atomic_store(&inside->has, true);
	while (!(atomic_load(&inside->lock->word) & LOCK_WAITERS) && !atomic_load(&inside->over))
		cpu_relax();
	inside->awaited = !atomic_load(&inside->over);
	lock_give(inside->lock, &hold);
	return NULL;
}

static pthread_t start_inside(struct inside *inside, struct engine *engine)
{
	pthread_t thread;

	inside->lock = &engine->out;
	assert_int_equal(pthread_create(&thread, NULL, be_inside, inside), 0);
	while (!atomic_load(&inside->has))
		cpu_relax();
	return thread;
}

static void end_inside(struct inside *inside, pthread_t thread)
{
	atomic_store(&inside->over, true);
	pthread_join(thread, NULL);
	assert_true(inside->awaited);
}

static void close_waits_for_a_send_that_is_inside(void **state)
{
	struct inside inside = { 0 };
	pthread_t thread = start_inside(&inside, atomic_load(&conns[0]->engine));

	conn_close(ends[0]);
	end_inside(&inside, thread);
}

static void engine_that_is_taken_anew_waits_for_a_late_send(void **state)
{
	struct engine *old = atomic_load(&conns[0]->engine);
	struct inside inside = { 0 };
	pthread_t thread;

	close_ends(state);
	thread = start_inside(&inside, old);
	assert_int_equal(connect_ends(state), 0);
	end_inside(&inside, thread);
}

static void send_does_not_join_an_engine_that_ends(void **state)
{
	struct iovec iov = { (void *)"x", 1 };
	ssize_t rc = JOIN_NOT;
	char byte;

	/* Each eighth goes the long way. */
	for (unsigned int i = 0; i < TELL_EVERY && rc == JOIN_NOT; i++) {
		rc = engine_join(conns[0], ends[0], &iov);
		if (rc == JOIN_NOT)
			assert_int_equal(send_whole(0, "x"), 1);
		assert_int_equal(receive_some(1, &byte, 1, 0), 1);
	}
	assert_int_equal(rc, 1);
	atomic_fetch_or(&conns[0]->engine_users, ENGINE_CLOSING);
	for (unsigned int i = 0; i < TELL_EVERY; i++)
		assert_int_equal(engine_join(conns[0], ends[0], &iov), JOIN_NOT);
	atomic_fetch_and(&conns[0]->engine_users, ~ENGINE_CLOSING);
}

#ifndef __SANITIZE_ADDRESS__ /* which takes what a cancelled thread leaves on its stack for its own */
/* None of its sends may leave: each is a cancellation point. */
static void *send_cancelled(void *arg)
{
	pthread_cancel(pthread_self());
	send_bytes(0, "x", 1);
	return arg;
}

static void send_of_a_cancelled_thread_ends_it(void **state)
{
	uint64_t calls = counted(STAT_PATH_CALLS);
	pthread_t thread;
	void *rc;

	for (unsigned int i = 0; i < TELL_EVERY; i++) {
		assert_int_equal(pthread_create(&thread, NULL, send_cancelled, NULL), 0);
		assert_int_equal(pthread_join(thread, &rc), 0);
		assert_ptr_equal(rc, PTHREAD_CANCELED);
	}
	assert_int_equal(counted(STAT_PATH_CALLS), calls);
}
#endif

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(sends_of_two_threads_are_whole_and_counted),
		TEST(close_waits_for_a_send_that_is_inside),
		TEST(engine_that_is_taken_anew_waits_for_a_late_send),
		TEST(send_does_not_join_an_engine_that_ends),
#ifndef __SANITIZE_ADDRESS__
		TEST(send_of_a_cancelled_thread_ends_it),
#endif
	};

	real_resolve(); /* as the library's start does, before there are threads */
	use_rings(65536);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
