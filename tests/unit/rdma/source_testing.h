/* SPDX-License-Identifier: MIT */
/*
 * What the tests of sources share: the two ends of a channel, a transport with a hook around each GET, and child processes
 * that send.
 */
#ifndef ZC_TESTS_UNIT_RDMA_SOURCE_TESTING_H
#define ZC_TESTS_UNIT_RDMA_SOURCE_TESTING_H

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "rdma/channel.h"
#include "stream_testing.h"

#define RING 4096u

static struct channel sending, receiving; /* two mappings of one segment */
static const uint8_t identity[TRANSPORT_IDENTITY_BYTES] = "the connection of this test";

/* The transport, with a hook around each GET, and an error instead of it. */
static struct transport_ops watched;
static void (*before_get)(void), (*after_get)(void);
static int get_error;

static inline ssize_t watched_get(struct transport_reach *reach, const struct transport_place *place,
				  const struct transport_token *token, const struct transport_get *get)
{
	ssize_t rc;

	if (get_error)
		return get_error;
	if (before_get)
		before_get();
	rc = transport_cma.get(reach, place, token, get);
	if (after_get)
		after_get();
	return rc;
}

static inline int make_channel(void **state)
{
	before_get = after_get = NULL;
	get_error = 0;
	watched = transport_cma;
	watched.get = watched_get;
	if (channel_make(&sending, RING) < 0 || channel_take(&receiving, sending.fd) < 0)
		return -1;
	channel_open_sources(&sending, &watched, identity);
	channel_open_sources(&receiving, &watched, identity);
	atomic_store(&receiving.in.shared->reader, 1);
	return 0;
}

static inline int drop_channel(void **state)
{
	channel_close(&receiving);
	channel_close(&sending);
	return 0;
}

/* Both ends in one process: it fetches from itself. */
static inline void shake_hands(void)
{
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN); /* nobody has asked */
	assert_int_equal(source_step_in(&receiving.in), 0);
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN); /* answers */
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN);
	assert_int_equal(source_step_in(&receiving.in), 1);
	assert_int_equal(source_step_out(&sending.out, NULL), 0);
	assert_true(lane_take_over(&sending.out));
}

static inline int get(void *to, size_t bytes, bool peek, size_t *got)
{
	return lane_get(&receiving.in, &(struct iovec){ to, bytes }, 1, peek, got);
}

static uint64_t random_state = 88172645463325252ull;

static inline size_t below(size_t limit)
{
	return random_below(&random_state, limit);
}

static inline uint8_t *some_bytes(uint64_t position, size_t bytes)
{
	uint8_t *at = malloc(bytes);

	fill(at, position, bytes);
	return at;
}

/* Child processes that send ------------------------------------------------------------------------------------------ */

static inline pid_t start(void (*run)(void))
{
	pid_t child = fork();

	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	run();
	_exit(0);
}

/* As the sender of a child process: the handshake with a receiver that polls. */
static inline void answer_until_proved(void)
{
	while (source_step_out(&sending.out, NULL) < 0)
		sched_yield();
	while (!lane_take_over(&sending.out))
		sched_yield();
}

static inline void receive_until_proved(void)
{
	while (source_step_in(&receiving.in) != 1)
		sched_yield();
}

static inline void kill_sender(pid_t child)
{
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_channel, drop_channel)

#endif
