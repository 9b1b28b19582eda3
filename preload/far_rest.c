/* SPDX-License-Identifier: MIT */
/*
 * Threads of the program that sleep until the peer's next notice comes (far.h), and what the agent leaves to them. Whoever takes an
 * event from the device takes it from the agent, too: so it hears of that, unless it has left the connection to the program. It does
 * so as long as threads of the program rest there again and again, and the peer asks for no doorbells: it then wakes no more for
 * each notice, but looks after a moment whether the program has gone elsewhere.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/far_internal.h"
#include "preload/real.h"
#include "preload/signals.h"
#include "preload/trim.h"

#define RESTLESS_NS (100 * NS_PER_MS) /* behind the peer's last wish for a doorbell */

static void uses(struct far *far)
{
	if (!atomic_load_explicit(&far->used, memory_order_relaxed))
		atomic_store(&far->used, true);
}

/* The peer sleeps, and there is more than when it said so. */
static bool wants_bell(const struct engine *engine)
{
	const struct lane_shared *out = engine->channel.out.shared;
	uint32_t waits = atomic_load(&out->waits);

	return waits & 1 && waits != atomic_load(&engine->far.rung) &&
	       atomic_load(&out->waits_at) != (uint32_t)atomic_load(&out->tail) && atomic_load(&out->on_ring) &&
	       atomic_load(&out->reader);
}

void far_took_notices(struct conn *conn, const struct engine *engine, bool looks)
{
	const struct far *far = conn->far;

	if (!far || !atomic_load_explicit(&far->left, memory_order_relaxed))
		return;
	if (wants_bell(engine) ||
	    (!looks && atomic_load(&engine->channel.in.shared->tail) != atomic_load(&engine->far.looked)))
		far_kick();
}

void far_took_event(struct conn *conn, const struct engine *engine)
{
	struct far *far = conn->far;

	uses(far);
	if (!atomic_load(&far->left) || atomic_load(&far->stuck) || wants_bell(engine))
		far_kick();
}

bool far_may_rest(struct conn *conn, int fd)
{
	struct timeval limit = { 0 };
	socklen_t bytes = sizeof(limit);
	int ends = atomic_load_explicit(&conn->recv_ends, memory_order_relaxed);

	if (!ends) {
		if (sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, (long)&limit, (long)&bytes, 0) < 0)
			return false;
		ends = limit.tv_sec || limit.tv_usec ? 2 : 1;
		atomic_store_explicit(&conn->recv_ends, ends, memory_order_relaxed);
	}
	return ends == 1;
}

ssize_t far_await_rest(int fd, bool waits, bool *ended)
{
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };
	uint32_t before = signals_end_calls;

	pthread_testcancel();
	/* To the kernel the socket is readable: nothing tells when the rest has come. */
	sys_call(SYS_poll, (long)&look, 1, waits ? 1 : 0, 0, 0, 0);
	if (look.revents) {
		if (*ended)
			return -ECONNRESET;
		*ended = true; /* the rest may have come with the end: once more */
		return 1;
	}
	if (signals_end_calls != before)
		return -EINTR;
	return waits ? 1 : -EAGAIN;
}

int far_sleep_for_both(struct pollfd both[2])
{
	uint32_t ran = signals_run, ended = signals_end_calls;

	for (;;) {
		uint64_t until = trim_before_sleep(UINT64_MAX), now = until == UINT64_MAX ? 0 : clock_now();
		uint64_t left = until > now ? until - now : 0;
		struct timespec time = { (time_t)(left / NS_PER_SEC), (long)(left % NS_PER_SEC) };
		int rc = real.ppoll(both, 2, until == UINT64_MAX ? NULL : &time, NULL);

		if (rc > 0)
			return 0;
		/* A handler that nobody has counted may be one that ends calls. */
		if (rc < 0 && (errno != EINTR || signals_end_calls != ended || signals_run == ran))
			return -EINTR;
		ran = signals_run;
	}
}

int far_rests(struct conn *conn, struct engine *engine)
{
	struct far *far = conn->far;
	struct verbs_conn *link = far ? far_hold(far) : NULL; /* until far_rises() */

	if (!link || atomic_load(&engine->far.state) != FAR_UP || atomic_load(&engine->holders.count) != 1 ||
	    far_verbs->rest(link) < 0) {
		if (far)
			far_release(far);
		return -1;
	}
	far->resting = link;
	atomic_store(&far->rests, true);
	uses(far);
	/* What came before the device was asked to tell comes with no event. */
	if (!far_look_at_ring(conn, engine)) {
		far_rises(conn, engine, false);
		return -1;
	}
	return far_verbs->fd(link);
}

void far_rises(struct conn *conn, const struct engine *engine, bool told)
{
	struct far *far = conn->far;

	atomic_store(&far->rests, false);
	far_verbs->rise(far->resting, told);
	far_release(far);
	if (told)
		far_took_event(conn, engine);
	else
		uses(far);
	if (atomic_load(&far->left) && !far_agent_ticks())
		far_kick();
}

bool far_leaves_to_program(struct conn *conn, struct engine *engine, struct far *far)
{
	uint32_t waits;
	uint64_t now;

	if (!engine_met(engine) || atomic_load(&engine->far.state) != FAR_UP || atomic_load(&far->stuck) ||
	    engine->far.out != FAR_OUT_FREE || (!atomic_load(&far->rests) && !atomic_load(&far->used)) ||
	    far_verbs->state(atomic_load(&far->link), NULL) != VERBS_UP)
		return false;
	waits = atomic_load(&engine->channel.out.shared->waits);
	now = clock_now();
	if (atomic_exchange(&far->enters, false)) { /* what it wished for on TCP says nothing of the ring */
		far->waits = waits;
		far->restless_since = 0;
	}
	if (waits != far->waits)
		far->restless_since = now;
	far->waits = waits;
	if (now - far->restless_since <= RESTLESS_NS)
		return false;
	atomic_store(&far->left, true);
	/* What a thread of the program took from the device before it could see that, it has left to the agent. */
	return !wants_bell(engine);
}
