/* SPDX-License-Identifier: MIT */
/*
 * Receives on a connection that has an engine: from the ring, or raw bytes of TCP behind the doorbells that are due. A wait is
 * a receive of the kernel's with MSG_PEEK, so that signals, timeouts and cancellation mean what they always do; MSG_WAITALL is
 * a loop of ours, since a doorbell must not count as data.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/engine_source.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/signals.h"
#include "preload/spread.h"
#include "rdma/guard.h"

#define SCRATCH 4096
#define LOOKS 64
#define ASK_EVERY_NS 20000
#define NOTHING_MAX 100000 /* looks at bytes that are neither data nor doorbells, before they are taken for nonsense */

/* A receive of the program under way. */
struct receive {
	struct conn *conn;
	struct engine *engine;
	int fd, flags;
	struct iovec *iov; /* what is left to be filled */
	int count;
	size_t left, done;
	bool interrupted; /* by a signal, while it span */
	bool discard;	  /* MSG_TRUNC: bytes are counted and thrown away */
	unsigned int nothing;
};

static void advance(struct receive *receive, size_t bytes)
{
	receive->done += bytes;
	receive->left -= bytes;
	if (receive->discard)
		return;
	while (bytes && bytes >= receive->iov->iov_len) {
		bytes -= receive->iov->iov_len;
		receive->iov++;
		receive->count--;
	}
	if (bytes) {
		receive->iov->iov_base = (char *)receive->iov->iov_base + bytes;
		receive->iov->iov_len -= bytes;
	}
}

/* Raw bytes, without waiting. Returns bytes, 0 at the end, or -errno. */
static long receive_raw(const struct receive *receive, const struct iovec *iov, int count)
{
	struct msghdr message = { .msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count };
	int flags = (receive->flags & MSG_PEEK) | MSG_DONTWAIT;

	/* The kernel writes: where the guard is mprotect it would be refused. */
	if (__builtin_expect(guard_active(), 0) && guard_needs_settling()) {
		for (int i = 0; i < count; i++)
			guard_settle(iov[i].iov_base, iov[i].iov_len);
	}
	return sys_call(SYS_recvmsg, receive->fd, (long)&message, flags, 0, 0, 0);
}

enum took {
	TOOK_BYTES,
	TOOK_NOTHING,
	TOOK_END,
	TOOK_LOOK_AGAIN,
	TOOK_LAST, /* the lane is over: the program's own call does the rest */
};

static int raw_result(struct receive *receive, long got, size_t *bytes)
{
	if (got > 0) {
		*bytes = (size_t)got;
		return TOOK_BYTES;
	}
	if (!got)
		return TOOK_END;
	return got == -EAGAIN ? TOOK_NOTHING : (int)got;
}

/* The same, of at most `max` bytes. */
static long receive_raw_max(const struct receive *receive, const struct iovec *iov, int count, size_t max)
{
	struct iovec cut[count];
	int used = 0;

	while (used < count && max) {
		cut[used] = iov[used];
		if (cut[used].iov_len > max)
			cut[used].iov_len = max;
		max -= cut[used++].iov_len;
	}
	return receive_raw(receive, cut, used);
}

/*
 * Over TCP an answer brings the acknowledgement along. One that goes by the ring does not, and Nagle's algorithm at the other end
 * would wait for it until the delayed one comes.
 */
static void acknowledge(struct engine *engine, int fd)
{
	int on = 1;

	if (atomic_load_explicit(&engine->channel.out.shared->on_ring, memory_order_relaxed) && !guest_sandboxed())
		sys_call(SYS_setsockopt, fd, IPPROTO_TCP, TCP_QUICKACK, (long)&on, sizeof(on), 0);
}

static int take_raw(struct receive *receive, const struct iovec *iov, int count, size_t *bytes)
{
	struct lane *in = &receive->engine->channel.in;
	size_t max;
	long got;

	if (lane_bells_due(in))
		return TOOK_NOTHING; /* they have not come yet */
	max = lane_raw_begins(in);
	if (!max)
		return lane_is_empty(in) ? TOOK_NOTHING : TOOK_LOOK_AGAIN;
	got = max == SIZE_MAX ? receive_raw(receive, iov, count) : receive_raw_max(receive, iov, count, max);
	lane_raw_ends(in, got > 0 && !(receive->flags & MSG_PEEK) ? (size_t)got : 0);
	if (got > 0)
		acknowledge(receive->engine, receive->fd);
	return raw_result(receive, got, bytes);
}

