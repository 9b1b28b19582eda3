/* SPDX-License-Identifier: MIT */
/*
 * Sends by the ring, and the counting of those that go by TCP. A full ring is left by a SWITCH: the rest is the kernel's, with
 * its buffers, its EAGAIN and its waiting (docs/decisions/0009).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/engine_out.h"
#include "preload/engine_source.h"
#include "preload/evict.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/spread.h"

#define ROOM_WAIT_NS 20000 /* for a consumer that takes nothing meanwhile */
#define RAW_WAIT_NS 200000 /* for one that is at raw bytes */
#define STALLED_LOOK 8	   /* sends that a consumer has not moved for, after which the socket is asked how it is */

/* Bytes that the kernel has been given on this socket, doorbells included; UINT64_MAX if it can't say. */
static uint64_t written(int fd)
{
	struct tcp_info info;
	socklen_t bytes = sizeof(info);

	memset(&info, 0, sizeof(info));
	if (sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0) < 0 ||
	    bytes < offsetof(struct tcp_info, tcpi_dsack_dups))
		return UINT64_MAX;
	return info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
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

static void restore_options(struct engine *engine, int fd)
{
	if (!engine->nodelay)
		set_option(fd, TCP_NODELAY, false);
	if (engine->cork)
		set_option(fd, TCP_CORK, true);
}

static bool is_option(int name)
{
	return name == TCP_NODELAY || name == TCP_CORK;
}

/* Puts the program's own option away, or reads it. Returns whether it is ours at present: on the ring the socket has others. */
static bool access_option(struct conn *conn, int fd, int name, bool sets, int *value)
{
	struct engine *engine = is_option(name) ? engine_enter(conn, fd) : NULL;
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

/*
 * Moves the lane to the ring if nothing speaks against it. Bytes that somebody has sent behind our back are still in the
 * stream, unseen by the counts: then never. Under the lock.
 */
static bool take_over(struct conn *conn, struct engine *engine, int fd)
{
	struct lane_shared *out = engine->channel.out.shared;

	if (atomic_load_explicit(&out->on_ring, memory_order_relaxed))
		return true;
	if (engine->pinned || engine->raw_sending || atomic_load_explicit(&conn->sg.held, memory_order_relaxed))
		return false;
	if (!lane_may_take_over(&engine->channel.out)) {
		stats_reason(conn->slot, REASON_NOT_CAUGHT_UP);
		return false;
	}
	if (written(fd) != atomic_load(&out->sent) - engine->ring_bytes + atomic_load(&out->bells)) {
		engine->pinned = true;
		stats_reason(conn->slot, REASON_DETACHED);
		return false;
	}
	if (!lane_take_over(&engine->channel.out))
		return false;
	free_bells(engine, fd);
	stats_conn(conn->slot, STAT_CONN_TAKEOVERS, 1);
	return true;
}

static bool switch_lane(struct conn *conn, struct engine *engine)
{
	if (!atomic_load_explicit(&engine->channel.out.shared->on_ring, memory_order_relaxed) ||
	    !lane_switch(&engine->channel.out))
		return false;
	stats_conn(conn->slot, STAT_CONN_SWITCHES, 1);
	return true;
}

void engine_switch_back(struct conn *conn, struct engine *engine, int fd)
{
	if (switch_lane(conn, engine))
		restore_options(engine, fd);
}

/*
 * With Nagle's algorithm the rest of the send, if it fills no segment, would wait for the acknowledgement of the last doorbell:
 * 40 ms. So the program's options come back behind it.
 */
static void leave_full_ring(struct conn *conn, struct engine *engine)
{
	if (switch_lane(conn, engine))
		engine->owes_options = true;
	stats_reason(conn->slot, REASON_RING_FULL);
}

#define BELL_ACKNOWLEDGED_MS 250 /* the kernel's longest delay of an acknowledgement, and some more */

/*
 * A doorbell. If the kernel's buffer is full, bytes in it that are not sent yet will wake the peer as well. What is sent may have
 * been received long ago, and is held only until it is acknowledged: then that is waited for, and a peer that sleeps is woken.
 */
static long send_bell(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLOUT };
	int unsent = 0;
	long rc;

	for (int tries = 0;; tries++) {
		rc = sys_call(SYS_sendto, fd, (long)"", 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
		if (rc != -EAGAIN || tries == 2 || guest_sandboxed() ||
		    sys_call(SYS_ioctl, fd, SIOCOUTQNSD, (long)&unsent, 0, 0, 0) < 0 || unsent)
			return rc;
		sys_call(SYS_poll, (long)&look, 1, BELL_ACKNOWLEDGED_MS, 0, 0, 0);
	}
}

/* Returns 0, or the -errno that the program's own send would have ended with: the socket tells of it once. */
static int ring_bell(struct conn *conn, struct engine *engine, int fd)
{
	long rc;

	if (!lane_must_ring(&engine->channel.out))
		return 0;
	rc = send_bell(fd);
	lane_rang(&engine->channel.out, rc == 1);
	stats_conn(conn->slot, STAT_CONN_DOORBELLS, 1);
	return rc < 0 && rc != -EAGAIN ? (int)rc : 0;
}

/* A peer that is gone takes nothing from the ring: only the kernel knows. Returns whether the socket is as it should be. */
static bool is_alive(struct engine *engine, int fd)
{
	uint64_t head = atomic_load_explicit(&engine->channel.out.shared->head, memory_order_relaxed);
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };

	if (head != engine->head_seen || !lane_backlog(&engine->channel.out)) {
		engine->head_seen = head;
		engine->stalled = 0;
		return true;
	}
	if (++engine->stalled % STALLED_LOOK)
		return true;
	return sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) <= 0;
}

