/* SPDX-License-Identifier: MIT */
/* A connection ends whose queue pair has broken, and the TCP socket has no room for what it owes: the agent's steps are the test's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "far_pair_testing.h"
#include "preload/evict.h"
#include "preload/exec.h"
#include "preload/far_linger.h"
#include "preload/watch.h"

#define OWED 150000u /* more than both sockets hold */

static _Atomic uint64_t ahead, each; /* ns, of the clock; what each look at it adds */
static bool closed;		     /* the connecting end is */
static bool notices;		     /* of what it sends are in its error queue */
static int agents, marker;

/* This program's clock, in the place of the library's. */
uint64_t clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	ahead += each;
	return (uint64_t)now.tv_sec * NS_PER_SEC + (uint64_t)now.tv_nsec + ahead;
}

/* Doorbells, until the socket takes no more. */
static void fill_socket(void)
{
	struct lane *out = lane_from(CLIENT);
	char bells[512];
	ssize_t rc;

	memset(bells, far_bell(engine_of(CLIENT)), sizeof(bells));
	while ((rc = real.send(ends[CLIENT], bells, sizeof(bells), MSG_DONTWAIT)) > 0 || usleep(1000) ||
	       (rc = real.send(ends[CLIENT], bells, sizeof(bells), MSG_DONTWAIT)) > 0)
		atomic_fetch_add(&out->shared->bells, (uint64_t)rc);
}

/*
 * The connecting end owes a ring full of bytes, and has no room; so many of the peer's are unread in its own. `noticed`: of the break.
 */
static int owe_beside(size_t unread, bool noticed)
{
	const int small = 32768;

	if (begin(NULL))
		return -1;
	closed = false;
	ahead = each = 0;
	agents = epoll_create1(EPOLL_CLOEXEC);
	far_linger_begin(agents, &marker);
	setsockopt(ends[CLIENT], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(ends[SERVER], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	exchange();
	if (notices)
		notice_sends(ends[CLIENT]);
	if (unread)
		put(SERVER, unread);
	cut();
	while (sent[CLIENT] - received[SERVER] < OWED)
		put(CLIENT, PART);
	if (!noticed)
		fill_socket();
	break_both();
	if (noticed)
		serve(CLIENT);
	return !noticed || engine_of(CLIENT)->far.out == FAR_OUT_OWES ? 0 : -1;
}

static int owe(void **state)
{
	return owe_beside(0, true);
}

static int owe_beside_notices(void **state)
{
	int rc;

	notices = true;
	rc = owe_beside(0, true);
	notices = false;
	return rc;
}

static int owe_unread(void **state)
{
	return owe_beside(PART, true);
}

static int break_unnoticed(void **state)
{
	return owe_beside(0, false);
}

/* As the agent and finish() do. */
static int clean(void **state)
{
	far_linger_after_fork();
	close(agents);
	for (int end = CLIENT; end <= SERVER; end++) {
		far_drop_all(&fars[end]);
		channel_close(&fars[end].channel);
		if (end == CLIENT && closed) {
			channel_close(&fars[end].ended);
			continue;
		}
		conns[end]->far = NULL;
		atomic_store(&engine_of(end)->far.state, FAR_NONE);
		engine_of(end)->far.out = FAR_OUT_FREE;
		conn_close(ends[end]);
		close(ends[end]);
	}
	return 0;
}

static void close_client(void)
{
	conn_close(ends[CLIENT]);
	close(ends[CLIENT]);
	closed = true;
}

static void go(void)
{
	engine_goes(conns[CLIENT]);
}

/* Waits for nobody: who does looks at the clock until it is a second later, mostly by its looks themselves. */
static void at_once(void (*end)(void))
{
	uint64_t before = ahead;

	each = 20 * NS_PER_MS;
	end();
	each = 0;
	assert_true(ahead - before < NS_PER_SEC / 2);
}

/* And leaves nothing to the agent. */
static void close_at_once(void)
{
	at_once(close_client);
	assert_false(far_lingers());
}

/* What the accepting end receives, right and in order, while the agent goes on. Returns how it ends: 0, or -errno. */
static ssize_t take_to_end(void)
{
	uint64_t until = clock_now() + HANG_NS;
	char data[PART];
	ssize_t rc;

	for (;;) {
		far_linger_step();
		rc = receive_some(SERVER, data, sizeof(data), MSG_DONTWAIT);
		if (rc == -EAGAIN && clock_now() < until)
			continue;
		if (rc <= 0)
			return rc;
		for (ssize_t i = 0; i < rc; i++)
			assert_int_equal((uint8_t)data[i], byte_at(CLIENT, received[SERVER] + (uint64_t)i));
		received[SERVER] += (uint64_t)rc;
	}
}

static void assert_all_has_come(void)
{
	assert_int_equal(take_to_end(), 0);
	assert_int_equal(received[SERVER], sent[CLIENT]);
	while (far_linger_step() >= 0)
		;
	assert_false(far_lingers());
}

static void what_is_owed_goes_on_behind_a_close(void **state)
{
	at_once(close_client);
	assert_true(far_lingers());
	assert_all_has_come();
}

static void notices_are_no_failure(void **state)
{
	assert_true(has_notices(ends[CLIENT]));
	close_client();
	assert_all_has_come();
}

static void agent_is_woken_by_room_alone(void **state)
{
	struct epoll_event event;
	char data[PART];

	close_client();
	assert_int_equal(far_linger_step(), -1);
	assert_int_equal(epoll_wait(agents, &event, 1, 0), 0);
	while (receive_some(SERVER, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(epoll_wait(agents, &event, 1, 5000), 1);
	assert_ptr_equal(event.data.ptr, &marker);
}

static void programs_sets_do_not_hear_of_it(void **state)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT, .data.u64 = 7 };
	int set = epoll_create1(EPOLL_CLOEXEC);

	set_open(set);
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, ends[CLIENT], &event), 0);
	watch_follow(set, EPOLL_CTL_ADD, ends[CLIENT], &event);
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_MOD, ends[CLIENT], &event), 0);
	close_client();
	assert_true(far_lingers());
	assert_int_equal(real.send(ends[SERVER], "some", 4, MSG_NOSIGNAL), 4);
	assert_int_equal(epoll_wait(set, &event, 1, 0), 0);
	while (take_to_end() > 0)
		;
	assert_int_equal(epoll_wait(set, &event, 1, 0), 0);
	set_release(set);
	close(set);
}

