/* SPDX-License-Identifier: MIT */
/*
 * How a receive on a connection that has an engine waits: it spins for the ring, and then sleeps in a receive of the kernel's with
 * MSG_PEEK, so that signals, timeouts and cancellation mean what they always do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/engine_later.h"
#include "preload/engine_receive.h"
#include "preload/far.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/signals.h"
#include "preload/trim.h"

#define ASK_EVERY_NS 20000
#define PEEK_EVERY_MS 1	   /* bytes that stay are readable: no wait tells of more */
#define NOTHING_MAX 100000 /* looks at bytes that are neither data nor doorbells, before they are taken for nonsense */

/* Spins for the ring while that has paid lately. Returns whether there is something. */
static bool spin(struct receive *receive)
{
	struct engine *engine = receive->engine;
	uint32_t before = signals_end_calls;
	uint64_t until;

	if (!engine_may_spin(engine))
		return false;
	until = clock_now() + engine->spin.ns;
	do {
		if (engine_spin_once(receive->conn, engine)) {
			engine_has_spun(&engine->spin, engine, true);
			stats_conn(receive->conn->slot, STAT_CONN_SPINS, 1);
			return true;
		}
		if (signals_end_calls != before) {
			receive->interrupted = true;
			return false;
		}
	} while (clock_now() < until);
	engine_has_spun(&engine->spin, engine, false);
	return false;
}

/* If it does not spin, the wait itself finds out whether it must not wait. */
static bool may_wait(struct receive *receive)
{
	receive->asked = atomic_load_explicit(&receive->engine->channel.in.shared->from_ring, memory_order_relaxed);
	return !(receive->flags & MSG_DONTWAIT) && (!receive->asked || conn_waits(receive->fd, receive->flags));
}

#define WOKEN 2 /* by the ring */

static ssize_t look_at_socket(const struct receive *receive)
{
	char byte;
	long got = sys_call(SYS_recvfrom, receive->fd, (long)&byte, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);

	if (got > 0)
		far_kernel_told(receive->engine);
	return got;
}

/* Waits for the socket and the device of a peer on another host. Returns as ask_kernel(), or WOKEN. */
static ssize_t rest(struct receive *receive, struct engine_sleep *sleep)
{
	struct pollfd both[2] = { { .fd = receive->fd, .events = POLLIN | POLLRDHUP },
				  { .fd = sleep->link, .events = POLLIN } };
	ssize_t got;

	if (__builtin_expect(settings.recv_sink, 0) && !receive->discard && !(receive->flags & MSG_PEEK) &&
	    receive->left)
		receive->offers |= far_sink_offer(receive->conn, receive->engine, receive->iov, receive);
	got = far_sleep_for_both(both);
	if (got < 0)
		return got;
	sleep->told = both[1].revents;
	if (!both[0].revents)
		return WOKEN;
	far_kernel_told(receive->engine);
	if (both[0].revents == POLLIN)
		return 1;
	got = look_at_socket(receive);
	/* Notices of the error queue end no receive. */
	receive->rests_not = got == -EAGAIN;
	return got == -EAGAIN ? 1 : got;
}

/* What SO_RCVTIMEO says; 0: it does not end a receive. */
static uint64_t limit_of(struct conn *conn, int fd)
{
	struct timeval limit = { 0 };
	socklen_t bytes = sizeof(limit);

	if (guest_sandboxed() || far_may_rest(conn, fd) ||
	    sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, (long)&limit, (long)&bytes, 0) < 0)
		return 0;
	return (uint64_t)limit.tv_sec * NS_PER_SEC + (uint64_t)limit.tv_usec * (NS_PER_SEC / 1000000);
}

/* Whether the receive has waited for as long as SO_RCVTIMEO lets it. */
static bool is_over(const struct receive *receive)
{
	uint64_t limit = limit_of(receive->conn, receive->fd);

	return limit && clock_now() - receive->waits_since >= limit;
}

/*
 * SO_RCVTIMEO is for all waits of a call together, and a receive of the kernel's would begin anew: this one has what is left. As with
 * that, any handler ends it. Returns as ask_kernel(), or WOKEN if this is none for it.
 */
static ssize_t wait_for_rest(struct receive *receive)
{
	struct pollfd look = { .fd = receive->fd, .events = POLLIN | POLLRDHUP };
	uint64_t limit = limit_of(receive->conn, receive->fd), now = clock_now();
	uint64_t left = receive->waits_since + limit > now ? receive->waits_since + limit - now : 0;
	struct timespec time = { (time_t)(left / NS_PER_SEC), (long)(left % NS_PER_SEC) };
	ssize_t got;
	int told;

	if (!limit)
		return WOKEN;
	told = real.ppoll(&look, 1, &time, NULL);
	if (told < 0)
		return -errno;
	got = look_at_socket(receive);
	return told && got == -EAGAIN ? WOKEN : got; /* notices of the error queue end no receive */
}

