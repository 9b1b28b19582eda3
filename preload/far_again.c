/* SPDX-License-Identifier: MIT */
/*
 * Another queue pair for a connection whose last one has broken (far.h, "Again").
 *
 * Each end by itself first comes to rest: its sends go by TCP and nothing is owed, what it receives comes by TCP and nothing is to be
 * left out. Which that is, the states of the lanes tell, without a word of the peer's: whoever has seen a TAKEOVER, or a SWITCH, waits for
 * what ends it in the stream, and who has not needs nothing. Only an end at rest listens, or asks; so when one that asks finds one that
 * listens, both directions are on TCP for both, and both count the same stream. Then the agent closes the former queue pair: behind that
 * the device writes nothing more to the lanes' memory.
 *
 * The lanes of the next one are in other memory, which serves again for the one after it: nobody unmaps what a thread without
 * a lock may be looking at. Their ring begins at a position that follows from the number of the request, so that none comes twice. A
 * request with a number that is not higher than the last one is refused.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/evict.h"
#include "preload/far_compare.h"
#include "preload/far_internal.h"
#include "preload/guest.h"

#define PAUSE_MAX_NS (60 * NS_PER_SEC)
#define LASTED 8		    /* pauses: a queue pair that has lasted that long was worth it */
#define RESTS_NS (50 * NS_PER_MS)   /* until the lanes are looked at again */
#define DEVICE_NS NS_PER_SEC	    /* until the devices are, or a meeting */
#define OPENING_NS (3 * NS_PER_SEC) /* for a meeting: rdma_cm itself takes a minute where nothing answers */

static uint64_t first_pause(void)
{
	return (uint64_t)settings.rdma_again_ms * NS_PER_MS;
}

static uint64_t twice(uint64_t pause)
{
	return pause < first_pause() ? first_pause() : 2 * pause < PAUSE_MAX_NS ? 2 * pause : PAUSE_MAX_NS;
}

static bool are_on_tcp(const struct engine *engine)
{
	return !atomic_load(&engine->channel.out.shared->on_ring) &&
	       !atomic_load(&engine->channel.in.shared->from_ring);
}

/*
 * One end of those that compare has given the queue pair up, which both had no use for at the time; one of them has said so. Else it is a break like
 * others, as behind a move that the peer did not hear of in time.
 */
static bool is_done_without(const struct engine *engine, enum verbs_trouble why)
{
	const struct far_part *far = &engine->far;
	const struct channel *channel = &engine->channel;

	return far->compares && why == VERBS_PEER_GONE && are_on_tcp(engine) && !atomic_load(&far->over) &&
	       (atomic_load(&channel->in.shared->use) == LANE_USE_NONE ||
		atomic_load(&channel->out.shared->use) == LANE_USE_NONE);
}

/*
 * The ordinary end of a connection, at the end that closes it second: TCP has told it, or the peer, which has received by the ring, has said that
 * it does not any more. A peer that has only shut its side down, and loses its device behind that, looks the same: that break is not counted.
 */
static bool has_ended(struct conn *conn, const struct engine *engine, enum verbs_trouble why)
{
	bool left = engine->ring_bytes && !atomic_load(&engine->channel.out.shared->reader);

	return why == VERBS_PEER_GONE && (left || !evict_may_come(conn_fd(conn)));
}

/* Tries in vain are no reason for a longer pause behind the next break. */
void far_has_broken(struct conn *conn, struct engine *engine, enum verbs_trouble why)
{
	struct far_part *far = &engine->far;
	uint64_t now = clock_now(), pause = atomic_load(&far->break_pause_ns);

	far_compare_seeks_no_more(engine);
	if (is_done_without(engine, why)) {
		log_info("goes on over TCP, without RDMA: nothing was by RDMA at the end");
		atomic_store(&far->settles, true);
		atomic_store(&far->over, true);
		atomic_store(&far->again_at, now);
		if (conn->far)
			atomic_store(&conn->far->asked, true);
		return;
	}
	far_device_is_open(false);
	if (has_ended(conn, engine, why)) {
		log_info("the peer has ended, and its queue pair with it");
	} else {
		stats_reason(conn->slot, REASON_RDMA_BROKEN);
		if (conn->far)
			log_info("RDMA has broken: %s", far_verbs->tell(why));
	}
	if (!settings.rdma_again_ms) {
		atomic_store(&far->over, true);
		return;
	}
	pause = twice(now - atomic_load(&far->up_at) > LASTED * pause ? 0 : pause);
	atomic_store(&far->break_pause_ns, pause);
	atomic_store(&far->pause_ns, pause);
	atomic_store(&far->seek_at, now + pause);
	/* What there was is let go before that. */
	atomic_store(&far->again_at, now + (pause < RESTS_NS ? pause : RESTS_NS));
}

