/* SPDX-License-Identifier: MIT */
/* The receiving side of far.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/evict.h"
#include "preload/far_compare.h"
#include "preload/far_internal.h"
#include "rdma/avail.h"

#define LOOK_BYTES 64
#define SCRAP_BYTES 16384
#define BELL_ARRIVES_MS 2

static struct lane *lane_of(struct engine *engine)
{
	return &engine->channel.in;
}

static bool from_ring(const struct engine *engine)
{
	return atomic_load_explicit(&engine->channel.in.shared->from_ring, memory_order_relaxed);
}

static long peek(struct engine *engine, int fd, uint8_t *bytes, size_t count)
{
	long got = sys_call(SYS_recvfrom, fd, (long)bytes, (long)count, MSG_DONTWAIT | MSG_PEEK, 0, 0);

	far_keep_error(engine, got);
	return got;
}

/* Takes bytes that are no data. They count as doorbells, at both ends. */
static void take_control(struct engine *engine, int fd, size_t count)
{
	uint8_t bytes[FAR_FRAME_BYTES];
	struct lane *in = lane_of(engine);

	if (sys_call(SYS_recvfrom, fd, (long)bytes, (long)count, MSG_DONTWAIT, 0, 0) != (long)count)
		return;
	lane_saw_bells(in, count);
	atomic_store(&in->shared->bells, atomic_load(&in->shared->bells_seen));
}

/* The ring ends with a SWITCH that was passed. To be asked before the next move takes its place: that may come at any time. */
static void note_end_of_ring(struct engine *engine)
{
	struct far_part *far = &engine->far;

	if (!far->left || from_ring(engine) || atomic_load(&lane_of(engine)->shared->head) < far->left)
		return;
	far->left = 0;
	far->expects = true;
}

/* The consumer's line to the peer. What it says of a TAKEOVER may be there from now on, unless the queue pair had broken. */
static void say(struct engine *engine, struct verbs_conn *link, unsigned int how)
{
	engine->far.word_out |= far_verbs->credit(link, how) != -ENOTCONN;
}

/* What has come to the ring since the last time: where the lane moves. And the peer hears that this is known here. */
static void look_at_moves(struct conn *conn, struct engine *engine)
{
	struct far_part *far = &engine->far;
	struct lane *in = lane_of(engine);
	uint64_t tail = atomic_load(&in->shared->tail);
	struct verbs_conn *link = far_link(conn);
	struct lane_move move = { LANE_NO_MOVE, 0, 0 };

	note_end_of_ring(engine);
	if (tail != far->looked)
		move = lane_find_move(in, far->looked, tail);
	/*
	 * The word that a SWITCH is known says that all before it is here, too. Where that can't be any more, the ring ends in front of
	 * what is missing, the word does not go out, and it is FAR_RESUME that follows in the stream.
	 */
	if (move.kind == LANE_SWITCH && !far_fetch(conn, engine))
		move.kind = LANE_NO_MOVE;
	if (move.kind == LANE_TAKEOVER) {
		far->entered = move.end;
		far->word_out = false;
		far->left = 0;
		engine_has_spun(&engine->spin, engine, true); /* what came before says nothing about the ring */
	} else if (move.kind == LANE_SWITCH) {
		far->left = move.end;
		far->left_bells = move.bells;
	}
	far->looked = tail;
	far->owes_word |= move.kind != LANE_NO_MOVE;
	/* Raw receives that began before there were lanes don't obey them. */
	if (atomic_load(&in->shared->raw))
		return;
	atomic_store(&in->shared->seen, tail);
	if (far->owes_word && link)
		say(engine, link, VERBS_NOW);
	far->owes_word = false;
}