/* What the socket has besides: looks, or waits in the kernel. Returns 1 for bytes, WOKEN, 0 at the end, or -errno. */
static ssize_t ask_kernel(struct receive *receive, bool waits)
{
	ssize_t got;
	char byte;

	if (!waits)
		return look_at_socket(receive);
	{
		__attribute__((cleanup(engine_wakes))) struct engine_sleep sleep = { 0 };

		/* Where bytes come by TCP, the agent answers for what comes from the device: a move, which is rare. */
		bool rests = !receive->rests_not && far_is(receive->engine) && receive->asked &&
			     far_may_rest(receive->conn, receive->fd);

		if (engine_sleeps(receive->conn, receive->fd, rests, &sleep))
			return WOKEN;
		if (sleep.link >= 0)
			return rest(receive, &sleep);
		got = trim_in_sleep(receive->fd);
		if (got)
			return got;
		got = receive->slept ? wait_for_rest(receive) : WOKEN;
		if (got != WOKEN)
			return got;
		receive->slept = true;
		got = real.recv(receive->fd, &byte, 1, MSG_PEEK);
		if (got > 0)
			far_kernel_told(receive->engine);
		return got < 0 ? -errno : got;
	}
}

/*
 * Whether the kernel is to be asked about the end of the stream: a program that looks again and again is told of it a moment
 * later, but at once when the kernel has told of something.
 */
static bool asks_kernel(struct engine *engine)
{
	uint64_t now = clock_now();

	if (atomic_load_explicit(&engine->channel.in.shared->from_ring, memory_order_relaxed) &&
	    !atomic_exchange(&engine->kernel_told, false) && now - engine->kernel_asked < ASK_EVERY_NS)
		return false;
	engine->kernel_asked = now;
	return true;
}

bool engine_has_bytes(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);
	bool has;

	if (!engine)
		return false;
	has = engine_met(engine) && lane_unread(&engine->channel.in) > 0 && !asks_kernel(engine);
	engine_leave(conn);
	return has;
}

ssize_t engine_wait_for_more(struct receive *receive)
{
	struct engine *engine = receive->engine;
	ssize_t rc;
	bool waits;

	if (engine->ended || engine->error) {
		rc = -engine->error;
		engine->error = 0;
		return engine_end_of(engine, receive->fd, rc);
	}
	if (engine_glance(receive->conn, engine, receive->flags))
		return 1;
	waits = may_wait(receive);
	if (!(receive->flags & MSG_DONTWAIT))
		atomic_store_explicit(&engine->waited, waits, memory_order_relaxed);
	if (waits && !receive->waits_since)
		receive->waits_since = clock_now();
	if (waits && spin(receive))
		return 1;
	if (receive->interrupted)
		return -EINTR;
	if (!waits) {
		if (engine_is_watched(receive->conn, engine) && !engine_arm(receive->conn, engine))
			return ++receive->nothing < NOTHING_MAX ? 1 : -ECONNRESET;
		if (!asks_kernel(engine))
			return -EAGAIN;
	}
	rc = ask_kernel(receive, waits);
	if (rc == WOKEN)
		return 1;
	if (rc > 0 && far_has_part(engine) && waits && is_over(receive))
		return -EAGAIN;
	if (rc > 0 && far_has_part(engine))
		return far_await_rest(receive->fd, waits, &receive->found_cut);
	if (rc > 0)
		return ++receive->nothing < NOTHING_MAX ? 1 : -ECONNRESET;
	if (rc == -EAGAIN || rc == -EINTR)
		return rc;
	if (!rc && far_is(engine))
		rc = far_error_at_end(engine);
	/* An end that nobody has announced. The agent may have seen the SWITCH since this call has looked. */
	if (!rc && far_is_cut(engine) && !(atomic_load(&engine->shut) & SHUT_IN) && !atomic_load(&engine->told_death)) {
		if (receive->found_cut) {
			atomic_store(&engine->told_death, true);
			return -ECONNRESET;
		}
		receive->found_cut = true;
		return 1;
	}
	/* Whatever was put in the ring before the end, or the error, comes before it; or can't come any more. */
	if (lane_is_stuck(&engine->channel.in))
		return -ECONNRESET;
	if (lane_is_empty(&engine->channel.in)) {
		if (!rc)
			engine->kernel_asked = 0; /* the next call is told so, too */
		return engine_end_of(engine, receive->fd, rc);
	}
	engine->ended = !rc;
	engine->error = (int)-rc;
	return 1;
}

/* Returns when `wanted` bytes are unread, or when a receive that has some would wait no longer for more. */
static void await_unread(struct conn *conn, int fd, size_t wanted, uint64_t since)
{
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };
	uint64_t limit = limit_of(conn, fd);
	uint32_t ran = signals_run;
	int there;

	while (engine_unread(conn, fd, &there) && (size_t)there < wanted) {
		if (limit && clock_now() - since >= limit)
			return;
		if (real.poll(&look, 1, PEEK_EVERY_MS) < 0 || signals_run != ran ||
		    look.revents & (POLLRDHUP | POLLHUP))
			return;
		if (look.revents)
			real.poll(NULL, 0, PEEK_EVERY_MS); /* by notices of the error queue */
	}
}

ssize_t engine_peek_all(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	uint64_t since = clock_now();
	size_t wanted = 0;
	ssize_t got;

	for (int i = 0; i < count; i++)
		wanted += iov[i].iov_len;
	do {
		got = engine_recv(conn, fd, iov, count, flags & ~MSG_WAITALL);
		if (got <= 0 || (size_t)got >= wanted || !conn_waits(fd, flags))
			return got;
		await_unread(conn, fd, wanted, since);
		got = engine_recv(conn, fd, iov, count, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
	} while (got == -EAGAIN); /* another one has taken them */
	return got;
}
