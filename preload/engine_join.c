/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/engine_join.h"

#include <pthread.h>

#include "preload/engine_out.h"
#include "preload/far.h"
#include "preload/trim.h"

/*
 * The engine is not entered (engine_enter), which would be two locked instructions more: a close() waits for this lock once nobody may
 * come any more (engine_close), so whoever has it finds that out. An engine's memory is never unmapped; one that has become another
 * connection's since is found out by the same look, and has the same lock (clear() in engine.c). Under the lock `out`.
 */
static bool is_usual(struct conn *conn, const struct engine *engine, int fd)
{
	return atomic_load(&conn->engine) == engine && !engine_is_closing(conn) && table_conn(fd) == conn &&
	       engine_met(engine) && !far_is(engine) && !engine->pinned && !conn->books &&
	       atomic_load_explicit(&engine->channel.out.shared->on_ring, memory_order_relaxed) &&
	       !atomic_load_explicit(&engine->channel.out.shared->gone, memory_order_relaxed) &&
	       atomic_load_explicit(&engine->told, memory_order_relaxed) % TELL_EVERY &&
	       engine->unlooked + 1 < STALLED_LOOK && away_is_far(&engine->away);
}

static ssize_t join(struct conn *conn, struct engine *engine, int fd, const struct iovec *iov)
{
	struct lane *out = &engine->channel.out;
	ssize_t done = (ssize_t)iov->iov_len;

	if (!is_usual(conn, engine, fd) || !lane_put_one(out, iov))
		return JOIN_NOT;
	away_at_put(&engine->away);
	engine->unlooked++;
	if (__builtin_expect(lane_leaves(out) || lane_is_armed(out), 0)) {
		done = engine_put_ends(conn, engine, fd, done, iov->iov_len);
		if (done > 0)
			join_count(conn, PATH_BSDP, (uint64_t)done);
		return done;
	}
	engine->ring_bytes += iov->iov_len;
	trim_note(conn);
	atomic_store_explicit(&engine->told, atomic_load_explicit(&engine->told, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	join_count(conn, PATH_BSDP, iov->iov_len);
	return done;
}

ssize_t engine_join(struct conn *conn, int fd, const struct iovec *iov)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);
	struct lock_hold hold;
	ssize_t done;

	if (!engine || iov->iov_len - 1 >= JOIN_MAX)
		return JOIN_NOT;
	pthread_testcancel();
	if (!lock_try(&engine->out, &hold))
		return JOIN_NOT;
	done = join(conn, engine, fd, iov);
	lock_give(&engine->out, &hold);
	return done;
}
