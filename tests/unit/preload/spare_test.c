/* SPDX-License-Identifier: MIT */
/* A program has as many descriptors as without the library: spare.h, common/room.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>

#include "met_testing.h"
#include "preload/spare.h"

#define LIMIT 200

static int taken[LIMIT], taken_count;
static struct rlimit before;

/* Takes numbers until so many are left; or all of them, and says how many those were. */
static int take_but(int left)
{
	int fd, last = taken_count;

	while (taken_count < LIMIT && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		taken[taken_count++] = fd;
	last = taken_count - last;
	while (left-- > 0 && taken_count)
		close(taken[--taken_count]);
	return last;
}

static void give_back(void)
{
	while (taken_count)
		close(taken[--taken_count]);
}

static int limit_descriptors(void **state)
{
	struct rlimit low;

	if (getrlimit(RLIMIT_NOFILE, &before) < 0)
		return -1;
	low = (struct rlimit){ LIMIT, before.rlim_max };
	return setrlimit(RLIMIT_NOFILE, &low);
}

static int lift_limit(void **state)
{
	give_back();
	return setrlimit(RLIMIT_NOFILE, &before);
}

/* Both ends, and no call of theirs yet. */
static int connect_strangers(void **state)
{
	if (limit_descriptors(state) < 0 || (!stats && stats_start()) || (!table && table_start()))
		return -1;
	connect_pair(ends);
	return 0;
}

static void know_them(void)
{
	for (int end = 0; end < 2; end++) {
		conn_open(ends[end], end ? ROLE_SERVER : ROLE_CLIENT, false);
		conns[end] = table_conn(ends[end]);
		assert_non_null(conns[end]);
	}
}

static int close_strangers(void **state)
{
	close_ends(state);
	return lift_limit(state);
}

static void exchange(const char *text, int from)
{
	char got[16];
	ssize_t bytes = (ssize_t)strlen(text);

	assert_int_equal(send_whole(from, text), bytes);
	assert_int_equal(receive_some(1 - from, got, sizeof(got), 0), bytes);
	assert_memory_equal(got, text, (size_t)bytes);
}

static bool is_over(int end)
{
	return atomic_load(&atomic_load(&conns[end]->engine)->state) == ENGINE_OVER;
}

static void room_is_what_the_limit_leaves(void **state)
{
	struct rlimit none = { 0, before.rlim_max };
	int all = take_but(ROOM_KEPT);

	assert_true(room_for_own());
	give_back();
	take_but(ROOM_KEPT - 1);
	assert_false(room_for_own());
	assert_int_equal(take_but(0), ROOM_KEPT - 1);
	assert_false(room_for_own());
	give_back();
	assert_true(room_for_own());
	setrlimit(RLIMIT_NOFILE, &none);
	assert_false(room_for_own());
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){ LIMIT, before.rlim_max });
	assert_int_equal(take_but(0), all);
}

/* The first to have a connection: the segment is made once. */
static void statistics_go_on_unseen(void **state)
{
	int all = take_but(LIMIT);
	uint64_t counted;

	give_back();
	know_them();
	assert_true(stats_descriptor() >= 0);
	assert_int_equal(take_but(0), all - 1);
	errno = EMFILE;
	assert_true(spare_again(-1, 1));
	assert_int_equal(stats_descriptor(), -1);
	assert_int_equal(take_but(0), 1);
	counted = atomic_load(&stats->slot[conns[0]->slot].reason[REASON_MEETING_FAILED]);
	stats_reason(conns[0]->slot, REASON_MEETING_FAILED);
	assert_int_equal(atomic_load(&stats->slot[conns[0]->slot].reason[REASON_MEETING_FAILED]), counted + 1);
}

static void meeting_takes_nothing_without_room(void **state)
{
	know_them();
	take_but(ROOM_KEPT - 1);
	for (int i = 0; i < 8; i++)
		exchange("there", i & 1);
	assert_true(is_over(0));
	assert_false(engine_has_met(conns[1]));
	assert_int_equal(take_but(0), ROOM_KEPT - 1);
}

/* After so many exchanges: the accepting end waits to be let in; or it has handed its channel over already. */
static void gives_up_after(int exchanges)
{
	int all = take_but(LIMIT), now;

	give_back();
	know_them();
	for (int i = 0; i < exchanges; i++)
		exchange("there", 0);
	assert_false(engine_has_met(conns[0]));
	assert_false(is_over(0));
	assert_false(is_over(1));
	now = take_but(0);
	assert_true(now < all);
	assert_int_equal(open("/dev/null", O_RDONLY), -1);
	assert_int_equal(errno, EMFILE);
	assert_true(spare_again(-1, 1));
	assert_int_equal(errno, EMFILE);
	assert_int_equal(now + take_but(0), all);
	for (int i = 0; i < 8; i++)
		exchange("goes on", i & 1);
	assert_true(is_over(0));
	assert_false(engine_has_met(conns[0]));
	assert_int_equal(take_but(0), 0);
}

