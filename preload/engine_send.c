/* SPDX-License-Identifier: MIT */
/*
 * Sends by the ring, and the counting of those that go by TCP. A full ring is left by a SWITCH: the rest is the kernel's, with
 * its buffers, its EAGAIN and its waiting (docs/decisions/0009).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/bell.h"
#include "preload/engine_in.h"
#include "preload/engine_join.h"
#include "preload/engine_out.h"
#include "preload/engine_source.h"
#include "preload/evict.h"
#include "preload/far.h"
#include "preload/far_compare.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/spread.h"
#include "preload/trim.h"

#define ROOM_WAIT_NS 20000 /* for a consumer that takes nothing meanwhile */
#define RAW_WAIT_NS 200000 /* for one that is at raw bytes */
#define FAR_ROOM_WAIT_NS                                                                                               \
	(5 * NS_PER_MS)		       /* for one on another host, by a send that may wait: its word has to come here */
#define FAR_WAIT_NS (20 * NS_PER_MS)   /* in all */
#define BETWEEN (ENGINE_BY_KERNEL - 1) /* another thread has just moved the lane: once more */
#define LOOK_EVERY_NS 20000

/* A TAKEOVER that another thread waits for to be answered is not there yet: no SWITCH has a place behind it. */
static bool switch_lane(struct conn *conn, struct engine *engine)
{
	if (!atomic_load_explicit(&engine->channel.out.shared->on_ring, memory_order_relaxed) ||
	    (far_is(engine) && far_is_between(engine)) || !lane_switch(&engine->channel.out))
		return false;
	if (far_is(engine))
		far_leaves(conn, engine);
	engine->pushes = true;
	stats_conn(conn->slot, STAT_CONN_SWITCHES, 1);
	return true;
}

void engine_switch_back(struct conn *conn, struct engine *engine, int fd)
{
	if (switch_lane(conn, engine))
		engine_restore_options(engine, fd);
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

/* Returns 0, or the -errno that the program's own send would have ended with: the socket tells of it once. */
static int ring_bell(struct conn *conn, struct engine *engine, int fd)
{
	long rc;

	if (far_is(engine))
		far_hear(conn, engine);
	if (!lane_must_ring(&engine->channel.out))
		return 0;
	rc = bell_send(fd, far_is(engine) ? far_bell(engine) : 0);
	lane_rang(&engine->channel.out, rc == 1);
	stats_conn(conn->slot, STAT_CONN_DOORBELLS, 1);
	stats_add(&stats->slot[conn->slot].path[PATH_BSDP][STAT_PATH_SYSCALLS],
		  1); /* the ring's, whose ever the send is */
	return rc < 0 && rc != -EAGAIN ? (int)rc : 0;
}

void engine_ring_late(struct conn *conn, struct engine *engine, int fd)
{
	/* A peer that never hears of a TAKEOVER takes what follows for data. */
	if (atomic_load(&engine->channel.out.shared->on_ring) && !far_is_between(engine))
		far_keep_error(engine, ring_bell(conn, engine, fd));
}

/*
 * A peer that is gone takes nothing from the ring: only the kernel knows. Returns whether the socket is as it should be. The
 * consumer's line is looked at in one send of a few, and no more often than one that does nothing but send fast can afford: it
 * changes all the time.
 */
static bool is_alive(struct engine *engine, int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };
	uint64_t head, now;

	if (__builtin_expect(++engine->unlooked < STALLED_LOOK, 1))
		return true;
	engine->unlooked = 0;
	now = clock_now();
	if (now - engine->looked < LOOK_EVERY_NS)
		return true;
	engine->looked = now;
	head = atomic_load_explicit(&engine->channel.out.shared->head, memory_order_relaxed);
	if (head != engine->head_seen || !lane_backlog(&engine->channel.out)) {
		engine->head_seen = head;
		return true;
	}
	return sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) <= 0;
}

/*
 * Whether a consumer that has left no room is about to make some: it is awake, and has moved lately, or is at raw bytes that
 * come before the ring.
 */
