/* SPDX-License-Identifier: MIT */
/* Waits for what a device moves: how long they look before they sleep. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "common/clock.h"
#include "preload/engine_source.h"
#include "preload/far_spin.h"
#include "reading_device_testing.h"

#define BYTES 65536ul
#define TURN 16u

/* A wait, in which the device needs `device_ns` and a sleeper as long again as `wakes_ns` to wake. Returns whether it slept. */
static bool wait_once(struct far_spin *spin, uint64_t device_ns, uint64_t wakes_ns)
{
	struct far_wait wait = { .begun = 1, .bytes = BYTES };
	bool slept = !far_wait_looks(&wait, spin, device_ns - 1);

	far_wait_ends(&wait, spin, true, 1 + device_ns + (slept ? wakes_ns : 0));
	return slept;
}

/* Returns how many of a thousand turns' waits slept, behind the first turns. */
static unsigned int wait_often(struct far_spin *spin, uint64_t device_ns, uint64_t wakes_ns)
{
	unsigned int slept = 0;

	while (atomic_load(&spin->waits) < FAR_SPIN_SELDOM * TURN)
		wait_once(spin, device_ns, wakes_ns);
	for (unsigned int i = 0; i < 1000 * TURN; i++)
		slept += wait_once(spin, device_ns, wakes_ns);
	return slept;
}

#define ALL (1000 * TURN)
#define ANEW ((1000 / FAR_SPIN_ANEW + 1) * TURN)
#define SELDOM ((1000 / FAR_SPIN_SELDOM + 2) * TURN) /* and a power of two */

static void look_is_as_long_as_the_bytes_take_where_a_sleep_costs_much(void **state)
{
	struct far_spin spin = { .turn = TURN };

	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 4), ANEW - 2 * TURN, ANEW);
}

static void bytes_are_slept_for_where_a_sleep_costs_little(void **state)
{
	struct far_spin spin = { .turn = TURN };

	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 10), ALL - ANEW, ALL - ANEW + 2 * TURN);
}

static void much_dearer_kind_is_tried_seldom(void **state)
{
	struct far_spin spin = { .turn = TURN };

	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS), TURN, SELDOM);
}

/* Looking takes from others what they need to do what is waited for. */
static void nobody_looks_where_that_takes_longer(void **state)
{
	struct far_spin spin = { .turn = TURN };
	unsigned int looks = 0;

	for (unsigned int i = 0; i < ALL; i++) {
		struct far_wait wait = { .begun = 1, .bytes = BYTES };
		bool is_long = far_wait_looks(&wait, &spin, NS_PER_MS);

		looks += is_long;
		far_wait_ends(&wait, &spin, true, 1 + (is_long ? 4 : 2) * NS_PER_MS);
	}
	assert_in_range(looks, TURN, 12 * TURN + SELDOM); /* turns of powers of two */
}

static void choice_changes_with_what_a_sleep_costs(void **state)
{
	struct far_spin spin = { .turn = TURN };

	wait_often(&spin, NS_PER_MS, NS_PER_MS / 20);
	wait_often(&spin, NS_PER_MS, NS_PER_MS / 3);
	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 3), TURN, ANEW);
}

static void first_choice_that_was_wrong_does_not_last(void **state)
{
	struct far_spin spin = { .turn = TURN };
	unsigned int slept = 0;

	for (unsigned int i = 0; i < 5 * TURN; i++)
		wait_once(&spin, NS_PER_MS, i < 3 * TURN ? NS_PER_MS / 2 : 0);
	for (unsigned int i = 0; i < 3 * TURN; i++)
		slept += wait_once(&spin, NS_PER_MS, 0);
	assert_int_equal(slept, 3 * TURN);
}

/* A peer's pause, say. */
static void one_long_wait_does_not_change_it(void **state)
{
	struct far_spin spin = { .turn = TURN };

	wait_often(&spin, NS_PER_MS, NS_PER_MS / 2);
	wait_once(&spin, NS_PER_SEC, 0);
	assert_in_range(wait_often(&spin, NS_PER_MS, NS_PER_MS / 2), TURN, ANEW + 1);
}

