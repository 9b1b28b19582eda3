/* SPDX-License-Identifier: MIT */
/* A lane's way from TCP to the ring: when it may, what is waited for, and what the socket's options are meanwhile. */
#define _GNU_SOURCE
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/engine_out.h"
#include "preload/far.h"
#include "preload/guest.h"

#define SMALL_BYTES 4096 /* of a send: larger ones are received as fast by TCP as the ring is filled */
#define WAIT_NS 200000	 /* of a send */
#define STILL_NS 20000	 /* of a receiver that is no longer waited for */
#define NOT_STILL UINT64_MAX
#define AHEAD_GOOD 65536 /* raw bytes that a receiver is through before the ring is full behind them */
/* Of a connection's time, what its sends may wait for that: so much at once, and a share. */
#define CATCH_UP_NS (20 * NS_PER_MS)
#define CATCH_UP_SHARE 16

#define LOOKS 8 /* for one that no acknowledgement falls into */

static bool ask_kernel(int fd, struct tcp_info *info)
{
	socklen_t bytes = sizeof(*info);

	memset(info, 0, sizeof(*info));
	return sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)info, (long)&bytes, 0) >= 0 &&
	       bytes >= offsetof(struct tcp_info, tcpi_dsack_dups);
}

/* Bytes that the kernel has been given on this socket, doorbells included; UINT64_MAX if it can't say. */
static uint64_t written(int fd)
{
	struct tcp_info info;

	if (!ask_kernel(fd, &info))
		return UINT64_MAX;
	return info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
}

/*
 * The same by sequence numbers: what is acknowledged, and what is in the socket's queue. The counts above go wrong where a segment does not
 * leave this host (no route while an interface is down, a full queueing discipline, no memory): it is counted as sent, and, once it is sent, not
 * as a repetition. A SYN that was acknowledged is counted, too. Returns false if acknowledgements came all the time.
 */
static bool written_by_numbers(int fd, enum stats_role role, uint64_t *bytes)
{
	struct tcp_info before, after;
	int queued = 0;

	for (int i = 0; i < LOOKS; i++) {
		if (!ask_kernel(fd, &before) || sys_call(SYS_ioctl, fd, SIOCOUTQ, (long)&queued, 0, 0, 0) < 0 ||
		    !ask_kernel(fd, &after)) {
			*bytes = UINT64_MAX;
			return true;
		}
		*bytes = after.tcpi_bytes_acked - (role == ROLE_CLIENT) + (uint64_t)queued;
		if (before.tcpi_bytes_acked == after.tcpi_bytes_acked)
			return true;
	}
	return false;
}

static void set_option(int fd, int name, bool value)
{
	int on = value;

	sys_call(SYS_setsockopt, fd, IPPROTO_TCP, name, (long)&on, sizeof(on), 0);
}

static bool option_of(int fd, int name)
{
	int value = 0;
	socklen_t bytes = sizeof(value);

	sys_call(SYS_getsockopt, fd, IPPROTO_TCP, name, (long)&value, (long)&bytes, 0);
	return value != 0;
}

/* With Nagle's algorithm a doorbell would wait for the acknowledgement of the last one; corked, for more bytes. */
static void free_bells(struct engine *engine, int fd)
{
	if (engine->owes_options) {
		engine->owes_options = false;
		return;
	}
	engine->nodelay = option_of(fd, TCP_NODELAY);
	engine->cork = option_of(fd, TCP_CORK);
	if (!engine->nodelay)
		set_option(fd, TCP_NODELAY, true);
	if (engine->cork)
		set_option(fd, TCP_CORK, false);
}

void engine_restore_options(struct engine *engine, int fd)
{
	if (!engine->nodelay)
		set_option(fd, TCP_NODELAY, false);
	if (engine->cork)
		set_option(fd, TCP_CORK, true);
}

void engine_push(struct conn *conn, int fd)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct lock_hold hold, out;

	/* Under the connection's lock, for which the program's own TCP_CORK and TCP_NODELAY wait, and that of whoever moves the lane. */
	if (guest_sandboxed() || !conn_enter(conn, fd, &hold))
		return;
	if (lock_take(&engine->out, &out)) {
		if (!atomic_load(&engine->channel.out.shared->on_ring) && conn_is_same(conn, fd) &&
		    !option_of(fd, TCP_NODELAY) && !option_of(fd, TCP_CORK)) {
			set_option(fd, TCP_NODELAY, true);
			set_option(fd, TCP_NODELAY, false);
		}
		lock_give(&engine->out, &out);
	}
	conn_leave(conn, &hold);
}

bool engine_has_option(int name)
{
	return name == TCP_NODELAY || name == TCP_CORK;
}