static bool makes_room(const struct lane_shared *out, const struct patience *patience, uint64_t since_moved)
{
	if (patience->far)
		return since_moved < (patience->waits ? FAR_ROOM_WAIT_NS : ROOM_WAIT_NS);
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
	uint64_t there = engine_receiver_at(out);

	if (!patience->until)
		patience->until = now + (patience->waits ? FAR_WAIT_NS : RAW_WAIT_NS) + engine_tcp_ns(patience->bytes);
	if (there != patience->at || !patience->moved)
		patience->moved = now;
	if (now > patience->until || !makes_room(out->shared, patience, now - patience->moved))
		return false;
	patience->at = there;
	if (patience->far)
		far_push(patience->far, atomic_load(&patience->far->engine));
	if (patience->waits)
		far_sleep(patience->far, 1);
	else
		cpu_relax_some();
	if (patience->far)
		far_poll(patience->far, atomic_load(&patience->far->engine));
	return true;
}

/* A call of the program. */
struct send {
	int fd, count, flags;
	const struct iovec *iov;
};

/* Puts what is behind `skip`. Returns bytes, those included, or -EPROTO. */
static ssize_t put_patiently(struct conn *conn, struct engine *engine, const struct send *send, size_t bytes,
			     size_t skip)
{
	struct lane *out = &engine->channel.out;
	const struct iovec *iov = send->iov;
	int count = send->count;
	ssize_t more = lane_put(out, iov, count, skip), done = more < 0 ? more : (ssize_t)skip + more;
	struct patience patience = { .bytes = bytes };

	if (far_is(engine) && done >= 0 && (size_t)done < bytes) {
		patience.far = conn;
		patience.waits = conn_waits(send->fd, send->flags);
	}
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
	bool by_ring = atomic_load_explicit(&out->shared->on_ring, memory_order_relaxed);
	ssize_t taken;

	if (__builtin_expect(!lane_leaves(out), 1))
		return done;
	source_keep_all(out); /* nobody fetches what is behind the end */
	taken = lane_left(out, (size_t)done);
	if (by_ring &&
	    taken > 0) /* for whoever sleeps beside the one that has left; an error is told by what follows */
		ring_bell(conn, engine, fd);
	engine->pinned = true;
	engine_restore_options(engine, fd);
	stats_reason(conn->slot, REASON_LEFT);
	if (taken < 0)
		evict_reset(conn, fd); /* who knows what the peer has */
	return taken < 0 ? -ECONNRESET : taken;
}

/* Of a peer on another host only the consumer's line comes here. */
static bool is_reader(const struct engine *engine)
{
	const struct lane_shared *out = engine->channel.out.shared;

	return far_is(engine) ? atomic_load(&out->reader) : !atomic_load(&out->gone);
}

bool engine_put_begins(struct conn *conn, struct engine *engine, int fd, size_t bytes)
{
	if (!engine_takes_over(conn, engine, fd, bytes))
		return false;
	if (!engine->far.compares && away_at_put(&engine->away) && !settings.ring_keep)
		stats_reason(conn->slot, REASON_ONE_SIDED);
	else if (is_reader(engine) && is_alive(engine, fd))
		return true;
	engine_switch_back(conn, engine, fd);
	return false;
}

ssize_t engine_put_ends(struct conn *conn, struct engine *engine, int fd, ssize_t done, size_t bytes)
{
	uint32_t told;
	int rc;

	if (done >= 0)
		done = look_at_presence(conn, engine, fd, done);
	if (done < 0)
		return -ECONNRESET;
	engine->ring_bytes += (uint64_t)done;
	if (!far_is(engine)) /* a device has the memory of its ring */
		trim_note(conn);
	if (engine->pinned)
		return done;
	told = atomic_load_explicit(&engine->told, memory_order_relaxed);
	atomic_store_explicit(&engine->told, told + 1, memory_order_relaxed);
	if (far_is(engine))
		far_push(conn, engine);
	else if (!(told % TELL_EVERY))
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
static ssize_t put(struct conn *conn, struct engine *engine, const struct send *send, size_t bytes,
		   struct announced *announced)
{
	ssize_t done;

	if (far_is(engine) && far_is_between(engine))
		return BETWEEN;
	if (!engine_put_begins(conn, engine, send->fd, bytes))
		return ENGINE_BY_KERNEL;
	done = sources_possible(conn, bytes) ? sources_put(conn, engine, send->iov, send->count, bytes, announced) : 0;
	if (done >= 0 && (size_t)done < bytes)
		done = put_patiently(conn, engine, send, bytes, (size_t)done);
	return engine_put_ends(conn, engine, send->fd, done, bytes);
}

/* The rest of a send of which `done` bytes are in the ring, as the program's own call would. */
static ssize_t send_rest(struct conn *conn, int fd, const struct iovec *iov, int count, size_t bytes, size_t done,
			 int flags)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conn, fd, flags);

	if (!raw.error && table_conn(fd) != conn)
		raw.error = -EBADF; /* while it waited, the number has become another's */
	raw.asked = bytes - done;
	raw.done = raw.error ? raw.error : send_behind(fd, iov, count, done, flags);
	if (raw.done < 0)
		return done ? (ssize_t)done : raw.done;
	stats_sent(conn->slot, PATH_COPY, (uint64_t)raw.done, 1);
	return (ssize_t)done + raw.done;
}

