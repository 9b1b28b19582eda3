/* SPDX-License-Identifier: MIT */
/* Registrations in epoll sets: whose an event is, and which of them are overdue. */
#define _GNU_SOURCE
#include "met_testing.h"

#include "preload/hot.h"
#include "preload/watch.h"

static int epoll;
static struct set *set;

static int open_set(void **state)
{
	if (connect_ends(state))
		return -1;
	epoll = epoll_create1(EPOLL_CLOEXEC);
	set_open(epoll);
	set = table_set(epoll);
	return set ? 0 : -1;
}

static int close_set(void **state)
{
	conn_close(epoll);
	close(epoll);
	return close_ends(state);
}

static bool any(struct conn *conn)
{
	return true;
}

static bool none(struct conn *conn)
{
	return false;
}

static void control(int op, int end, uint64_t data)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = data };

	assert_int_equal(epoll_ctl(epoll, op, ends[end], &event), 0);
	watch_follow(epoll, op, ends[end], &event);
}

static void an_event_s_connection_is_found_by_what_the_program_says_of_it(void **state)
{
	control(EPOLL_CTL_ADD, 0, 7);
	control(EPOLL_CTL_ADD, 1, 8);
	assert_ptr_equal(watch_conn_of(set, 7, any), conns[0]);
	assert_ptr_equal(watch_conn_of(set, 8, any), conns[1]);
	assert_null(watch_conn_of(set, 9, any));
	assert_null(watch_conn_of(set + 1, 7, any));
	assert_null(watch_conn_of(set, 7, none));
}

static void what_the_program_says_may_change(void **state)
{
	control(EPOLL_CTL_ADD, 0, 7);
	control(EPOLL_CTL_MOD, 0, 17);
	assert_null(watch_conn_of(set, 7, any));
	assert_ptr_equal(watch_conn_of(set, 17, any), conns[0]);
	control(EPOLL_CTL_DEL, 0, 0);
	assert_null(watch_conn_of(set, 17, any));
}

static bool is_accepting(struct conn *conn)
{
	return conn == conns[1];
}

static void connections_of_the_same_data_are_all_looked_at(void **state)
{
	control(EPOLL_CTL_ADD, 0, 0);
	control(EPOLL_CTL_ADD, 1, 0);
	assert_ptr_equal(watch_conn_of(set, 0, is_accepting), conns[1]);
	control(EPOLL_CTL_DEL, 1, 0);
	assert_null(watch_conn_of(set, 0, is_accepting));
	assert_ptr_equal(watch_conn_of(set, 0, any), conns[0]);
}

static void overdue_ones_are_taken_in_their_order(void **state)
{
	struct watch *watch;

	control(EPOLL_CTL_ADD, 0, 7);
	control(EPOLL_CTL_ADD, 1, 8);
	for (int i = 0; i < 2; i++) { /* a second time they are there already */
		watch_mark_overdue(conns[0]->watches);
		watch_mark_overdue(conns[1]->watches);
	}
	assert_int_equal(atomic_load(&set->overdue), 2);
	assert_ptr_equal(watch_take_overdue(set, &watch), conns[0]);
	assert_ptr_equal(watch, conns[0]->watches);
	watch_mark_overdue(watch);
	assert_ptr_equal(watch_take_overdue(set, &watch), conns[1]);
	assert_ptr_equal(watch_take_overdue(set, &watch), conns[0]);
	assert_null(watch_take_overdue(set, &watch));
	assert_int_equal(atomic_load(&set->overdue), 0);
}

static void registrations_that_go_are_not_overdue(void **state)
{
	struct watch *watch;

	control(EPOLL_CTL_ADD, 0, 7);
	control(EPOLL_CTL_ADD, 1, 8);
	watch_mark_overdue(conns[0]->watches);
	watch_mark_overdue(conns[1]->watches);
	control(EPOLL_CTL_DEL, 1, 8);
	assert_ptr_equal(watch_take_overdue(set, &watch), conns[0]);
	assert_null(watch_take_overdue(set, &watch));
	control(EPOLL_CTL_ADD, 1, 8);
	watch_mark_overdue(conns[1]->watches);
	assert_ptr_equal(watch_take_overdue(set, &watch), conns[1]);
}

/* As a fork, or a registration by another thread, leaves one behind while this thread is on its way into the kernel. */
static void who_is_about_to_sleep_finds_what_is_overdue(void **state)
{
	struct watch *watch;

	control(EPOLL_CTL_ADD, 0, 7);
	watch_mark_overdue(conns[0]->watches);
	assert_false(hot_sleeps(set, &(int){ 0 }));
	assert_ptr_equal(watch_take_overdue(set, &watch), conns[0]);
	assert_true(hot_sleeps(set, &(int){ 0 }));
	hot_wakes(set);
}

static void who_sleeps_is_woken_for_what_came_before_its_lane_was_armed(void **state)
{
	struct pollfd look = { .fd = epoll, .events = POLLIN };
	struct epoll_event event;

	control(EPOLL_CTL_ADD, 0, 7);
	assert_true(hot_sleeps(set, &(int){ 0 }));
	atomic_store(&lane_from(1)->shared->armed, 0);
	assert_int_equal(send_whole(1, "abc"), 3);
	assert_int_equal(poll(&look, 1, 0), 0);
	hot_cool(conns[0]);
	assert_int_equal(epoll_wait(epoll, &event, 1, 0), 1);
	assert_true(hot_is_wake(&event));
	hot_wakes(set);
}

/* By whichever process: each of those who wait for room is told. */
static void a_send_that_was_refused_is_known_to_all_who_wait_for_room(void **state)
{
	struct engine *engine = atomic_load(&conns[0]->engine);
	struct engine_raw raw = engine_raw_begins(conns[0], ends[0], 0);
	uint32_t seen = 0, other = 0;

	assert_true(engine_was_refused(engine, &seen)); /* it may have been already */
	raw.asked = 10;
	raw.done = 10;
	engine_raw_ends(&raw);
	seen = other = atomic_load(&engine->raw_refused);
	assert_false(engine_was_refused(engine, &seen));
	raw = engine_raw_begins(conns[0], ends[0], 0);
	raw.asked = 10;
	raw.done = 9;
	engine_raw_ends(&raw);
	assert_true(engine_was_refused(engine, &seen));
	assert_false(engine_was_refused(engine, &seen));
	assert_true(engine_was_refused(engine, &other));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_set, close_set)
	const struct CMUnitTest tests[] = {
		TEST(an_event_s_connection_is_found_by_what_the_program_says_of_it),
		TEST(what_the_program_says_may_change),
		TEST(connections_of_the_same_data_are_all_looked_at),
		TEST(overdue_ones_are_taken_in_their_order),
		TEST(registrations_that_go_are_not_overdue),
		TEST(who_is_about_to_sleep_finds_what_is_overdue),
		TEST(who_sleeps_is_woken_for_what_came_before_its_lane_was_armed),
		TEST(a_send_that_was_refused_is_known_to_all_who_wait_for_room),
	};

	use_rings(65536);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