/* Puts the program's own option away, or reads it. Returns whether it is ours at present: on the ring the socket has others. */
static bool access_option(struct conn *conn, int fd, int name, bool sets, int *value)
{
	struct engine *engine = engine_has_option(name) ? engine_enter(conn, fd) : NULL;
	struct lock_hold hold;
	bool ours = false;

	if (!engine)
		return false;
	if (engine_met(engine) && lock_take(&engine->out, &hold)) {
		bool *own = name == TCP_CORK ? &engine->cork : &engine->nodelay;

		ours = atomic_load(&engine->channel.out.shared->on_ring) || engine->owes_options;
		if (ours && sets)
			*own = *value;
		else if (ours)
			*value = *own;
		lock_give(&engine->out, &hold);
	}
	engine_leave(conn);
	return ours;
}

bool engine_sets_option(struct conn *conn, int fd, int name, int value)
{
	return access_option(conn, fd, name, true, &value);
}

bool engine_gets_option(struct conn *conn, int fd, int name, int *value)
{
	return access_option(conn, fd, name, false, value);
}

/* Bytes of the stream that are the kernel's, and doorbells: by what we have given it. */
static uint64_t counted(struct engine *engine)
{
	struct lane_shared *out = engine->channel.out.shared;

	return atomic_load(&out->sent) - engine->ring_bytes + atomic_load(&out->bells);
}

/*
 * Moves the lane to the ring if nothing speaks against it. Bytes that somebody has sent behind our back are still in the
 * stream, unseen by the counts: then never. Under the lock.
 */
bool engine_enter_ring(struct conn *conn, struct engine *engine, int fd)
{
	if (engine->pinned || engine->raw_sending || atomic_load_explicit(&conn->sg.held, memory_order_relaxed))
		return false;
	if (away_stays(&engine->away) && !settings.ring_keep) {
		stats_reason(conn->slot, REASON_ONE_SIDED);
		return false;
	}
	if (!lane_may_take_over(&engine->channel.out)) {
		stats_reason(conn->slot, REASON_NOT_CAUGHT_UP);
		return false;
	}
	if (written(fd) != counted(engine)) {
		uint64_t bytes;

		if (!written_by_numbers(fd, engine->role, &bytes)) {
			stats_reason(conn->slot, REASON_NOT_CAUGHT_UP);
			return false;
		}
		if (bytes != counted(engine)) {
			engine->pinned = true;
			stats_reason(conn->slot, REASON_DETACHED);
			return false;
		}
	}
	if (!lane_take_over(&engine->channel.out))
		return false;
	free_bells(engine, fd);
	away_ends(&engine->away);
	stats_conn(conn->slot, STAT_CONN_TAKEOVERS, 1);
	return true;
}

/* Whether a TAKEOVER now leaves the receiver little before it. */
static bool has_caught_up(const struct lane *out)
{
	const struct lane_shared *shared = out->shared;

	return lane_may_take_over(out) &&
	       atomic_load_explicit(&shared->sent, memory_order_relaxed) <=
		       atomic_load_explicit(&shared->received, memory_order_relaxed) + AHEAD_GOOD;
}

/*
 * A receiver that is busy with many small raw receives is slower than the sender is on the ring: the ring would be full before the
 * receiver has come to it, and the lane back on TCP, with as many raw bytes as before. So a small send waits a moment for it, as
 * for one that makes room; not for one that has not moved since the last wait, which may want this core. Returns whether the lane
 * may go now.
 */
static bool lets_receiver_come(struct engine *engine)
{
	const struct lane *out = &engine->channel.out;
	uint64_t begun, now, moved, at = engine_receiver_at(out);
	bool near = has_caught_up(out);

	if (near || !atomic_load_explicit(&out->shared->reader, memory_order_relaxed) || lane_leaves(out) ||
	    at == engine->behind_at)
		return true;
	begun = now = moved = clock_now();
	if (!engine->behind_since)
		engine->behind_since = begun;
	if (engine->behind_ns > CATCH_UP_NS + (begun - engine->behind_since) / CATCH_UP_SHARE)
		return true;
	while (!near && now - begun < WAIT_NS && now - moved < STILL_NS) {
		uint64_t before = at;

		cpu_relax_some();
		now = clock_now();
		at = engine_receiver_at(out);
		moved = at == before ? moved : now;
		near = has_caught_up(out);
	}
	engine->behind_ns += now - begun;
	engine->behind_at = now - moved < STILL_NS ? NOT_STILL : at;
	return near || engine->behind_at == at; /* else it is at it, and comes nearer */
}

bool engine_takes_over(struct conn *conn, struct engine *engine, int fd, size_t bytes)
{
	if (atomic_load_explicit(&engine->channel.out.shared->on_ring, memory_order_relaxed))
		return true;
	if (far_is(engine)) /* far_before_send() has seen to it */
		return false;
	if (engine->pinned) /* it never comes to the ring, and waits for nobody */
		return false;
	if (bytes <= SMALL_BYTES && !lets_receiver_come(engine)) {
		stats_reason(conn->slot, REASON_NOT_CAUGHT_UP);
		return false;
	}
	return engine_enter_ring(conn, engine, fd);
}