/*
 * Whether a consumer that has left no room is about to make some: it is awake, and has moved lately, or is at raw bytes that
 * come before the ring.
 */
static bool makes_room(const struct lane_shared *out, uint64_t since_moved)
{
	if (atomic_load_explicit(&out->armed, memory_order_relaxed))
		return false; /* it sleeps */
	return since_moved < ROOM_WAIT_NS ||
	       (since_moved < RAW_WAIT_NS && atomic_load_explicit(&out->raw, memory_order_relaxed));
}

/*
 * A consumer that is busy taking bytes makes room faster than TCP would take them: as long as it does, a little patience, also
 * with one that moves and moves and never gets far.
 */
bool engine_has_patience(const struct lane *out, struct patience *patience)
{
	uint64_t now = clock_now();
	uint64_t there = atomic_load_explicit(&out->shared->head, memory_order_relaxed) +
			 atomic_load_explicit(&out->shared->received, memory_order_relaxed);

	if (!patience->until)
		patience->until = now + RAW_WAIT_NS + engine_tcp_ns(patience->bytes);
	if (there != patience->at || !patience->moved)
		patience->moved = now;
	if (now > patience->until || !makes_room(out->shared, now - patience->moved))
		return false;
	patience->at = there;
	for (int i = 0; i < 16; i++)
		cpu_relax();
	return true;
}

/* Puts what is behind `skip`. Returns bytes, those included, or -EPROTO. */
static ssize_t put_patiently(struct lane *out, const struct iovec *iov, int count, size_t bytes, size_t skip)
{
	ssize_t more = lane_put(out, iov, count, skip), done = more < 0 ? more : (ssize_t)skip + more;
	struct patience patience = { .bytes = bytes };

	while (done >= 0 && (size_t)done < bytes && engine_has_patience(out, &patience)) {
		if (lane_room(out) < ROOM_STEP && (size_t)done + ROOM_STEP < bytes)
			continue;
		more = lane_put(out, iov, count, (size_t)done);
		done = more < 0 ? more : done + more;
	}
	return done;
}

/*
 * After each put: the consumer may have left the ring, for somebody who knows nothing of it. Then the lane is on TCP for good, and
 * of `done` bytes only those count that the consumer has: returns them, or -ECONNRESET. Under the lock.
 */
static ssize_t look_at_presence(struct conn *conn, struct engine *engine, int fd, ssize_t done)
{
	struct lane *out = &engine->channel.out;
	ssize_t taken;

	if (__builtin_expect(!lane_leaves(out), 1))
		return done;
	source_keep_all(out); /* nobody fetches what is behind the end */
	taken = lane_left(out, (size_t)done);
	engine->pinned = true;
	restore_options(engine, fd);
	stats_reason(conn->slot, REASON_LEFT);
	if (taken < 0)
		evict_reset(conn, fd); /* who knows what the peer has */
	return taken < 0 ? -ECONNRESET : taken;
}

bool engine_put_begins(struct conn *conn, struct engine *engine, int fd)
{
	if (!take_over(conn, engine, fd))
		return false;
	if (atomic_load(&engine->channel.out.shared->reader) && is_alive(engine, fd))
		return true;
	engine_switch_back(conn, engine, fd);
	return false;
}

ssize_t engine_put_ends(struct conn *conn, struct engine *engine, int fd, ssize_t done, size_t bytes)
{
	int rc;

	if (done >= 0)
		done = look_at_presence(conn, engine, fd, done);
	if (done < 0)
		return -ECONNRESET;
	engine->ring_bytes += (uint64_t)done;
	if (engine->pinned)
		return done;
	spread_tell(engine);
	rc = ring_bell(conn, engine, fd);
	if (rc < 0) {
		engine_switch_back(conn, engine, fd);
		return rc == -EPIPE ? ENGINE_BY_KERNEL : rc; /* that one comes again, with its signal */
	}
	if ((size_t)done < bytes)
		leave_full_ring(conn, engine);
	return done;
}