/* Whether it receives by calls that are seen: without that no lane moves. And whether the queue pair is of use to it. */
static void tell_reader(struct conn *conn, struct engine *engine)
{
	struct lane_shared *in = lane_of(engine)->shared;
	uint32_t use = atomic_load(&in->use);
	uint32_t now = atomic_load(&in->reader) << 3 | (uint32_t)(atomic_load(&in->raw) != 0) << 2 | use;
	struct verbs_conn *link = far_link(conn);

	if (now == engine->far.told || !link)
		return;
	engine->far.told = now;
	say(engine, link, VERBS_NOW | (use != LANE_USE_UNKNOWN ? VERBS_SOLICITED : 0)); /* nobody may look for that */
}

/* Stream position up to which all bytes are here. */
static uint64_t reached(const struct lane *in)
{
	return atomic_load(&in->shared->received) + lane_unread_all(in);
}

/* The queue pair of the peer has broken: it goes on at `from`, with all up to `to` at least. What is in the ring comes first. */
static void resumes(struct conn *conn, struct engine *engine, uint64_t from, uint64_t to)
{
	struct lane *in = lane_of(engine);
	struct verbs_conn *link = far_link(conn);
	uint64_t here;

	if (link)
		far_verbs->give_up(link);
	far_is_up(conn, engine);
	look_at_moves(conn, engine);
	here = reached(in);
	if (from > here || to < here) {
		engine->far.nonsense = true;
		return;
	}
	engine->far.skip = here - from;
	engine->far.owed = to;
	engine->far.expects = false;
	engine->far.left = 0;
	avail_cut(in);
	lane_leave(in);
	log_info("a peer on another host goes on over TCP: %llu bytes again", (unsigned long long)engine->far.skip);
}

static uint64_t position_at(const uint8_t *bytes)
{
	uint64_t position = 0;

	for (int i = 0; i < 8; i++)
		position |= (uint64_t)bytes[i] << 8 * i;
	return position;
}

/* At the front of the stream there is a frame, or its beginning. */
static void take_frame(struct conn *conn, struct engine *engine, int fd)
{
	uint8_t frame[FAR_FRAME_BYTES];
	long got = peek(engine, fd, frame, sizeof(frame));

	if (got > 0 && frame[0] != FAR_CODE_RESUME(lane_of(engine)->passed_codes)) {
		engine->far.nonsense = true;
		return;
	}
	atomic_store(&engine->far.partial, got > 0 && got < FAR_FRAME_BYTES);
	if (got != sizeof(frame))
		return;
	take_control(engine, fd, sizeof(frame));
	resumes(conn, engine, position_at(frame + 1), position_at(frame + 9));
}

/* Nothing has come behind the TAKEOVER: whether the peer has given it up, and goes on by raw bytes, shows by their first. */
static bool is_void(const struct engine *engine, uint8_t first)
{
	const struct lane *in = &engine->channel.in;

	return engine->far.looked == engine->far.entered && atomic_load(&in->shared->head) == engine->far.entered &&
	       first != FAR_CODE_RESUME(in->passed_codes);
}

/* The last word that somebody waits stands until a doorbell was found behind it. */
static bool awaits_bell(const struct engine *engine)
{
	const struct lane_shared *in = engine->channel.in.shared;

	return atomic_load(&in->waits) & 1 && atomic_load(&in->bells) == engine->far.armed_bells;
}

/* The lane is on the ring: what is in the stream are doorbells, as many as are there, and what ends the lane. */
static void look_at_ring_stream(struct conn *conn, struct engine *engine, int fd)
{
	struct lane *in = lane_of(engine);
	uint8_t bytes[LOOK_BYTES];
	long got, bells = 0;

	if (engine->far.left) {
		atomic_store(&in->shared->bells, atomic_load(&in->shared->bells_seen) +
							 (uint32_t)(engine->far.left_bells -
								    (uint32_t)atomic_load(&in->shared->bells_seen)));
		return;
	}
	got = peek(engine, fd, bytes, sizeof(bytes));
	engine->far.quiet = got == -EAGAIN && !awaits_bell(engine);
	while (bells < got && bytes[bells] == FAR_CODE_BELL(in->passed_codes))
		bells++;
	atomic_store(&in->shared->bells, atomic_load(&in->shared->bells_seen) + (uint64_t)bells);
	if (bells || got <= 0)
		return;
	if (is_void(engine, bytes[0]))
		atomic_store(&in->shared->from_ring, 0);
	else
		take_frame(conn, engine, fd);
}

