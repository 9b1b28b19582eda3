/* SPDX-License-Identifier: MIT */
/* The agent itself, with a device by hand: whose lock it has when its process ends, and which number of the socket it uses. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "far_pair_testing.h"

#define STAYS 10  /* turns of the processor: it is waited for no longer than a moment */
#define TRIES 100 /* the agent waits for a lock no longer than a moment */

static struct verbs_table device; /* the cable's, but for one call */
static pthread_t program;
static _Atomic bool stays, inside, waits;
static _Atomic int looks; /* the agent's */

/* The agent looks at the lane, under its lock, and is slow. */
static int poll_slowly(struct verbs_conn *conn)
{
	if (!pthread_equal(pthread_self(), program) && atomic_exchange(&stays, false)) {
		uint64_t until = clock_now() + HANG_NS;

		atomic_store(&inside, true);
		while (!atomic_load(&waits) && clock_now() < until)
			sched_yield();
		for (int i = 0; i < STAYS; i++)
			sched_yield();
		atomic_store(&inside, false);
	}
	if (!pthread_equal(pthread_self(), program))
		atomic_fetch_add(&looks, 1);
	return plug_poll(conn);
}

static bool has_waiter(struct lock *lock)
{
	return atomic_load(&lock->word) & LOCK_WAITERS;
}

/* The agent is about to take the lock, which is held. */
static void hold_as_agent_comes(struct conn *conn, struct engine *engine, struct lock_hold *hold)
{
	uint64_t until = clock_now() + HANG_NS;

	assert_true(lock_take(&engine->in, hold));
	atomic_store(&conn->far->tells, true);
	far_kick();
	while (!has_waiter(&engine->in)) {
		assert_true(clock_now() < until);
		sched_yield();
	}
}

/* The agent is about to take the lock when the process lets go of the connection, or closes it. Returns whether it then has it. */
static bool let_go_as_agent_comes(struct conn *conn, struct engine *engine, bool closes)
{
	struct lock_hold hold;
	uint64_t until;

	hold_as_agent_comes(conn, engine, &hold);
	atomic_store(&stays, true);
	if (!closes)
		engine_gives_up(conn, engine);
	lock_give(&engine->in, &hold);
	until = clock_now() + NS_PER_SEC;
	while (!atomic_load(&inside) && clock_now() < until)
		sched_yield();
	/* It may come in this moment: then it stays, with the lock. */
	if (!atomic_load(&inside) && atomic_exchange(&stays, false))
		return false;
	while (!atomic_load(&inside))
		sched_yield();
	return true;
}

static void end_as_agent_is_inside(struct conn *conn, struct engine *engine, bool closes)
{
	bool stays_on;
	int tries = 0;

	atomic_store(&waits, false);
	while (!let_go_as_agent_comes(conn, engine, closes)) {
		assert_true(++tries < TRIES);
		if (!closes)
			holders_return(&engine->holders, &conn->holder, conn_process());
	}
	if (closes) { /* as another thread's close() does */
		atomic_fetch_add(&conn->engine_users, 1);
		atomic_fetch_or(&conn->engine_users, ENGINE_CLOSING);
	}
	atomic_store(&waits, true);
	far_awaits_agent();
	stays_on = atomic_load(&inside);
	if (closes) {
		atomic_fetch_and(&conn->engine_users, ~ENGINE_CLOSING);
		atomic_fetch_sub(&conn->engine_users, 1);
	}
	assert_false(stays_on);
}

static void start_agent(void)
{
	program = pthread_self();
	device = cable_device;
	device.poll = poll_slowly;
	conns[CLIENT]->far = NULL; /* none of this agent's */
	far_ready();
	while (!far_failed()) /* to load the plug-in, which there is not */
		sched_yield();
	far_verbs = &device;
}

static int begin_with_agent(void **state)
{
	if (begin(state))
		return -1;
	start_agent();
	return 0;
}

/* As a close does: it is not at the connection any more, and does not come again. */
static int finish_with_agent(void **state)
{
	struct conn *conn = conns[SERVER];

	atomic_fetch_add(&conn->engine_users, 1); /* else who leaves last would end it */
	atomic_fetch_or(&conn->engine_users, ENGINE_CLOSING);
	while (atomic_load(&conn->engine_users) != (ENGINE_CLOSING | 1))
		sched_yield();
	conn->far = NULL;
	atomic_store(&conn->engine_users, 0);
	return finish(state);
}

/* What the client has put into its ring since the cut is in no other. Before there is an agent, which would look at both ends. */
static int begin_behind_a_break(void **state)
{
	if (begin(state))
		return -1;
	exchange();
	cut();
	put(CLIENT, PART);
	break_both();
	start_agent();
	return 0;
}

/* Others hold the connection, and would find a lock whose holder is no more. */
static void process_that_ends_waits_for_its_agent(void **state)
{
	struct conn *conn = conns[SERVER];
	struct engine *engine = engine_of(SERVER);

	holders_expect(&engine->holders);
	end_as_agent_is_inside(conn, engine, true);
	end_as_agent_is_inside(conn, engine, false);
}

