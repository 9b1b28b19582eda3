/* SPDX-License-Identifier: MIT */
/* The sending side of far.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/engine_out.h"
#include "preload/evict.h"
#include "preload/far_compare.h"
#include "preload/far_internal.h"
#include "preload/far_linger.h"
#include "preload/send.h"
#include "preload/signals.h"
#include "rdma/verbs_replay.h"

#define RESEND_BYTES 65536

static struct lane_shared *shared_of(const struct engine *engine)
{
	return engine->channel.out.shared;
}

bool far_is_between(const struct engine *engine)
{
	return engine->far.out != FAR_OUT_FREE;
}

uint8_t far_bell(const struct engine *engine)
{
	return FAR_CODE_BELL(engine->channel.out.codes);
}

/* Three values that differ from each other and from the first byte that may follow in their place. */
static uint32_t choose_codes(uint8_t first)
{
	uint32_t codes = 0;
	uint8_t value = first;

	for (int i = 0; i < 3; i++)
		codes |= (uint32_t)(uint8_t)(value += 85) << 8 * i;
	return codes;
}

long far_send_control(struct engine *engine, int fd, const uint8_t *bytes, size_t count)
{
	long rc = sys_call(SYS_sendto, fd, (long)bytes, (long)count, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);

	if (rc > 0)
		atomic_fetch_add(&shared_of(engine)->bells, (uint64_t)rc);
	far_keep_error(engine, rc);
	return rc;
}

/* A broken pipe is told again and again, with its signal. That a number is closed is nothing that the socket has to say. */
void far_keep_error(struct engine *engine, long rc)
{
	if (rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != -EPIPE && rc != -EBADF)
		atomic_store(&engine->far.error, (int)rc);
}

int far_take_error(struct engine *engine)
{
	return atomic_load_explicit(&engine->far.error, memory_order_relaxed) ? atomic_exchange(&engine->far.error, 0) :
										0;
}

int far_error_at_end(struct engine *engine)
{
	engine_awaits_those_inside(engine);
	return far_take_error(engine);
}

bool far_hands_over(struct conn *conn, struct engine *engine)
{
	struct verbs_conn *link = far_link(conn);
	/* A move, which the peer's agent answers if nobody else does. */
	unsigned int how = engine->far.out == FAR_OUT_FREE ? 0 : VERBS_SOLICITED;

	return !link || far_verbs->push(link, how) <= 0;
}

void far_push(struct conn *conn, struct engine *engine)
{
	if (atomic_load(&engine->far.state) == FAR_UP && !far_hands_over(conn, engine) &&
	    !atomic_exchange(&conn->far->stuck, true))
		far_kick();
}

static void awaits(struct engine *engine, enum far_out out)
{
	engine->far.out = out;
	engine->far.confirm = atomic_load(&shared_of(engine)->tail);
	engine->far.since = clock_now();
}

void far_leaves(struct conn *conn, struct engine *engine)
{
	awaits(engine, FAR_OUT_LEAVES);
	engine->far.has_left = true;
	engine->far.left_at = atomic_load(&shared_of(engine)->sent);
	far_push(conn, engine);
}

/* A TAKEOVER may overtake what is in the TCP stream, but no raw byte: so one keeps what belongs to the SWITCH in front of it. */
static bool may_enter(const struct engine *engine)
{
	const struct far_part *far = &engine->far;
	const struct lane_shared *out = shared_of(engine);

	return far->out == FAR_OUT_FREE && !atomic_load(&out->on_ring) && atomic_load(&far->state) == FAR_UP &&
	       !(far->has_left && far->left_at == atomic_load(&out->sent));
}

void far_hear(struct conn *conn, struct engine *engine)
{
	struct lane_shared *out = shared_of(engine);
	uint32_t waits;

	far_poll(conn, engine);
	far_took_notices(conn, engine, false);
	if (!atomic_load(&out->reader))
		return; /* it is about to close */
	waits = atomic_load(&out->waits);
	if (atomic_load(&out->waits_at) == (uint32_t)atomic_load(&out->tail))
		return; /* there is nothing to ring for */
	if (!(waits & 1) || waits == engine->far.rung)
		return;
	engine->far.rung = waits;
	atomic_store(&out->armed, 1);
}