/* What there is now. Returns enum took or -errno. */
static int take(struct receive *receive, const struct iovec *iov, int count, size_t *bytes)
{
	struct engine *engine = receive->engine;
	struct lane *in = &engine->channel.in;
	struct lock_hold hold;
	uint64_t fetched;
	int rc;

	*bytes = 0;
	if (!lock_take(&engine->in, &hold))
		return -EDEADLK;
	atomic_store_explicit(&in->shared->reader, 1, memory_order_relaxed);
	sources_step_in(engine, receive->left);
	fetched = engine->channel.sources_in.fetched;
	rc = lane_get(in, iov, count, receive->flags & MSG_PEEK, bytes);
	if (rc >= 0)
		engine_strip(receive->conn, engine, receive->fd);
	if (rc == LANE_DATA) {
		stats_conn(receive->conn->slot, STAT_CONN_RING_RECV_BYTES, *bytes);
		stats_conn(receive->conn->slot, STAT_CONN_GET_BYTES, engine->channel.sources_in.fetched - fetched);
		rc = TOOK_BYTES;
	} else if (rc == LANE_RAW && !receive->done && !engine_reads(engine)) {
		rc = TOOK_LAST;
	} else if (rc == LANE_RAW) {
		rc = take_raw(receive, iov, count, bytes);
	} else if (rc == LANE_EMPTY) {
		rc = TOOK_NOTHING;
	} else if (rc != -EFAULT) {
		rc = -ECONNRESET;
	}
	lock_give(&engine->in, &hold);
	return rc;
}

/* As the program asked: into its memory, or into none. */
static int take_wanted(struct receive *receive)
{
	char scratch[SCRATCH];
	struct iovec none = { scratch, receive->left < SCRATCH ? receive->left : SCRATCH };
	size_t bytes = 0;
	int rc;

	if (!receive->left && !receive->done) { /* a receive of nothing waits for something */
		int flags = receive->flags;

		none.iov_len = 1;
		receive->flags |= MSG_PEEK;
		rc = take(receive, &none, 1, &bytes);
		receive->flags = flags;
		return rc;
	}
	rc = receive->discard ? take(receive, &none, 1, &bytes) : take(receive, receive->iov, receive->count, &bytes);
	if (rc == TOOK_BYTES)
		advance(receive, bytes);
	return rc;
}

/* Whether spinning for the lane may pay now. */
static bool may_spin(struct engine *engine)
{
	if (!atomic_load_explicit(&engine->channel.in.shared->from_ring, memory_order_relaxed) || !settings.spin_us)
		return false;
	if (engine->spin_skip) {
		engine->spin_skip--;
		return false;
	}
	return spread_apart(engine);
}

static void has_spun(struct engine *engine, bool paid)
{
	if (paid) {
		engine->spin_ns = (uint32_t)settings.spin_us * 1000;
	} else if ((engine->spin_ns /= 2) < 1000) { /* in vain: ever shorter, then seldom */
		engine->spin_ns = 4000;
		engine->spin_skip = 32;
	}
}

/*
 * Some looks at the ring. The core is not offered to others in between (sched_yield): who gives way to a busy thread waits for
 * its time slice, milliseconds, where a sleeper is woken at once. The peer is on another core.
 */
static bool spin_once(struct engine *engine)
{
	for (int i = 0; i < LOOKS; i++) {
		if (!lane_is_empty(&engine->channel.in))
			return true;
		cpu_relax();
	}
	return false;
}

/* Spins for the ring while that has paid lately. Returns whether there is something. */
static bool spin(struct receive *receive)
{
	struct engine *engine = receive->engine;
	uint32_t before = signals_end_calls;
	uint64_t until;

	if (!may_spin(engine))
		return false;
	until = clock_now() + engine->spin_ns;
	do {
		if (spin_once(engine)) {
			has_spun(engine, true);
			stats_conn(receive->conn->slot, STAT_CONN_SPINS, 1);
			return true;
		}
		if (signals_end_calls != before) {
			receive->interrupted = true;
			return false;
		}
	} while (clock_now() < until);
	has_spun(engine, false);
	return false;
}

bool engine_spin(struct conn *conn, int fd, struct pollfd *fds, nfds_t count, uint64_t until)
{
	struct engine *engine = engine_enter(conn, fd);
	uint32_t before = signals_run;
	uint64_t now = clock_now();

	if (!engine)
		return true;
	if (engine_met(engine) && now < until && may_spin(engine)) {
		bool found = false;

		until = until - now < engine->spin_ns ? until : now + engine->spin_ns;
		do {
			found = spin_once(engine);
		} while (!found && signals_run == before && clock_now() < until &&
			 (count == 1 || sys_call(SYS_poll, (long)fds, (long)count, 0, 0, 0, 0) == 0));
		if (found)
			stats_conn(conn->slot, STAT_CONN_SPINS, 1);
		if (found || clock_now() >= until)
			has_spun(engine, found);
	}
	engine_leave(conn);
	return signals_run == before;
}

static bool may_wait(const struct receive *receive)
{
	return !(receive->flags & MSG_DONTWAIT) &&
	       !(sys_call(SYS_fcntl, receive->fd, F_GETFL, 0, 0, 0, 0) & O_NONBLOCK);
}

