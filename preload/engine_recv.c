/* SPDX-License-Identifier: MIT */
/*
 * Receives on a connection that has an engine: from the ring, or raw bytes of TCP behind the doorbells that are due. MSG_WAITALL
 * is a loop of ours, since a doorbell must not count as data. How a receive waits: engine_recv_wait.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>

#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/engine_later.h"
#include "preload/engine_receive.h"
#include "preload/engine_source.h"
#include "preload/far.h"
#include "preload/far_compare.h"
#include "preload/guest.h"
#include "preload/pipe.h"
#include "preload/real.h"
#include "rdma/guard.h"
#include "rdma/later.h"

/* On the stack: threads of programs may have small ones, and thread-local memory is every thread's. */
#define SCRATCH 4096
#define SPLICE_STEP 8192
#define DRY_LOOKS 4	  /* in a row, for raw bytes that were not there */
#define DRY_LOOK_EVERY 32 /* a receive that waits first else */

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
	TOOK_FULL, /* the pipe takes none */
};

static int raw_result(struct receive *receive, long got, size_t *bytes)
{
	if (got > 0) {
		*bytes = (size_t)got;
		return TOOK_BYTES;
	}
	if (!got && far_is(receive->engine))
		got = far_error_at_end(receive->engine);
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

/*
 * A program that asks for raw bytes before there are any waits for the kernel at once, which costs a call less than to look first.
 * Whether it has become one that asks when there are some shows by a look now and then.
 */
static bool waits_first(struct receive *receive)
{
	struct engine *engine = receive->engine;

	if (receive->has_looked || receive->flags & MSG_DONTWAIT || engine->dry_looks < DRY_LOOKS ||
	    engine->dry_looks++ % DRY_LOOK_EVERY == 0)
		return false;
	return receive->has_looked = true;
}

static void learn_from_look(struct receive *receive, long got)
{
	if (receive->has_looked)
		return;
	receive->has_looked = true;
	if (got == -EAGAIN)
		receive->engine->dry_looks++;
	else
		receive->engine->dry_looks = 0;
}

/* Where urgent data is a receive stops, unless it begins there: the kernel does not know that this one has begun. */
static bool stops_at_mark(const struct receive *receive)
{
	int at = 0;

	return receive->done && sys_call(SYS_ioctl, receive->fd, SIOCATMARK, (long)&at, 0, 0, 0) >= 0 && at;
}

static int take_raw(struct receive *receive, const struct iovec *iov, int count, size_t *bytes)
{
	struct lane *in = &receive->engine->channel.in;
	size_t max;
	long got;

	if (lane_bells_due(in) || far_is_control(receive->engine))
		return TOOK_NOTHING; /* they have not come yet */
	if (receive->engine->error && guest_sandboxed())
		return TOOK_NOTHING; /* it is told before anybody asks */
	if (stops_at_mark(receive))
		return TOOK_END;
	if (waits_first(receive))
		return TOOK_NOTHING;
	max = lane_raw_begins(in);
	if (!max)
		return lane_is_empty(in) ? TOOK_NOTHING : TOOK_LOOK_AGAIN;
	got = max == SIZE_MAX ? receive_raw(receive, iov, count) : receive_raw_max(receive, iov, count, max);
	lane_raw_ends(in, got > 0 && !(receive->flags & MSG_PEEK) ? (size_t)got : 0);
	learn_from_look(receive, got);
	if (got > 0) {
		away_came(&receive->engine->away, AWAY_CAME_RAW);
		far_compare_came(receive->conn, receive->engine);
		acknowledge(receive->engine, receive->fd);
	}
	return raw_result(receive, got, bytes);
}

/* What there is now, under the lock. Returns enum took or -errno. */
static inline int take_now(struct receive *receive, const struct iovec *iov, int count, size_t *bytes)
{
	struct engine *engine = receive->engine;
	struct lane *in = &engine->channel.in;
	struct source_in *sources = &engine->channel.sources_in;
	uint64_t fetched, later, sunk, copied;
	bool fetches;
	int rc;

	*bytes = 0;
	lane_reads(in, !far_is(engine) || !engine_is_shut(engine));
	if (far_look_quickly(receive->conn, engine, receive->fd) < 0)
		return -ECONNRESET;
	sources_step_in(engine, receive->left);
	fetched = sources->fetched;
	later = sources->later;
	sunk = sources->sunk;
	copied = sources->copied;
	if (__builtin_expect(settings.recv_async, 0))
		sources->later_min = receive->later && !lane_has_left(in) ? settings.source_min : 0;
	rc = lane_get(in, iov, count, receive->flags & MSG_PEEK, bytes);
	if (rc >= 0)
		engine_strip(receive->conn, engine, receive->fd);
	far_took(receive->conn, engine);
	receive->by_ring = rc == LANE_DATA;
	if (rc == LANE_DATA) {
		away_came(&engine->away, AWAY_CAME_BY_RING);
		far_compare_came(receive->conn, engine);
		stats_conn(receive->conn->slot, STAT_CONN_RING_RECV_BYTES, *bytes);
		fetches = sources->fetched != fetched;
		atomic_store_explicit(&engine->far.fetches, fetches, memory_order_relaxed);
		if (__builtin_expect(fetches, 0)) {
			stats_conn(receive->conn->slot, STAT_CONN_GET_BYTES, sources->fetched - fetched);
			if (sources->sunk != sunk)
				stats_conn(receive->conn->slot, STAT_CONN_SINK_BYTES, sources->sunk - sunk);
			if (sources->copied != copied)
				stats_conn(receive->conn->slot, STAT_CONN_GET_COPIED_BYTES, sources->copied - copied);
		}
		if (sources->later != later)
			stats_conn(receive->conn->slot, STAT_CONN_LATER_BYTES, sources->later - later);
		rc = TOOK_BYTES;
	} else if (rc == LANE_RAW && (!receive->done || guest_sandboxed()) && !engine_reads(engine)) {
		rc = TOOK_LAST;
	} else if (rc == LANE_RAW) {
		far_look(receive->conn, engine, receive->fd); /* behind a move there is something else in the stream */
		rc = take_raw(receive, iov, count, bytes);
	} else if (rc == LANE_EMPTY) {
		rc = TOOK_NOTHING;
	} else if (rc != -EFAULT) {
		rc = -ECONNRESET;
	}
	return rc;
}

/* As take_now(), under no lock. */
static int take(struct receive *receive, const struct iovec *iov, int count, size_t *bytes)
{
	struct lock_hold hold;
	int rc;

	if (!lock_take(&receive->engine->in, &hold))
		return -EDEADLK;
	rc = take_now(receive, iov, count, bytes);
	lock_give(&receive->engine->in, &hold);
	return rc;
}

/* What is there is counted, whether it goes or stays: so it all goes to the same place. */
static int take_to_nowhere(struct receive *receive, size_t *bytes)
{
	size_t pieces = (receive->left + SCRATCH - 1) / SCRATCH;
	int count = pieces < IOV_MAX ? (int)pieces : IOV_MAX;
	struct iovec same[count];
	char scratch[SCRATCH];

	for (int i = 0; i < count; i++)
		same[i] = (struct iovec){ scratch, SCRATCH };
	if (receive->left < (size_t)count * SCRATCH)
		same[count - 1].iov_len = receive->left - (size_t)(count - 1) * SCRATCH;
	return take(receive, same, count, bytes);
}

/* Looked at, put in the pipe, and then taken, as much as it took; no other receive may come in between. */
static int take_to_pipe(struct receive *receive, size_t *bytes)
{
	char step[SPLICE_STEP];
	struct iovec iov = { step, receive->left < SPLICE_STEP ? receive->left : SPLICE_STEP };
	size_t put = 0, gone = 0;
	int rc;

	receive->flags |= MSG_PEEK;
	rc = take_now(receive, &iov, 1, bytes);
	receive->flags &= ~MSG_PEEK;
	if (rc == TOOK_BYTES) {
		long taken = pipe_put(receive->pipe, step, *bytes);

		receive->pipe_error = taken < 0 ? (int)taken : 0;
		rc = taken > 0 ? TOOK_BYTES : TOOK_FULL;
		put = taken > 0 ? (size_t)taken : 0;
	}
	for (int next = TOOK_BYTES; gone < put && next == TOOK_BYTES; gone += *bytes) {
		iov.iov_len = put - gone;
		next = take_now(receive, &iov, 1, bytes);
		if (next != TOOK_BYTES)
			receive->engine->error = next < 0 ? -next : ECONNRESET;
	}
	*bytes = put;
	return rc;
}

/* A receive of nothing waits for something. */
static int take_nothing(struct receive *receive)
{
	struct iovec none = { &(char){ 0 }, 1 };
	int flags = receive->flags, rc;
	size_t bytes;

	receive->flags |= MSG_PEEK;
	rc = take(receive, &none, 1, &bytes);
	receive->flags = flags;
	return rc;
}

/* As the program asked: into its memory, into a pipe, or into nothing. */
static int take_wanted(struct receive *receive)
{
	struct lock_hold hold;
	size_t bytes = 0;
	int rc;

	if (!receive->left && !receive->done)
		return take_nothing(receive);
	if (receive->splices) {
		if (!lock_take(&receive->engine->in, &hold))
			return -EDEADLK;
		rc = take_to_pipe(receive, &bytes);
		lock_give(&receive->engine->in, &hold);
	} else {
		rc = receive->discard ? take_to_nowhere(receive, &bytes) :
					take(receive, receive->iov, receive->count, &bytes);
	}
	if (rc == TOOK_BYTES)
		advance(receive, bytes);
	return rc;
}

/* Whether what was taken ends where the stream goes on in the other place, and there may be more. */
static inline bool is_at_border(const struct receive *receive)
{
	const struct lane *in = &receive->engine->channel.in;

	if (receive->by_ring)
		return !atomic_load_explicit(&in->shared->from_ring, memory_order_relaxed);
	return !lane_is_empty(in);
}

/* Whether it is the socket's error, which is used up by having been told here. */
static bool is_of_socket(ssize_t rc)
{
	return rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != -EBADF && rc != -EDEADLK && rc != -EFAULT;
}

/*
 * A receive that returns less than it was asked for says that there is no more, and then a program that is told of edges waits for the next
 * one (epoll(7)). So it goes on beyond a border, and beyond what one step takes of what goes to no memory. What it meets there besides
 * bytes is the next call's.
 */
static ssize_t finish(struct receive *receive)
{
	if (receive->flags & MSG_PEEK)
		return (ssize_t)receive->done;
	for (int rc = TOOK_BYTES; rc == TOOK_BYTES && receive->left && (receive->discard || is_at_border(receive));) {
		receive->has_looked = true; /* it does not wait */
		rc = take_wanted(receive);
		if (is_of_socket(rc))
			receive->engine->error = -rc;
	}
	return (ssize_t)receive->done;
}

/* What an earlier receive has met behind its bytes comes before the end. */
static ssize_t tell_end(struct receive *receive)
{
	int error = receive->engine->error;

	receive->engine->error = 0;
	return engine_end_of(receive->engine, receive->fd, -error);
}

/*
 * In a sandbox, behind what was unread when it was entered, and where nothing will be in the ring any more: nothing can be asked there but
 * what the program asks itself, so the kernel waits for all of the rest at once, if that is waited for.
 */
static ssize_t finish_by_kernel(struct receive *receive)
{
	struct msghdr message = { .msg_iov = receive->iov, .msg_iovlen = (size_t)receive->count };
	int flags = receive->flags | (receive->discard ? MSG_TRUNC : 0), saved = errno;
	ssize_t got;

	if (!(flags & MSG_WAITALL))
		return (ssize_t)receive->done;
	got = receive->count == 1 || receive->discard ?
		      real.recv(receive->fd, receive->iov->iov_base, receive->left, flags) :
		      real.recvmsg(receive->fd, &message, flags);
	if (got < 0 && is_of_socket(-errno))
		receive->engine->error = errno;
	errno = saved; /* the call has had bytes */
	return (ssize_t)receive->done + (got > 0 ? got : 0);
}

/* Goes on from what a first look has taken. */
static ssize_t run(struct receive *receive, int first)
{
	for (ssize_t rc = first;; rc = take_wanted(receive)) {
		if (rc == TOOK_BYTES) {
			receive->nothing = 0;
			if (!(receive->flags & MSG_WAITALL) || receive->flags & MSG_PEEK || !receive->left)
				return finish(receive);
			continue;
		}
		if (rc == TOOK_LAST && receive->done)
			return finish_by_kernel(receive);
		if (rc == TOOK_LAST)
			return engine_end_of(receive->engine, receive->fd, ENGINE_BY_KERNEL);
		if (rc == TOOK_FULL)
			return receive->pipe_error == -EAGAIN ? ENGINE_PIPE_FULL : receive->pipe_error;
		if (rc == TOOK_END)
			return receive->done ? (ssize_t)receive->done : tell_end(receive);
		if (rc == TOOK_NOTHING) {
			rc = engine_wait_for_more(receive);
			/* The number may be another's by now, whose bytes these would be. */
			if (rc > 0 && table_conn(receive->fd) != receive->conn)
				rc = -EBADF;
		} else if (rc == TOOK_LOOK_AGAIN) {
			rc = 1;
		}
		if (rc <= 0 && receive->done && is_of_socket(rc))
			receive->engine->error = (int)-rc; /* the next call's */
		if (rc <= 0)
			return receive->done ? (ssize_t)receive->done : rc;
	}
}

struct use {
	struct conn *conn;
	struct receive *receive;
};

static void use_ends(struct use *use)
{
	if (use->receive->offers)
		far_sink_ends(use->conn, use->receive->engine, use->receive);
	if (use->conn)
		engine_leave(use->conn);
}

/* Whether a receive that begins is the engine's. */
static bool begins(struct conn *conn, struct engine *engine, int fd)
{
	if (atomic_load_explicit(&engine->state, memory_order_relaxed) == ENGINE_APART)
		engine_step(conn, engine, fd);
	far_adopts(conn, engine);
	if (!engine_reads(engine))
		return false;
	pthread_testcancel();
	return true;
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
	__attribute__((cleanup(use_ends))) struct use use = { engine ? conn : NULL, &receive };
	size_t bytes;
	int rc;

	if (!engine || count < 0 || count > IOV_MAX)
		return ENGINE_BY_KERNEL;
	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > SSIZE_MAX - receive.left)
			return -EINVAL; /* as the kernel has it */
		receive.left += iov[i].iov_len;
	}
	if (!begins(conn, engine, fd))
		return ENGINE_BY_KERNEL;
	receive.later = settings.recv_async && !far_is(engine) && engine_may_be_later(conn, receive.left, flags);
	if (later_active())
		engine_clean_lost(iov, count);
	if (__builtin_expect(!(flags & (MSG_TRUNC | MSG_WAITALL)) && receive.left, 1)) {
		rc = take(&receive, iov, count, &bytes);
		if (rc == TOOK_BYTES && (bytes == receive.left || !is_at_border(&receive)))
			return (ssize_t)bytes;
		memcpy(copy, iov, sizeof(*iov) * (size_t)count);
		if (rc == TOOK_BYTES)
			advance(&receive, bytes);
		return run(&receive, rc);
	}
	memcpy(copy, iov, sizeof(*iov) * (size_t)count);
	receive.discard = flags & MSG_TRUNC;
	if (receive.discard)
		receive.flags &= ~MSG_TRUNC;
	return run(&receive, take_wanted(&receive));
}

ssize_t engine_splice(struct conn *conn, int fd, int pipe, size_t bytes)
{
	struct engine *engine = engine_enter(conn, fd);
	struct receive receive = { .conn = conn,
				   .engine = engine,
				   .fd = fd,
				   .left = bytes,
				   .discard = true,
				   .splices = true,
				   .pipe = pipe };
	/* NOLINTNEXTLINE(clang-analyzer-deadcode.DeadStores): for the cleanup */
	__attribute__((cleanup(use_ends))) struct use use = { engine ? conn : NULL, &receive };

	if (!engine || !begins(conn, engine, fd))
		return ENGINE_BY_KERNEL;
	return run(&receive, take_wanted(&receive));
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
		raw->engine->far.receives += bytes > 0;
		if (bytes && !engine_met(raw->engine))
			far_compare_came(raw->conn, raw->engine);
		lock_give(&raw->engine->in, &hold);
	}
	engine_leave(raw->conn);
	raw->conn = NULL;
}