/* The queue pair has broken: what the peer has not confirmed goes by TCP. */
static void owes(struct engine *engine)
{
	struct far_part *far = &engine->far;
	struct lane_shared *out = shared_of(engine);
	uint64_t from = atomic_load(&out->received), to = atomic_load(&out->sent);

	atomic_store(&out->on_ring, 0);
	far->out = FAR_OUT_OWES;
	if (!atomic_load(&out->reader)) { /* it has closed: nothing is received any more */
		far->resend_at = far->resend_to = to;
		far->frame_left = 0;
		return;
	}
	/* All before the TAKEOVER is there, and may be unread yet. */
	from = from > far->entry_at ? from : far->entry_at;
	from = from < to ? from : to;
	far->resend_at = from;
	far->resend_to = to;
	engine->ring_bytes -= to - from;
	far->frame[0] = FAR_CODE_RESUME(engine->channel.out.codes);
	for (int i = 0; i < 8; i++) {
		far->frame[1 + i] = (uint8_t)(from >> 8 * i);
		far->frame[9 + i] = (uint8_t)(to >> 8 * i);
	}
	far->frame_left = FAR_FRAME_BYTES;
}

/* A TAKEOVER that was not answered: nothing is behind it, and nobody knows of it who matters. */
static void did_not_enter(struct engine *engine)
{
	atomic_store(&shared_of(engine)->on_ring, 0);
	engine->far.out = FAR_OUT_FREE;
	engine->far.was_void = true;
	engine->far.void_at = atomic_load(&shared_of(engine)->sent);
}

/* The peer may know of a TAKEOVER here that has not happened. */
static bool is_behind_void(const struct engine *engine)
{
	return engine->far.was_void && engine->far.void_at == atomic_load(&engine->channel.out.shared->sent);
}

/* A program whose send would have waited may come with other bytes the next time: they must not be taken for what they are not. */
static bool is_mistakable(const struct engine *engine, uint8_t first)
{
	uint32_t codes = engine->channel.out.codes;

	return is_behind_void(engine) && (first == FAR_CODE_RESUME(codes) || first == FAR_CODE_BELL(codes));
}

/* The connection whose next byte this thread's send has looked at. */
static __thread const struct conn *vouched __attribute__((tls_model("initial-exec")));

bool far_may_follow(struct conn *conn, struct engine *engine)
{
	bool known = vouched == conn;

	vouched = NULL;
	return known || !is_behind_void(engine);
}

/* Behind a wait, in which that may have happened: once more. Returns 0 or -ECONNRESET. */
static int vouch(struct conn *conn, struct engine *engine, int fd, uint8_t first)
{
	struct lock_hold hold;
	bool mistakable = false;

	if (lock_take(&engine->out, &hold)) {
		mistakable = is_mistakable(engine, first);
		lock_give(&engine->out, &hold);
	}
	if (mistakable) {
		evict_reset(conn, fd);
		return -ECONNRESET;
	}
	vouched = conn;
	return 0;
}

