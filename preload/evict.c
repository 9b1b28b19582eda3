/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/evict.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_source.h"
#include "preload/far.h"
#include "preload/guest.h"

#define BELLS_WAIT_NS NS_PER_SEC     /* for doorbells that the peer has rung, or rings at this moment */
#define ARRIVES_NS (50 * NS_PER_MS)  /* for one that is on its way, at a close */
#define FAR_WAIT_NS (2 * NS_PER_SEC) /* for a peer on another host to go on by TCP */
#define REST_ROOM 65536u

static long take_bells(struct lane *in, int fd, uint64_t due)
{
	char bells[64];
	long got = sys_call(SYS_recvfrom, fd, (long)bells, (long)(due < sizeof(bells) ? due : sizeof(bells)),
			    MSG_DONTWAIT, 0, 0);

	if (got > 0)
		lane_saw_bells(in, (uint64_t)got);
	return got;
}

bool evict_may_come(int fd)
{
	uint8_t state = TCP_CLOSE; /* the first byte of struct tcp_info */
	socklen_t bytes = sizeof(state);

	sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&state, (long)&bytes, 0);
	return state == TCP_ESTABLISHED || state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2;
}

/*
 * A byte that the close met unread, or that came behind it, would be answered by a reset, which the peer's program has not earned.
 * Counted ones are in the kernel's hands, but may be on their way: the other end's processor delivers them when it comes to it. One
 * that the peer is at, between the byte and its count, or about to send, is as good as there, unless it was stopped: it may have to wait
 * for a processor.
 */