/* What the socket has besides: looks, or waits in the kernel. Returns > 0 for bytes, 0 at the end, or -errno. */
static ssize_t ask_kernel(struct receive *receive, bool waits)
{
	ssize_t got;
	char byte;

	if (!waits)
		return sys_call(SYS_recvfrom, receive->fd, (long)&byte, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
	{
		__attribute__((cleanup(engine_wakes))) struct engine_sleep sleep = { 0 };

		if (engine_sleeps(receive->conn, receive->fd, &sleep))
			return 1;
		got = real.recv(receive->fd, &byte, 1, MSG_PEEK);
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

/* There was nothing. Returns 1 to look again, or what the receive ends with. */
static ssize_t wait_for_more(struct receive *receive)
{
	struct engine *engine = receive->engine;
	bool waits = may_wait(receive);
	ssize_t rc;

	if (engine->ended || engine->error) {
		rc = -engine->error;
		engine->error = 0;
		return rc;
	}
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
	if (rc > 0)
		return ++receive->nothing < NOTHING_MAX ? 1 : -ECONNRESET;
	if (rc == -EAGAIN || rc == -EINTR)
		return rc;
	/* Whatever was put in the ring before the end, or the error, comes before it; or can't come any more. */
	if (lane_is_stuck(&engine->channel.in))
		return -ECONNRESET;
	if (lane_is_empty(&engine->channel.in))
		return rc;
	engine->ended = !rc;
	engine->error = (int)-rc;
	return 1;
}

static ssize_t run(struct receive *receive)
{
	for (;;) {
		ssize_t rc = take_wanted(receive);

		if (rc == TOOK_BYTES) {
			if (!(receive->flags & MSG_WAITALL) || receive->flags & MSG_PEEK || !receive->left)
				return (ssize_t)receive->done;
			continue;
		}
		if (rc == TOOK_LAST)
			return ENGINE_BY_KERNEL;
		if (rc == TOOK_END)
			return (ssize_t)receive->done;
		if (rc == TOOK_NOTHING)
			rc = wait_for_more(receive);
		else if (rc == TOOK_LOOK_AGAIN)
			rc = 1;
		if (rc <= 0)
			return receive->done ? (ssize_t)receive->done : rc;
	}
}

struct use {
	struct conn *conn;
};

static void use_ends(struct use *use)
{
	if (use->conn)
		engine_leave(use->conn);
}

ssize_t engine_recv(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	struct engine *engine = engine_enter(conn, fd);
	struct iovec copy[count > 0 && count <= IOV_MAX ? count : 1];
	struct receive receive = { .conn = conn,
				   .engine = engine,
				   .fd = fd,
				   .flags = flags,
				   .iov = copy,
				   .count = count };
	/* NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): for the cleanup */
	__attribute__((cleanup(use_ends))) struct use use = { engine ? conn : NULL };

	if (!engine || count < 0 || count > IOV_MAX)
		return ENGINE_BY_KERNEL;
	if (atomic_load_explicit(&engine->state, memory_order_relaxed) == ENGINE_APART)
		engine_step(conn, engine, fd);
	if (!engine_reads(engine))
		return ENGINE_BY_KERNEL;
	pthread_testcancel();
	memcpy(copy, iov, sizeof(*iov) * (size_t)count);
	for (int i = 0; i < count; i++)
		receive.left += iov[i].iov_len;
	receive.discard = flags & MSG_TRUNC;
	if (receive.discard)
		receive.flags &= ~MSG_TRUNC;
	return run(&receive);
}

struct engine_raw engine_raw_recv_use(struct conn *conn, int fd)
{
	struct engine_raw raw = { .engine = engine_enter(conn, fd), .done = -1 };
	struct lock_hold hold;

	if (!raw.engine)
		return raw;
	if (atomic_load_explicit(&raw.engine->state, memory_order_relaxed) == ENGINE_APART &&
	    lock_take(&raw.engine->in, &hold)) {
		/* Whoever meets meanwhile knows of this one, and the peer waits with its TAKEOVER. */
		if (!engine_met(raw.engine)) {
			raw.engine->raw_receiving++;
			raw.engine->reader = true;
			raw.conn = conn;
		}
		lock_give(&raw.engine->in, &hold);
	}
	raw.again = !raw.conn && engine_reads(raw.engine);
	if (!raw.conn)
		engine_leave(conn);
	return raw;
}

void engine_raw_recv_ends(struct engine_raw *raw)
{
	uint64_t bytes = raw->done > 0 ? (uint64_t)raw->done : 0;
	struct lock_hold hold;

	if (__builtin_expect(!raw->conn, 1))
		return;
	if (lock_take(&raw->engine->in, &hold)) {
		raw->engine->raw_receiving--;
		if (engine_met(raw->engine))
			lane_raw_ends(&raw->engine->channel.in, bytes);
		else
			raw->engine->received += bytes;
		lock_give(&raw->engine->in, &hold);
	}
	engine_leave(raw->conn);
	raw->conn = NULL;
}