static int make_twin(int fd)
{
	int twin = dup(fd);

	assert_true(twin >= 0);
	conn_dup(fd, twin);
	return twin;
}

static _Atomic bool closed;

static void *close_number(void *fd)
{
	conn_close(*(const int *)fd);
	atomic_store(&closed, true);
	return NULL;
}

/* Whoever has a lock of the engine may be about to use any of the numbers. */
static void number_goes_when_nobody_uses_it(struct lock *lock)
{
	uint64_t until = clock_now() + HANG_NS;
	int number = ends[SERVER];
	struct lock_hold hold;
	pthread_t closer;

	ends[SERVER] = make_twin(number);
	atomic_store(&closed, false);
	assert_true(lock_take(lock, &hold));
	assert_int_equal(pthread_create(&closer, NULL, close_number, &number), 0);
	while (!has_waiter(lock)) {
		assert_false(atomic_load(&closed));
		assert_true(clock_now() < until);
		sched_yield();
	}
	lock_give(lock, &hold);
	pthread_join(closer, NULL);
	close(number);
	assert_int_equal(conn_fd(conns[SERVER]), ends[SERVER]);
}

static void number_of_several_goes_when_nobody_uses_it(void **state)
{
	number_goes_when_nobody_uses_it(&engine_of(SERVER)->in);
	number_goes_when_nobody_uses_it(&engine_of(SERVER)->out);
}

/* The agent is about to look when the program closes one of two numbers, and opens something else by it. */
static void agent_uses_no_number_that_has_gone(void **state)
{
	struct conn *conn = conns[SERVER];
	struct engine *engine = engine_of(SERVER);
	int number = ends[SERVER], other, looked;
	uint64_t until = clock_now() + HANG_NS;
	struct lock_hold hold;

	ends[SERVER] = make_twin(number);
	hold_as_agent_comes(conn, engine, &hold);
	engine->far.expects = true; /* so that it looks for what comes by TCP */
	conn_close(number);	    /* this thread's own lock keeps it from waiting */
	close(number);
	other = open("/dev/null", O_RDWR); /* which is no socket */
	assert_int_equal(other, number);
	looked = atomic_load(&looks);
	lock_give(&engine->in, &hold);
	while (atomic_load(&looks) == looked) {
		assert_true(clock_now() < until);
		sched_yield();
	}
	engine_awaits_those_inside(engine);
	assert_int_equal(atomic_load(&engine->far.error), 0);
	engine->far.expects = false;
	close(other);
}

/* As if the set had no room for the stream: the agent looks by a number that nothing has, until it has left the lane. */
static void let_agent_look_by_no_number(struct conn *conn, struct engine *engine)
{
	uint64_t until = clock_now() + HANG_NS;
	int number = conn_fd(conn), looked = atomic_load(&looks);
	struct lock_hold hold;

	hold_as_agent_comes(conn, engine, &hold);
	atomic_store(&conn->fds[0], (int)sysconf(_SC_OPEN_MAX));
	lock_give(&engine->in, &hold);
	while (atomic_load(&looks) == looked) {
		assert_true(clock_now() < until);
		sched_yield();
	}
	assert_true(lock_take(&engine->in, &hold));
	atomic_store(&conn->fds[0], number);
	lock_give(&engine->in, &hold);
}

/* By TCP, after the break. */
static void bring_what_is_owed(void)
{
	uint64_t from = received[SERVER], to = sent[CLIENT];
	uint8_t bytes[FAR_FRAME_BYTES + PART];

	assert_int_equal(to - from, PART);
	make_resume(bytes, from, to);
	for (int i = 0; i < PART; i++)
		bytes[FAR_FRAME_BYTES + i] = byte_at(CLIENT, from + (uint64_t)i);
	assert_int_equal(real.send(ends[CLIENT], bytes, sizeof(bytes), 0), sizeof(bytes));
}

/* FAR_RESUME has been looked at: what follows in the stream is the program's to receive. */
static bool knows_what_is_owed(struct engine *engine)
{
	struct lock_hold hold;
	bool knows;

	assert_true(lock_take(&engine->in, &hold));
	knows = engine->far.owed == sent[CLIENT];
	lock_give(&engine->in, &hold);
	return knows;
}

/* The program of the receiver makes no call. */
static void what_is_owed_is_looked_at_though_the_set_had_no_room(void **state)
{
	struct engine *engine = engine_of(SERVER);
	uint64_t until;

	let_agent_look_by_no_number(conns[SERVER], engine);
	bring_what_is_owed();
	until = clock_now() + HANG_NS;
	while (!knows_what_is_owed(engine)) {
		assert_true(clock_now() < until);
		sched_yield();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_owed_is_looked_at_though_the_set_had_no_room,
						begin_behind_a_break, finish_with_agent),
		cmocka_unit_test_setup_teardown(process_that_ends_waits_for_its_agent, begin_with_agent,
						finish_with_agent),
		cmocka_unit_test_setup_teardown(number_of_several_goes_when_nobody_uses_it, begin_with_agent,
						finish_with_agent),
		cmocka_unit_test_setup_teardown(agent_uses_no_number_that_has_gone, begin_with_agent,
						finish_with_agent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
