/* SPDX-License-Identifier: MIT */
/*
 * A doorbell for which a buffer full of bytes that only lack their acknowledgement has no room. This process is not allowed to
 * wait for it: poll() fails here, of which the library knows nothing.
 */
#define _GNU_SOURCE
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include "common/sys.h"
#include "../refuse_testing.h"
#include "met_testing.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

static int option(int name)
{
	int value = -1;
	socklen_t bytes = sizeof(value);

	getsockopt(ends[0], SOL_SOCKET, name, &value, &bytes);
	return value;
}

static bool is_full_of_received_bytes(void)
{
	uint32_t info[SK_MEMINFO_VARS];
	socklen_t bytes = sizeof(info);
	int unsent = -1;

	assert_int_equal(getsockopt(ends[0], SOL_SOCKET, SO_MEMINFO, info, &bytes), 0);
	assert_int_equal(sys_call(SYS_ioctl, ends[0], 0x894B /* SIOCOUTQNSD */, (long)&unsent, 0, 0, 0), 0);
	return info[SK_MEMINFO_WMEM_QUEUED] >= info[SK_MEMINFO_SNDBUF] && !unsent;
}

/* Raw bytes until no more go, all received; the receiver delays what it owes for them. */
static void fill_with_raw_bytes(void)
{
	struct engine_raw raw;
	char data[1 << 16] = { 0 };
	ssize_t sent, got, all = 0;

	assert_int_equal(setsockopt(ends[1], IPPROTO_TCP, TCP_QUICKACK, &(int){ 0 }, sizeof(int)), 0);
	raw = engine_raw_begins(conns[0], ends[0], 0);
	sent = send(ends[0], data, sizeof(data), MSG_DONTWAIT);
	assert_true(sent > 0);
	raw.done = sent;
	engine_raw_ends(&raw);
	while (all < sent) {
		got = receive_some(1, data, sizeof(data), 0);
		assert_true(got > 0);
		all += got;
	}
}

static bool doorbell_is_there(void)
{
	int there = 0;

	assert_int_equal(ioctl(ends[1], FIONREAD, &there), 0);
	return there > 0;
}

/*
 * A receiver whose own bytes go by TCP does not acknowledge raw ones at once. The acknowledgement may come all the same, if this
 * process was not running: then once more. Returns whether it did not.
 */
static bool fill(void)
{
	struct engine_raw answer = engine_raw_begins(conns[1], ends[1], 0);
	char byte;

	fill_with_raw_bytes();
	assert_int_equal(receive_some(1, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	engine_raw_ends(&answer);
	return is_full_of_received_bytes();
}

static void ring_a_sleeper(void)
{
	char byte;

	assert_true(lane_arm(lane_from(0)));
	assert_int_equal(send_whole(0, "x"), 1);
	assert_true(atomic_load(&lane_from(0)->shared->on_ring));
	assert_true(doorbell_is_there());
	assert_int_equal(receive_some(1, &byte, 1, 0), 1);
}

static void fill_up(void)
{
	bool full = false;

	assert_int_equal(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &(int){ 1 }, sizeof(int)), 0);
	for (int i = 0; i < 200 && !full; i++)
		full = fill();
	assert_true(full);
}

static void doorbell_does_not_wait_for_an_acknowledgement(void **state)
{
	int size, lock;

	fill_up();
	size = option(SO_SNDBUF);
	lock = option(SO_BUF_LOCK);
	ring_a_sleeper();
	assert_int_equal(option(SO_SNDBUF), size);
	assert_int_equal(option(SO_BUF_LOCK), lock);
}

static void size_that_the_kernel_chooses_stays_the_kernel_s(void **state)
{
	int lock = 0;

	fill_up();
	if (setsockopt(ends[0], SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock)) < 0)
		skip(); /* the kernel is too old */
	ring_a_sleeper();
	assert_int_equal(option(SO_BUF_LOCK), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(doorbell_does_not_wait_for_an_acknowledgement),
		TEST(size_that_the_kernel_chooses_stays_the_kernel_s),
	};

	use_rings(1 << 20);
	if (!refuse_call(SYS_poll, EPERM))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
