/* SPDX-License-Identifier: MIT */
/* A receive of the program's, whose ends meet in its middle. */
#define _GNU_SOURCE
#include <pthread.h>

#include "asleep_testing.h"
#include "met_testing.h"

static _Atomic int receiver_id;
static char got[16];
static ssize_t took;

static void *receive_one(void *unused)
{
	atomic_store(&receiver_id, (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0));
	took = recv(ends[1], got, sizeof(got), 0);
	return NULL;
}

/*
 * It has looked, and there was no ring; by the time that it has the lock under which it is to be known as a raw receiver, there is
 * one. So it looks again, once.
 */
static void receive_during_which_the_ends_meet_returns_what_it_took(void **state)
{
	struct engine *engine = atomic_load(&conns[1]->engine);
	struct lock_hold hold;
	pthread_t thread;

	alarm(60);
	engine->next_try = UINT32_MAX;
	for (int round = 0; round < 3; round++) {
		atomic_store(&receiver_id, 0);
		atomic_store(&engine->state, ENGINE_APART);
		assert_true(lock_take(&engine->in, &hold));
		assert_int_equal(pthread_create(&thread, NULL, receive_one, NULL), 0);
		while (!atomic_load(&receiver_id) || !is_in(receiver_id, SYS_futex))
			usleep(1000);
		atomic_store(&engine->state, ENGINE_MET);
		lock_give(&engine->in, &hold);
		assert_int_equal(send_whole(0, "data"), 4);
		pthread_join(thread, NULL);
		assert_int_equal(took, 4);
		assert_memory_equal(got, "data", 4);
	}
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(receive_during_which_the_ends_meet_returns_what_it_took, connect_ends,
						close_ends),
	};

	use_rings(1 << 16);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