/* What is done once, a connection's first registrations, say. */
static void first_waits_say_nothing(void **state)
{
	struct far_spin spin = { .turn = TURN };

	for (unsigned int i = 0; i < TURN; i++)
		wait_once(&spin, NS_PER_SEC, 0);
	assert_int_equal(atomic_load(&spin.byte_ps[FAR_LOOK_LEAST]), 0);
	assert_true(wait_once(&spin, NS_PER_MS, 0));
	assert_int_equal(atomic_load(&spin.byte_ps[FAR_LOOK_LEAST]), NS_PER_MS * 1000 / BYTES);
}

/* Nobody looks on for a peer that has come to take nothing. */
static void peer_that_takes_nothing_is_slept_for(void **state)
{
	struct far_spin spin = { .turn = TURN };
	unsigned int looks = 0;

	wait_often(&spin, NS_PER_MS, NS_PER_MS / 4);
	for (unsigned int i = 0; i < ALL; i++) {
		struct far_wait wait = { .begun = 1, .bytes = BYTES };

		looks += far_wait_looks(&wait, &spin, NS_PER_MS);
		far_wait_ends(&wait, &spin, false, 1 + 10 * NS_PER_MS);
	}
	assert_in_range(looks, 1, 4 * ANEW);
}

static void wait_that_had_to_end_was_not_shorter(void **state)
{
	struct far_spin spin = { .turn = TURN };
	struct far_wait wait = { .begun = 1, .bytes = BYTES };
	uint32_t known;

	for (unsigned int i = 0; i < 2 * TURN; i++)
		wait_once(&spin, NS_PER_MS, NS_PER_MS);
	known = atomic_load(&spin.byte_ps[FAR_LOOK_LEAST]);
	spin.waits = TURN;
	far_wait_looks(&wait, &spin, 0);
	far_wait_ends(&wait, &spin, false, 1);
	assert_int_equal(atomic_load(&spin.byte_ps[FAR_LOOK_LEAST]), known);
	far_wait_ends(&wait, &spin, true, 1);
	assert_true(atomic_load(&spin.byte_ps[FAR_LOOK_LEAST]) < known);
}

static void what_takes_very_long_is_slept_for(void **state)
{
	struct far_spin spin = { .turn = TURN };

	assert_int_equal(wait_often(&spin, 20 * NS_PER_MS, 20 * NS_PER_MS), ALL);
	for (unsigned int i = 0; i < 2 * FAR_SPIN_SELDOM * TURN; i++) {
		struct far_wait wait = { .begun = 1, .bytes = BYTES };

		assert_false(far_wait_looks(&wait, &spin, FAR_LOOKS_NS));
	}
}

static void few_bytes_say_nothing(void **state)
{
	struct far_spin spin = { .turn = TURN };
	struct far_wait few = { .begun = 1, .bytes = FAR_SPIN_LEAST_BYTES - 1 };
	struct far_wait room = { .bytes = BYTES }; /* what it takes is not to be known */

	far_wait_looks(&few, &spin, 0);
	far_wait_looks(&room, &spin, 0);
	assert_int_equal(atomic_load(&spin.waits), 0);
	spin.waits = TURN;
	far_wait_ends(&few, &spin, true, NS_PER_MS);
	far_wait_ends(&room, &spin, true, NS_PER_MS);
	assert_int_equal(atomic_load(&spin.byte_ps[FAR_LOOK_LEAST]), 0);
	assert_true(far_wait_looks(&room, &spin, FAR_LOOKS_NS - 1));
	assert_false(far_wait_looks(&room, &spin, FAR_LOOKS_NS));
}

static void nothing_is_looked_for_without_the_setting(void **state)
{
	struct far_spin spin = { .turn = TURN };

	settings.spin_us = 0;
	for (unsigned int i = 0; i < ALL; i++)
		assert_true(wait_once(&spin, FAR_LOOKS_NS + 1, NS_PER_MS));
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
	announced.until = clock_now() + 20 * NS_PER_MS;
	assert_int_equal(pthread_create(&peer, NULL, take_late, NULL), 0);
	sources_wait(conns[0], engine_of(0), &announced);
	pthread_join(peer, NULL);
	return atomic_exchange(&lane_from(0)->out->has_kept, false);
}

static _Atomic int sleeps;

static bool count_sleep(struct verbs_conn *conn, unsigned int what)
{
	sleeps++;
	return true;
}

