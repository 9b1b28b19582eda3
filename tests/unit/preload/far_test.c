/* SPDX-License-Identifier: MIT */
/*
 * What calls of a program do where a queue pair has broken and the peer takes nothing from the TCP stream, or nothing comes to rest:
 * both ends are here, met as on one host, and one is told that its peer is on another.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "common/clock.h"
#include "met_testing.h"
#include "preload/engine_out.h"
#include "preload/far_internal.h"
#include "preload/signals.h"

static struct engine *engine_of(int end)
{
	return atomic_load(&conns[end]->engine);
}

/* The connecting end has bytes to send again, and there is no room for them. */
static void owe(void)
{
	char much[65536] = { 0 };
	struct tcp_info info;

	assert_int_equal(send_whole(0, "lost"), 4);
	/* Until what is under way has arrived, an acknowledgement may make room again. */
	do {
		assert_int_equal(getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &(socklen_t){ sizeof(info) }), 0);
		while (real.send(ends[0], much, sizeof(much), MSG_DONTWAIT) > 0)
			info.tcpi_unacked = 1;
		assert_int_equal(errno, EAGAIN);
	} while (info.tcpi_unacked);
	atomic_store(&engine_of(0)->far.state, FAR_BROKEN);
}

static int raw_error(int flags)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conns[0], ends[0], flags);

	return raw.error;
}

static void send_that_must_not_wait_does_not_for_what_is_owed(void **state)
{
	uint32_t refused = 0;

	owe();
	engine_was_refused(engine_of(0), &refused);
	assert_int_equal(raw_error(MSG_DONTWAIT), -EAGAIN);
	assert_true(engine_was_refused(engine_of(0), &refused));
	assert_int_equal(send_whole(0, "more"), -EAGAIN);
}

static void send_waits_no_longer_than_its_time_for_what_is_owed(void **state)
{
	struct timeval limit = { .tv_usec = 20000 };

	owe();
	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(raw_error(0), -EAGAIN);
}

static void note_signal(int number)
{
	signals_end_calls++;
}

static void signal_ends_a_send_that_waits_for_what_is_owed(void **state)
{
	struct itimerval soon = { .it_value.tv_usec = 20000 };

	owe();
	signal(SIGALRM, note_signal);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	assert_int_equal(raw_error(0), -EINTR);
	signal(SIGALRM, SIG_DFL);
}

static void send_that_must_not_wait_does_not_sleep_for_room(void **state)
{
	struct patience patience = { .bytes = 1, .far = conns[0] };
	struct rusage before, after;

	getrusage(RUSAGE_THREAD, &before);
	while (engine_has_patience(lane_from(0), &patience))
		;
	getrusage(RUSAGE_THREAD, &after);
	assert_int_equal(after.ru_nvcsw, before.ru_nvcsw);
}

/* Of the accepting end. */
static void die_with_a_reset(void)
{
	struct linger reset = { 1, 0 };

	setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	shutdown(ends[1], SHUT_RD);
	dup2(ends[0], ends[1]);
}

/* As the agent does. */
static void meet_the_error(void)
{
	struct lock_hold hold;

	assert_int_equal(send_whole(0, "lost"), 4);
	atomic_store(&engine_of(0)->far.state, FAR_BROKEN);
	die_with_a_reset();
	assert_true(lock_take(&engine_of(0)->out, &hold));
	far_step_out(conns[0], engine_of(0), ends[0]);
	lock_give(&engine_of(0)->out, &hold);
}

static void error_that_the_agent_has_met_is_the_next_send_s(void **state)
{
	meet_the_error();
	assert_int_equal(send_whole(0, "more"), -ECONNRESET);
	assert_int_equal(send_whole(0, "more"), -EPIPE);
}

static void error_that_the_agent_has_met_is_the_next_receive_s(void **state)
{
	char byte;

	meet_the_error();
	/* The peer's lane is TCP's by now. */
	lane_leave(&engine_of(0)->channel.in);
	assert_int_equal(receive_some(0, &byte, 1, 0), -ECONNRESET);
	assert_int_equal(receive_some(0, &byte, 1, 0), 0);
}