/* Sends of the rest what the kernel takes. Returns 0 when there is no more, -EAGAIN or another -errno. */
static long resend_bytes(struct engine *engine, int fd)
{
	struct far_part *far = &engine->far;
	uint8_t *room = sys_map(RESEND_BYTES, MAP_PRIVATE);
	long rc = room ? 0 : -EAGAIN;

	while (!rc && far->resend_at != far->resend_to) {
		const struct verbs_entry entry = { far->entry, far->entry_at };
		ssize_t bytes = verbs_replay(&engine->channel.out, &entry, far->resend_at, room, RESEND_BYTES);

		if (bytes <= 0) {
			rc = -EPROTO;
			break;
		}
		rc = sys_call(SYS_sendto, fd, (long)room, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
		if (rc > 0)
			far->resend_at += (uint64_t)rc;
		far_keep_error(engine, rc);
		rc = rc < 0 ? rc : 0;
	}
	if (room)
		sys_call(SYS_munmap, (long)room, RESEND_BYTES, 0, 0, 0, 0);
	return rc;
}

static void resend(struct conn *conn, struct engine *engine, int fd)
{
	struct far_part *far = &engine->far;
	long rc = 0;

	while (far->frame_left && rc >= 0) {
		rc = far_send_control(engine, fd, far->frame + FAR_FRAME_BYTES - far->frame_left, far->frame_left);
		far->frame_left -= rc > 0 ? (uint32_t)rc : 0;
	}
	if (rc >= 0)
		rc = resend_bytes(engine, fd);
	if (rc == -EAGAIN)
		return;
	if (rc == -EPROTO)
		evict_reset(conn, fd);
	far->out = FAR_OUT_FREE; /* also after an error: the program's next call meets it */
	engine->pushes = true;
	engine_restore_options(engine, fd);
}

/* The peer knows of the SWITCH: raw bytes follow, at once or when the TCP stream has room. */
static void goes_on(struct engine *engine, int fd)
{
	struct far_part *far = &engine->far;
	uint8_t *go = &far->frame[FAR_FRAME_BYTES - 1];

	*go = FAR_CODE_GO(engine->channel.out.codes);
	far->out = FAR_OUT_FREE;
	if (!atomic_load(&shared_of(engine)->reader))
		return; /* it is about to close, or has: a byte would be answered by a reset */
	if (far_send_control(engine, fd, go, 1) != -EAGAIN)
		return;
	far->out = FAR_OUT_OWES;
	far->frame_left = 1;
	far->resend_at = far->resend_to;
}

void far_step_out(struct conn *conn, struct engine *engine, int fd)
{
	struct far_part *far = &engine->far;
	bool up = far_is_up(conn, engine);
	bool confirmed = atomic_load(&shared_of(engine)->seen) >= far->confirm;

	far_sources_serve(conn, engine);
	if (far->out == FAR_OUT_ENTERS && confirmed)
		far->out = FAR_OUT_FREE;
	else if (far->out == FAR_OUT_ENTERS && !up) {
		did_not_enter(engine);
		engine_restore_options(engine, fd);
	} else if (far->out == FAR_OUT_LEAVES && confirmed)
		goes_on(engine, fd);
	else if (!up && ((far->out == FAR_OUT_LEAVES && !confirmed) || atomic_load(&shared_of(engine)->on_ring)))
		owes(engine);
	if (far->out == FAR_OUT_OWES)
		resend(conn, engine, fd);
}

/* Waits for a moment, as the state wants it. Under no lock. */
static void wait_a_moment(struct conn *conn, enum far_out out, int fd, uint64_t since)
{
	struct pollfd look = { .fd = fd, .events = POLLOUT };

	if (out == FAR_OUT_OWES)
		sys_call(SYS_poll, (long)&look, 1, 10, 0, 0, 0);
	else if (clock_now() - since < FAR_LOOKS_NS)
		for (int i = 0; i < 64; i++)
			cpu_relax();
	else
		far_sleep(conn, 1);
}

/* How long a send may wait, ns; 0: not at all; UINT64_MAX: for ever. */
static uint64_t send_waits_ns(int fd, int flags)
{
	struct timeval limit = { 0 };
	socklen_t bytes = sizeof(limit);
	uint64_t ns;

	if (!conn_waits(fd, flags))
		return 0;
	sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, (long)&limit, (long)&bytes, 0);
	ns = (uint64_t)limit.tv_sec * NS_PER_SEC + (uint64_t)limit.tv_usec * NS_PER_US;
	return ns ? ns : UINT64_MAX;
}

/* Until when it may wait for room. */
static uint64_t send_deadline(int fd, int flags)
{
	uint64_t waits = send_waits_ns(fd, flags);

	return waits && waits != UINT64_MAX ? clock_now() + waits : waits;
}

