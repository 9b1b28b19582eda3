/* SPDX-License-Identifier: MIT */
/* Receives that offer their memory to a peer on another host, with a device by hand: when its program has it back. */
#define _GNU_SOURCE
#include <errno.h>

#include "common/clock.h"
#include "met_testing.h"
#include "preload/engine_source.h"
#include "preload/far_internal.h"
#include "idle_device_testing.h"
#include "rdma/avail.h"

#define BYTES 40000u

static char memory[BYTES];
static struct {
	int offered, asked, hidden, asked_when_hidden;
	int answers; /* -EAGAIN so often */
	int answer;
	int offer_fails, invalidated, positions_asked;
} device_did;

static struct engine *engine(void)
{
	return atomic_load(&conns[1]->engine);
}

static int offer(struct verbs_conn *conn, void *address, size_t bytes, uint64_t tail, uint32_t *number,
		 struct verbs_region **out)
{
	assert_int_equal(tail, atomic_load(&engine()->channel.in.shared->tail));
	assert_ptr_equal(address, memory);
	assert_int_equal(bytes, BYTES);
	if (device_did.offer_fails)
		return -ENOTCONN;
	*number = (uint32_t)++device_did.offered;
	*out = (struct verbs_region *)memory;
	return 0;
}

static int retract(struct verbs_conn *conn, uint32_t number)
{
	assert_int_equal(number, device_did.offered);
	return device_did.asked++ < device_did.answers ? -EAGAIN : device_did.answer;
}

static void hide(struct verbs_conn *conn, struct verbs_region *region)
{
	assert_ptr_equal(region, memory);
	device_did.hidden++;
	device_did.asked_when_hidden = device_did.asked;
}

static unsigned int invalidate_memory(const void *at, size_t bytes)
{
	if (at == memory && bytes == BYTES)
		device_did.invalidated++;
	return 0;
}

static void positions(struct verbs_conn *conn, struct verbs_positions *out)
{
	device_did.positions_asked++;
	*out = (struct verbs_positions){ .settled = true, .delivered = UINT64_MAX };
}

static const struct verbs_table device = {
	IDLE_DEVICE,
	.offer = offer,
	.retract = retract,
	.hide = hide,
};
static struct verbs_table changed; /* of a test's own */

static struct far fars[2];

/* What was received last was announced: another that is may come. */
static int begin(void **state)
{
	if (connect_ends(state))
		return -1;
	memset(&device_did, 0, sizeof(device_did));
	device_given_up = false;
	far_verbs = &device;
	for (int end = 0; end < 2; end++) {
		struct engine *its = atomic_load(&conns[end]->engine);

		fars[end] = (struct far){ .conn = conns[end], .link = (struct verbs_conn *)&device };
		conns[end]->far = &fars[end];
		far_sources_begin(conns[end], its);
		atomic_store(&its->far.state, FAR_UP);
		its->far.fetches = true;
		its->far.sinks_in_vain = its->far.sink_pause = 0;
	}
	return 0;
}

static int finish(void **state)
{
	for (int end = 0; end < 2; end++) {
		conns[end]->far = NULL;
		atomic_load(&conns[end]->engine)->far.out = FAR_OUT_FREE;
		atomic_store(&atomic_load(&conns[end]->engine)->far.state, FAR_NONE);
	}
	return close_ends(state);
}

static bool offers(size_t bytes)
{
	const struct iovec iov = { memory, bytes };

	return far_sink_offer(conns[1], engine(), &iov, &device_did);
}

static void end_offer(void)
{
	far_sink_ends(conns[1], engine(), &device_did);
}

/* Something comes to the ring. */
static void comes(void)
{
	char byte = 'x', got;
	struct iovec iov = { &byte, 1 };

	assert_int_equal(lane_put(&atomic_load(&conns[0]->engine)->channel.out, &iov, 1, 0), 1);
	assert_false(lane_is_empty(&engine()->channel.in));
	end_offer();
	assert_int_equal(receive_some(1, &got, 1, 0), 1);
	engine()->far.fetches = true;
}