static void meeting_is_given_up_at_the_limit(void **state)
{
	gives_up_after(1);
	assert_true(is_over(1));
}

static void meeting_of_one_end_is_given_up_at_the_limit(void **state)
{
	gives_up_after(2);
}

static void meeting_is_given_up_before_the_limit(void **state)
{
	know_them();
	exchange("there", 0);
	spare_before(LIMIT - ROOM_KEPT - 1);
	assert_false(is_over(0));
	spare_before(LIMIT - ROOM_KEPT);
	assert_true(is_over(0));
	exchange("back", 1);
}

static int own_descriptors(void)
{
	int count = 0;

	for (int fd = -1; (fd = table_own_next(fd + 1)) >= 0;)
		count++;
	return count;
}

/* A peer that never comes keeps what is open for it; a new meeting begins when there is less of that. */
static void meetings_share_what_may_wait(void **state)
{
	enum { MOST = LIMIT / ROOM_SHARE };
	int pairs[MOST + 1][2], before_them, last[2] = { ends[0], ends[1] };

	know_them();
	before_them = own_descriptors();
	for (int i = 0; i <= MOST; i++) {
		connect_pair(pairs[i]);
		conn_open(pairs[i][0], ROLE_CLIENT, false);
		ends[0] = pairs[i][0];
		conns[0] = table_conn(ends[0]);
		assert_int_equal(send_whole(0, "x"), 1);
		assert_int_equal(own_descriptors() - before_them, i < MOST ? i + 1 : MOST);
	}
	assert_false(is_over(0));
	close_pair(pairs[0]);
	assert_int_equal(own_descriptors() - before_them, MOST - 1);
	assert_int_equal(send_whole(0, "x"), 1);
	assert_int_equal(own_descriptors() - before_them, MOST);
	for (int i = 1; i <= MOST; i++)
		close_pair(pairs[i]);
	memcpy(ends, last, sizeof(ends));
}

static void what_was_closed_is_the_programs(void **state)
{
	know_them();
	assert_int_equal(meet_ends(), 0);
	for (int fd = -1; (fd = table_own_next(fd + 1)) >= 0;)
		assert_true(fcntl(fd, F_GETFD) >= 0);
}

static void lanes_stay_what_they_are(void **state)
{
	int all;

	know_them();
	assert_int_equal(meet_ends(), 0);
	all = take_but(0);
	spare_again(-1, 0);
	assert_true(engine_has_met(conns[0]));
	exchange("by the ring", 0);
	give_back();
	assert_true(take_but(0) >= all);
}

static void other_failures_are_told_at_once(void **state)
{
	errno = ECONNABORTED;
	assert_false(spare_again(-1, 0));
	assert_int_equal(errno, ECONNABORTED);
	errno = EMFILE;
	assert_false(spare_again(3, 0));
	errno = ENFILE;
	spare_again(-1, 0);
	assert_int_equal(errno, ENFILE);
	assert_false(spare_again(-1, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(room_is_what_the_limit_leaves, limit_descriptors, lift_limit),
		cmocka_unit_test_setup_teardown(statistics_go_on_unseen, connect_strangers, close_strangers),
		cmocka_unit_test_setup_teardown(meeting_takes_nothing_without_room, connect_strangers, close_strangers),
		cmocka_unit_test_setup_teardown(meeting_is_given_up_at_the_limit, connect_strangers, close_strangers),
		cmocka_unit_test_setup_teardown(meeting_of_one_end_is_given_up_at_the_limit, connect_strangers,
						close_strangers),
		cmocka_unit_test_setup_teardown(meeting_is_given_up_before_the_limit, connect_strangers,
						close_strangers),
		cmocka_unit_test_setup_teardown(meetings_share_what_may_wait, connect_strangers, close_strangers),
		cmocka_unit_test_setup_teardown(what_was_closed_is_the_programs, connect_strangers, close_strangers),
		cmocka_unit_test_setup_teardown(lanes_stay_what_they_are, connect_strangers, close_strangers),
		cmocka_unit_test(other_failures_are_told_at_once),
	};

	use_rings(1 << 16);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