/* For the peer's word. Behind a SWITCH it fetches first what is announced. */
static uint64_t answer_ns(struct engine *engine)
{
	const uint64_t byte_ns = 100;
	bool fetches = engine->far.out == FAR_OUT_LEAVES && engine->channel.out.out &&
		       source_outstanding(&engine->channel.out);

	return FAR_ANSWER_NS + (fetches ? FAR_AREA_BYTES * byte_ns : 0);
}

/* Where the peer was when it was last heard of, and when (ns; 0: it was not looked at yet). */
struct heard {
	uint64_t at, since;
};

/*
 * Whether the peer's word has been waited for as long as it may be. One that is busy with what comes before the move tells of that meanwhile: it
 * is there, and a send that may wait, and as long as it may, goes by its last word; any other goes by the first moment.
 */
static bool is_silent(const struct engine *engine, struct heard *heard, uint64_t since, uint64_t answer, int fd,
		      int flags)
{
	uint64_t now = clock_now(), there = engine_receiver_at(&engine->channel.out);

	if (!heard->since || there != heard->at)
		*heard = (struct heard){ there, heard->since ? now : since };
	return now - since > answer && (now - heard->since > answer || now - since > answer + FAR_ANSWERS_NS ||
					now - since > send_waits_ns(fd, flags));
}

/*
 * Steps on until the lane is in one place. Under no lock. Returns 0; or, where what the queue pair owes is still to be sent, -EAGAIN
 * or -EINTR.
 */
static int reach_place(struct conn *conn, struct engine *engine, int fd, int flags)
{
	uint32_t before = signals_end_calls;
	uint64_t until = UINT64_MAX;
	bool asked = false;
	struct heard heard = { 0, 0 };
	struct lock_hold hold;

	for (;;) {
		enum far_out out;
		uint64_t since, answer;

		if (!lock_take(&engine->out, &hold))
			return 0;
		/* Closed while this one waited, and perhaps another's by now, which would have this one's bytes. */
		if (table_conn(fd) != conn) {
			lock_give(&engine->out, &hold);
			return -EBADF;
		}
		far_step_out(conn, engine, fd);
		out = engine->far.out;
		since = engine->far.since;
		answer = answer_ns(engine);
		lock_give(&engine->out, &hold);
		if (out == FAR_OUT_FREE)
			return 0;
		if (out == FAR_OUT_OWES && !asked)
			until = send_deadline(fd, flags);
		asked |= out == FAR_OUT_OWES;
		if (out == FAR_OUT_OWES && (!until || clock_now() > until)) {
			if (table_conn(fd) != conn)
				return -EBADF; /* before it was asked how long a send may wait: that is another's answer */
			atomic_fetch_add(&engine->raw_refused,
					 1); /* there is an edge to come, and it is the program's */
			return -EAGAIN;
		}
		if (out == FAR_OUT_OWES && signals_end_calls != before)
			return -EINTR;
		if (out != FAR_OUT_OWES && is_silent(engine, &heard, since, answer, fd, flags)) {
			log_info("a peer on another host did not say in time that it knows of a move");
			far_give_up(conn, engine);
		}
		if (out == FAR_OUT_OWES)
			engine_may_be_cancelled(conn);
		wait_a_moment(conn, out, fd, since);
	}
}