static void memory_is_the_program_s_once_the_device_has_said_so(void **state)
{
	device_did.answers = 5;
	assert_true(offers(BYTES));
	end_offer();
	assert_int_equal(device_did.hidden, 1);
	assert_int_equal(device_did.asked_when_hidden, 6);
	assert_false(device_given_up);
	end_offer(); /* once */
	assert_int_equal(device_did.hidden, 1);
}

static void what_came_to_the_ring_ends_an_offer(void **state)
{
	assert_true(offers(BYTES));
	comes();
	assert_int_equal(device_did.asked, 0);
	assert_int_equal(device_did.hidden, 1);
}

static void a_device_that_says_nothing_is_given_up(void **state)
{
	device_did.answers = INT32_MAX;
	assert_true(offers(BYTES));
	end_offer();
	assert_true(device_given_up);
	assert_int_equal(device_did.hidden, 1);
}

static void what_is_being_written_is_waited_for(void **state)
{
	device_did.answer = 1;
	assert_true(offers(BYTES));
	end_offer(); /* it never comes: half a second, as for a READ */
	assert_true(device_given_up);
	assert_int_equal(device_did.asked, 1);
}

static void another_receive_ends_no_offer(void **state)
{
	assert_true(offers(BYTES));
	far_sink_ends(conns[1], engine(), &fars);
	assert_int_equal(device_did.hidden, 0);
	assert_true(offers(BYTES)); /* it sleeps once more */
	assert_int_equal(device_did.offered, 1);
	end_offer();
}

static void a_queue_pair_that_goes_takes_the_offer_along(void **state)
{
	assert_true(offers(BYTES));
	far_reserves_nothing(&fars[1], (struct verbs_conn *)&device);
	assert_int_equal(device_did.hidden, 1);
	end_offer();
	assert_int_equal(device_did.hidden, 1);
}

static void only_what_may_pay_is_offered(void **state)
{
	assert_false(offers(16383));
	engine()->far.fetches = false;
	assert_false(offers(BYTES));
	engine()->far.fetches = true;
	for (int i = 0; i < 4; i++) {
		assert_true(offers(BYTES));
		comes();
	}
	for (int i = 0; i < 64; i++)
		assert_false(offers(BYTES));
	assert_true(offers(BYTES));
	end_offer(); /* before anything came: that is not in vain */
	assert_true(offers(BYTES));
	end_offer();
}

/* It may have been registered, and would be found again when something else is there. */
static void an_offer_that_fails_leaves_nothing_registered(void **state)
{
	changed = device;
	changed.invalidate = invalidate_memory;
	far_verbs = &changed;
	device_did.offer_fails = true;
	assert_false(offers(BYTES));
	assert_int_equal(device_did.invalidated, 1);
}

/* The sending end, whose bytes the device may be at yet. */
static void a_sender_asks_the_device_whatever_became_of_its_sources(void **state)
{
	struct announced announced = { .count = 1, .sunk = true };
	struct engine *its = atomic_load(&conns[0]->engine);

	changed = device;
	changed.positions = positions;
	far_verbs = &changed;
	sources_wait(conns[0], its, &announced); /* another thread has kept it */
	assert_int_equal(device_did.positions_asked, 1);
	/* Who breaks the queue pair says so before the device has stopped. */
	device_given_up = true;
	sources_wait(conns[0], its, &announced);
	assert_int_equal(device_did.positions_asked, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(memory_is_the_program_s_once_the_device_has_said_so, begin, finish),
		cmocka_unit_test_setup_teardown(what_came_to_the_ring_ends_an_offer, begin, finish),
		cmocka_unit_test_setup_teardown(a_device_that_says_nothing_is_given_up, begin, finish),
		cmocka_unit_test_setup_teardown(what_is_being_written_is_waited_for, begin, finish),
		cmocka_unit_test_setup_teardown(another_receive_ends_no_offer, begin, finish),
		cmocka_unit_test_setup_teardown(a_queue_pair_that_goes_takes_the_offer_along, begin, finish),
		cmocka_unit_test_setup_teardown(only_what_may_pay_is_offered, begin, finish),
		cmocka_unit_test_setup_teardown(an_offer_that_fails_leaves_nothing_registered, begin, finish),
		cmocka_unit_test_setup_teardown(a_sender_asks_the_device_whatever_became_of_its_sources, begin, finish),
	};

	use_rings(1 << 16);
	settings.source_min = 4096;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