static void set_that_others_may_share_is_left_alone(void **state)
{
	struct holders *holders = &engine_of(CLIENT)->holders;

	assert_true(engine_may_linger(conns[CLIENT], ends[CLIENT]));
	atomic_fetch_add(&holders->count, 1);
	assert_false(engine_may_linger(conns[CLIENT], ends[CLIENT]));
	atomic_fetch_sub(&holders->count, 1);
}

/* By a system call that nobody sees; the connection that has it now hears nothing of the former one. */
static void number_that_is_another_s_by_now_is_left_alone(void **state)
{
	struct epoll_event event = { .events = EPOLLOUT, .data.u64 = 7 };
	int pair[2], set = epoll_create1(EPOLL_CLOEXEC);
	struct linger its = { 0 };
	char byte;

	set_open(set);
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, ends[CLIENT], &event), 0);
	watch_follow(set, EPOLL_CTL_ADD, ends[CLIENT], &event);
	connect_pair(pair);
	assert_int_equal(dup2(pair[0], ends[CLIENT]), ends[CLIENT]);
	close(pair[0]);
	assert_int_equal(send(pair[1], "kept", 4, 0), 4);
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, ends[CLIENT], &event), 0);
	conn_close(ends[CLIENT]);
	closed = true;
	assert_false(far_lingers());
	assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(recv(ends[CLIENT], (char[8]){ 0 }, 8, 0), 4);
	assert_int_equal(getsockopt(ends[CLIENT], SOL_SOCKET, SO_LINGER, &its, &(socklen_t){ sizeof(its) }), 0);
	assert_false(its.l_onoff);
	assert_int_equal(epoll_wait(set, &event, 1, 0), 1);
	close(ends[CLIENT]);
	close(pair[1]);
	set_release(set);
	close(set);
}