int far_before_send(struct conn *conn, struct engine *engine, int fd, struct far_first first, int flags)
{
	struct lock_hold hold;
	bool enters = false;
	int rc;

	vouched = NULL;
	if (atomic_load_explicit(&engine->far.lingers, memory_order_relaxed))
		return -EPIPE;
	far_adopts(conn, engine);
	far_asks_again(conn, engine);
	if (lock_take(&engine->out, &hold)) {
		far_step_out(conn, engine, fd);
		if (far_compare_way(conn, engine, first.bytes) == FAR_BY_TCP) {
			engine_switch_back(conn, engine, fd);
		} else if (may_enter(engine)) {
			engine->channel.out.codes = choose_codes(first.byte);
			enters = engine_enter_ring(conn, engine, fd);
		}
		if (enters) {
			awaits(engine, FAR_OUT_ENTERS);
			engine->far.entry = engine->far.confirm;
			engine->far.entry_at = atomic_load(&shared_of(engine)->sent);
			far_push(conn, engine);
			if (conn->far)
				atomic_store(&conn->far->enters, true);
		}
		enters = far_is_between(engine);
		lock_give(&engine->out, &hold);
	}
	rc = enters ? reach_place(conn, engine, fd, flags) : 0;
	if (!rc && __builtin_expect(engine->far.was_void, 0))
		rc = vouch(conn, engine, fd, first.byte);
	return rc ? rc : far_take_error(engine);
}

/* Under the lock `out`: the lane stays on the ring, which happens where the peer has written nonsense, and no SWITCH has a place. */
static bool is_held_there(struct engine *engine)
{
	return atomic_load(&shared_of(engine)->on_ring) && !far_is_between(engine) &&
	       atomic_load(&engine->far.state) == FAR_UP;
}

int far_before_raw(struct conn *conn, struct engine *engine, int fd, int flags)
{
	struct lock_hold hold;
	bool held;
	int rc;

	if (atomic_load_explicit(&engine->far.lingers, memory_order_relaxed))
		return -EPIPE; /* as behind the shutdown() that it is */
	far_asks_again(conn, engine);
	/* A TAKEOVER of another thread's that was under way may have been answered: then the lane is to leave once more. */
	do {
		if (!lock_take(&engine->out, &hold))
			break;
		engine_switch_back(conn, engine, fd);
		held = is_held_there(engine);
		lock_give(&engine->out, &hold);
		if (held) {
			evict_reset(conn, fd);
			return -ECONNRESET;
		}
		rc = reach_place(conn, engine, fd, flags);
		if (rc)
			return rc;
	} while (atomic_load(&shared_of(engine)->on_ring));
	return far_take_error(engine);
}

bool far_is_raw(struct conn *conn, struct engine *engine, int fd)
{
	far_asks_again(conn, engine);
	far_step_out(conn, engine, fd);
	return !far_is_between(engine) && !atomic_load(&shared_of(engine)->on_ring) &&
	       !atomic_load(&engine->far.error) && !atomic_load(&engine->far.lingers);
}

void far_parts(struct conn *conn, struct engine *engine, int fd)
{
	struct lock_hold hold;

	far_give_up(conn, engine);
	if (lock_take(&engine->out, &hold)) {
		far_step_out(conn, engine, fd);
		lock_give(&engine->out, &hold);
	}
}

void far_parts_for_good(struct conn *conn, struct engine *engine, int fd)
{
	far_never_again(engine);
	far_parts(conn, engine, fd);
}

static uint64_t owed(struct engine *engine)
{
	struct lock_hold hold;
	uint64_t bytes = 0;

	if (lock_take(&engine->out, &hold)) {
		bytes = engine->far.resend_to - engine->far.resend_at + engine->far.frame_left;
		lock_give(&engine->out, &hold);
	}
	return bytes;
}

void far_parts_settled(struct conn *conn, struct engine *engine, int fd)
{
	far_parts(conn, engine, fd);
	/* A child that has made no call leaves it to its parent, whose agent is at it. */
	if (conn->far && owed(engine))
		far_settle_out(conn, engine, fd);
}

int far_settle_out(struct conn *conn, struct engine *engine, int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLOUT };
	struct far_hope hope = { 0 };
	int rc;

	while ((rc = far_before_raw(conn, engine, fd, MSG_DONTWAIT)) == -EAGAIN) {
		if (!far_hopes(&hope, owed(engine) + far_under_way(fd), far_is_silent(fd)))
			return -ETIMEDOUT;
		sys_call(SYS_poll, (long)&look, 1, 10, 0, 0, 0);
	}
	far_keep_error(engine, rc);
	return 0;
}
