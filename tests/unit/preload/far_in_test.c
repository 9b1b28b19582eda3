/* SPDX-License-Identifier: MIT */
/* What a receiver between hosts must not miss: a move behind bytes that came without a look, an end before what is owed. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "far_pair_testing.h"
#include "preload/engine_in.h"
#include "preload/engine_out.h"

#define MORE 4 /* sends */

static struct verbs_table device; /* the cable's, but for one call */
static bool more_comes;

/* The server tells the client something between its look at the ring and what it takes, and just then more comes. */
static int put_more(struct verbs_conn *conn, unsigned int how)
{
	if (more_comes && plug_of(conn) == plug_at(SERVER)) {
		more_comes = false;
		for (int i = 0; i < MORE; i++)
			put(CLIENT, PART);
	}
	return plug_credit(conn, how);
}

static void take_what_comes_behind_the_look(void)
{
	device = cable_device;
	device.credit = put_more;
	far_verbs = &device;
	put(CLIENT, PART);
	more_comes = true;
	atomic_store(&engine_of(SERVER)->channel.in.shared->use, LANE_USE_RING);
	take_some(SERVER, 2 * MORE * PART, 0);
	assert_false(more_comes);
	assert_int_equal(received[SERVER], sent[CLIENT]);
}

/* To the end, as far as the client knows of the server. */
static void fill_ring_and_leave(void)
{
	struct engine *client = engine_of(CLIENT);
	struct lock_hold hold;

	while (lane_room(lane_from(CLIENT)) > PART)
		put(CLIENT, PART);
	assert_true(lock_take(&client->out, &hold));
	engine_switch_back(conns[CLIENT], client, ends[CLIENT]);
	lock_give(&client->out, &hold);
	assert_false(on_ring(CLIENT));
}

static void switch_behind_bytes_that_came_without_a_look_is_found(void **state)
{
	exchange();
	take_what_comes_behind_the_look();
	fill_ring_and_leave();
	serve(SERVER);
	assert_true(engine_of(SERVER)->far.left != 0);
	take_some(SERVER, PART, 0);
	serve(CLIENT); /* FAR_GO */
	put(CLIENT, PART);
	take_all(SERVER);
	assert_int_equal(atomic_load(&engine_of(SERVER)->channel.in.shared->received),
			 atomic_load(&engine_of(CLIENT)->channel.out.shared->sent));
	exchange();
	assert_true(on_ring(CLIENT));
	assert_int_equal(counted(CLIENT, STAT_CONN_RDMA_MEETINGS), 1); /* by the same queue pair */
	assert_int_equal(atomic_load(&engine_of(SERVER)->far.state), FAR_UP);
}

/* The client has so many bytes in its ring that never came. It says so by TCP, and the kernel has taken that part of them. */
static void owe(size_t owed, size_t part)
{
	uint8_t bytes[FAR_FRAME_BYTES + PART];
	uint64_t from, to;

	exchange();
	cut();
	put(CLIENT, owed);
	break_both();
	to = atomic_load(&engine_of(CLIENT)->channel.out.shared->sent);
	from = to - owed;
	make_resume(bytes, from, to);
	for (size_t i = 0; i < part; i++)
		bytes[FAR_FRAME_BYTES + i] = byte_at(CLIENT, received[SERVER] + i);
	assert_int_equal(real.send(ends[CLIENT], bytes, FAR_FRAME_BYTES + part, 0), FAR_FRAME_BYTES + part);
}

/* And is killed there. */
static void owe_and_die(size_t owed, size_t part)
{
	owe(owed, part);
	assert_int_equal(sys_call(SYS_shutdown, ends[CLIENT], SHUT_WR, 0, 0, 0, 0), 0);
}

static void take_part(size_t part)
{
	char got[PART];

	assert_int_equal(receive_some(SERVER, got, sizeof(got), MSG_WAITALL), part);
	for (size_t i = 0; i < part; i++)
		assert_int_equal((uint8_t)got[i], byte_at(CLIENT, received[SERVER] + i));
}

