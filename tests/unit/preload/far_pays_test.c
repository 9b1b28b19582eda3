/* SPDX-License-Identifier: MIT */
/* When a connection is to meet its peer, and which one. */
#include "far_trial_testing.h"

static void what_was_found_is_known_for_the_host(void **state)
{
	const struct costs costs = { { 100, 50 }, 1000, 0, 0 };
	struct far_moved little = { 100, 4, 1000, 1, 0, TURN };
	struct end end = { 0 }, other = { 0 };
	struct far_host *stranger;

	turns(&end, 20000, 64, &costs);
	turns(&other, 100, 64, &costs);
	assert_int_equal(other.sends[FAR_BY_TCP], 0);
	assert_int_equal(far_trial_pays(host(), &little, now), FAR_PAYS);
	assert_ptr_equal(far_trial_known(&hosts, HOST), host());
	assert_null(far_trial_known(&hosts, HOST + 1));
	stranger = far_trial_host(&hosts, HOST + 1, now);
	assert_ptr_not_equal(stranger, host());
	assert_int_equal(far_trial_pays(stranger, &little, now), FAR_PAYS_LATER);
}

/* A connection at work asks so often, unless it is to meet before. Returns the last answer. */
static enum far_pays comes_by(const struct far_moved *moved, int times)
{
	enum far_pays pays = FAR_PAYS_LATER;

	for (int i = 0; i < times && pays == FAR_PAYS_LATER; i++) {
		now += FAR_COMES_NS;
		pays = far_trial_pays(host(), moved, now);
	}
	return pays;
}

static void nobody_meets_where_tcp_has_won(void **state)
{
	const struct costs costs = { { 100, 300 }, 1000, 0, 0 };
	struct costs stream = costs;
	struct far_moved much = { 1 << 30, 100000, 60 * NS_PER_SEC, 1, 0, TURN };
	struct end end = { 0 }, other = { 0 };

	turns(&end, 20000, 64, &costs);
	assert_true(far_trial_has_lost(&end.trial, host(), now));
	assert_int_equal(far_trial_pays(host(), &much, now), FAR_PAYS_NOT);
	assert_false(far_trial_is_vain(host(), now)); /* a stream may do better */
	much.class = STREAM;
	assert_int_equal(comes_by(&much, 4), FAR_PAYS_TO_SEE);
	far_trial_seeks_no_more(host());
	sends(&other, 300000, 1000, &stream);
	assert_true(far_trial_is_vain(host(), now));
	/* A minute later it is another matter. */
	now += FAR_CALM_FIRST;
	much.class = TURN;
	assert_false(far_trial_is_vain(host(), now));
	assert_false(far_trial_has_lost(&end.trial, host(), now));
	assert_int_equal(comes_by(&much, 4), FAR_PAYS_TO_SEE);
}

static void meeting_waits_until_it_may_pay(void **state)
{
	struct far_moved moved = { FAR_WORTH_BYTES - 1, FAR_WORTH_CALLS - 1, 60 * NS_PER_SEC, 1,
				   10 * NS_PER_SEC,	FAR_NO_CLASS };

	assert_int_equal(comes_by(&moved, 100), FAR_PAYS_LATER);
	fresh(NULL);
	moved.calls++;
	moved.ns = FAR_WORTH_NS - 1;
	assert_int_equal(comes_by(&moved, 100), FAR_PAYS_LATER);
	fresh(NULL);
	moved.ns++;
	assert_int_equal(comes_by(&moved, 20), FAR_PAYS_LATER);
	assert_int_equal(comes_by(&moved, 1), FAR_PAYS_TO_SEE);
	/* One is enough to find out. */
	assert_int_equal(far_trial_pays(host(), &moved, now), FAR_PAYS_LATER);
	assert_int_equal(comes_by(&moved, FAR_SEEK_NS / FAR_COMES_NS - 1), FAR_PAYS_LATER);
	assert_int_equal(comes_by(&moved, 2), FAR_PAYS_TO_SEE);
	/* It has ended: the next one may. */
	far_trial_seeks_no_more(host());
	assert_int_equal(comes_by(&moved, 1), FAR_PAYS_TO_SEE);
}

static void pauses_are_no_work(void **state)
{
	struct far_moved moved = { FAR_WORTH_BYTES, 0, 60 * NS_PER_SEC, 1, 10 * NS_PER_SEC, FAR_NO_CLASS };

	for (int i = 0; i < 100; i++) {
		now += 10 * NS_PER_SEC;
		assert_int_equal(far_trial_pays(host(), &moved, now), FAR_PAYS_LATER);
	}
	assert_int_equal(atomic_load(&host()->work_ns), 0);
}

static void time_until_a_meeting_follows_from_what_the_last_one_took(void **state)
{
	assert_int_equal(far_trial_after(&hosts, 12345), 12345);
	atomic_store(&hosts.meeting, 5 * NS_PER_MS);
	assert_int_equal(far_trial_after(&hosts, 12345), 5 * NS_PER_MS * FAR_MEETING_SHARE * FAR_ENDS);
}

