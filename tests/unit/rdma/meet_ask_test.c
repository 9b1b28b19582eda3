/* SPDX-License-Identifier: MIT */
/* What the kernel counts at both ends of a connection tells its own other end from another's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "meet_testing.h"

#define LOOKS 2000

static int others[2];
static struct meet_names other_accepting;

/* Two connections: what an end of one is asked by the other's name is what a packet filter that changes ports has it asked. */
static int connect_two(void **state)
{
	if (connect_by(AF_INET, AF_INET))
		return -1;
	memcpy(others, ends, sizeof(others));
	other_accepting = accepting;
	return connect_by(AF_INET, AF_INET);
}

static int close_two(void **state)
{
	close(others[0]);
	close(others[1]);
	return close_ends(state);
}

static void send_on(int from, int to)
{
	char bytes[100] = { 0 };

	assert_int_equal(send(from, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(recv(to, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
}

/* What has been on its way for long, on a machine that stood still, differs until more has gone there. */
static int agree_in_the_end(const struct meet_names *names, const int pair[2])
{
	int rc;

	while ((rc = meet_counts_agree(names, pair[1])) == -EAGAIN) {
		send_on(pair[0], pair[1]);
		send_on(pair[1], pair[0]);
	}
	return rc;
}

static void ends_of_one_agree(void **state)
{
	const int turned[2] = { ends[1], ends[0] };

	assert_int_equal(agree_in_the_end(&accepting, ends), 0);
	assert_int_equal(agree_in_the_end(&connecting, turned), 0);
	for (int i = 0; i < 3; i++) {
		send_on(ends[i & 1], ends[!(i & 1)]);
		assert_int_equal(agree_in_the_end(&accepting, ends), 0);
	}
	assert_int_equal(send(ends[0], "unread", 6, 0), 6);
	assert_int_not_equal(meet_counts_agree(&accepting, ends[1]), -EXDEV);
	assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
	assert_int_not_equal(meet_counts_agree(&accepting, ends[1]), -EXDEV);
	assert_int_not_equal(meet_counts_agree(&connecting, ends[0]), -EXDEV);
}

static void ends_of_ipv6_agree(void **state)
{
	close_ends(state);
	assert_int_equal(connect_by(AF_INET6, AF_INET6), 0);
	send_on(ends[0], ends[1]);
	assert_int_equal(agree_in_the_end(&accepting, ends), 0);
	close_ends(state);
	assert_int_equal(connect_by(AF_INET6, AF_INET), 0);
	send_on(ends[1], ends[0]);
	assert_int_equal(agree_in_the_end(&accepting, ends), 0);
}

static void who_has_received_more_is_another_s(void **state)
{
	send_on(others[0], others[1]);
	assert_int_equal(meet_counts_agree(&accepting, others[1]), -EXDEV);
	assert_int_equal(meet_counts_agree(&other_accepting, ends[1]), -EXDEV);
}

static void who_has_sent_more_is_another_s(void **state)
{
	send_on(others[1], others[0]);
	assert_int_equal(meet_counts_agree(&accepting, others[1]), -EXDEV);
	assert_int_equal(meet_counts_agree(&other_accepting, ends[1]), -EXDEV);
}

static void as_many_at_another_time_are_not_believed(void **state)
{
	struct timespec tick, pause;

	clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
	pause = (struct timespec){ .tv_nsec = 10 * tick.tv_nsec };
	send_on(others[0], others[1]);
	nanosleep(&pause, NULL); /* what is tested is that this time passes */
	send_on(ends[0], ends[1]);
	assert_int_equal(meet_counts_agree(&accepting, others[1]), -EAGAIN);
	assert_int_equal(meet_counts_agree(&other_accepting, ends[1]), -EAGAIN);
	assert_int_equal(agree_in_the_end(&accepting, ends), 0);
	assert_int_equal(agree_in_the_end(&other_accepting, others), 0);
}

static _Atomic int over;

static void *stream(void *fds)
{
	const int *pair = fds;
	static char bytes[30000];

	while (!atomic_load(&over)) {
		send(pair[0], bytes, sizeof(bytes), MSG_DONTWAIT);
		recv(pair[1], bytes, sizeof(bytes), MSG_DONTWAIT);
		send(pair[1], bytes, 100, MSG_DONTWAIT);
		recv(pair[0], bytes, sizeof(bytes), MSG_DONTWAIT);
	}
	return NULL;
}

static void a_stream_never_makes_strangers_of_its_ends(void **state)
{
	pthread_t thread;
	int agreed = 0, apart = 0;

	atomic_store(&over, 0);
	assert_int_equal(pthread_create(&thread, NULL, stream, ends), 0);
	for (int i = 0; i < LOOKS; i++) {
		int rc = meet_counts_agree(i & 1 ? &accepting : &connecting, ends[i & 1]);

		agreed += rc == 0;
		apart += rc != 0 && rc != -EAGAIN;
	}
	atomic_store(&over, 1);
	pthread_join(thread, NULL);
	assert_int_equal(apart, 0);
	assert_true(agreed > 0);
}

static void who_is_gone_is_told(void **state)
{
	close(ends[0]);
	close(ends[1]);
	assert_true(meet_counts_agree(&accepting, others[1]) < 0);
	ends[0] = ends[1] = -1;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_two, close_two)
	const struct CMUnitTest tests[] = {
		TEST(ends_of_one_agree),
		TEST(ends_of_ipv6_agree),
		TEST(who_has_received_more_is_another_s),
		TEST(who_has_sent_more_is_another_s),
		TEST(as_many_at_another_time_are_not_believed),
		TEST(a_stream_never_makes_strangers_of_its_ends),
		TEST(who_is_gone_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