/* Behind a SWITCH, whose doorbells are taken. */
static void look_behind_switch(struct conn *conn, struct engine *engine, int fd)
{
	uint8_t first;

	if (atomic_load(&lane_of(engine)->shared->bells_skip) || peek(engine, fd, &first, 1) != 1)
		return;
	if (first == FAR_CODE_GO(lane_of(engine)->passed_codes)) {
		take_control(engine, fd, 1);
		engine->far.expects = false;
	} else {
		take_frame(conn, engine, fd);
	}
}

/* Bytes that came by the ring, too. */
static void skip(struct engine *engine, int fd)
{
	uint8_t scrap[SCRAP_BYTES];

	while (engine->far.skip) {
		long part = engine->far.skip < sizeof(scrap) ? (long)engine->far.skip : (long)sizeof(scrap);
		long got = sys_call(SYS_recvfrom, fd, (long)scrap, part, MSG_DONTWAIT, 0, 0);

		if (got <= 0)
			return;
		engine->far.skip -= (uint64_t)got;
	}
}

/* Back on TCP: the producer takes over again when it knows that nothing is left in the ring. */
static void tell_end(struct conn *conn, struct engine *engine)
{
	uint64_t head = atomic_load_explicit(&lane_of(engine)->shared->head, memory_order_relaxed);
	struct verbs_conn *link = far_link(conn);

	if (from_ring(engine) || head == engine->far.told_end || !link)
		return;
	engine->far.told_end = head;
	say(engine, link, VERBS_NOW);
}

/* What use the queue pair is of to the peer: of none, and the agent looks whether it is to this end; or of some, which its host's connections know then. */
static void hear_of_use(struct conn *conn, struct engine *engine)
{
	enum lane_use use = atomic_load_explicit(&engine->channel.out.shared->use, memory_order_relaxed);

	if (use == engine->far.peer_use)
		return;
	engine->far.peer_use = use;
	far_compare_is_told(engine, use);
	if (use != LANE_USE_NONE || !conn->far)
		return;
	atomic_store(&conn->far->tells, true);
	far_kick();
}

bool far_look_at_ring(struct conn *conn, struct engine *engine)
{
	bool up;

	far_poll(conn, engine);
	up = far_is_up(conn, engine);
	look_at_moves(conn, engine);
	tell_reader(conn, engine);
	note_end_of_ring(engine);
	tell_end(conn, engine);
	hear_of_use(conn, engine);
	far_took_notices(conn, engine, true);
	return up;
}

int far_look_quickly_there(struct conn *conn, struct engine *engine, int fd)
{
	struct far_part *far = &engine->far;

	if (far->quiet && from_ring(engine) && !far->left && !far->expects && !far->skip &&
	    far_look_at_ring(conn, engine) && !far->left)
		return far->nonsense ? -ECONNRESET : 0;
	return far_look_there(conn, engine, fd);
}

int far_look_there(struct conn *conn, struct engine *engine, int fd)
{
	struct far_part *far = &engine->far;
	struct lane *in = lane_of(engine);

	far_look_at_ring(conn, engine);
	far->quiet = false;
	atomic_store_explicit(&far->partial, false, memory_order_relaxed);
	if (far->expects)
		look_behind_switch(conn, engine, fd);
	else if (from_ring(engine) && !lane_has_left(in))
		look_at_ring_stream(conn, engine, fd);
	if (far->skip)
		skip(engine, fd);
	return far->nonsense ? -ECONNRESET : 0;
}

