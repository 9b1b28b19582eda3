/* SPDX-License-Identifier: MIT */
/* A connection between hosts in the place of one of this host, which is looked through for memory that idles. */
#define _GNU_SOURCE
#include "far_pair_testing.h"

#include "../rdma/resident_testing.h"
#include "preload/trim.h"

#define RING (256u << 10)

static struct conn *placed[2]; /* whose ends stand in the list */

/* Both ends have sent by shared memory, and are closed. */
static int leave_two_in_the_list(void **state)
{
	settings.idle_ms = 1;
	if (connect_ends(state))
		return -1;
	for (int end = 0; end < 2; end++) {
		char got;

		assert_int_equal(send_whole(end, "x"), 1);
		assert_int_equal(receive_some(1 - end, &got, 1, 0), 1);
		assert_true(atomic_load(&conns[end]->moved));
		placed[end] = conns[end];
	}
	close_ends(state);
	return begin(state);
}

/* Returns once nobody has to look at anything any more. */
static void sleep_until_forgotten(void)
{
	while (atomic_load(&placed[0]->moved) || atomic_load(&placed[1]->moved)) {
		uint64_t until = trim_before_sleep(UINT64_MAX);

		while (until != UINT64_MAX && clock_now() < until)
			cpu_relax();
	}
}

static void a_ring_that_a_device_has_keeps_its_memory(void **state)
{
	size_t before[2];

	exchange();
	for (int end = 0; end < 2; end++) {
		assert_true(conns[end] == placed[0] || conns[end] == placed[1]);
		assert_true(atomic_load(&conns[end]->moved));
		before[end] = resident_bytes(lane_from(end)->ring, RING);
		assert_true(before[end] >= PART);
	}
	sleep_until_forgotten();
	for (int end = 0; end < 2; end++)
		assert_int_equal(resident_bytes(lane_from(end)->ring, RING), before[end]);
	exchange();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_ring_that_a_device_has_keeps_its_memory, leave_two_in_the_list,
						finish),
	};

	use_rings(RING);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