/* A device that has broken, and never says what has become of what was under way. No real one can be made to. */
static enum verbs_state broken(struct verbs_conn *conn, enum verbs_trouble *trouble)
{
	*trouble = VERBS_DEVICE_GONE;
	return VERBS_BROKEN;
}

static void unsettled(struct verbs_conn *conn, struct verbs_positions *out)
{
	*out = (struct verbs_positions){ .settled = false };
}

static int no_fd(const struct verbs_conn *conn)
{
	return -1;
}

static bool never(struct verbs_conn *conn, unsigned int what)
{
	return true;
}

static int polls;

static int count_polls(struct verbs_conn *conn)
{
	polls++;
	return 0;
}

static const char *tell(enum verbs_trouble trouble)
{
	return "";
}

static void device_that_does_not_settle_resets_the_connection(void **state)
{
	static const struct verbs_table device = {
		.state = broken,
		.positions = unsettled,
		.fd = no_fd,
		.arm = never,
		.poll = count_polls,
		.tell = tell,
	};
	struct far far = { .conn = conns[0], .link = (struct verbs_conn *)&device };
	char byte;

	far_verbs = &device;
	conns[0]->far = &far;
	atomic_store(&engine_of(0)->far.state, FAR_UP);
	assert_false(far_is_up(conns[0], engine_of(0)));
	polls = 0;
	far_poll(conns[0], engine_of(0));
	assert_int_equal(polls, 0);
	conns[0]->far = NULL;
	assert_int_equal(receive_some(0, &byte, 1, 0), -ECONNRESET);
	assert_int_equal(recv(ends[1], &byte, 1, 0), -1);
	assert_int_equal(errno, ECONNRESET);
}

/* As FIONREAD tells. */
static int unread(int end)
{
	int bytes = -1;

	assert_true(engine_unread(conns[end], ends[end], &bytes));
	return bytes;
}

static void put_in_stream(const void *bytes, size_t count)
{
	char last;

	assert_int_equal(real.send(ends[0], bytes, count, 0), count);
	/* All of it is there. */
	while (real.recv(ends[1], (char[256]){ 0 }, 256, MSG_PEEK | MSG_DONTWAIT) < (ssize_t)count)
		real.recv(ends[1], &last, 1, MSG_PEEK);
}

#define CODES 0x030201u /* a doorbell, FAR_GO, FAR_RESUME */

static void be_far(void)
{
	lane_from(0)->codes = CODES;
	engine_of(1)->channel.in.passed_codes = CODES;
	atomic_store(&engine_of(1)->far.state, FAR_BROKEN);
}

static void doorbells_are_no_unread_bytes(void **state)
{
	uint8_t bells[100];

	be_far();
	memset(bells, FAR_CODE_BELL(CODES), sizeof(bells));
	assert_int_equal(send_whole(0, "ring"), 4);
	put_in_stream(bells, sizeof(bells));
	assert_int_equal(unread(1), 4);
}

/* Behind a ring that is not empty yet, and behind one that is. */
static void what_leads_raw_bytes_is_no_unread_byte(void **state)
{
	char bytes[8];

	be_far();
	assert_int_equal(send_whole(0, "ring"), 4);
	assert_true(lane_switch(lane_from(0)));
	put_in_stream((uint8_t[]){ FAR_CODE_GO(CODES), 'r', 'a', 'w' }, 4);
	assert_int_equal(unread(1), 7);
	assert_int_equal(receive_some(1, bytes, 4, 0), 4);
	assert_int_equal(unread(1), 3);
}

/* The queue pair has broken: two bytes of the ring come again. */
static void what_comes_again_is_no_unread_byte(void **state)
{
	uint8_t frame[FAR_FRAME_BYTES + 5] = { FAR_CODE_RESUME(CODES) };
	uint64_t from;

	be_far();
	assert_int_equal(send_whole(0, "ring"), 4);
	assert_true(lane_switch(lane_from(0)));
	from = atomic_load(&lane_from(0)->shared->sent) - 2;
	for (int i = 0; i < 8; i++) {
		frame[1 + i] = (uint8_t)(from >> 8 * i);
		frame[9 + i] = (uint8_t)((from + 2) >> 8 * i);
	}
	memcpy(frame + FAR_FRAME_BYTES, "ngraw", 5);
	put_in_stream(frame, sizeof(frame));
	assert_int_equal(unread(1), 7);
}