/* Waits for what comes, or for an end: notices of the kernel's (MSG_ZEROCOPY, SO_TIMESTAMPING), which poll() tells as POLLERR, are neither. */
static short await_stream(int fd, int ms)
{
	struct pollfd look = { .fd = fd, .events = POLLIN | POLLRDHUP };
	uint64_t until = clock_now() + (uint64_t)ms * NS_PER_MS;

	do {
		look.revents = 0;
		sys_call(SYS_poll, (long)&look, 1, ms, 0, 0, 0);
	} while (look.revents == POLLERR && clock_now() < until);
	return look.revents;
}

/* One that the peer has sent before it knew. */
static void await_last_bell(struct engine *engine, int fd)
{
	const struct lane_shared *in = lane_of(engine)->shared;

	if (awaits_bell(engine) && atomic_load(&in->tail) != engine->far.armed_at)
		await_stream(fd, BELL_ARRIVES_MS);
}

/* Whether something is to come by TCP that is no data: behind a SWITCH that the peer knows to be known, or where the queue pair has broken. */
static bool is_to_come(const struct engine *engine, bool knows)
{
	const struct far_part *far = &engine->far;
	bool broken = atomic_load(&far->state) == FAR_BROKEN;

	return far->skip || ((knows || broken) && (far->left || far->expects)) ||
	       (broken && from_ring(engine) && !lane_has_left(&engine->channel.in));
}

/*
 * FAR_GO of a peer that had heard that its SWITCH is known before it heard of the end, or at the same time; FAR_RESUME of one that did not
 * hear of it. Behind the close it would be answered by a reset. What else comes then, the peer would have sent by TCP as well.
 */
static void await_last_words(struct conn *conn, struct engine *engine, int fd, bool knows)
{
	uint64_t until = clock_now() + FAR_ANSWER_NS;
	short told = 0;
	bool last = false;
	size_t none;

	while (is_to_come(engine, knows)) {
		lane_get(lane_of(engine), NULL, 0, false, &none); /* up to the SWITCH */
		if (far_look(conn, engine, fd) < 0 || last)
			return;
		if (is_to_come(engine, knows))
			told = await_stream(fd, 1);
		last = told & (POLLRDHUP | POLLHUP) || clock_now() > until;
	}
}

void far_stays(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;

	if (!far_is(engine) || !lock_take(&engine->in, &hold))
		return;
	lane_reads(lane_of(engine), !engine_is_shut(engine));
	tell_reader(conn, engine);
	lock_give(&engine->in, &hold);
}

void far_says_bye(struct conn *conn, struct engine *engine, int fd)
{
	struct verbs_conn *link = far_link(conn);
	uint64_t until = clock_now() + FAR_ANSWER_NS;
	bool knows = engine->far.left || engine->far.expects;

	if (!far_is(engine))
		return;
	lane_reads(lane_of(engine), false);
	if (link && atomic_load(&engine->far.state) == FAR_UP) {
		tell_reader(conn, engine);
		while (!far_verbs->flushed(link) && clock_now() < until)
			far_sleep(conn, 1);
	}
	await_last_bell(engine, fd);
	far_look(conn, engine, fd);
	evict_bells(engine, fd);
	await_last_words(conn, engine, fd, knows);
}