/* No queue pair would follow: what is left of the stream would be the kernel's alone, to whom it has ended well. */
static void stream_that_ends_before_what_is_owed_is_cut(void **state)
{
	char byte;

	owe_and_die(PART, PART / 3);
	take_part(PART / 3);
	assert_int_equal(receive_some(SERVER, &byte, 1, 0), -ECONNRESET);
	assert_int_equal(receive_some(SERVER, &byte, 1, 0), 0); /* told once */
}

static void stream_that_ends_behind_what_was_owed_has_ended(void **state)
{
	char byte;

	owe_and_die(PART, PART);
	take_part(PART);
	assert_int_equal(receive_some(SERVER, &byte, 1, 0), 0);
}

static _Atomic bool has_met, is_over;

/* The agent's call has met the reset, and is about to keep it. */
static void *meet_reset(void *unused)
{
	struct engine *engine = engine_of(SERVER);
	struct lock_hold hold;

	assert_true(lock_take(&engine->out, &hold));
	atomic_store(&has_met, true);
	while (!(atomic_load(&engine->out.word) & LOCK_WAITERS) && !atomic_load(&is_over))
		sched_yield();
	far_keep_error(engine, -ECONNRESET);
	lock_give(&engine->out, &hold);
	return unused;
}

/* To the kernel there is nothing behind the reset that has been told once. */
static void reset_that_the_agent_has_just_met_is_no_end(void **state)
{
	pthread_t agent;
	ssize_t rc;
	char byte;

	assert_int_equal(sys_call(SYS_shutdown, ends[CLIENT], SHUT_WR, 0, 0, 0, 0), 0);
	assert_int_equal(pthread_create(&agent, NULL, meet_reset, NULL), 0);
	while (!atomic_load(&has_met))
		sched_yield();
	rc = receive_some(SERVER, &byte, 1, 0);
	atomic_store(&is_over, true);
	pthread_join(agent, NULL);
	assert_int_equal(rc, -ECONNRESET);
}

/* The part comes first, and what ended it is not used up by that. */
static void part_of_a_receive_that_waits_for_all_comes_before_the_death(void **state)
{
	char got[PART];

	exchange();
	assert_true(on_ring(CLIENT));
	put(CLIENT, PART / 3);
	plug_give_up(atomic_load(&fars[SERVER].link));
	assert_int_equal(sys_call(SYS_shutdown, ends[CLIENT], SHUT_WR, 0, 0, 0, 0), 0);
	take_part(PART / 3);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), MSG_WAITALL), -ECONNRESET);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), MSG_WAITALL), 0);
}

static bool looks;

/* The peer has put bytes, and has not looked yet whether it is to ring for them: a thread of the receiver's, which does not sleep, sees them first. */
static ssize_t push_and_be_seen(struct verbs_conn *conn, unsigned int how)
{
	ssize_t rc = plug_push(conn, how);

	if (looks && plug_of(conn) == plug_at(CLIENT)) {
		looks = false;
		assert_int_equal(engine_look(conns[SERVER], ends[SERVER]), ENGINE_READABLE);
		plug_credit((struct verbs_conn *)plug_at(SERVER), 0); /* by whatever word comes next */
	}
	return rc;
}

static bool kernel_tells(int end)
{
	struct pollfd look = { .fd = ends[end], .events = POLLIN };

	return sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) == 1;
}

/* Who sleeps in the kernel is woken by the doorbell alone, whoever else has seen what came. */
static void sleeper_is_woken_for_what_another_thread_has_seen(void **state)
{
	struct engine_sleep sleep;

	exchange();
	assert_true(on_ring(CLIENT));
	device = cable_device;
	device.push = push_and_be_seen;
	far_verbs = &device;
	for (int i = 0; i < 3; i++) {
		assert_false(engine_sleeps(conns[SERVER], ends[SERVER], false, &sleep));
		assert_false(kernel_tells(SERVER));
		looks = true;
		put(CLIENT, PART);
		assert_false(looks);
		serve(CLIENT);
		assert_true(kernel_tells(SERVER));
		engine_wakes(&sleep);
		take_all(SERVER);
	}
}

static bool comes_late;