/* It is the device of the connecting end's peer from here on. */
static void use_device(const struct verbs_table *device)
{
	static struct far far;

	far = (struct far){ .conn = conns[0], .link = (struct verbs_conn *)device };
	far_verbs = device;
	conns[0]->far = &far;
	atomic_store(&engine_of(0)->far.state, FAR_UP);
}

static int lose_device_and_close(void **state)
{
	conns[0]->far = NULL;
	engine_of(0)->far.out = FAR_OUT_FREE;
	atomic_store(&engine_of(0)->far.state, FAR_NONE);
	return close_ends(state);
}

static int readable;

static int readable_fd(const struct verbs_conn *conn)
{
	return readable;
}

static uint64_t settles_at;

static void settled_late(struct verbs_conn *conn, struct verbs_positions *out)
{
	*out = (struct verbs_positions){ .settled = clock_now() > settles_at };
}

static void device_that_settles_late_costs_no_connection(void **state)
{
	static const struct verbs_table device = {
		.state = broken,
		.positions = settled_late,
		.fd = readable_fd,
		.arm = never,
		.tell = tell,
	};
	char byte;

	/* A broken one's is readable for ever: waiting for that is no waiting. */
	readable = ends[0];
	assert_int_equal(shutdown(ends[1], SHUT_WR), 0);
	use_device(&device);
	settles_at = clock_now() + 100 * NS_PER_MS;
	assert_false(far_is_up(conns[0], engine_of(0)));
	assert_int_equal(atomic_load(&engine_of(0)->far.state), FAR_BROKEN);
	assert_false(engine_of(0)->far.nonsense);
	assert_int_equal(recv(ends[1], &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
}

static enum verbs_state up(struct verbs_conn *conn, enum verbs_trouble *trouble)
{
	return VERBS_UP;
}

static ssize_t push(struct verbs_conn *conn, unsigned int how)
{
	return 0;
}

static void not_to_be_given_up(struct verbs_conn *conn)
{
	fail_msg("it is given up");
}

static const struct verbs_table good_device = {
	.state = up, .push = push, .poll = count_polls, .fd = no_fd, .arm = never, .give_up = not_to_be_given_up
};

/* As the agent does. */
static void ring_late(void)
{
	struct lock_hold hold;

	assert_true(lock_take(&engine_of(0)->out, &hold));
	engine_ring_late(conns[0], engine_of(0), ends[0]);
	lock_give(&engine_of(0)->out, &hold);
}

static void takeover_that_may_not_have_happened_is_not_rung_for(void **state)
{
	struct lane_shared *out = lane_from(0)->shared;
	char byte;

	use_device(&good_device);
	/* The peer sleeps, and has not told of all that is in the ring. */
	atomic_store(&out->waits, 1);
	atomic_store(&out->seen, 0);
	atomic_store(&out->armed, 0);
	engine_of(0)->far.out = FAR_OUT_ENTERS;
	ring_late();
	assert_int_equal(recv(ends[1], &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	engine_of(0)->far.out = FAR_OUT_FREE;
	ring_late();
	assert_int_equal(recv(ends[1], &byte, 1, MSG_DONTWAIT | MSG_PEEK), 1);
}

static void takeover_does_not_overtake_what_belongs_to_the_switch_before_it(void **state)
{
	struct lane_shared *out = lane_from(0)->shared;

	use_device(&good_device);
	atomic_store(&out->seen, UINT64_MAX); /* whatever it is, the peer knows it */
	assert_int_equal(far_before_raw(conns[0], engine_of(0), ends[0], 0), 0);
	engine_look(conns[1], ends[1]); /* passes the SWITCH */
	assert_int_equal(far_before_send(conns[0], engine_of(0), ends[0], (struct far_first){ 'r', 1 }, 0), 0);
	assert_false(atomic_load(&out->on_ring));
	assert_int_equal(send(ends[0], "r", 1, 0), 1);
	lane_sent_raw(lane_from(0), 1);
	assert_int_equal(far_before_send(conns[0], engine_of(0), ends[0], (struct far_first){ 'r', 1 }, 0), 0);
	assert_true(atomic_load(&out->on_ring));
}

/* A socket that is full, and stays so, takes the place of the connecting end's. Returns what was there. */
static int put_full_socket_there(int full[2])
{
	char much[4096] = { 0 };
	int before = dup(ends[0]);

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, full), 0);
	while (real.send(full[0], much, sizeof(much), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(dup2(full[0], ends[0]), ends[0]);
	return before;
}

/* Where it goes back to TCP there is no room for the byte that says so. */
static void full_socket_behind_a_switch_is_a_full_socket(void **state)
{
	int full[2], before = put_full_socket_there(full);

	use_device(&good_device);
	atomic_store(&lane_from(0)->shared->seen, UINT64_MAX);
	assert_int_equal(far_before_raw(conns[0], engine_of(0), ends[0], MSG_DONTWAIT), -EAGAIN);
	assert_true(far_is_between(engine_of(0)));
	assert_int_equal(dup2(before, ends[0]), ends[0]);
	close(before);
	close(full[0]);
	close(full[1]);
	assert_int_equal(far_before_raw(conns[0], engine_of(0), ends[0], MSG_DONTWAIT), 0);
	assert_false(far_is_between(engine_of(0)));
}

static void switch_before_the_peer_s_close_is_followed_by_nothing(void **state)
{
	struct lane_shared *out = lane_from(0)->shared;
	char byte;

	use_device(&good_device);
	/* In one word: it knows of the move, and closes. */
	atomic_store(&out->seen, UINT64_MAX);
	atomic_store(&out->reader, 0);
	assert_int_equal(far_before_raw(conns[0], engine_of(0), ends[0], 0), 0);
	assert_int_equal(recv(ends[1], &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	assert_int_equal(errno, EAGAIN);
}

static int credit(struct verbs_conn *conn, unsigned int how)
{
	return 0;
}

static int polls_since_bye;

static bool flushed(struct verbs_conn *conn)
{
	polls_since_bye = 0;
	return true;
}

/* The peer goes on by TCP when its own look comes, and that is late. */
static int poll_and_go(struct verbs_conn *conn)
{
	if (++polls_since_bye == 4)
		assert_int_equal(real.send(ends[1], "\2", 1, 0), 1);
	return 0;
}

static void close_waits_for_what_follows_a_switch(void **state)
{
	static const struct verbs_table device = { .state = up,
						   .push = push,
						   .credit = credit,
						   .flushed = flushed,
						   .poll = poll_and_go,
						   .fd = no_fd,
						   .arm = never,
						   .give_up = not_to_be_given_up };
	struct engine *engine = engine_of(0);
	struct lock_hold hold;
	char byte;

	use_device(&device);
	lane_from(1)->codes = CODES;
	assert_true(lane_switch(lane_from(1)));
	assert_true(lock_take(&engine->in, &hold));
	assert_int_equal(far_look(conns[0], engine, ends[0]), 0);
	far_says_bye(conns[0], engine, ends[0]);
	lock_give(&engine->in, &hold);
	assert_true(polls_since_bye >= 4);
	assert_false(engine->far.expects);
	assert_int_equal(recv(ends[0], &byte, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	assert_int_equal(errno, EAGAIN);
}

/* Two bytes that the peer has already, and no more. */
static void go_on_by_tcp(int number)
{
	uint8_t frame[FAR_FRAME_BYTES + 2] = { FAR_CODE_RESUME(CODES) };
	uint64_t from = atomic_load(&lane_from(1)->shared->sent) - 2;

	for (int i = 0; i < 8; i++) {
		frame[1 + i] = (uint8_t)(from >> 8 * i);
		frame[9 + i] = (uint8_t)((from + 2) >> 8 * i);
	}
	real.send(ends[1], frame, sizeof(frame), 0);
}

static void close_waits_for_a_peer_that_learns_late_of_a_break(void **state)
{
	struct itimerval soon = { .it_value.tv_usec = 2000 };
	struct engine *engine = engine_of(0);
	struct lock_hold hold;
	char bytes[4];

	assert_int_equal(send_whole(1, "ring"), 4);
	assert_int_equal(receive_some(0, bytes, 4, 0), 4);
	engine->channel.in.passed_codes = CODES;
	atomic_store(&engine->far.state, FAR_BROKEN);
	signal(SIGALRM, go_on_by_tcp);
	assert_true(lock_take(&engine->in, &hold));
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	far_says_bye(conns[0], engine, ends[0]);
	lock_give(&engine->in, &hold);
	signal(SIGALRM, SIG_DFL);
	assert_true(lane_has_left(&engine->channel.in));
	assert_int_equal(recv(ends[0], bytes, 1, MSG_DONTWAIT | MSG_PEEK), -1);
	assert_int_equal(errno, EAGAIN);
}

static void close_waits_beside_notices(void **state)
{
	notice_sends(ends[0]);
	assert_int_equal(real.send(ends[0], "", 1, 0), 1);
	assert_true(has_notices(ends[0]));
	close_waits_for_a_peer_that_learns_late_of_a_break(state);
	assert_true(has_notices(ends[0]));
}

static void next_takeover_does_not_hide_what_follows_a_switch(void **state)
{
	struct engine *engine = engine_of(1);
	struct lane *lane = lane_from(0);
	struct iovec iov = { (char *)"ring", 4 };
	char got[8] = { 0 };
	size_t none;

	atomic_store(&engine->far.state, FAR_BROKEN);
	lane->codes = CODES;
	assert_true(lane_switch(lane));
	assert_int_equal(far_look(conns[1], engine, ends[1]), 0);
	assert_int_equal(lane_get(&engine->channel.in, NULL, 0, false, &none), LANE_RAW);
	/* All of it comes before the receiver looks again. */
	assert_int_equal(send(ends[0], "\2raw", 4, 0), 4);
	lane_sent_raw(lane, 3);
	assert_true(lane_take_over(lane));
	assert_int_equal(lane_put(lane, &iov, 1, 0), 4);
	assert_int_equal(receive_some(1, got, 3, 0), 3);
	assert_string_equal(got, "raw");
	assert_int_equal(receive_some(1, got, 4, 0), 4);
	assert_string_equal(got, "ring");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
#define WITH_DEVICE(name) cmocka_unit_test_setup_teardown(name, connect_ends, lose_device_and_close)
		CASE(send_that_must_not_wait_does_not_for_what_is_owed),
		CASE(send_waits_no_longer_than_its_time_for_what_is_owed),
		CASE(signal_ends_a_send_that_waits_for_what_is_owed),
		CASE(send_that_must_not_wait_does_not_sleep_for_room),
		CASE(error_that_the_agent_has_met_is_the_next_send_s),
		CASE(error_that_the_agent_has_met_is_the_next_receive_s),
		CASE(device_that_does_not_settle_resets_the_connection),
		CASE(doorbells_are_no_unread_bytes),
		CASE(what_leads_raw_bytes_is_no_unread_byte),
		CASE(what_comes_again_is_no_unread_byte),
		WITH_DEVICE(device_that_settles_late_costs_no_connection),
		WITH_DEVICE(takeover_that_may_not_have_happened_is_not_rung_for),
		WITH_DEVICE(takeover_does_not_overtake_what_belongs_to_the_switch_before_it),
		WITH_DEVICE(full_socket_behind_a_switch_is_a_full_socket),
		WITH_DEVICE(switch_before_the_peer_s_close_is_followed_by_nothing),
		WITH_DEVICE(close_waits_for_what_follows_a_switch),
		CASE(close_waits_for_a_peer_that_learns_late_of_a_break),
		CASE(close_waits_beside_notices),
		CASE(next_takeover_does_not_hide_what_follows_a_switch),
	};
#undef CASE
#undef WITH_DEVICE

	use_rings(1 << 20);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
