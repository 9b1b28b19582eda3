/* SPDX-License-Identifier: MIT */
/* What the tests of one lane share: a lane that is both ends' at once. */
#ifndef ZC_TESTS_RING_TESTING_H
#define ZC_TESTS_RING_TESTING_H

#include <stdbool.h>

#include "rdma/channel.h"
#include "stream_testing.h"

#define RING 4096u

static struct channel channel;
static struct lane lane;

static inline int make_lane(void **state)
{
	if (channel_make(&channel, RING) < 0)
		return -1;
	lane = channel.out;
	atomic_store(&lane.shared->reader, 1);
	return 0;
}

static inline int drop_lane(void **state)
{
	channel_close(&channel);
	return 0;
}

static inline bool right(const uint8_t *got, uint64_t position, size_t bytes)
{
	return wrong_from(got, position, bytes) == bytes;
}

#endif
