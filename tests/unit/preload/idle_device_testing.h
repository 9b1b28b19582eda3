/* SPDX-License-Identifier: MIT */
/* What a device by hand says of everything that a test does not care about; and when it is given up. */
#ifndef ZC_TESTS_IDLE_DEVICE_TESTING_H
#define ZC_TESTS_IDLE_DEVICE_TESTING_H

#include "rdma/verbs.h"

static bool device_given_up;

static enum verbs_state until_given_up(struct verbs_conn *conn, enum verbs_trouble *trouble)
{
	if (trouble)
		*trouble = VERBS_SILENCE;
	return device_given_up ? VERBS_BROKEN : VERBS_UP;
}

static void give_up(struct verbs_conn *conn)
{
	device_given_up = true;
}

static void settled(struct verbs_conn *conn, struct verbs_positions *out)
{
	*out = (struct verbs_positions){ .settled = true };
}

static ssize_t push(struct verbs_conn *conn, unsigned int how)
{
	return 0;
}

static int credit(struct verbs_conn *conn, unsigned int how)
{
	return 0;
}

static int nothing(struct verbs_conn *conn)
{
	return 0;
}

static int no_fd(const struct verbs_conn *conn)
{
	return -1;
}

static bool never(struct verbs_conn *conn, unsigned int what)
{
	return true;
}

static const char *tell(enum verbs_trouble trouble)
{
	return "";
}

static unsigned int invalidate(const void *at, size_t bytes)
{
	return 0;
}

#define IDLE_DEVICE                                                                                                    \
	.state = until_given_up, .positions = settled, .push = push, .credit = credit, .poll = nothing, .fd = no_fd,   \
	.arm = never, .woke = nothing, .tell = tell, .invalidate = invalidate, .give_up = give_up

#endif