/* What the doorbell has overtaken comes as the receiver says once more that it waits. */
static int say_and_be_late(struct verbs_conn *conn, unsigned int how)
{
	int rc = plug_credit(conn, how);

	if (comes_late && plug_of(conn) == plug_at(SERVER) && how & VERBS_SOLICITED) {
		comes_late = false;
		plug_at(CLIENT)->cut = plug_at(SERVER)->cut = false;
		plug_push((struct verbs_conn *)plug_at(CLIENT), 0);
	}
	return rc;
}

static void sleeper_is_woken_for_what_its_doorbell_has_overtaken(void **state)
{
	struct engine_sleep sleep;

	exchange();
	device = cable_device;
	device.credit = say_and_be_late;
	far_verbs = &device;
	for (int i = 0; i < 3; i++) {
		assert_false(engine_sleeps(conns[SERVER], ends[SERVER], false, &sleep));
		cut();
		put(CLIENT, PART);
		assert_true(kernel_tells(SERVER));
		comes_late = true;
		engine_look(conns[SERVER], ends[SERVER]); /* another thread's */
		assert_false(comes_late);
		serve(CLIENT);
		assert_true(kernel_tells(SERVER));
		engine_wakes(&sleep);
		take_all(SERVER);
	}
}

static int bells_there(int end)
{
	int bytes = -1;

	assert_int_equal(sys_call(SYS_ioctl, ends[end], FIONREAD, (long)&bytes, 0, 0, 0), 0);
	return bytes;
}

/* An edge-triggered registration that is not hot: its program takes a part each time, and is to be told of what comes then. */
static void edge_is_rung_for_while_something_is_left(void **state)
{
	exchange();
	atomic_fetch_add(&conns[SERVER]->attention, 1);
	assert_true(engine_arm(conns[SERVER], engine_of(SERVER)));
	for (int i = 1; i <= 4; i++) {
		put(CLIENT, PART);
		assert_int_equal(bells_there(SERVER), i);
		assert_int_equal(engine_look(conns[SERVER], ends[SERVER]), ENGINE_READABLE);
		take_some(SERVER, PART / 3, 0);
	}
	atomic_fetch_sub(&conns[SERVER]->attention, 1);
	take_all(SERVER);
}

/* Whoever registers then is told without: a doorbell would be there when all is taken, and a set around the set be told of nothing. */
static void what_is_left_at_a_registration_is_not_rung_for(void **state)
{
	exchange();
	put(CLIENT, PART);
	atomic_fetch_add(&conns[SERVER]->attention, 1);
	assert_false(engine_arm(conns[SERVER], engine_of(SERVER)));
	engine_ring_late(conns[CLIENT], engine_of(CLIENT), ends[CLIENT]);
	assert_int_equal(bells_there(SERVER), 0);
	put(CLIENT, PART);
	assert_int_equal(bells_there(SERVER), 1);
	atomic_fetch_sub(&conns[SERVER]->attention, 1);
	take_all(SERVER);
}

static bool shuts;

/* The peer has put bytes, and has not rung yet, when the receiver has taken them and shuts the second direction. */
static ssize_t push_and_be_shut(struct verbs_conn *conn, unsigned int how)
{
	ssize_t rc = plug_push(conn, how);

	if (shuts && plug_of(conn) == plug_at(CLIENT)) {
		shuts = false;
		cable.agent = NULL; /* the client's, which waits for this send */
		take_some(SERVER, PART, 0);
		engine_shuts(conns[SERVER], ends[SERVER], SHUT_RD);
	}
	return rc;
}

/* The kernel would answer a doorbell by a reset. */
static void nothing_comes_behind_the_end_of_both_directions(void **state)
{
	const struct lane_shared *heard = engine_of(CLIENT)->channel.out.shared;

	exchange();
	engine_shuts(conns[SERVER], ends[SERVER], SHUT_WR);
	assert_true(engine_arm(conns[SERVER], engine_of(SERVER)));
	device = cable_device;
	device.push = push_and_be_shut;
	far_verbs = &device;
	shuts = true;
	put(CLIENT, PART);
	assert_false(shuts);
	assert_int_equal(received[SERVER], sent[CLIENT]);
	assert_int_equal(bells_there(SERVER), 0);
	assert_false(atomic_load(&heard->reader));
	take_some(SERVER, PART, 0); /* asks for nothing */
	serve(SERVER);
	assert_false(atomic_load(&heard->reader));
}

