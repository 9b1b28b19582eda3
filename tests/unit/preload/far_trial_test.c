/* SPDX-License-Identifier: MIT */
/* The choice between TCP and RDMA by trying, against programs and hosts of which it is known what is best. */
#include "far_trial_testing.h"

static void better_way_is_taken(void **state)
{
	static const enum far_way all[] = { FAR_BY_TCP, FAR_BY_RING, FAR_BY_ZSDP, FAR_BY_AZSDP };

	for (size_t i = 0; i < 4; i++) {
		struct costs costs = { { 1500, 1500, 1500, 1500 }, 1000, 4 << 20, 0 };
		struct end end = { 0 };

		costs.us[all[i]] = 1000;
		fresh(NULL);
		sends(&end, 40000, 1 << 20, &costs);
		assert_int_equal(atomic_load(&found(LARGE)->best), all[i] + 1);
		assert_true(end.sends[all[i]] > 36000);
	}
}

static void turns_are_compared_by_the_time_to_the_answer(void **state)
{
	const struct costs faster = { { 100, 50 }, 1000, 0, 0 }, slower = { { 100, 330 }, 1000, 0, 0 };
	struct end end = { 0 }, other = { 0 };

	turns(&end, 20000, 64, &faster);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_RING + 1);
	fresh(NULL);
	turns(&other, 20000, 64, &slower);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_TCP + 1);
}

/* Before it has a queue pair: turns of so many ns each. */
static void turns_before(struct end *end, unsigned int count, uint64_t ns)
{
	for (unsigned int i = 0; i < count; i++) {
		const struct far_send send = { 64, end->at, 0, false, now };

		far_trial_before(&end->trial, &send);
		end->at += 64;
		now += ns;
		far_trial_came(&end->trial, now);
		now += 5 * US;
	}
}

/* Turns of a connection that has no queue pair, then of one that has: its TCP is slower then. Returns the way that is found. */
static enum far_way way_after(unsigned int alone_us, const struct costs *costs)
{
	struct end end = { 0 };

	fresh(NULL);
	if (alone_us)
		turns_before(&end, 200, alone_us * US);
	far_trial_again(&end.trial);
	turns(&end, 20000, 64, costs);
	return atomic_load(&found(TURN)->best) - 1;
}

static void tcp_without_a_queue_pair_is_what_is_compared_with(void **state)
{
	const struct costs costs = { { 150, 120 }, 1000, 0, 0 };

	assert_int_equal(way_after(0, &costs), FAR_BY_RING); /* it is not known */
	assert_int_equal(way_after(100, &costs), FAR_BY_TCP);
	assert_int_equal(atomic_load(&found(TURN)->cost[FAR_BY_TCP]), 100 * US);
	assert_int_equal(way_after(140, &costs), FAR_BY_RING);
}

/* Three runs, and what leads them. */
static void tcp_is_not_tried_once_more(void **state)
{
	const struct costs costs = { { 100, 80 }, 1000, 0, 0 };
	struct end end = { 0 };
	unsigned int count = 0;

	turns_before(&end, 5000, 100 * US);
	far_trial_again(&end.trial);
	for (; !atomic_load(&found(TURN)->best); count++)
		turns(&end, 1, 64, &costs);
	assert_in_range(count, 3 * 32, 3 * 32 + 3 * 8);
	assert_int_equal(end.sends[FAR_BY_TCP], 0);
}

/* What was measured of small sends says nothing of large ones. */
static void what_else_was_done_before_does_not_count(void **state)
{
	struct costs costs = { { 1000, 1500, 1500, 1500 }, 1000, 4 << 20, 0 };
	struct end end = { 0 };

	turns_before(&end, 200, US / 2);
	for (unsigned int i = 0; i < 120; i++) { /* not a run, with what leads it */
		const struct far_send send = { 64 << 10, end.at, 0, true, now };

		far_trial_before(&end.trial, &send);
		end.at += 64 << 10;
		now += 60 * US;
	}
	far_trial_again(&end.trial);
	sends(&end, 40000, 64 << 10, &costs);
	assert_in_range(atomic_load(&found(2)->cost[FAR_BY_TCP]), 14000, 17000); /* 1000 us for 64 KiB, in ns a KiB */
}

static void small_gain_is_none(void **state)
{
	const struct costs costs = { { 100, 95 }, 1000, 0, 0 };
	struct costs stream = { { 100, 95 }, 1000, 1 << 20, 0 };
	struct end end = { 0 }, other = { 0 };

	turns(&end, 20000, 64, &costs);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_TCP + 1);
	sends(&other, 300000, 1000, &stream);
	assert_int_equal(atomic_load(&found(STREAM)->best), FAR_BY_TCP + 1);
}

/* What the sends by the ring have cost in comparison with TCP. */
static double share_spent(const struct end *end, const struct costs *costs, uint64_t since)
{
	double lost = (double)end->sends[FAR_BY_RING] * (costs->us[FAR_BY_RING] - costs->us[FAR_BY_TCP]) * US;

	return lost / (double)(now - since);
}

