/* SPDX-License-Identifier: MIT */
/*
 * SinkAvail (ZC_RECV_SINK): a receive that waits for a peer on another host offers its memory, and a send of zsdp is written there by
 * RDMA WRITE, with the record of its source behind it: no READ, and one trip and one wake less. Whatever else comes first, the offer is over; and so it
 * is where the receive ends without having got anything, once the peer's device has said that nothing is being written (verbs_sink.c).
 *
 * An offer that is not used costs a registration. So it is made where the peer's last bytes were announced, and, once some were in vain, rarely.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/far_internal.h"
#include "rdma/source_internal.h"

#define BYTES_MIN 16384u
#define BYTES_MAX (FAR_AREA_BYTES / 2) /* of a source in one: kept, it has to have room beside others */
#define IN_VAIN_MAX 4u
#define PAUSE_WAITS 64u
#define ANSWER_NS (20 * NS_PER_MS)   /* for the peer's device to say whether something is being written */
#define SILENCE_NS (500 * NS_PER_MS) /* for that to be here: as for READs */

/* Nothing is written there any more, and no registration is found again. */
void far_offers_nothing(struct far *far, struct verbs_conn *link)
{
	if (!far->sink.region)
		return;
	far_verbs->hide(link, far->sink.region);
	far_verbs->invalidate(far->sink.at, far->sink.bytes);
	far->sink.region = NULL;
}

static bool is_used_up(const struct far *far, const struct lane *in)
{
	return atomic_load(&in->shared->tail) != far->sink.tail;
}

static void forget(struct far *far, struct engine *engine, struct verbs_conn *link)
{
	struct source_in *in = &engine->channel.sources_in;

	if (link)
		far_offers_nothing(far, link);
	if (in->sink.filled)
		engine->far.sinks_in_vain = 0;
	else if (is_used_up(far, &engine->channel.in) && /* not where the receive has ended before anything came */
		 ++engine->far.sinks_in_vain >= IN_VAIN_MAX)
		engine->far.sink_pause = PAUSE_WAITS;
	in->sink.number = 0;
}

/* Whether one more is worth its registration. */
static bool may_pay(struct engine *engine, size_t bytes)
{
	if (bytes < BYTES_MIN || bytes < settings.source_min ||
	    !atomic_load_explicit(&engine->far.fetches, memory_order_relaxed))
		return false;
	if (!engine->far.sink_pause)
		return true;
	engine->far.sink_pause--;
	return false;
}

static bool offer(struct conn *conn, struct engine *engine, const struct iovec *iov, const void *owner)
{
	size_t bytes = iov->iov_len < BYTES_MAX ? iov->iov_len : BYTES_MAX;
	struct lane *in = &engine->channel.in;
	struct verbs_conn *link = far_link(conn);
	struct far *far = conn->far;

	if (!link || atomic_load(&engine->far.state) != FAR_UP || !in->in || in->in->ahead)
		return false;
	if (far->sink.region && far->sink.owner == owner) {
		if (!is_used_up(far, in))
			return true; /* it sleeps once more */
		forget(far, engine, link);
	}
	if (far->sink.region || !atomic_load(&in->shared->from_ring) || !lane_is_empty(in) || !may_pay(engine, bytes))
		return false;
	source_settle_local(iov->iov_base, bytes);
	far->sink.tail = atomic_load(&in->shared->tail);
	if (far_verbs->offer(link, iov->iov_base, bytes, far->sink.tail, &far->sink.number, &far->sink.region) < 0) {
		far->sink.region = NULL;
		far_verbs->invalidate(iov->iov_base, bytes); /* it may have been registered */
		return false;
	}
	far->sink.owner = owner;
	far->sink.at = iov->iov_base;
	far->sink.bytes = bytes;
	in->in->sink.number = far->sink.number;
	in->in->sink.address = iov->iov_base;
	in->in->sink.filled = false;
	return true;
}

bool far_sink_offer(struct conn *conn, struct engine *engine, const struct iovec *iov, const void *owner)
{
	struct lock_hold hold;
	bool offers;

	if (!conn->far || !lock_take(&engine->in, &hold))
		return false;
	offers = offer(conn, engine, iov, owner);
	lock_give(&engine->in, &hold);
	return offers;
}

static void wait_a_moment(struct conn *conn, uint64_t since)
{
	if (clock_now() - since < FAR_LOOKS_NS)
		cpu_relax_some();
	else
		far_sleep(conn, 1);
}

/* Until nothing is written there any more; or the queue pair is given up. */
static void settle(struct conn *conn, struct engine *engine)
{
	struct lane *in = &engine->channel.in;
	uint64_t since = clock_now();
	bool comes = false;

	while (atomic_load(&engine->far.state) == FAR_UP && far_link(conn) && !is_used_up(conn->far, in)) {
		struct verbs_conn *link = far_link(conn);
		int rc = comes ? 1 : far_verbs->retract(link, conn->far->sink.number);

		if (!rc)
			break;
		if (rc == 1 && !comes) {
			comes = true;
			since = clock_now();
		}
		if (rc == -ENOTCONN || clock_now() - since > (comes ? SILENCE_NS : ANSWER_NS)) {
			log_info("a peer on another host does not say whether it writes to a receive's memory");
			far_verbs->give_up(link);
			break;
		}
		wait_a_moment(conn, since);
		far_verbs->poll(link);
	}
	far_is_up(conn, engine);
	far_took_notices(conn, engine, false);
}

void far_sink_ends(struct conn *conn, struct engine *engine, const void *owner)
{
	struct lock_hold hold;

	if (!lock_take(&engine->in, &hold))
		return;
	if (conn->far && conn->far->sink.region && conn->far->sink.owner == owner) {
		settle(conn, engine);
		forget(conn->far, engine, far_link(conn));
	}
	lock_give(&engine->in, &hold);
}

size_t far_sink(struct conn *conn)
{
	struct verbs_conn *link = far_link(conn);

	return link ? far_verbs->sink(link) : 0;
}

void far_sink_written(struct conn *conn, struct engine *engine)
{
	uint64_t sent = atomic_load(&engine->channel.out.shared->sent), since = clock_now();
	struct verbs_conn *link = conn->far ? far_hold(conn->far) : NULL;
	struct verbs_positions positions = { 0 };

	while (link && atomic_load(&engine->far.state) == FAR_UP && far_verbs->state(link, NULL) == VERBS_UP) {
		far_verbs->positions(link, &positions);
		if (positions.delivered >= sent)
			break;
		if (clock_now() - since > FAR_ANSWER_NS) {
			log_info("a peer on another host does not take what is written to a receive's memory");
			far_verbs->give_up(link);
			break;
		}
		wait_a_moment(conn, since);
	}
	/* Whoever breaks it has its lock until the device has stopped, and says so before. */
	if (link && far_verbs->state(link, NULL) != VERBS_UP)
		far_verbs->positions(link, &positions);
	if (conn->far)
		far_release(conn->far);
}
