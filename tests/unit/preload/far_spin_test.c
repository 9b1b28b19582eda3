/* SPDX-License-Identifier: MIT */
/* Waits for what a device moves: how long they look before they sleep. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "common/clock.h"
#include "preload/engine_source.h"
#include "reading_device_testing.h"

#define BYTES 65536ul
#define TRIP_NS 1000u
#define TRIPS_NS (settings.spin_us * 1000ul + 8 * TRIP_NS)

/* A wait, in which the device needs `device_ns` and a sleeper as long again as `wakes_ns` to wake. Returns whether it slept. */
static bool wait_once(struct far_spin *spin, uint64_t device_ns, uint64_t wakes_ns)
{
	struct far_wait wait = { .spin = spin, .begun = 1, .bytes = BYTES };
	bool slept;

	far_wait_looks(&wait, engine_of(0), 0);
	slept = !far_wait_looks(&wait, engine_of(0), device_ns - 1);
	far_wait_ends(&wait, engine_of(0), true, wait.begun + device_ns + (slept ? wakes_ns : 0));
	return slept;
}

/* Returns how many of a thousand slept, behind the first. */
static int wait_often(struct far_spin *spin, uint64_t device_ns, uint64_t wakes_ns)
{
	int slept = 0;

	for (unsigned int i = 0; i < 2 * FAR_SPIN_FIRST; i++)
		wait_once(spin, device_ns, wakes_ns);
	for (int i = 0; i < 1000; i++)
		slept += wait_once(spin, device_ns, wakes_ns);
	return slept;
}

#define ANEW (1000 / (int)FAR_SPIN_ANEW + 1)

static void look_is_as_long_as_the_bytes_take_where_a_sleep_costs_much(void **state)
{
	struct far_spin spin = { 0 };

	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 2), 1, ANEW);
	assert_int_equal(spin_get(&spin.spin.vain),
			 SPIN_VAIN_MAX); /* that the round trips had been enough can't be said */
}

static void bytes_are_slept_for_where_a_sleep_costs_little(void **state)
{
	struct far_spin spin = { 0 };

	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 20), 1000 - ANEW, 999);
}

static void choice_changes_with_what_a_sleep_costs(void **state)
{
	struct far_spin spin = { 0 };

	wait_often(&spin, NS_PER_MS, NS_PER_MS / 20);
	for (int i = 0; i < 10; i++)
		wait_often(&spin, NS_PER_MS, NS_PER_MS);
	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS), 1, ANEW + 1);
}

/* A peer's pause, say. */
static void one_long_wait_does_not_change_it(void **state)
{
	struct far_spin spin = { 0 };

	wait_often(&spin, NS_PER_MS, NS_PER_MS / 2);
	wait_once(&spin, NS_PER_SEC, 0);
	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 2), 1, ANEW + 1);
}

/* Nor does anybody look on for a peer that has come to take nothing. */
static void peer_that_takes_nothing_is_slept_for(void **state)
{
	struct far_spin spin = { 0 };
	int looks = 0;

	wait_often(&spin, NS_PER_MS, NS_PER_MS / 2);
	for (int i = 0; i < 1000; i++) {
		struct far_wait wait = { .spin = &spin, .begun = 1, .bytes = BYTES };

		looks += far_wait_looks(&wait, engine_of(0), NS_PER_MS);
		far_wait_looks(&wait, engine_of(0), 5 * NS_PER_MS);
		far_wait_ends(&wait, engine_of(0), false, 5 * NS_PER_MS);
	}
	assert_in_range(looks, 1, 100);
}

static void what_takes_very_long_is_slept_for(void **state)
{
	struct far_spin spin = { 0 };

	assert_int_equal(wait_often(&spin, 20 * NS_PER_MS, 20 * NS_PER_MS), 1000);
	for (unsigned int i = 0; i < 2 * FAR_SPIN_ANEW; i++) {
		struct far_wait wait = { .spin = &spin, .begun = 1, .bytes = BYTES };

		assert_false(far_wait_looks(&wait, engine_of(0), TRIPS_NS));
	}
}

