/* SPDX-License-Identifier: MIT */
/*
 * A receive that sleeps by the descriptor of a device (far_rest.c): both ends are here, met as on one host, and the accepting one is
 * told that its peer is on another. Its device is an eventfd.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include "common/clock.h"
#include "met_testing.h"
#include "preload/far_internal.h"
#include "preload/signals.h"

static struct far far;
static int event;
static _Atomic int rests, risen, doorbells_asked;
static _Atomic bool is_broken, busy;
static void (*at_rest)(void); /* when the device is asked to tell */

static enum verbs_state state_now(struct verbs_conn *conn, enum verbs_trouble *trouble)
{
	if (trouble)
		*trouble = VERBS_DEVICE_GONE;
	return atomic_load(&is_broken) ? VERBS_BROKEN : VERBS_UP;
}

static void settled(struct verbs_conn *conn, struct verbs_positions *out)
{
	*out = (struct verbs_positions){ .settled = true };
}

static int no_poll(struct verbs_conn *conn)
{
	return 0;
}

static int credit(struct verbs_conn *conn, unsigned int how)
{
	atomic_fetch_add(&doorbells_asked, how & VERBS_SOLICITED ? 1 : 0);
	return 0;
}

static int fd_of(const struct verbs_conn *conn)
{
	return event;
}

static int rest(struct verbs_conn *conn)
{
	if (atomic_load(&busy))
		return -EBUSY;
	if (at_rest)
		at_rest();
	atomic_fetch_add(&rests, 1);
	return 0;
}

static void rise(struct verbs_conn *conn, bool told)
{
	uint64_t count;

	atomic_fetch_add(&risen, 1);
	if (told)
		assert_int_equal(read(event, &count, sizeof(count)), sizeof(count));
}

static const char *tell(enum verbs_trouble trouble)
{
	return "";
}

static const struct verbs_table device = { .state = state_now,
					   .positions = settled,
					   .poll = no_poll,
					   .credit = credit,
					   .fd = fd_of,
					   .rest = rest,
					   .rise = rise,
					   .tell = tell };

static int connect_with_device(void **state)
{
	if (connect_ends(state))
		return -1;
	event = eventfd(0, EFD_NONBLOCK);
	atomic_store(&is_broken, false);
	atomic_store(&busy, false);
	at_rest = NULL;
	far = (struct far){ .conn = conns[1], .link = (struct verbs_conn *)&device };
	far_verbs = &device;
	conns[1]->far = &far;
	atomic_store(&atomic_load(&conns[1]->engine)->channel.in.shared->armed, 0);
	atomic_store(&atomic_load(&conns[1]->engine)->far.state, FAR_UP);
	atomic_store(&rests, 0);
	atomic_store(&risen, 0);
	atomic_store(&doorbells_asked, 0);
	alarm(60); /* nothing else ends a wake-up that is lost */
	return 0;
}

static int lose_device_and_close(void **state)
{
	alarm(0);
	conns[1]->far = NULL;
	atomic_store(&atomic_load(&conns[1]->engine)->far.state, FAR_NONE);
	close(event);
	return close_ends(state);
}

static void notify(void)
{
	uint64_t one = 1;

	assert_int_equal(write(event, &one, sizeof(one)), sizeof(one));
}

static void until_it_rests(int times)
{
	while (atomic_load(&rests) < times)
		usleep(1000);
}

/* What the other end does meanwhile. */
static void meanwhile(pthread_t *thread, void *(*what)(void *))
{
	assert_int_equal(pthread_create(thread, NULL, what, (void *)pthread_self()), 0);
}

static int bytes_in_stream(void)
{
	int bytes = -1;

	assert_int_equal(ioctl(ends[1], FIONREAD, &bytes), 0);
	return bytes;
}

static void *put_and_notify(void *unused)
{
	until_it_rests(1);
	notify(); /* of something else */
	until_it_rests(2);
	assert_int_equal(send_whole(0, "data"), 4);
	notify();
	return NULL;
}