void evict_bells(struct engine *engine, int fd)
{
	struct lane *in = &engine->channel.in;
	uint64_t since = 0;
	bool last = false;

	while (lane_bells_due(in)) {
		uint64_t sure = lane_bells_sure(in);
		long got = sure ? take_bells(in, fd, sure) : -EAGAIN;
		uint64_t now;

		if (got > 0)
			continue;
		if (last || (got != -EAGAIN && (got || !evict_may_come(fd))))
			return;
		now = clock_now();
		since = since ? since : now;
		last = now - since > ARRIVES_NS;
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
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

/* Waits a moment for what is on its way, within this host, or is about to be. Returns false if nothing can come any more. */
static bool wait_for_bell(int fd, bool sent)
{
	struct pollfd look = { .fd = fd, .events = sent ? POLLIN : POLLRDHUP };

	sys_call(SYS_poll, (long)&look, 1, sent ? 1 : 0, 0, 0, 0);
	if (!sent && !guest_sandboxed())
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0); /* the peer is about to ring */
	/* POLLERR may be notices of the kernel's; an end is not that alone. */
	return sent || !(look.revents & ~POLLERR);
}

/* Where bytes go that come before the lane is over. */
struct rest {
	struct conn *conn;
	struct engine *engine;
	struct lane *lane; /* NULL: nowhere, they are waited for */
	uint8_t *room;
	int error; /* of the socket's: used up here, for the program's next receive */
};

static int keep(struct rest *rest, size_t bytes)
{
	struct iovec iov = { rest->room, bytes };

	return lane_put(rest->lane, &iov, 1, 0) == (ssize_t)bytes ? 0 : -ENOSPC;
}

/* Raw bytes that come before those of the ring. Returns bytes, 0 at the end of the stream, or -errno. */
static long take_raw(struct lane *in, int fd, struct rest *rest)
{
	size_t most = lane_raw_begins(in);
	long got;
	int rc;

	if (!most)
		return -EINTR;
	got = sys_call(SYS_recvfrom, fd, (long)rest->room, (long)(most < REST_ROOM ? most : REST_ROOM), MSG_DONTWAIT, 0,
		       0);
	lane_raw_ends(in, got > 0 ? (size_t)got : 0);
	rc = got > 0 ? keep(rest, (size_t)got) : 0;
	return rc < 0 ? rc : got;
}

/*
 * One step towards the end of the lane. Returns > 0 for progress, 0 if it is over or bytes are next that nobody keeps, -EAGAIN
 * if something has to come first, -ENODATA if it can't, or another -errno.
 */
static long step(struct lane *in, int fd, struct rest *rest, bool *rung)
{
	struct iovec iov = { rest->room, REST_ROOM };
	size_t bytes = 0;
	int rc = lane_get(in, rest->lane ? &iov : NULL, rest->lane ? 1 : 0, false, &bytes);
	uint64_t due;
	long got;

	if (bytes) {
		rc = keep(rest, bytes);
		return rc < 0 ? rc : 1;
	}
	if (rc < 0)
		return rc;
	if (lane_is_over(in) || (!rest->lane && has_rest(in)))
		return 0;
	due = lane_bells_sure(in);
	*rung = !due && lane_raw_max(in) == SIZE_MAX;
	if (*rung)
		return -EAGAIN;
	got = due ? take_bells(in, fd, due) : take_raw(in, fd, rest);
	if (got < 0 && got != -EAGAIN && got != -EINTR && got != -ENOSPC)
		rest->error = (int)-got;
	return !got || rest->error ? -ENODATA : got == -EINTR ? 1 : got;
}

/*
 * The same where the peer is on another host, and the queue pair has been given up: the lane ends where the stream goes on with raw
 * bytes, which the peer tells.
 */
static long step_far(struct lane *in, int fd, struct rest *rest)
{
	struct iovec iov = { rest->room, REST_ROOM };
	size_t bytes = 0;
	uint64_t due;
	char next;
	int rc;

	if (far_look(rest->conn, rest->engine, fd) < 0)
		return -ECONNRESET;
	rc = lane_get(in, rest->lane ? &iov : NULL, rest->lane ? 1 : 0, false, &bytes);
	if (bytes)
		rc = keep(rest, bytes) < 0 ? -ENOSPC : 1;
	if (bytes || rc < 0)
		return rc;
	if (!rest->lane && has_rest(in))
		return 0;
	if (far_look(rest->conn, rest->engine, fd) < 0) /* behind a move there is something else in the stream */
		return -ECONNRESET;
	due = lane_bells_sure(in);
	if (due && take_bells(in, fd, due) > 0)
		return 1;
	if (!due && !far_is_control(rest->engine))
		return 0;
	return sys_call(SYS_recvfrom, fd, (long)&next, 1, MSG_DONTWAIT | MSG_PEEK, 0, 0) ? -EAGAIN : -ECONNRESET;
}

/*
 * Goes to the end of the lane, or to bytes that nobody keeps. A peer that was stopped while it rings, or that lies, is not waited
 * for. Returns 0, or -errno: then the stream is not clean.
 */
static int go_to_end(struct lane *in, int fd, struct rest *rest)
{
	bool far = far_is(rest->engine);
	uint64_t wait = far ? FAR_WAIT_NS : BELLS_WAIT_NS;
	uint64_t until = clock_now() + wait;

	for (;;) {
		bool rung = false;
		long rc = far ? step_far(in, fd, rest) : step(in, fd, rest, &rung);

		if (rc > 0)
			until = clock_now() + wait;
		else if (rc != -EAGAIN)
			return (int)rc;
		else if (!wait_for_bell(fd, !rung))
			return -ENODATA;
		else if (clock_now() > until)
			return -EAGAIN;
	}
}

/* A ring that takes all there may be, with the records that it will be in. */
static int make_room(const struct lane *in, struct channel *out)
{
	size_t raw = lane_raw_max(in);
	ssize_t ring = lane_backlog(in);
	uint64_t need = lane_unread_all(in); /* more than the ring holds, where bytes are fetched */
	uint32_t bytes = LANE_RING_MIN;

	if (ring > 0 && (uint64_t)ring > need)
		need = (uint64_t)ring;
	need += raw == SIZE_MAX ? 0 : raw;
	need += need / 64 + LANE_RING_MIN;
	while (bytes < need && bytes < LANE_RING_MAX)
		bytes *= 2;
	return bytes < need || channel_make(out, bytes) < 0 ? -ENOMEM : 0;
}

/* What is left in the ring comes behind bytes that are missed: nobody receives it, who waits for it neither. */
static void give_up_ring(struct conn *conn, struct engine *engine, int fd)
{
	evict_reset(conn, fd);
	lane_reads(&engine->channel.in, false);
	if (engine->channel.in.in)
		atomic_store(&engine->channel.in.in->lost, true);
	atomic_store(&engine->state, ENGINE_OVER);
}

int evict_rest(struct conn *conn, struct engine *engine, int fd, struct channel *out)
{
	struct lane *in = &engine->channel.in;
	struct rest rest = { conn, engine, &out->out, sys_map(REST_ROOM, MAP_PRIVATE), 0 };
	int rc = rest.room ? make_room(in, out) : -ENOMEM;

	if (rc < 0)
		goto unmap;
	atomic_store(&out->out.shared->reader, 1);
	lane_take_over(&out->out);
	rc = go_to_end(in, fd, &rest);
	lane_leave(in); /* already so, on one host */
	lane_leave(&out->out);
	if (rc == -ENODATA && !has_rest(in))
		rc = 0; /* the stream ends behind what was there */
	if (rc < 0) {
		channel_close(out);
		give_up_ring(conn, engine, fd);
		rc = -ECONNRESET;
	}
unmap:
	if (rest.room)
		sys_call(SYS_munmap, (long)rest.room, REST_ROOM, 0, 0, 0, 0);
	return rc;
}

/* Returns whether there may be something to wait for. */
static bool leave_out(struct conn *conn, struct engine *engine, int fd)
{
	struct lock_hold hold;

	if (!lock_take(&engine->out, &hold))
		return false;
	engine->pinned = true;
	if (engine_met(engine))
		engine_switch_back(conn, engine, fd);
	lock_give(&engine->out, &hold);
	return far_is(engine);
}

void evict_out(struct conn *conn, struct engine *engine, int fd)
{
	if (leave_out(conn, engine, fd) && far_settle_out(conn, engine, fd) < 0)
		evict_reset(conn, fd);
}

void evict_out_at_end(struct conn *conn, struct engine *engine, int fd, enum far_linger_how how)
{
	if (leave_out(conn, engine, fd) && !far_linger(conn, engine, fd, how) && far_settle_out(conn, engine, fd) < 0)
		evict_reset(conn, fd);
}

void evict_reset(struct conn *conn, int fd)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	/* Also under a seccomp filter: who has met his peer has made this system call before. */
	sys_call(SYS_connect, fd, (long)&nobody, sizeof(nobody), 0, 0, 0);
	stats_reason(conn->slot, REASON_LOST);
	log_info("fd %d: reset: what its ring holds could not go with it", fd);
}