void far_was_in_vain(struct conn *conn, struct engine *engine)
{
	struct far_part *far = &engine->far;
	uint64_t pause = twice(atomic_load(&far->pause_ns)), at = clock_now() + pause;

	stats_reason(conn->slot, REASON_RDMA_IN_VAIN);
	atomic_store(&far->pause_ns, pause);
	atomic_store(&far->seek_at, at);
	atomic_store(&far->again_at, at);
}

bool far_still_has(struct conn *conn, uint32_t ended, struct far **held)
{
	const struct engine *engine = atomic_load(&conn->engine);
	struct far *far = conn->far;

	*held = NULL;
	if (!engine || !far)
		return true; /* it ends with the connection */
	far_hold(far);
	if (atomic_load(&engine->far.ended) == ended) {
		*held = far;
		return true;
	}
	far_release(far);
	return false;
}

void far_lets_go(struct far *held)
{
	if (held)
		far_release(held);
}

void far_never_again(struct engine *engine)
{
	if (!atomic_exchange(&engine->far.over, true))
		far_kick(); /* what it may have open */
}

void far_asks_again(struct conn *conn, struct engine *engine)
{
	struct far *far = conn->far;

	if (!far || atomic_load_explicit(&engine->far.state, memory_order_relaxed) != FAR_BROKEN ||
	    (atomic_load(&engine->far.over) && !atomic_load(&engine->far.settles)) || far_failed() ||
	    clock_now() < atomic_load(&engine->far.again_at))
		return;
	if (!atomic_exchange(&far->asked, true))
		far_kick();
}

/* What is sent goes by TCP, all of it, and no source is the program's memory any more. */
static bool out_rests(const struct engine *engine)
{
	const struct far_part *far = &engine->far;
	const struct channel *channel = &engine->channel;

	return far->out == FAR_OUT_FREE && !far->frame_left && far->resend_at == far->resend_to &&
	       !atomic_load(&channel->out.shared->on_ring) && (!channel->out.out || far->kept) &&
	       source_out_rests(&channel->sources_out);
}

/* What is received comes by TCP, and is new. */
static bool in_rests(const struct engine *engine)
{
	const struct far_part *far = &engine->far;
	const struct lane *in = &engine->channel.in;
	const struct lane_shared *shared = in->shared;

	if (far->expects || far->left || far->skip || far->nonsense)
		return false;
	return lane_has_left(in) ? lane_is_over(in) :
				   !atomic_load(&shared->from_ring) && !atomic_load(&shared->bells_skip) &&
					   atomic_load(&shared->head) == atomic_load(&shared->tail);
}

static bool both_rest(struct conn *conn, struct engine *engine)
{
	return engine_met(engine) && atomic_load(&engine->far.state) == FAR_BROKEN && !engine->pinned &&
	       !atomic_load(&engine->shut) && atomic_load(&engine->holders.count) == 1 && !engine_is_closing(conn) &&
	       !guest_sandboxed() && out_rests(engine) && in_rests(engine);
}

bool far_may_again(struct conn *conn, struct engine *engine)
{
	return !atomic_load(&engine->far.over) && both_rest(conn, engine);
}

/* Under both locks. The device may have something to say yet that nobody wants to hear. */
static void let_go(struct engine *engine, struct far *far)
{
	struct verbs_conn *link = atomic_load(&far->link);

	if (!link)
		return;
	far_hide_all(far, link);
	far_reserves_nothing(far, link);
	atomic_fetch_add(&engine->far.ended, 1);
	atomic_store(&far->link, NULL);
	atomic_store(&far->stuck, false);
	atomic_store(&far->left, false); /* nobody has to be looked after */
	far->former = link;
}

/* Returns whether there is none any more. */
static bool close_former(struct far *far)
{
	if (!far->former)
		return true;
	if (atomic_load(&far->users))
		return false;
	far_unwatch(far_verbs->fd(far->former));
	far_verbs->close(far->former);
	far->former = NULL;
	return true;
}

/* Passes what is no data. */
static int look(struct conn *conn, struct engine *engine)
{
	int rc = far_look(conn, engine, conn_fd(conn));
	size_t none;

	lane_get(&engine->channel.in, NULL, 0, false, &none);
	return rc;
}

/*
 * Doorbells that came later than what they rang for: the program has received that, and may not receive again for long, but what ends
 * the lane is behind them. Each look counts some, if there are many.
 */
static void pass_bells(struct conn *conn, struct engine *engine)
{
	const struct lane *in = &engine->channel.in;
	uint64_t due;

	while (lane_is_empty(in) && lane_raw_max(in) == SIZE_MAX && (due = lane_bells_due(in))) {
		engine_strip(conn, engine, conn_fd(conn));
		if (lane_bells_due(in) == due || look(conn, engine) < 0)
			return;
	}
}

