/* SPDX-License-Identifier: MIT */
/* How a thread sleeps until something happens to the queue pair. */
#define _GNU_SOURCE
#include "far_pair_testing.h"

#define LONG_MS 10000

static int woken;

static int count_woken(struct verbs_conn *conn)
{
	woken++;
	return 0;
}

/* Who waits in a loop would else look again and again, and never sleep. */
static void what_was_found_keeps_a_thread_from_sleeping_once(void **state)
{
	static struct verbs_table device;
	const uint64_t event = 1;

	device = cable_device;
	device.woke = count_woken;
	far_verbs = &device;
	exchange();
	cable.agent = NULL;
	put(CLIENT, PART);
	/* Who sleeps now wakes at once. */
	assert_int_equal(write(plug_at(SERVER)->fd, &event, sizeof(event)), sizeof(event));
	woken = 0;
	far_sleep(conns[SERVER], LONG_MS);
	assert_int_equal(woken, 0);
	far_sleep(conns[SERVER], LONG_MS);
	assert_int_equal(woken, 1);
	take_all(SERVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_was_found_keeps_a_thread_from_sleeping_once, begin, finish),
	};

	use_rings(1 << 16);
	settings.rdma_again_ms = 1000;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