/* A send that nobody takes. Returns how often it slept. */
static int sleeps_of_a_send(int flags)
{
	struct iovec iov = { source, sizeof(source) };
	enum zc_path path;

	sleeps = 0;
	assert_int_equal(engine_send(conns[0], ends[0], &iov, 1, flags, &path), sizeof(source));
	assert_int_equal(path, PATH_ZSDP);
	for (size_t got = 0; got < sizeof(sink);)
		got += (size_t)receive_some(1, sink, sizeof(sink), 0);
	return sleeps;
}

static void send_that_may_not_wait_does_not_sleep(void **state)
{
	far_taken.waits = 2 * far_taken.turn;
	assert_int_equal(sleeps_of_a_send(MSG_DONTWAIT), 0);
	assert_int_equal(far_taken.waits, 2 * far_taken.turn);
}

/* Where the machine is late, the time is over before it sleeps. */
static void send_that_waits_sleeps(void **state)
{
	for (int tries = 0; tries < 200; tries++) {
		if (sleeps_of_a_send(0))
			return;
	}
	fail_msg("none of them slept");
}

/* It looks for 7 ms, and waits for less. */
static void send_that_looks_for_the_bytes_does_not_sleep(void **state)
{
	far_taken.waits = 2 * far_taken.turn;
	far_taken.byte_ps[FAR_LOOK_BYTES] = (uint32_t)(7 * NS_PER_MS * 1000 / sizeof(source) * 2 / 3);
	assert_int_equal(sleeps_of_a_send(0), 0);
	assert_int_equal(far_taken.waits, 2 * far_taken.turn + 1);
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

static void waits_of_both_ends_are_measured(void **state)
{
	const uint32_t most = UINT32_MAX / 2;

	far_taken.waits = far_taken.turn;
	far_had.waits = far_had.turn;
	sleeps_of_a_send(0);
	assert_true(far_taken.byte_ps[FAR_LOOK_LEAST] > 0);
	assert_true(far_had.byte_ps[FAR_LOOK_LEAST] > 0);
	/* The peer had not taken it: nobody knows that so many bytes take less. Those that the peer fetched did. */
	far_taken.byte_ps[FAR_LOOK_LEAST] = far_had.byte_ps[FAR_LOOK_LEAST] = most;
	announce(source, sizeof(source));
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), sizeof(sink));
	sleeps_of_a_send(0);
	assert_int_equal(far_taken.byte_ps[FAR_LOOK_LEAST], most);
	assert_true(far_had.byte_ps[FAR_LOOK_LEAST] < most);
}

static void forget_waits(struct far_spin *spin)
{
	spin->waits = spin->byte_ps[FAR_LOOK_LEAST] = spin->byte_ps[FAR_LOOK_BYTES] = 0;
}

static int connect_sleeper(void **state)
{
	static struct verbs_table counting;

	settings.spin_us = 50;
	settings.source_min = sizeof(source);
	forget_waits(&far_taken);
	forget_waits(&far_had);
	if (connect_far(state))
		return -1;
	counting = reading_device;
	counting.arm = count_sleep;
	far_verbs = &counting;
	conns[0]->policy = PATH_ZSDP;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, connect_sleeper, close_far)
		CASE(look_is_as_long_as_the_bytes_take_where_a_sleep_costs_much),
		CASE(bytes_are_slept_for_where_a_sleep_costs_little),
		CASE(much_dearer_kind_is_tried_seldom),
		CASE(nobody_looks_where_that_takes_longer),
		CASE(choice_changes_with_what_a_sleep_costs),
		CASE(first_choice_that_was_wrong_does_not_last),
		CASE(one_long_wait_does_not_change_it),
		CASE(first_waits_say_nothing),
		CASE(peer_that_takes_nothing_is_slept_for),
		CASE(wait_that_had_to_end_was_not_shorter),
		CASE(what_takes_very_long_is_slept_for),
		CASE(few_bytes_say_nothing),
		CASE(nothing_is_looked_for_without_the_setting),
		CASE(send_that_may_not_wait_does_not_sleep),
		CASE(send_that_waits_sleeps),
		CASE(send_that_looks_for_the_bytes_does_not_sleep),
		CASE(wait_for_a_large_source_is_as_long_as_it_is_large),
		CASE(waits_of_both_ends_are_measured),
#undef CASE
	};

	use_rings(1 << 20);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
