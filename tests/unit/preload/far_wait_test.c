/* SPDX-License-Identifier: MIT */
/* Waits of a program for connections between hosts, with the wrappers themselves. */
#define _GNU_SOURCE
#include <linux/sockios.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>

#include "far_record_testing.h"
#include "preload/hot.h"

/* Calls of the kernel's by waits of the program's. */
static _Atomic uint32_t asked;
static __typeof__(real) kernel;

static int counted_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
	asked++;
	return kernel.ppoll(fds, count, time, mask);
}

static int counted_pselect(int count, fd_set *in, fd_set *out, fd_set *except, const struct timespec *time,
			   const sigset_t *mask)
{
	asked++;
	return kernel.pselect(count, in, out, except, time, mask);
}

static int counted_epoll_pwait(int set, struct epoll_event *events, int count, int ms, const sigset_t *mask)
{
	asked++;
	return kernel.epoll_pwait(set, events, count, ms, mask);
}

static int wait_by_poll(int ms)
{
	struct pollfd look = { .fd = ends[SERVER], .events = POLLIN };

	return poll(&look, 1, ms);
}

static int wait_by_select(int ms)
{
	struct timeval time = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
	fd_set in;

	FD_ZERO(&in);
	FD_SET(ends[SERVER], &in);
	return select(ends[SERVER] + 1, &in, NULL, NULL, &time);
}

static int wait_by_epoll(int ms)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC), ready;

	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, ends[SERVER], &event), 0);
	ready = epoll_wait(set, &event, 1, ms);
	close(set);
	return ready;
}

/* The socket is readable all the time: who asks the kernel alone asks it a hundred thousand times in a second. */
static void wait_for_rest(int (*wait)(int ms))
{
	pthread_t thread;
	char got[16];

	send_record_in_parts(0);
	kernel = real;
	real.ppoll = counted_ppoll;
	real.pselect = counted_pselect;
	real.epoll_pwait = counted_epoll_pwait;
	asked = 0;
	assert_int_equal(wait(0), 0);
	assert_int_equal(wait(20), 0);
	assert_int_equal(pthread_create(&thread, NULL, send_rest_late, NULL), 0);
	assert_int_equal(wait(60000), 1);
	pthread_join(thread, NULL); /* it looks at `real` as well */
	real = kernel;
	assert_true(asked > 3 && asked < 3 * 1000 * LATE_S);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), 4);
	assert_memory_equal(got, "next", 4);
}

static void poll_waits_for_the_rest_of_a_record(void **state)
{
	wait_for_rest(wait_by_poll);
}

static void select_waits_for_the_rest_of_a_record(void **state)
{
	wait_for_rest(wait_by_select);
}

static void epoll_waits_for_the_rest_of_a_record(void **state)
{
	wait_for_rest(wait_by_epoll);
}

/* A signal comes in the pause, or while the devices are asked, too. */
static int interrupted_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask)
{
	for (nfds_t i = 0; i < count; i++)
		fds[i].revents = 0; /* as the kernel does */
	errno = EINTR;
	return -1;
}

static void select_that_a_signal_ends_leaves_its_sets(void **state)
{
	fd_set in;

	send_record_in_parts(0);
	FD_ZERO(&in);
	FD_SET(ends[SERVER], &in);
	kernel = real;
	real.ppoll = interrupted_ppoll;
	assert_int_equal(select(ends[SERVER] + 1, &in, NULL, NULL, NULL), -1);
	assert_int_equal(errno, EINTR);
	real = kernel;
	assert_true(FD_ISSET(ends[SERVER], &in));
}

#define MANY 65 /* more than are kept on the stack */

/* So many descriptors of which nothing comes, but for the first ones. */
static void fill(struct pollfd fds[MANY], int count, int quiet)
{
	for (int i = 0; i < count; i++)
		fds[i] = (struct pollfd){ .fd = quiet, .events = POLLIN };
}

static int can_rest(struct verbs_conn *conn)
{
	return 0;
}

static void rises(struct verbs_conn *conn, bool told)
{
}

/* One ring has something; a signal is there; and the program has not looked at what the last poll told. */
static void poll_beside_a_signal_tells_nothing_old(void **state)
{
	struct verbs_table device = cable_device;
	struct pollfd fds[MANY];
	int quiet[2];

	exchange();
	assert_int_equal(pipe(quiet), 0);
	device.rest = can_rest;
	device.rise = rises;
	far_verbs = &device;
	fill(fds, 12, quiet[0]);
	fds[0].revents = POLLIN;
	fds[1].fd = ends[SERVER];
	fds[2].fd = ends[CLIENT];
	put(SERVER, PART);
	kernel = real;
	real.ppoll = interrupted_ppoll;
	assert_int_equal(poll(fds, 12, 0), 1);
	real = kernel;
	far_verbs = &cable_device;
	assert_int_equal(fds[0].revents, 0);
	assert_int_equal(fds[2].revents, POLLIN);
	take_all(CLIENT);
	for (int i = 0; i < 2; i++)
		close(quiet[i]);
}

