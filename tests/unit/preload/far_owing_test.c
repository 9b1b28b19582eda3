/* SPDX-License-Identifier: MIT */
/* What else a program may do while a broken queue pair owes bytes, and a send waits for them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "asleep_testing.h"
#include "far_pair_testing.h"
#include "preload/far_linger.h"

#define OWED 200000
#define STILL_NS (2 * NS_PER_SEC) /* without a byte: no more will come */

static bool closed; /* the connecting end is */
static _Atomic int sender_id;
static _Atomic bool all_done;

/* The connecting end owes, and its socket is full. */
static int owe(void **state)
{
	const int small = 32768;

	if (begin(NULL))
		return -1;
	closed = false;
	all_done = false;
	setsockopt(ends[CLIENT], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(ends[SERVER], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	exchange();
	cut();
	while (sent[CLIENT] - received[SERVER] < OWED)
		put(CLIENT, PART);
	break_both();
	serve(CLIENT);
	return engine_of(CLIENT)->far.out == FAR_OUT_OWES ? 0 : -1;
}

/* As the agent and finish() do. */
static int clean(void **state)
{
	for (int end = CLIENT; end <= SERVER; end++) {
		far_drop_all(&fars[end]);
		channel_close(&fars[end].channel);
		if (end == CLIENT && closed)
			continue;
		conns[end]->far = NULL;
		atomic_store(&engine_of(end)->far.state, FAR_NONE);
		engine_of(end)->far.out = FAR_OUT_FREE;
		conn_close(ends[end]);
		close(ends[end]);
	}
	return 0;
}

/* Of a send that may wait. */
static void *raw_error(void *number)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = { .conn = NULL };

	atomic_store(&sender_id, (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0));
	raw = engine_raw_begins(conns[CLIENT], *(const int *)number, MSG_NOSIGNAL);
	return (void *)(intptr_t)raw.error;
}

static uint32_t users(void)
{
	return atomic_load(&conns[CLIENT]->engine_users);
}

/* Returns when the send waits. Before that, the number is asked for anew, and a send by another's is not ours. */
static pthread_t begin_to_send(int *number)
{
	uint64_t until = clock_now() + HANG_NS;
	pthread_t thread;

	atomic_store(&sender_id, 0);
	assert_int_equal(pthread_create(&thread, NULL, raw_error, number), 0);
	while (!atomic_load(&sender_id) || !is_in(sender_id, SYS_poll)) {
		assert_true(clock_now() < until);
		sched_yield();
	}
	return thread;
}

/* The program closes the number by which a send waits, has another for the same socket, and opens something else by the first. */
static void number_that_is_another_s_by_now_gets_no_byte(void **state)
{
	int number = ends[CLIENT], twin = dup(number), other[2];
	pthread_t thread;
	void *error;
	char byte;

	assert_true(twin >= 0);
	conn_dup(number, twin);
	thread = begin_to_send(&number);
	conn_close(number);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, other), 0);
	assert_int_equal(dup2(other[0], number), number);
	ends[CLIENT] = twin;
	pthread_join(thread, &error);
	assert_int_equal((intptr_t)error, -EBADF);
	assert_int_equal(real.recv(other[1], &byte, 1, 0), -1);
	assert_int_equal(errno, EAGAIN);
	/* And nothing is missing. */
	take_all(SERVER);
	assert_int_equal(received[SERVER], sent[CLIENT]);
	for (int i = 0; i < 2; i++)
		close(other[i]);
	close(number);
}

static void thread_that_waits_can_be_cancelled(void **state)
{
	uint32_t before = users();
	pthread_t thread = begin_to_send(&ends[CLIENT]);
	void *end;

	assert_int_equal(pthread_cancel(thread), 0);
	pthread_join(thread, &end);
	assert_ptr_equal(end, PTHREAD_CANCELED);
	assert_int_equal(users(), before);
}

static void *send_cancelled(void *unused)
{
	static char data[LARGE];
	struct iovec iov = { data, sizeof(data) };

	pthread_cancel(pthread_self());
	engine_send(conns[CLIENT], ends[CLIENT], &iov, 1, 0, &(enum zc_path){ PATH_BSDP });
	return NULL;
}