static void way_that_is_far_worse_is_left_at_once(void **state)
{
	struct costs costs = { { 100, 20000 }, 1000, 0, 0 }, worse = { { 100, 2000 }, 1000, 0, 0 };
	struct end end = { 0 }, other = { 0 }, warm = { 0 };

	turns(&end, 20000, 64, &costs);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_TCP + 1);
	assert_in_range(end.sends[FAR_BY_RING], 2, 8);
	fresh(NULL);
	turns(&warm, 20000, 64, &worse); /* what leads is over sooner */
	assert_in_range(warm.sends[FAR_BY_RING], 2 * 8, 2 * 12);
	sends(&other, 20000, 20000, &costs);
	assert_int_equal(atomic_load(&found(1)->best), FAR_BY_TCP + 1);
	assert_in_range(other.sends[FAR_BY_RING], 2, 12);
}

static void trials_take_a_few_per_cent_of_the_time(void **state)
{
	struct costs costs = { { 100, 330 }, 1000, 1 << 20, 0 };

	for (unsigned int count = 500; count <= 64000; count *= 2) {
		struct end end = { 0 }, other = { 0 };
		uint64_t since;

		fresh(NULL);
		since = now;
		turns(&end, count, 64, &costs);
		assert_true(share_spent(&end, &costs, since) < 0.07);
		since = now;
		sends(&other, count, 30000, &costs);
		assert_true(share_spent(&other, &costs, since) < 0.07);
	}
}

static void same_outcome_holds_twice_as_long(void **state)
{
	const struct costs costs = { { 100, 300 }, 1000, 0, 0 };
	uint64_t calm = FAR_CALM_FIRST;
	struct end end = { 0 };

	for (int i = 1; i <= 9; i++) {
		turns(&end, 20000, 64, &costs);
		assert_int_equal(atomic_load(&found(TURN)->tries), i);
		assert_int_equal(atomic_load(&found(TURN)->calm_ns), calm);
		now = atomic_load(&found(TURN)->again_ns);
		calm = 2 * calm < FAR_CALM_MAX ? 2 * calm : FAR_CALM_MAX;
	}
}

static void host_that_changes_is_followed(void **state)
{
	const struct costs before = { { 100, 50 }, 1000, 0, 0 }, after = { { 100, 300 }, 1000, 0, 0 };
	struct end end = { 0 };

	turns(&end, 20000, 64, &before);
	now += FAR_CALM_FIRST;
	turns(&end, 20000, 64, &after);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_TCP + 1);
	assert_int_equal(atomic_load(&found(TURN)->calm_ns), FAR_CALM_FIRST);
	now += FAR_CALM_FIRST;
	turns(&end, 20000, 64, &before);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_RING + 1);
}

/* A turn takes what both ways take; both ends try, the accepting one from its turn `late` on. Returns the ways that they find. */
static void try_at_both_ends(unsigned int late, const unsigned int *us, uint32_t *best)
{
	struct end ends[2] = { { .trial.accepts = false }, { .trial.accepts = true } };
	struct far_hosts other;
	struct far_hosts *both[] = { &hosts, &other };

	fresh(NULL);
	memset(&other, 0, sizeof(other));
	for (unsigned int i = 0; i < 20000; i++) {
		for (int at = 0; at < 2; at++) {
			struct end *end = &ends[at];
			const struct far_send send = { 64, end->at, end->ring_at, false, now };

			if (at && i < late)
				end->way = FAR_BY_TCP;
			else
				end->way = far_trial_next(&end->trial, far_trial_host(both[at], HOST, now), &send);
			end->at += 64;
			end->ring_at += end->way == FAR_BY_TCP ? 0 : 64;
			now += us[end->way] * US;
			far_trial_came(&ends[1 - at].trial, now);
		}
	}
	for (int at = 0; at < 2; at++)
		best[at] = atomic_load(&far_trial_host(both[at], HOST, now)->classes[TURN].best);
}

static void ends_that_try_together_find_the_same(void **state)
{
	const unsigned int better[] = { 50, 25 }, worse[] = { 50, 100 };
	uint32_t best[2];

	for (unsigned int late = 0; late < 1000; late += 10) {
		try_at_both_ends(late, better, best);
		assert_true(best[0] == FAR_BY_RING + 1 && best[1] == FAR_BY_RING + 1);
		try_at_both_ends(late, worse, best);
		assert_true(best[0] == FAR_BY_TCP + 1 && best[1] == FAR_BY_TCP + 1);
	}
}

static void one_connection_tries_for_all(void **state)
{
	const struct costs costs = { { 100, 300 }, 1000, 0, 0 };
	struct end end = { 0 }, other = { 0 };

	for (int i = 0; i < 20000; i++) {
		turns(&end, 1, 64, &costs);
		turns(&other, 1, 64, &costs);
	}
	assert_int_equal(atomic_load(&found(TURN)->tries), 1);
	assert_true(!end.sends[FAR_BY_RING] || !other.sends[FAR_BY_RING]);
}