/* Puts what fits. Returns as engine_put_ends. Under the lock. */
static ssize_t put(struct conn *conn, struct engine *engine, int fd, const struct iovec *iov, int count, size_t bytes,
		   struct announced *announced)
{
	ssize_t done;

	if (!engine_put_begins(conn, engine, fd))
		return ENGINE_BY_KERNEL;
	done = sources_put(conn, engine, iov, count, bytes, announced);
	if (done >= 0 && (size_t)done < bytes)
		done = put_patiently(&engine->channel.out, iov, count, bytes, (size_t)done);
	return engine_put_ends(conn, engine, fd, done, bytes);
}

/* The rest of a send of which `done` bytes are in the ring, as the program's own call would. */
static ssize_t send_rest(struct conn *conn, int fd, const struct iovec *iov, int count, size_t done, int flags)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conn, fd);

	raw.done = send_behind(fd, iov, count, done, flags);
	if (raw.done < 0)
		return done ? (ssize_t)done : raw.done;
	stats_sent(conn->slot, PATH_COPY, (uint64_t)raw.done, 1);
	return (ssize_t)done + raw.done;
}

/* One send, by the path that most of it took. */
static void count_sent(struct conn *conn, const struct announced *announced, size_t done)
{
	_Atomic uint64_t *ring = stats->slot[conn->slot].path[PATH_BSDP];
	size_t bytes = announced->bytes < done ? announced->bytes : done;

	if (!announced->count) {
		stats_sent(conn->slot, PATH_BSDP, done, 0);
		return;
	}
	stats_sent(conn->slot, announced->path, bytes, 0);
	stats_add(&ring[STAT_PATH_BYTES], done - bytes);
}

ssize_t engine_send(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	struct engine *engine = engine_enter(conn, fd);
	ssize_t done = ENGINE_BY_KERNEL;
	struct announced announced = { .count = 0, .path = PATH_BSDP };
	struct lock_hold hold;
	size_t bytes = 0;

	if (!engine)
		return ENGINE_BY_KERNEL;
	if (atomic_load_explicit(&engine->state, memory_order_relaxed) == ENGINE_APART)
		engine_step(conn, engine, fd);
	if (engine_met(engine) && send_add_up(iov, count, &bytes)) {
		pthread_testcancel();
		if (lock_take(&engine->out, &hold)) {
			done = put(conn, engine, fd, iov, count, bytes, &announced);
			lock_give(&engine->out, &hold);
		}
	}
	if (announced.count && announced.path == PATH_ZSDP)
		sources_wait(conn, engine, &announced);
	engine_leave(conn);
	if (done < 0)
		return done;
	count_sent(conn, &announced, (size_t)done);
	return (size_t)done < bytes ? send_rest(conn, fd, iov, count, (size_t)done, flags) : done;
}

struct engine_raw engine_raw_use(struct conn *conn, int fd)
{
	struct engine_raw raw = { .engine = engine_enter(conn, fd), .done = -1, .fd = fd };
	struct lock_hold hold;

	if (!raw.engine)
		return raw;
	if (atomic_load_explicit(&raw.engine->state, memory_order_relaxed) == ENGINE_OVER ||
	    !lock_take(&raw.engine->out, &hold)) {
		engine_leave(conn);
		return raw;
	}
	if (engine_met(raw.engine))
		engine_switch_back(conn, raw.engine, fd);
	raw.engine->raw_sending++;
	lock_give(&raw.engine->out, &hold);
	raw.conn = conn;
	return raw;
}

void engine_raw_ends(struct engine_raw *raw)
{
	struct lock_hold hold;
	uint64_t bytes;

	if (__builtin_expect(!raw->conn, 1))
		return;
	bytes = raw->done > 0 ? (uint64_t)raw->done : 0;
	if (lock_take(&raw->engine->out, &hold)) {
		raw->engine->raw_sending--;
		if (engine_met(raw->engine))
			lane_sent_raw(&raw->engine->channel.out, bytes);
		else
			raw->engine->sent += bytes;
		if (raw->engine->owes_options && !raw->engine->raw_sending && conn_is_same(raw->conn, raw->fd)) {
			raw->engine->owes_options = false;
			restore_options(raw->engine, raw->fd);
		}
		lock_give(&raw->engine->out, &hold);
	}
	engine_leave(raw->conn);
	raw->conn = NULL;
}