static void cancelled_send_leaves_nothing_behind(void **state)
{
	uint32_t before = users();
	pthread_t thread;
	void *end;

	assert_int_equal(pthread_create(&thread, NULL, send_cancelled, NULL), 0);
	pthread_join(thread, &end);
	assert_ptr_equal(end, PTHREAD_CANCELED);
	assert_int_equal(users(), before);
}

static void *take_what_comes(void *unused)
{
	uint64_t last = clock_now();
	char data[PART];

	while (received[SERVER] != sent[CLIENT] && (!atomic_load(&all_done) || clock_now() - last < STILL_NS)) {
		ssize_t rc = receive_some(SERVER, data, sizeof(data), MSG_DONTWAIT);

		if (rc <= 0)
			continue;
		for (ssize_t i = 0; i < rc; i++)
			assert_int_equal((uint8_t)data[i], byte_at(CLIENT, received[SERVER] + (uint64_t)i));
		received[SERVER] += (uint64_t)rc;
		last = clock_now();
	}
	return unused;
}

/* The child has the connection, too, and makes no call: nobody else would send it. */
static void process_that_has_forked_does_not_go_before_it_has_gone(void **state)
{
	struct holders *holders = &engine_of(CLIENT)->holders;
	struct holder childs = holders_expect(holders);
	pid_t child = fork();
	pthread_t thread;

	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	assert_true(child > 0);
	holders_name(holders, &childs, child);
	assert_int_equal(pthread_create(&thread, NULL, take_what_comes, NULL), 0);
	conn_close(ends[CLIENT]);
	close(ends[CLIENT]);
	closed = true;
	atomic_store(&all_done, true);
	pthread_join(thread, NULL);
	assert_int_equal(received[SERVER], sent[CLIENT]);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* But one that has not used it does not wait for what its parent owes. */
static void child_that_made_no_call_goes_at_once(void **state)
{
	struct holders *holders = &engine_of(CLIENT)->holders;
	struct holder parents = holders_expect(holders);
	uint64_t begun = sent[CLIENT] - received[SERVER];
	pthread_t thread;

	holders_name(holders, &parents, getppid());
	conns[CLIENT]->far = NULL;
	assert_int_equal(pthread_create(&thread, NULL, take_what_comes, NULL), 0);
	conn_close(ends[CLIENT]);
	close(ends[CLIENT]);
	closed = true;
	atomic_store(&all_done, true);
	pthread_join(thread, NULL);
	/* The socket's buffers alone have come. */
	assert_true(received[SERVER] < sent[CLIENT] && sent[CLIENT] - received[SERVER] < begun);
}

static int signals;

static void note_signal(int number)
{
	signals++;
}

/* What is owed goes on behind it, and the program has shut its direction. */
static void send_behind_a_shutdown_has_its_signal(void **state)
{
	char data[1] = { 0 };
	struct iovec iov = { data, sizeof(data) };
	int agents = epoll_create1(EPOLL_CLOEXEC), marker;
	void (*before)(int) = signal(SIGPIPE, note_signal);

	far_linger_begin(agents, &marker);
	signals = 0;
	assert_true(engine_shuts(conns[CLIENT], ends[CLIENT], SHUT_WR));
	assert_true(far_lingers());
	for (int i = 0; i < 2; i++) {
		int flags = i ? MSG_NOSIGNAL : 0;
		__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = { .conn = NULL };

		assert_int_equal(engine_send(conns[CLIENT], ends[CLIENT], &iov, 1, flags, &(enum zc_path){ PATH_BSDP }),
				 -EPIPE);
		raw = engine_raw_begins(conns[CLIENT], ends[CLIENT], flags);
		assert_int_equal(raw.error, -EPIPE);
		assert_int_equal(signals, 2);
	}
	signal(SIGPIPE, before);
	far_linger_after_fork();
	close(agents);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, owe, clean)
		CASE(number_that_is_another_s_by_now_gets_no_byte),
		CASE(thread_that_waits_can_be_cancelled),
		CASE(cancelled_send_leaves_nothing_behind),
		CASE(process_that_has_forked_does_not_go_before_it_has_gone),
		CASE(child_that_made_no_call_goes_at_once),
		CASE(send_behind_a_shutdown_has_its_signal),
#undef CASE
	};

	use_rings(1 << 18);
	settings.rdma_again_ms = 1000;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