/* A number that was closed while another one stayed: the kernel's registration has no name any more. */
static void socket_that_a_set_can_not_forget_is_waited_for(void **state)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 };
	int set = epoll_create1(EPOLL_CLOEXEC), other = fcntl(ends[CLIENT], F_DUPFD_CLOEXEC, 0);

	set_open(set);
	conn_dup(ends[CLIENT], other);
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, other, &event), 0);
	watch_follow(set, EPOLL_CTL_ADD, other, &event);
	conn_close(other);
	close(other);
	each = 20 * NS_PER_MS;
	close_client();
	assert_false(far_lingers());
	set_release(set);
	close(set);
}

static void socket_that_another_program_may_have_is_waited_for(void **state)
{
	int other = dup(ends[CLIENT]);

	conn_dup(ends[CLIENT], other);
	conn_close(other);
	close(other);
	each = 20 * NS_PER_MS;
	close_client();
	assert_false(far_lingers());
}

/* A peer's library may say something by TCP: close() would answer unread bytes by a reset, before all has arrived. */
static void what_comes_meanwhile_is_no_reset(void **state)
{
	close_client();
	assert_int_equal(real.send(ends[SERVER], "some", 4, MSG_NOSIGNAL), 4);
	assert_all_has_come();
}

static void end_of_the_process_is_no_end_of_file(void **state)
{
	close_client();
	far_linger_step();
	far_linger_after_fork(); /* as the kernel closes its descriptor */
	assert_int_equal(take_to_end(), -ECONNRESET);
	assert_true(received[SERVER] < sent[CLIENT]);
}

static int raw_error(void)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw =
		engine_raw_begins(conns[CLIENT], ends[CLIENT], MSG_DONTWAIT | MSG_NOSIGNAL);

	return raw.error;
}

/* Both the agent and the peer. */
static void *receive_and_go_on(void *unused)
{
	char data[PART];

	while (far_lingers()) {
		receive_some(SERVER, data, sizeof(data), MSG_DONTWAIT);
		far_linger_step();
	}
	return unused;
}

static void what_is_owed_goes_on_behind_a_shutdown(void **state)
{
	char byte;

	assert_true(engine_shuts(conns[CLIENT], ends[CLIENT], SHUT_WR));
	assert_true(far_lingers());
	assert_int_equal(send_whole(CLIENT, "more"), -EPIPE);
	assert_int_equal(raw_error(), -EPIPE); /* though the kernel would take it */
	assert_all_has_come();
	assert_int_equal(send_whole(CLIENT, "more"), -EPIPE);
	/* The other direction is as it was. */
	put(SERVER, PART);
	take_all(CLIENT);
	assert_int_equal(receive_some(CLIENT, &byte, 1, MSG_DONTWAIT), -EAGAIN);
}