size_t far_data_there(struct engine *engine, int fd, size_t raw)
{
	const struct far_part *far = &engine->far;
	struct lane *in = lane_of(engine);
	uint8_t bytes[LOOK_BYTES + FAR_FRAME_BYTES];
	uint64_t front = lane_bells_due(in), from, here;
	long got;

	if (from_ring(engine) && !lane_has_left(in) && !far->left)
		return 0; /* doorbells, or what ends the lane, which the next look finds */
	if (far->left || far->expects) {
		/* Behind the doorbells of the SWITCH there is a FAR_GO, or a frame. */
		got = front <= LOOK_BYTES ? peek(engine, fd, bytes, sizeof(bytes)) : 0;
		if (got <= (long)front)
			return 0;
		if (bytes[front] == FAR_CODE_GO(in->passed_codes)) {
			front++;
		} else if (got >= (long)front + FAR_FRAME_BYTES) {
			from = position_at(bytes + front + 1);
			here = reached(in);
			front += FAR_FRAME_BYTES + (here > from ? here - from : 0);
		} else {
			return 0;
		}
	} else {
		front += far->skip;
	}
	return raw > front ? raw - front : 0;
}

bool far_is_control_there(const struct engine *engine)
{
	return (from_ring(engine) && !lane_has_left(&engine->channel.in)) || engine->far.expects || engine->far.skip;
}

/* The peer can't have put anything behind a TAKEOVER of which it was never told that it is known here. */
static bool is_unanswered(const struct engine *engine)
{
	return !engine->far.word_out && engine->far.looked == engine->far.entered &&
	       atomic_load(&engine->channel.in.shared->head) == engine->far.entered;
}

bool far_is_cut(const struct engine *engine)
{
	const struct lane *in = &engine->channel.in;
	bool on_ring = from_ring(engine) && !lane_has_left(in) && !is_unanswered(engine);

	return far_is(engine) && (on_ring || engine->far.skip || reached(in) < engine->far.owed);
}

void far_took_there(struct conn *conn)
{
	struct verbs_conn *link = far_link(conn);
	struct engine *engine = atomic_load(&conn->engine);
	uint32_t passed;

	far_asks_again(conn, engine);
	if (!link)
		return;
	/*
	 * What was taken may have come behind the last look: the tail moves without the lock. Told of it, the peer may fill the ring so far that
	 * the next look would find no record where it begins, and miss a SWITCH.
	 */
	if (atomic_load_explicit(&lane_of(engine)->shared->head, memory_order_relaxed) > engine->far.looked) {
		look_at_moves(conn, engine);
		note_end_of_ring(engine);
	}
	/* A source that is passed, a sender may wait for: GET_COMPLETE. */
	passed = atomic_load_explicit(&lane_of(engine)->sources->passed, memory_order_relaxed);
	say(engine, link, passed != engine->far.told_passed ? VERBS_NOW : 0);
	engine->far.told_passed = passed;
}

/* Somebody may sleep by the socket: what is in the ring behind `at` is to be rung for. */
static void say_it_waits(struct engine *engine, struct verbs_conn *link, uint64_t at)
{
	struct lane_shared *in = lane_of(engine)->shared;
	uint32_t waits = atomic_load(&in->waits);

	atomic_store(&in->waits, waits + (waits & 1 ? 2 : 1));
	atomic_store(&in->waits_at, (uint32_t)at);
	engine->far.armed_at = at;
	engine->far.armed_bells = atomic_load(&in->bells);
	say(engine, link, VERBS_NOW | VERBS_SOLICITED);
}

bool far_arm(struct conn *conn, struct engine *engine)
{
	struct lane *in = lane_of(engine);
	struct verbs_conn *link = far_link(conn);
	uint64_t seen;

	if (!link || atomic_load(&engine->far.state) != FAR_UP)
		return lane_is_empty(in);
	look_at_moves(conn, engine);
	far_kernel_told(engine);
	seen = atomic_load(&in->shared->seen);
	/*
	 * While something is there, a word that stands is not changed: who sleeps since then is woken by its doorbell alone, whoever else has seen
	 * what came. Behind a doorbell that was found, which has woken them, there is a new one for what comes from here on, also where something
	 * is left: an edge is to be told of again.
	 */
	if (!awaits_bell(engine) || (lane_is_empty(in) && seen != engine->far.armed_at))
		say_it_waits(engine, link, seen);
	far_poll(conn, engine);
	return lane_is_empty(in);
}
