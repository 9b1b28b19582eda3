/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/evict.h"

#include <errno.h>
#include <poll.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"

#define BELLS_WAIT_NS NS_PER_SEC /* for doorbells that the peer has rung, or rings at this moment */

static long take_bells(struct lane *in, int fd, uint64_t due)
{
	char bells[64];
	long got = sys_call(SYS_recvfrom, fd, (long)bells, (long)(due < sizeof(bells) ? due : sizeof(bells)), MSG_DONTWAIT, 0,
			    0);

	if (got > 0)
		lane_saw_bells(in, (uint64_t)got);
	return got;
}

void evict_bells(struct engine *engine, int fd)
{
	struct lane *in = &engine->channel.in;
	uint64_t due = lane_bells_sure(in);

	while (due) {
		long got = take_bells(in, fd, due);

		if (got <= 0)
			return;
		due -= (uint64_t)got;
	}
}

static bool has_rest(const struct lane *in)
{
	return lane_unread(in) || lane_raw_max(in) != SIZE_MAX;
}

bool evict_has_rest(const struct engine *engine)
{
	return engine_met(engine) && !lane_is_over(&engine->channel.in) && has_rest(&engine->channel.in);
}

/* Waits a moment for a doorbell that is on its way, within this host. Returns false if none can come any more. */
static bool wait_for_bell(int fd, bool rung)
{
	struct pollfd look = { .fd = fd, .events = rung ? POLLIN : POLLRDHUP };
	long got = sys_call(SYS_poll, (long)&look, 1, rung ? 1 : 0, 0, 0, 0);

	if (!rung)
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0); /* the peer is about to ring */
	return rung || got <= 0;
}

/*
 * Takes doorbells until the lane is over, or until bytes come before that. A peer that was stopped while it rings, or that
 * lies, is not waited for. Returns -EAGAIN if it does not end, -EPROTO for nonsense.
 */
static int take_all_bells(struct lane *in, int fd)
{
	uint64_t until = clock_now() + BELLS_WAIT_NS;
	size_t none;

	for (;;) {
		uint64_t due;
		long got;

		if (lane_get(in, NULL, 0, false, &none) == -EPROTO)
			return -EPROTO;
		if (lane_is_over(in) || has_rest(in))
			return 0;
		due = lane_bells_sure(in);
		got = due ? take_bells(in, fd, due) : -EAGAIN;
		if (got > 0)
			continue;
		if ((got != -EAGAIN && got != -EINTR) || !wait_for_bell(fd, due != 0))
			return 0; /* the stream has ended */
		if (clock_now() > until)
			return -EAGAIN;
	}
}

void evict_reset(struct conn *conn, int fd)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	sys_call(SYS_connect, fd, (long)&nobody, sizeof(nobody), 0, 0, 0);
	stats_reason(conn->slot, REASON_LOST);
	log_info("fd %d: reset: what its ring holds could not go with it", fd);
}

bool evict_in(struct conn *conn, struct engine *engine, int fd)
{
	struct lane *in = &engine->channel.in;

	lane_leave(in);
	if (!lane_is_over(in) && take_all_bells(in, fd) < 0)
		evict_reset(conn, fd);
	return !has_rest(in);
}