bool evict_in(struct conn *conn, struct engine *engine, int fd)
{
	struct rest nowhere = { conn, engine, NULL, NULL, 0 };
	struct lane *in = &engine->channel.in;
	bool far = far_is(engine);
	int rc;

	if (far) /* the peer leaves: what it tells about that would not be looked for in a lane that has been left here */
		far_parts_for_good(conn, engine, fd);
	else
		lane_leave(in);
	/* Bytes that came by the ring, too, may be on their way behind its end. */
	rc = lane_is_over(in) && !(far && far_is_control(engine)) ? 0 : go_to_end(in, fd, &nowhere);
	if (far && !has_rest(in))
		lane_leave(in);
	if (nowhere.error)
		engine->error = nowhere.error;
	if (rc < 0 && rc != -ENODATA)
		evict_reset(conn, fd);
	return !has_rest(in);
}

/* What is unread goes to memory of this process's own, in which no doorbells are needed. Under the lock `in`. */
static void come_ashore(struct conn *conn, struct engine *engine, int fd)
{
	struct channel rest = { .fd = -1 };
	int rc;

	if (evict_in(conn, engine, fd))
		return;
	if (holders_alive(&engine->holders, &conn->holder) > 1)
		return; /* others receive it, too, and have to find it where it is */
	rc = evict_rest(conn, engine, fd, &rest);
	if (rc == -ENOMEM)
		evict_reset(conn, fd);
	if (rc < 0)
		return;
	sys_call(SYS_close, rest.fd, 0, 0, 0, 0, 0);
	rest.fd = -1;
	engine_take_back(engine, &rest);
}

void evict_all_of(struct conn *conn)
{
	int fd = conn_fd(conn);
	struct engine *engine = fd < 0 ? NULL : engine_enter(conn, fd);
	struct lock_hold hold;

	if (!engine)
		return;
	sources_keep(conn, engine);
	if (lock_take(&engine->in, &hold)) {
		engine_stays_apart(conn, engine);
		if (engine_met(engine))
			come_ashore(conn, engine, fd);
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
	engine_pin(conn, fd);
}

_Atomic bool low_water_ever;

bool low_water_is_set(int fd)
{
	int bytes = 1;
	socklen_t room = sizeof(bytes);

	if (guest_sandboxed() ||
	    sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, (long)&bytes, (long)&room, 0) < 0 || bytes <= 1)
		return false;
	atomic_store_explicit(&low_water_ever, true, memory_order_relaxed);
	return true;
}

/* What is in the ring already is served from there. */
void low_water_keeps(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);
	struct lock_hold hold;

	if (!engine)
		return;
	far_never_again(engine);
	if (lock_take(&engine->in, &hold)) {
		if (!engine_met(engine))
			engine_stays_apart(conn, engine);
		else if (!lane_has_left(&engine->channel.in))
			evict_in(conn, engine, fd);
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
	stats_reason(conn->slot, REASON_LOW_WATER);
}

_Atomic bool peek_offset_ever;

bool peek_offset_is_set(int fd)
{
	int offset = -1;
	socklen_t room = sizeof(offset);

	if (guest_sandboxed() ||
	    sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEEK_OFF, (long)&offset, (long)&room, 0) < 0 || offset < 0)
		return false;
	atomic_store_explicit(&peek_offset_ever, true, memory_order_relaxed);
	return true;
}