static void few_round_trips_are_always_looked_for(void **state)
{
	struct far_spin spin = { 0 };

	assert_int_equal(wait_often(&spin, TRIPS_NS / 2, NS_PER_MS), 0);
	assert_int_equal(spin_get(&spin.spin.vain), 0);
}

/* Of those that look for round trips in vain; that the bytes would take far longer than these costs nothing more. */
static void in_vain_they_are_looked_for_seldom(void **state)
{
	struct far_spin spin = { 0 };
	int looks = 0;

	for (int i = 0; i < 1000; i++) {
		struct far_wait wait = { .spin = &spin,
					 .bytes = BYTES }; /* for room: what it takes is not to be known */

		looks += far_wait_looks(&wait, engine_of(0), FAR_LOOKS_NS);
		far_wait_looks(&wait, engine_of(0), NS_PER_MS);
		far_wait_looks(&wait, engine_of(0), 0); /* something has moved, and it is not there yet */
		far_wait_ends(&wait, engine_of(0), true, NS_PER_MS);
	}
	assert_in_range(looks, SPIN_VAIN_MAX, SPIN_VAIN_MAX + 1000 / SPIN_SKIPPED + 1);
	assert_int_equal(spin_get(&spin.byte_ps[FAR_LOOK_TRIPS]), 0);
	assert_int_equal(spin_get(&spin.waits), 0);
}

static void nothing_is_looked_for_without_the_setting(void **state)
{
	struct far_spin spin = { 0 };
	struct far_wait wait = { .spin = &spin, .begun = 1, .bytes = BYTES };

	settings.spin_us = 0;
	assert_int_equal(wait_often(&spin, FAR_LOOKS_NS + 1, NS_PER_MS), 1000);
	assert_true(far_wait_looks(&wait, engine_of(0), FAR_LOOKS_NS - 1));
	assert_false(far_wait_looks(&wait, engine_of(0), FAR_LOOKS_NS));
}

/* zsdp's wait -------------------------------------------------------------------------------------------------------- */

static char megabyte[1 << 20], megabyte_sink[1 << 20];

/* Has all of it 8 ms later: nothing was heard of it for longer than a small source is given. */
static void *take_late(void *unused)
{
	struct timespec late = { .tv_nsec = 8 * (long)NS_PER_MS };

	nanosleep(&late, NULL);
	for (size_t got = 0; got < sizeof(megabyte_sink);)
		got += (size_t)receive_some(1, megabyte_sink + got, sizeof(megabyte_sink) - got, 0);
	return NULL;
}

/* Whether the send ended before the peer had it, which is then to fetch it once more from where it is kept. */
static bool is_kept_in_a_wait(void)
{
	struct announced announced = { .count = 1, .bytes = sizeof(megabyte), .path = PATH_ZSDP, .waits = true };
	pthread_t peer;

	announced.number[0] = announce(megabyte, sizeof(megabyte));
	announced.begun = clock_now();
	announced.until = announced.begun + 20 * NS_PER_MS;
	assert_int_equal(pthread_create(&peer, NULL, take_late, NULL), 0);
	sources_wait(conns[0], engine_of(0), &announced);
	pthread_join(peer, NULL);
	return atomic_exchange(&lane_from(0)->out->has_kept, false);
}

static int sleeps;

static bool count_sleep(struct verbs_conn *conn, unsigned int what)
{
	sleeps++;
	return true;
}