/* A SWITCH has counted a doorbell that a reset has thrown away. */
static void reset_in_the_place_of_a_doorbell_is_told(void **state)
{
	const struct sockaddr none = { .sa_family = AF_UNSPEC };
	struct engine *engine = engine_of(SERVER);
	struct lock_hold hold;

	exchange();
	atomic_fetch_add(&engine->channel.in.shared->bells, 1);
	assert_int_equal(sys_call(SYS_connect, ends[CLIENT], (long)&none, sizeof(none), 0, 0, 0), 0);
	assert_true(lock_take(&engine->in, &hold));
	engine_strip(conns[SERVER], engine, ends[SERVER]);
	lock_give(&engine->in, &hold);
	assert_int_equal(far_take_error(engine), -ECONNRESET);
}

/* As where the last of a connection's first numbers goes, and another one is yet to be found. */
static void look_by_no_number_is_no_error(void **state)
{
	struct engine *engine = engine_of(SERVER);
	struct lock_hold hold;

	exchange();
	assert_true(lock_take(&engine->in, &hold));
	engine->far.quiet = false;
	far_look(conns[SERVER], engine, -1);
	lock_give(&engine->in, &hold);
	assert_int_equal(far_take_error(engine), 0);
}

static bool comes_unread;

/* As the receiver says that it is about to close. */
static int say_and_be_sent(struct verbs_conn *conn, unsigned int how)
{
	if (comes_unread && plug_of(conn) == plug_at(SERVER) &&
	    !atomic_load(&engine_of(SERVER)->channel.in.shared->reader)) {
		comes_unread = false;
		put(CLIENT, PART);
	}
	return plug_credit(conn, how);
}

/* Whether its close is to reset the connection. */
static bool is_to_reset(int end)
{
	struct linger orders = { 0 };
	socklen_t bytes = sizeof(orders);

	assert_int_equal(sys_call(SYS_getsockopt, ends[end], SOL_SOCKET, SO_LINGER, (long)&orders, (long)&bytes, 0), 0);
	return orders.l_onoff && !orders.l_linger;
}

/* As the kernel does where bytes are unread that came before the close. */
static void what_comes_as_it_closes_is_unread(void **state)
{
	exchange();
	device = cable_device;
	device.credit = say_and_be_sent;
	far_verbs = &device;
	comes_unread = true;
	engine_goes(conns[SERVER]);
	assert_false(comes_unread);
	assert_true(is_to_reset(SERVER));
}

/* The peer has sent it before the close, and its agent is about to send it again. */
static void what_is_owed_at_a_close_is_unread(void **state)
{
	owe(PART, 0);
	engine_goes(conns[SERVER]);
	assert_true(is_to_reset(SERVER));
}

static void close_behind_what_was_owed_is_peaceful(void **state)
{
	owe(PART, PART);
	take_part(PART);
	engine_goes(conns[SERVER]);
	assert_false(is_to_reset(SERVER));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, finish)
		CASE(switch_behind_bytes_that_came_without_a_look_is_found),
		CASE(stream_that_ends_before_what_is_owed_is_cut),
		CASE(stream_that_ends_behind_what_was_owed_has_ended),
		CASE(reset_that_the_agent_has_just_met_is_no_end),
		CASE(part_of_a_receive_that_waits_for_all_comes_before_the_death),
		CASE(sleeper_is_woken_for_what_another_thread_has_seen),
		CASE(sleeper_is_woken_for_what_its_doorbell_has_overtaken),
		CASE(edge_is_rung_for_while_something_is_left),
		CASE(what_is_left_at_a_registration_is_not_rung_for),
		CASE(nothing_comes_behind_the_end_of_both_directions),
		CASE(reset_in_the_place_of_a_doorbell_is_told),
		CASE(look_by_no_number_is_no_error),
		CASE(what_comes_as_it_closes_is_unread),
		CASE(what_is_owed_at_a_close_is_unread),
		CASE(close_behind_what_was_owed_is_peaceful),
	};
#undef CASE

	use_rings(1 << 16);
	settings.rdma_again_ms = 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