static void error_behind_a_shutdown_is_the_program_s(void **state)
{
	struct linger reset = { 1, 0 };
	char byte;

	assert_true(engine_shuts(conns[CLIENT], ends[CLIENT], SHUT_WR));
	setsockopt(ends[SERVER], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(ends[SERVER]);
	far_linger_step();
	assert_false(far_lingers());
	assert_int_equal(recv(ends[CLIENT], &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, ECONNRESET);
}

static void close_behind_a_shutdown_loses_nothing(void **state)
{
	assert_true(engine_shuts(conns[CLIENT], ends[CLIENT], SHUT_WR));
	close_client();
	assert_int_equal(real.send(ends[SERVER], "some", 4, MSG_NOSIGNAL), 4);
	/* Unread bytes make its end a reset; by then all has arrived. */
	take_to_end();
	assert_int_equal(received[SERVER], sent[CLIENT]);
}

/* A socket without a connection is in its place there, as its unread bytes are the parent's: what is owed must not be sent to that. */
static void exec_of_a_child_of_vfork_takes_nothing_that_is_owed(void **state)
{
	static const struct target_name name = { .dir = AT_FDCWD, .path = "/bin/true" };
	struct exec exec;
	pid_t child;
	int status;

	lane_leave(&engine_of(CLIENT)->channel.in);
	child = vfork();
	if (!child) {
		exec_begins(&exec, &name, environ);
		_exit(fcntl(ends[CLIENT], F_GETFD) < 0 || send(ends[CLIENT], "", 1, MSG_NOSIGNAL) >= 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(engine_of(CLIENT)->far.out, FAR_OUT_OWES);
	take_all(SERVER);
}

/* However many connections owe something: they are waited for together. */
static void exit_waits_for_all_of_them_at_once(void **state)
{
	uint64_t begun = clock_now();
	char data[PART];

	at_once(go);
	assert_true(far_lingers());
	assert_int_equal(raw_error(), -EPIPE);
	while (received[SERVER] != sent[CLIENT]) {
		ssize_t rc = receive_some(SERVER, data, sizeof(data), MSG_DONTWAIT);

		far_linger_step();
		received[SERVER] += rc > 0 ? (uint64_t)rc : 0;
		assert_true(clock_now() - begun < HANG_NS);
	}
	while (far_linger_step() >= 0)
		;
	assert_false(far_lingers());
}

static void what_is_sent_behind_that_may_be(void **state)
{
	pthread_t agent;

	go();
	assert_int_equal(pthread_create(&agent, NULL, receive_and_go_on, NULL), 0);
	far_linger_end();
	assert_false(far_lingers());
	assert_int_equal(raw_error(), 0);
	pthread_join(agent, NULL);
}

/* The agent may be done before it is waited for. */
static void what_is_sent_behind_what_has_gone_already_may_be(void **state)
{
	go();
	receive_and_go_on(NULL);
	far_linger_end();
	assert_int_equal(raw_error(), 0);
}

/* The parent's agent goes on with what was owed. */
static void end_of_a_child_lets_nothing_overtake_it(void **state)
{
	go();
	far_linger_after_fork();
	far_linger_end();
	assert_int_equal(raw_error(), -EPIPE);
}

static void exit_does_not_wait_for_ever(void **state)
{
	each = 20 * NS_PER_MS;
	go();
	far_linger_end();
	assert_true(far_lingers());
}

static void process_that_is_killed_owing_makes_no_end_of_file(void **state)
{
	close(ends[CLIENT]); /* as the kernel does */
	assert_int_equal(take_to_end(), -ECONNRESET);
	assert_true(received[SERVER] < sent[CLIENT]);
	conn_close(ends[CLIENT]);
	closed = true;
}

/* Bytes are unread in the ring, those that were owed have come by TCP, and the rings are left for good. */
static int come_ashore(void **state)
{
	if (begin(NULL))
		return -1;
	closed = false;
	ahead = each = 0;
	exchange();
	put(CLIENT, PART);
	cut();
	put(CLIENT, PART);
	break_both();
	serve(CLIENT);
	serve(SERVER);
	evict_all_of(conns[SERVER]);
	return 0;
}

static void who_has_left_the_rings_has_an_end_of_file(void **state)
{
	assert_true(engine_reads(engine_of(SERVER)));
	close_client();
	assert_int_equal(take_to_end(), 0);
	assert_int_equal(received[SERVER], sent[CLIENT]);
}

static void one_that_owes_nothing_more_makes_one(void **state)
{
	take_all(SERVER);
	close(ends[CLIENT]);
	assert_int_equal(take_to_end(), 0);
	conn_close(ends[CLIENT]);
	closed = true;
}

static void orders_for_the_end_are_obeyed(void **state)
{
	struct linger reset = { 1, 0 };

	setsockopt(ends[CLIENT], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close_at_once();
	assert_int_equal(take_to_end(), -ECONNRESET);
}

static void close_that_is_to_wait_waits(void **state)
{
	struct linger some_time = { 1, 5 };

	setsockopt(ends[CLIENT], SOL_SOCKET, SO_LINGER, &some_time, sizeof(some_time));
	each = 20 * NS_PER_MS;
	close_client();
	assert_false(far_lingers());
}

static void unread_bytes_are_a_reset_as_ever(void **state)
{
	close_at_once();
	assert_int_equal(take_to_end(), -ECONNRESET);
}

static void unread_bytes_of_tcp_are_a_reset_as_ever(void **state)
{
	int unread = 0;

	serve(SERVER);
	put(SERVER, 4);
	while (!unread) /* what leads them is there first */
		assert_true(engine_unread(conns[CLIENT], ends[CLIENT], &unread));
	close_at_once();
	assert_int_equal(take_to_end(), -ECONNRESET);
}

static void hope_ends(void **state)
{
	struct far_hope hope = { 0 }, slow = { 0 }, silent = { 0 };

	assert_true(far_hopes(&hope, 1, false));
	assert_true(far_hopes(&silent, 1, true));
	ahead += NS_PER_SEC / 2;
	assert_true(far_hopes(&hope, 2, false));
	ahead += NS_PER_SEC / 2;
	assert_true(far_hopes(&hope, 2, false)); /* half a second behind the last progress */
	ahead += NS_PER_SEC;
	assert_false(far_hopes(&hope, 2, false));
	assert_true(far_hopes(&silent, 1, true));
	assert_false(far_hopes(&silent, 1, false)); /* it answers, and takes nothing */
	for (uint64_t i = 1; i <= 10; i++, ahead += NS_PER_SEC - NS_PER_SEC / 100)
		assert_true(far_hopes(&slow, i, false));
	ahead += NS_PER_SEC;
	assert_false(far_hopes(&slow, 100, false));
	assert_false(far_hopes(&silent, 1, true));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, owe, clean)
		CASE(what_is_owed_goes_on_behind_a_close),
		cmocka_unit_test_setup_teardown(notices_are_no_failure, owe_beside_notices, clean),
		CASE(agent_is_woken_by_room_alone),
		CASE(programs_sets_do_not_hear_of_it),
		cmocka_unit_test_setup_teardown(programs_sets_do_not_hear_of_it, break_unnoticed, clean),
		CASE(set_that_others_may_share_is_left_alone),
		CASE(number_that_is_another_s_by_now_is_left_alone),
		cmocka_unit_test_setup_teardown(number_that_is_another_s_by_now_is_left_alone, owe_unread, clean),
		CASE(socket_that_another_program_may_have_is_waited_for),
		CASE(socket_that_a_set_can_not_forget_is_waited_for),
		CASE(what_comes_meanwhile_is_no_reset),
		CASE(end_of_the_process_is_no_end_of_file),
		CASE(what_is_owed_goes_on_behind_a_shutdown),
		CASE(close_behind_a_shutdown_loses_nothing),
		CASE(error_behind_a_shutdown_is_the_program_s),
		CASE(exit_waits_for_all_of_them_at_once),
		CASE(what_is_sent_behind_that_may_be),
		CASE(what_is_sent_behind_what_has_gone_already_may_be),
		CASE(end_of_a_child_lets_nothing_overtake_it),
		CASE(exit_does_not_wait_for_ever),
		CASE(process_that_is_killed_owing_makes_no_end_of_file),
		CASE(one_that_owes_nothing_more_makes_one),
		cmocka_unit_test_setup_teardown(who_has_left_the_rings_has_an_end_of_file, come_ashore, clean),
		CASE(orders_for_the_end_are_obeyed),
		cmocka_unit_test_setup_teardown(unread_bytes_are_a_reset_as_ever, owe_unread, clean),
		cmocka_unit_test_setup_teardown(exec_of_a_child_of_vfork_takes_nothing_that_is_owed, owe_unread, clean),
		CASE(unread_bytes_of_tcp_are_a_reset_as_ever),
		CASE(close_that_is_to_wait_waits),
		cmocka_unit_test(hope_ends),
#undef CASE
	};

	use_rings(1 << 19);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