/* One send, by the path that most of it took. Under the lock. */
static void count_sent(const struct conn *conn, const struct announced *announced, size_t done)
{
	_Atomic uint64_t *ring = &stats->slot[conn->slot].path[PATH_BSDP][STAT_PATH_BYTES];
	size_t bytes = announced->bytes < done ? announced->bytes : done;

	join_count(conn, announced->count ? announced->path : PATH_BSDP, announced->count ? bytes : done);
	if (announced->count)
		stats_add(ring, done - bytes);
}

/* Of a send that has bytes. */
static struct far_first first_of(const struct iovec *iov, size_t bytes)
{
	while (!iov->iov_len)
		iov++;
	return (struct far_first){ *(const uint8_t *)iov->iov_base, bytes };
}

ssize_t engine_send(struct conn *conn, int fd, const struct iovec *iov, int count, int flags, enum zc_path *path)
{
	struct engine *engine;
	ssize_t done;
	const struct send send = { fd, count, flags, iov };
	struct announced announced; /* its numbers are not worth clearing for each send */
	struct lock_hold hold;
	size_t bytes = 0;

	*path = PATH_BSDP;
	if (engine_is_passed_by(conn))
		return ENGINE_BY_KERNEL;
	done = count == 1 ? engine_join(conn, fd, iov) : JOIN_NOT;
	if (done != JOIN_NOT)
		return done < 0 || (size_t)done == iov->iov_len ?
			       done :
			       send_rest(conn, fd, iov, 1, iov->iov_len, (size_t)done, flags);
	done = ENGINE_BY_KERNEL;
	engine = engine_enter(conn, fd);
	if (!engine)
		return ENGINE_BY_KERNEL;
	announced.count = 0;
	announced.bytes = 0;
	announced.path = PATH_BSDP;
	announced.fd = fd;
	announced.flags = flags;
	if (atomic_load_explicit(&engine->state, memory_order_relaxed) == ENGINE_APART)
		engine_step(conn, engine, fd);
	/* In a sandbox lanes stay on TCP, and what asks whether one may leave it looks at the clock, which may be a fault there (send_clock()). */
	if (engine_met(engine) && !guest_sandboxed() && send_add_up(iov, count, &bytes)) {
		engine_may_be_cancelled(conn);
		do {
			done = far_is(engine) ? far_before_send(conn, engine, fd, first_of(iov, bytes), flags) : 0;
			if (done < 0)
				break;
			done = ENGINE_BY_KERNEL;
			if (far_compare_takes_tcp(conn))
				continue;
			if (lock_take(&engine->out, &hold)) {
				done = put(conn, engine, &send, bytes, &announced);
				if (done >= 0)
					count_sent(conn, &announced, (size_t)done);
				lock_give(&engine->out, &hold);
			}
		} while (done == BETWEEN);
	}
	if (announced.count)
		*path = announced.path;
	if (announced.count && announced.path == PATH_ZSDP)
		sources_wait(conn, engine, &announced);
	engine_leave(conn);
	if (done < 0)
		return send_tells(done, flags);
	return (size_t)done < bytes ? send_rest(conn, fd, iov, count, bytes, (size_t)done, flags) : done;
}