static void receive_sleeps_without_a_doorbell(void **state)
{
	pthread_t thread;
	char got[8] = { 0 };

	meanwhile(&thread, put_and_notify);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 4);
	pthread_join(thread, NULL);
	assert_string_equal(got, "data");
	assert_int_equal(atomic_load(&risen), 2);
	assert_int_equal(atomic_load(&doorbells_asked), 0);
	assert_int_equal(atomic_load(&lane_from(0)->shared->waits), 0);
	assert_int_equal(bytes_in_stream(), 0);
}

static void put_unnoticed(void)
{
	at_rest = NULL;
	assert_int_equal(send_whole(0, "data"), 4);
}

static void what_came_before_the_device_was_asked_to_tell_is_found(void **state)
{
	char got[8] = { 0 };

	at_rest = put_unnoticed;
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 4);
	assert_int_equal(atomic_load(&rests), atomic_load(&risen));
}

static void *send_by_tcp(void *unused)
{
	until_it_rests(1);
	assert_true(lane_switch(lane_from(0)));
	notify();
	while (atomic_load(&risen) < 1)
		usleep(1000);
	assert_int_equal(send(ends[0], (uint8_t[]){ FAR_CODE_GO(0x030201u), 'r', 'a', 'w' }, 4, 0), 4);
	return NULL;
}

static void bytes_by_tcp_wake_it_as_well(void **state)
{
	pthread_t thread;
	char got[8] = { 0 };

	lane_from(0)->codes = 0x030201u;
	meanwhile(&thread, send_by_tcp);
	assert_int_equal(receive_some(1, got, 3, 0), 3);
	pthread_join(thread, NULL);
	assert_string_equal(got, "raw");
	assert_int_equal(atomic_load(&rests), 1); /* of moves the agent hears */
}

static void *break_it(void *unused)
{
	until_it_rests(1);
	atomic_store(&is_broken, true);
	notify();
	while (atomic_load(&atomic_load(&conns[1]->engine)->far.state) != FAR_BROKEN)
		usleep(1000);
	lane_leave(&atomic_load(&conns[1]->engine)->channel.in);
	assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
	return NULL;
}

static void break_wakes_it(void **state)
{
	pthread_t thread;
	char byte;

	meanwhile(&thread, break_it);
	assert_true(receive_some(1, &byte, 1, 0) <= 0);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&rests), 1);
}

static void receive_with_a_time_of_its_own_is_the_kernel_s(void **state)
{
	struct timeval limit = { .tv_usec = 20000 };
	char byte;

	assert_int_equal(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(receive_some(1, &byte, 1, 0), -EAGAIN);
	assert_int_equal(atomic_load(&rests), 0);
}

static _Atomic int handled;
static bool restarts;

static void note_signal(int number)
{
	signals_run++;
	signals_end_calls += !restarts;
	atomic_fetch_add(&handled, 1);
}

static void *send_signal(void *receiver)
{
	until_it_rests(1);
	while (!atomic_load(&handled)) { /* it is about to sleep, or does */
		pthread_kill((pthread_t)receiver, SIGUSR1);
		usleep(10000);
	}
	assert_int_equal(send_whole(0, "data"), 4);
	notify();
	return NULL;
}

static void signal_ends_it(void **state)
{
	pthread_t thread;
	char byte;

	restarts = false;
	atomic_store(&handled, 0);
	signal(SIGUSR1, note_signal);
	meanwhile(&thread, send_signal);
	assert_int_equal(receive_some(1, &byte, 1, 0), -EINTR);
	pthread_join(thread, NULL);
}

static void signal_that_restarts_calls_does_not(void **state)
{
	pthread_t thread;
	char got[8];

	restarts = true;
	atomic_store(&handled, 0);
	signal(SIGUSR1, note_signal);
	meanwhile(&thread, send_signal);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 4);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&rests), 1);
}