/* Of two ends, each of which has its own clock, and asks in its own order. */
static void ends_choose_the_same_connection(void **state)
{
	enum { CONNS = 40 };
	struct far_hosts ends[2] = { 0 };
	int chosen[2] = { -1, -1 };

	for (int at = 1; at < 200; at++) {
		for (int end = 0; end < 2; end++) {
			for (int i = 0; i < CONNS; i++) {
				int which = (i * (end ? 7 : 11) + at) % CONNS;
				struct far_moved moved = { 1 << 30,
							   1000,
							   (uint64_t)at * FAR_COMES_NS,
							   1 + (uint64_t)(which * 17 % CONNS),
							   3 * NS_PER_SEC,
							   FAR_NO_CLASS };
				uint64_t when =
					(uint64_t)at * FAR_COMES_NS + (uint64_t)i * US + (uint64_t)end * 333 * US;

				if (far_trial_pays(far_trial_host(&ends[end], HOST, when), &moved, when) ==
					    FAR_PAYS_TO_SEE &&
				    chosen[end] < 0)
					chosen[end] = which;
			}
		}
	}
	assert_true(chosen[0] >= 0);
	assert_int_equal(chosen[0], chosen[1]);
}

/* Who is at work no more is waited for by nobody. */
static void first_that_is_idle_is_passed_over(void **state)
{
	const struct far_moved first = { 1 << 30, 1000, 60 * NS_PER_SEC, 1, 0, FAR_NO_CLASS };
	struct far_moved second = first;

	second.number = 2;
	assert_int_equal(comes_by(&first, 1), FAR_PAYS_LATER);
	assert_int_equal(comes_by(&second, 3), FAR_PAYS_LATER);
	assert_int_equal(comes_by(&second, 5), FAR_PAYS_TO_SEE);
}

/* It may find out for a long time, and then the host has told that TCP is better: nobody asks in vain. */
static void who_has_met_keeps_others_waiting(void **state)
{
	const struct far_moved moved = { 1 << 30, 1000, 60 * NS_PER_SEC, 1, 0, FAR_NO_CLASS };

	assert_int_equal(comes_by(&moved, 4), FAR_PAYS_TO_SEE);
	far_trial_has_met(host(), now);
	assert_int_equal(comes_by(&moved, FAR_UNDECIDED_NS / FAR_COMES_NS - 1), FAR_PAYS_LATER);
	far_trial_found_for_us(host(), now);
	assert_int_equal(comes_by(&moved, FAR_CALM_FIRST / FAR_COMES_NS - 1), FAR_PAYS_LATER);
	assert_int_equal(comes_by(&moved, 2), FAR_PAYS_TO_SEE);
}

/* A receiver knows nothing of its own: it follows. */
static void what_the_peer_wants_is_met(void **state)
{
	const struct costs costs = { { 100, 300 }, 1000, 0, 0 };
	const struct far_moved little = { 100, 4, 1000, 1, NS_PER_SEC, FAR_NO_CLASS };
	struct end end = { 0 };

	turns(&end, 20000, 64, &costs);
	assert_int_equal(far_trial_pays(host(), &little, now), FAR_PAYS_LATER);
	far_trial_is_wanted(host(), now);
	assert_int_equal(far_trial_pays(host(), &little, now), FAR_PAYS);
	assert_false(far_trial_is_vain(host(), now));
	far_trial_is_wanted_no_more(host());
	assert_int_equal(far_trial_pays(host(), &little, now), FAR_PAYS_LATER);
	far_trial_is_wanted(host(), now);
	now += FAR_CALM_MAX;
	assert_int_not_equal(far_trial_pays(host(), &little, now), FAR_PAYS);
}

/* It closes, or its queue pair breaks, in the middle: nobody says that it has ended. */
static void trial_that_is_given_up_holds_nothing_for_long(void **state)
{
	const struct costs costs = { { 100, 300 }, 1000, 0, 0 };
	const struct far_moved much = { 1 << 30, 100000, 60 * NS_PER_SEC, 1, 0, TURN };
	struct end end = { 0 }, next = { 0 };

	turns(&end, 20000, 64, &costs);
	assert_int_equal(far_trial_pays(host(), &much, now), FAR_PAYS_NOT);
	now += 2 * FAR_CALM_FIRST;
	turns(&next, 200, 64, &costs);
	assert_int_equal(atomic_load(&found(TURN)->again_ns), UINT64_MAX);
	assert_int_equal(far_trial_pays(host(), &much, now), FAR_PAYS_NOT);
	now += FAR_CALM_FIRST;
	assert_int_equal(comes_by(&much, 8), FAR_PAYS_TO_SEE);
}

static void table_of_hosts_is_bounded(void **state)
{
	const struct costs costs = { { 100, 50 }, 1000, 0, 0 };
	struct end end = { 0 };

	turns(&end, 20000, 64, &costs);
	for (uint64_t key = 1; key < 100000; key++) {
		const struct far_moved moved = { 1 << 30, 100000, 60 * NS_PER_SEC, 1, 0, TURN };

		now += US;
		assert_int_not_equal(far_trial_pays(far_trial_host(&hosts, key, now), &moved, now), FAR_PAYS_NOT);
	}
	/* It had to go, and nothing of it is another's. */
	assert_int_equal(atomic_load(&found(TURN)->best), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(what_was_found_is_known_for_the_host, fresh),
		cmocka_unit_test_setup(nobody_meets_where_tcp_has_won, fresh),
		cmocka_unit_test_setup(meeting_waits_until_it_may_pay, fresh),
		cmocka_unit_test_setup(pauses_are_no_work, fresh),
		cmocka_unit_test_setup(time_until_a_meeting_follows_from_what_the_last_one_took, fresh),
		cmocka_unit_test_setup(ends_choose_the_same_connection, fresh),
		cmocka_unit_test_setup(first_that_is_idle_is_passed_over, fresh),
		cmocka_unit_test_setup(who_has_met_keeps_others_waiting, fresh),
		cmocka_unit_test_setup(what_the_peer_wants_is_met, fresh),
		cmocka_unit_test_setup(trial_that_is_given_up_holds_nothing_for_long, fresh),
		cmocka_unit_test_setup(table_of_hosts_is_bounded, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