static void *put_late(void *unused)
{
	const struct timespec late = { .tv_nsec = 50 * NS_PER_MS };

	nanosleep(&late, NULL);
	put(CLIENT, 1);
	return NULL;
}

static void poll_of_many_without_memory_looks_again(void **state)
{
	struct rlimit before, none;
	struct pollfd fds[MANY];
	pthread_t thread;
	int quiet[2], ready;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* a sanitizer's own memory would fail */
#endif
	exchange();
	assert_int_equal(pipe(quiet), 0);
	fill(fds, MANY, quiet[0]);
	fds[0].fd = ends[SERVER];
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	none = (struct rlimit){ 0, before.rlim_max };
	assert_int_equal(pthread_create(&thread, NULL, put_late, NULL), 0);
	assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
	ready = poll(fds, MANY, 10000);
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
	pthread_join(thread, NULL);
	assert_int_equal(ready, 1);
	take_all(SERVER);
	for (int i = 0; i < 2; i++)
		close(quiet[i]);
}

/* A ring that is told as long as the program leaves its bytes, without the kernel, hides nobody. */
static void ring_that_is_told_again_hides_no_other(void **state)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 1 }, told[4];
	int set = epoll_create1(EPOLL_CLOEXEC), other[2];
	uint64_t until = clock_now() + 5 * NS_PER_SEC;
	bool both = false;

	exchange();
	assert_int_equal(pipe(other), 0);
	put(CLIENT, PART);
	/* Added while a thread sleeps in the set. */
	assert_true(hot_sleeps(table_set(set), &(int){ 0 }));
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, ends[SERVER], &event), 0);
	hot_wakes(table_set(set));
	event.data.u32 = 2;
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, other[0], &event), 0);
	assert_int_equal(write(other[1], "x", 1), 1);
	while (!both) {
		int count = epoll_wait(set, told, 4, -1);

		assert_true(count > 0);
		for (int i = 0; i < count; i++)
			both |= told[i].data.u32 == 2;
		assert_true(clock_now() < until);
	}
	take_all(SERVER);
	close(set);
	for (int i = 0; i < 2; i++)
		close(other[i]);
}

static int bytes_there(int fd)
{
	int bytes = 0;

	assert_int_equal(sys_call(SYS_ioctl, fd, FIONREAD, (long)&bytes, 0, 0, 0), 0);
	return bytes;
}

/* As the agent does, which hears that something has come. */
static bool follows(int end)
{
	struct engine *engine = engine_of(end);
	struct lock_hold hold;
	bool more;

	assert_true(lock_take(&engine->in, &hold));
	far_look(conns[end], engine, ends[end]);
	more = far_follows(conns[end], engine);
	lock_give(&engine->in, &hold);
	return more;
}

/* The program, which has all of it, makes no call; its peer would have no room. */
static void what_comes_twice_is_taken(void **state)
{
	const int small = 4096, on = 1;
	struct pollfd look = { .fd = ends[SERVER], .events = POLLIN };
	uint64_t until = clock_now() + 10 * NS_PER_SEC;

	exchange();
	assert_false(follows(SERVER));
	setsockopt(ends[CLIENT], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(ends[CLIENT], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	put(CLIENT, PART);
	put(CLIENT, PART);
	cut(); /* that it was received, nobody hears */
	take_all(SERVER);
	break_both();
	far_is_up(conns[SERVER], engine_of(SERVER));
	assert_true(follows(SERVER)); /* nothing has come yet */
	do {
		serve(CLIENT);
		real.poll(&look, 1, 1);
		assert_true(clock_now() < until);
	} while (follows(SERVER) || engine_of(CLIENT)->far.out == FAR_OUT_OWES);
	assert_int_equal(bytes_there(ends[SERVER]), 0);
	put(CLIENT, PART);
	take_all(SERVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(poll_waits_for_the_rest_of_a_record, begin, finish),
		cmocka_unit_test_setup_teardown(select_waits_for_the_rest_of_a_record, begin, finish),
		cmocka_unit_test_setup_teardown(select_that_a_signal_ends_leaves_its_sets, begin, finish),
		cmocka_unit_test_setup_teardown(ring_that_is_told_again_hides_no_other, begin, finish),
		cmocka_unit_test_setup_teardown(poll_beside_a_signal_tells_nothing_old, begin, finish),
		cmocka_unit_test_setup_teardown(poll_of_many_without_memory_looks_again, begin, finish),
		cmocka_unit_test_setup_teardown(what_comes_twice_is_taken, begin, finish),
		cmocka_unit_test_setup_teardown(epoll_waits_for_the_rest_of_a_record, begin, finish),
	};

	use_rings(1 << 16);
	settings.rdma_again_ms = 1000;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