static void leave(void *conn)
{
	engine_leave(conn);
}

void engine_may_be_cancelled(struct conn *conn)
{
	pthread_cleanup_push(leave, conn);
	pthread_testcancel();
	pthread_cleanup_pop(0);
}

/* The lock `out`, with a lane that raw bytes may follow. Returns 0, or -errno: of a send that ends without it, or -EDEADLK. */
static int take_for_raw(struct conn *conn, struct engine *engine, int fd, int flags, struct lock_hold *hold)
{
	for (;;) {
		int rc;

		if (!lock_take(&engine->out, hold))
			return -EDEADLK;
		if (!far_is(engine))
			return 0;
		if (far_is_raw(conn, engine, fd)) {
			if (far_may_follow(conn, engine))
				return 0;
			evict_reset(conn, fd);
			lock_give(&engine->out, hold);
			return -ECONNRESET;
		}
		lock_give(&engine->out, hold);
		rc = far_before_raw(conn, engine, fd, flags);
		if (rc < 0)
			return rc;
	}
}

struct engine_raw engine_raw_use(struct conn *conn, int fd, int flags)
{
	struct engine_raw raw = { .engine = engine_enter(conn, fd), .done = -1, .asked = SIZE_MAX, .fd = fd };
	struct lock_hold hold;
	int rc = -EDEADLK;

	if (!raw.engine)
		return raw;
	if (atomic_load_explicit(&raw.engine->state, memory_order_relaxed) != ENGINE_OVER)
		rc = take_for_raw(conn, raw.engine, fd, flags, &hold);
	if (rc < 0) {
		raw.error = rc == -EDEADLK ? 0 : rc; /* that one goes by the kernel, uncounted */
		engine_leave(conn);
		send_tells(raw.error, flags);
		return raw;
	}
	if (engine_met(raw.engine)) {
		if (atomic_load_explicit(&raw.engine->channel.out.shared->on_ring, memory_order_relaxed))
			away_interrupted(&raw.engine->away);
		engine_switch_back(conn, raw.engine, fd);
	}
	raw.engine->raw_sending++;
	if (__builtin_expect(raw.engine->far.compares, 0) && !engine_met(raw.engine) && far_compare_times(raw.engine))
		raw.begun = clock_now();
	lock_give(&raw.engine->out, &hold);
	raw.conn = conn;
	return raw;
}

/* A send that is under way may have been refused already; one that is not any more has counted that before. */
bool engine_was_refused(const struct engine *engine, uint32_t *seen)
{
	uint32_t before = *seen;
	bool sends = atomic_load(&engine->raw_sending) > 0;

	*seen = atomic_load(&engine->raw_refused);
	return sends || *seen != before;
}

void engine_raw_ends(struct engine_raw *raw)
{
	struct lock_hold hold;
	bool pushes = false;
	uint64_t bytes;

	if (__builtin_expect(!raw->conn, 1))
		return;
	bytes = raw->done > 0 ? (uint64_t)raw->done : 0;
	if (lock_take(&raw->engine->out, &hold)) {
		if (raw->done < 0 || bytes < raw->asked)
			atomic_fetch_add(&raw->engine->raw_refused, 1);
		raw->engine->raw_sending--;
		if (engine_met(raw->engine))
			lane_sent_raw(&raw->engine->channel.out, bytes);
		else
			raw->engine->sent += bytes;
		if (!engine_met(raw->engine) && bytes)
			far_compare_sent(raw->engine, bytes, raw->begun);
		if (raw->engine->owes_options && !raw->engine->raw_sending && conn_is_same(raw->conn, raw->fd)) {
			raw->engine->owes_options = false;
			raw->engine->pushes = false;
			engine_restore_options(raw->engine, raw->fd);
		}
		pushes = raw->engine->pushes && bytes;
		raw->engine->pushes &= !bytes;
		lock_give(&raw->engine->out, &hold);
	}
	if (__builtin_expect(pushes, 0) && engine_met(raw->engine))
		engine_push(raw->conn, raw->fd);
	engine_leave(raw->conn);
	raw->conn = NULL;
}