bool far_follows(struct conn *conn, struct engine *engine)
{
	if (atomic_load(&engine->far.state) != FAR_BROKEN || in_rests(engine))
		return false;
	look(conn, engine);
	pass_bells(conn, engine);
	look(conn, engine);
	return !in_rests(engine) && !engine->far.nonsense;
}

/* Both lanes as far as they come by themselves. Returns whether another queue pair may be looked for. */
static bool comes_to_rest(struct conn *conn, struct engine *engine, struct far *far)
{
	struct far_both both;
	bool rests, settles;

	if (!far_take_both(engine, &both))
		return false;
	if (!engine_is_closing(conn)) {
		look(conn, engine);
		pass_bells(conn, engine);
		far_look(conn, engine, conn_fd(conn));
		far_step_out(conn, engine, conn_fd(conn));
	}
	settles = atomic_load(&engine->far.settles);
	rests = settles ? both_rest(conn, engine) : far_may_again(conn, engine);
	if (rests)
		let_go(engine, far);
	if (rests && settles) { /* all that follows is raw: from here on the program's calls are its own */
		lane_leave(&engine->channel.in);
		atomic_store(&engine->far.settles, false);
		atomic_store(&engine->state, ENGINE_OVER);
	}
	far_give_both(engine, &both);
	return rests;
}

/* The agent's: both lanes end as soon as they rest. */
static void settle(struct conn *conn, struct engine *engine, struct far *far)
{
	uint64_t now = clock_now();

	if (atomic_load(&engine->far.settles) && now >= atomic_load(&engine->far.again_at)) {
		atomic_store(&engine->far.again_at, now + RESTS_NS);
		comes_to_rest(conn, engine, far);
	}
	if (!close_former(far))
		atomic_store(&far->asked, true); /* the agent looks again by itself */
}

void far_settles(struct conn *conn, struct engine *engine)
{
	struct far_both both;

	if (!engine_met(engine) || !far_take_both(engine, &both))
		return;
	if (are_on_tcp(engine) && engine->far.out == FAR_OUT_FREE && atomic_load(&engine->far.state) == FAR_UP) {
		stats_reason(conn->slot, REASON_RDMA_UNUSED);
		far_give_up(conn, engine);
	}
	far_give_both(engine, &both);
}

void far_try_again(struct conn *conn, struct engine *engine, struct far *far)
{
	if (atomic_load(&engine->far.state) != FAR_BROKEN)
		return;
	if (atomic_load(&engine->far.over)) {
		settle(conn, engine, far);
		return;
	}
	if (clock_now() < atomic_load(&engine->far.again_at))
		return;
	if (far->opening || far->listener) {
		atomic_store(&engine->far.again_at, clock_now() + DEVICE_NS);
		if (far->opening && clock_now() - far->since > OPENING_NS)
			far_fails(conn, engine, VERBS_UNREACHABLE);
		return;
	}
	/* Somebody else may have it for long. Who has died is left out here. */
	if (holders_alive(&engine->holders, &conn->holder) > 1) {
		atomic_store(&engine->far.again_at, clock_now() + DEVICE_NS);
		return;
	}
	atomic_store(&engine->far.again_at, clock_now() + RESTS_NS);
	if (!comes_to_rest(conn, engine, far) || !close_former(far))
		return;
	if (clock_now() < atomic_load(&engine->far.seek_at)) {
		atomic_store(&engine->far.again_at, atomic_load(&engine->far.seek_at));
		return;
	}
	atomic_store(&engine->far.again_at, clock_now() + DEVICE_NS);
	if (far_possible())
		far_seek(conn, engine, far);
}

static void swap_memory(struct lane *now, struct lane *next)
{
	struct lane before = *now;

	now->shared = next->shared;
	now->ring = next->ring;
	now->area = next->area;
	now->sources = next->sources;
	now->head_known = next->head_known;
	now->tail_known = next->tail_known;
	now->codes = now->passed_codes = 0;
	next->shared = before.shared;
	next->ring = before.ring;
	next->area = before.area;
	next->sources = before.sources;
}

void far_take_lanes(struct engine *engine, struct far *far)
{
	struct channel *now = &engine->channel, *next = &far->channel;
	struct channel_header *header = now->header;
	const struct lane_shared *in = now->in.shared, *out = now->out.shared;

	engine->sent = atomic_load(&out->sent);
	engine->received = atomic_load(&in->received);
	engine->raw_receiving = atomic_load(&in->raw);
	engine->reader = atomic_load(&in->reader);
	engine->ring_bytes -= atomic_load(&out->bells); /* what the stream has had that was no data */
	now->header = next->header;
	next->header = header;
	swap_memory(&now->out, &next->out);
	swap_memory(&now->in, &next->in);
}