static void send_that_may_not_wait_does_not_sleep(void **state)
{
	static struct verbs_table counting;
	struct iovec iov = { source, sizeof(source) }; /* which the peer does not take */
	enum zc_path path;

	counting = reading_device;
	counting.arm = count_sleep;
	far_verbs = &counting;
	conns[0]->policy = PATH_ZSDP;
	settings.source_min = sizeof(source);
	assert_int_equal(engine_send(conns[0], ends[0], &iov, 1, MSG_DONTWAIT, &path), sizeof(source));
	assert_int_equal(path, PATH_ZSDP);
	assert_int_equal(sleeps, 0);
	assert_int_equal(spin_get(&engine_of(0)->far.taken.waits), 0);
	assert_int_equal(engine_send(conns[0], ends[0], &iov, 1, 0, &path), sizeof(source));
	assert_true(sleeps > 0);
}

/* The machine may be late, too, but not each time. */
static void wait_for_a_large_source_is_as_long_as_it_is_large(void **state)
{
	for (int tries = 0; tries < 200; tries++) {
		if (!is_kept_in_a_wait())
			return;
	}
	fail_msg("each of them was kept");
}

/* Its wait, and the receive's, find out what they take. */
static void waits_of_both_ends_are_measured(void **state)
{
	struct iovec iov = { source, sizeof(source) };
	struct far_part *far[] = { &engine_of(0)->far, &engine_of(1)->far };
	enum zc_path path;

	settings.spin_us = 1000000; /* so it does not sleep, and has looked in vain */
	conns[0]->policy = PATH_ZSDP;
	settings.source_min = sizeof(source);
	assert_int_equal(engine_send(conns[0], ends[0], &iov, 1, 0, &path), sizeof(source)); /* which nobody takes */
	assert_int_equal(spin_get(&far[0]->taken.waits), 1);
	assert_true(spin_get(&far[0]->taken.byte_ps[FAR_LOOK_TRIPS]) > 0);
	assert_int_equal(spin_get(&far[0]->taken.spin.vain), 1);
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), sizeof(sink));
	announce(source, sizeof(source));
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), sizeof(sink));
	assert_true(spin_get(&far[1]->got.waits) > 0);
	assert_true(spin_get(&far[1]->got.byte_ps[FAR_LOOK_TRIPS]) > 0);
}

static void wait_for_room_that_is_in_vain_is_counted(void **state)
{
	struct announced announced = { .waits = true, .until = clock_now() + NS_PER_MS };

	assert_false(sources_have_room(conns[0], engine_of(0), 1ul << 30, &announced));
	assert_int_equal(spin_get(&engine_of(0)->far.taken.spin.vain), 1);
}

static void send_that_looks_for_long_does_not_sleep(void **state)
{
	static struct verbs_table counting;

	counting = reading_device;
	counting.arm = count_sleep;
	far_verbs = &counting;
	sleeps = 0;
	settings.spin_us = 1000000;
	is_kept_in_a_wait();
	assert_int_equal(sleeps, 0);
	settings.spin_us = 0;
	is_kept_in_a_wait();
	assert_true(sleeps > 0);
}

static int connect_trips(void **state)
{
	settings.spin_us = 50;
	if (connect_far(state))
		return -1;
	atomic_store(&engine_of(0)->far.trip_ns, TRIP_NS);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, connect_trips, close_far)
		CASE(look_is_as_long_as_the_bytes_take_where_a_sleep_costs_much),
		CASE(bytes_are_slept_for_where_a_sleep_costs_little),
		CASE(choice_changes_with_what_a_sleep_costs),
		CASE(one_long_wait_does_not_change_it),
		CASE(peer_that_takes_nothing_is_slept_for),
		CASE(what_takes_very_long_is_slept_for),
		CASE(few_round_trips_are_always_looked_for),
		CASE(in_vain_they_are_looked_for_seldom),
		CASE(nothing_is_looked_for_without_the_setting),
		CASE(send_that_may_not_wait_does_not_sleep),
		CASE(wait_for_a_large_source_is_as_long_as_it_is_large),
		CASE(waits_of_both_ends_are_measured),
		CASE(wait_for_room_that_is_in_vain_is_counted),
		CASE(send_that_looks_for_long_does_not_sleep),
#undef CASE
	};

	use_rings(1 << 20);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