static void connection_that_ends_in_mid_trial_is_followed_by_another(void **state)
{
	const struct costs costs = { { 100, 50 }, 1000, 0, 0 };
	struct end end = { 0 }, other = { 0 };

	turns(&end, 100, 64, &costs);
	assert_int_not_equal(end.trial.tries, 0);
	turns(&other, 60000, 64, &costs);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_RING + 1);
}

static void lane_that_does_not_get_to_the_ring_says_nothing(void **state)
{
	const struct costs costs = { { 100, 100 }, 1000, 0, 0 };
	struct end end = { 0 };

	for (int i = 0; i < 20000; i++) {
		turns(&end, 1, 64, &costs);
		end.ring_at = 0;
	}
	assert_int_equal(atomic_load(&found(TURN)->tries), 0);
	forget_sends(&end);
	turns(&end, 1000, 64, &costs);
	assert_int_equal(end.sends[FAR_BY_RING], 0);
}

static void what_a_connection_does_is_told_apart(void **state)
{
	struct costs streams = { { 100, 300 }, 1000, 1 << 20, 0 };
	const struct costs answers = { { 100, 50 }, 1000, 0, 0 };
	struct end end = { 0 }, other = { 0 };

	sends(&end, 300000, 1000, &streams);
	turns(&other, 20000, 64, &answers);
	assert_int_equal(atomic_load(&found(STREAM)->best), FAR_BY_TCP + 1);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_RING + 1);
	forget_sends(&other);
	sends(&other, 1000, 1000, &streams);
	assert_true(other.sends[FAR_BY_TCP] > 900);
}

static void odd_send_does_not_move_the_lane(void **state)
{
	struct costs costs = { { 100, 50 }, 1000, 1 << 20, 0 };
	struct end end = { 0 };

	sends(&end, 300000, 1000, &costs);
	assert_int_equal(atomic_load(&found(STREAM)->best), FAR_BY_RING + 1);
	forget_sends(&end);
	for (int i = 0; i < 10; i++) {
		sends(&end, 1000, 1000, &costs);
		sends(&end, 1, 1 << 20, &costs);
	}
	assert_int_equal(end.sends[FAR_BY_TCP], 0);
}

static void move_of_the_lane_does_not_count(void **state)
{
	const struct costs costs = { { 100, 50 }, 50000, 0, 0 };
	struct end end = { 0 };

	turns(&end, 100000, 64, &costs);
	assert_int_equal(atomic_load(&found(TURN)->best), FAR_BY_RING + 1);
}

static void any_send_has_a_class(void **state)
{
	for (unsigned int shift = 0; shift < 64; shift++) {
		assert_in_range(far_trial_class((size_t)1 << shift, 1, 0), 0, FAR_SIZES - 1);
		assert_in_range(far_trial_class((size_t)1 << shift, 1, 1), FAR_SIZES, FAR_CLASSES - 1);
	}
	assert_int_equal(far_trial_class(0, 0, 0), FAR_NO_CLASS);
	assert_int_equal(far_trial_class(100, 100, 24), STREAM);
	assert_int_equal(far_trial_class(100, 100, 25), TURN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(better_way_is_taken, fresh),
		cmocka_unit_test_setup(turns_are_compared_by_the_time_to_the_answer, fresh),
		cmocka_unit_test_setup(tcp_without_a_queue_pair_is_what_is_compared_with, fresh),
		cmocka_unit_test_setup(tcp_is_not_tried_once_more, fresh),
		cmocka_unit_test_setup(what_else_was_done_before_does_not_count, fresh),
		cmocka_unit_test_setup(small_gain_is_none, fresh),
		cmocka_unit_test_setup(way_that_is_far_worse_is_left_at_once, fresh),
		cmocka_unit_test_setup(trials_take_a_few_per_cent_of_the_time, fresh),
		cmocka_unit_test_setup(same_outcome_holds_twice_as_long, fresh),
		cmocka_unit_test_setup(host_that_changes_is_followed, fresh),
		cmocka_unit_test_setup(ends_that_try_together_find_the_same, fresh),
		cmocka_unit_test_setup(one_connection_tries_for_all, fresh),
		cmocka_unit_test_setup(connection_that_ends_in_mid_trial_is_followed_by_another, fresh),
		cmocka_unit_test_setup(lane_that_does_not_get_to_the_ring_says_nothing, fresh),
		cmocka_unit_test_setup(what_a_connection_does_is_told_apart, fresh),
		cmocka_unit_test_setup(odd_send_does_not_move_the_lane, fresh),
		cmocka_unit_test_setup(move_of_the_lane_does_not_count, fresh),
		cmocka_unit_test_setup(any_send_has_a_class, fresh),
	};

	srand(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