static void *ring(void *unused)
{
	while (!atomic_load(&doorbells_asked))
		usleep(1000);
	assert_int_equal(send_whole(0, "data"), 4);
	return NULL;
}

/* Of a lane on TCP nobody asks before, as the kernel's receive tells by itself. */
static void socket_that_does_not_wait_does_not_sleep(void **state)
{
	struct lane_shared *in = atomic_load(&conns[1]->engine)->channel.in.shared;
	char byte;

	assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(receive_some(1, &byte, 1, 0), -EAGAIN);
	atomic_store(&in->from_ring, 0);
	assert_int_equal(receive_some(1, &byte, 1, 0), -EAGAIN);
	atomic_store(&in->from_ring, 1);
}

static void second_thread_sleeps_by_the_socket(void **state)
{
	pthread_t thread;
	char got[8];

	atomic_store(&busy, true);
	meanwhile(&thread, ring);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 4);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&rests), 0);
}

static void *cancelled(void *unused)
{
	char byte;

	receive_some(1, &byte, 1, 0);
	return NULL;
}

static void cancelled_thread_rises(void **state)
{
	pthread_t thread;

	meanwhile(&thread, cancelled);
	until_it_rests(1);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&risen), 1);
	assert_false(atomic_load(&far.rests));
}

/* A peer that wishes for doorbells has nobody else who would ring; what it wished for before the lane was on the ring says nothing. */
static void agent_leaves_a_lane_that_has_just_come_to_its_ring(void **state)
{
	struct engine *engine = atomic_load(&conns[1]->engine);
	struct lane_shared *out = engine->channel.out.shared;

	atomic_store(&far.used, true);
	atomic_store(&out->waits, 1);
	atomic_store(&out->waits_at, (uint32_t)atomic_load(&out->tail)); /* with nothing to ring for */
	assert_false(far_leaves_to_program(conns[1], engine, &far));
	assert_false(far_leaves_to_program(conns[1], engine, &far));
	atomic_store(&far.enters, true);
	assert_true(far_leaves_to_program(conns[1], engine, &far));
	atomic_store(&out->waits, 3);
	assert_false(far_leaves_to_program(conns[1], engine, &far));
}

/* A thread of the program had taken the peer's wish from the device, and left it to the agent, which was about to leave the lane to the program. */
static void agent_leaves_no_wish_for_a_doorbell(void **state)
{
	struct engine *engine = atomic_load(&conns[1]->engine);
	struct lane_shared *out = engine->channel.out.shared;

	atomic_store(&far.used, true);
	atomic_store(&out->waits, 1);
	atomic_store(&out->waits_at, (uint32_t)atomic_load(&out->tail));
	atomic_store(&far.enters, true);
	assert_true(far_leaves_to_program(conns[1], engine, &far));
	assert_true(atomic_load(&far.left));
	atomic_fetch_sub(&out->waits_at, 1);
	assert_false(far_leaves_to_program(conns[1], engine, &far));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, connect_with_device, lose_device_and_close)
		CASE(receive_sleeps_without_a_doorbell),
		CASE(what_came_before_the_device_was_asked_to_tell_is_found),
		CASE(bytes_by_tcp_wake_it_as_well),
		CASE(break_wakes_it),
		CASE(receive_with_a_time_of_its_own_is_the_kernel_s),
		CASE(signal_ends_it),
		CASE(signal_that_restarts_calls_does_not),
		CASE(socket_that_does_not_wait_does_not_sleep),
		CASE(second_thread_sleeps_by_the_socket),
		CASE(cancelled_thread_rises),
		CASE(agent_leaves_a_lane_that_has_just_come_to_its_ring),
		CASE(agent_leaves_no_wish_for_a_doorbell),
	};
#undef CASE

	settings.spin_us = 0;
	use_rings(1 << 20);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
