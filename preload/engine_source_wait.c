/* SPDX-License-Identifier: MIT */
/* A send that announces, and its peer: for room, and under zsdp until the peer has all of it. No longer than TCP would take. */
#define _GNU_SOURCE
#include "common/clock.h"
#include "preload/engine_in.h"
#include "preload/engine_out.h"
#include "preload/engine_source.h"
#include "preload/far.h"
#include "preload/send.h"

#define WAIT_NS 50000		     /* zsdp: for a peer that has to wake */
#define FAR_WAIT_NS (20 * NS_PER_MS) /* the same between hosts, if it may sleep */
#define FAR_QUIET_NS (5 * NS_PER_MS) /* and as long as the peer takes something that often */
#define FAR_BYTE_NS 8ul /* on top of both for zsdp, at 1 Gbit/s: the peer tells of a batch when it has all of it */

void sources_wait_begins(const struct engine *engine, size_t bytes, struct announced *announced)
{
	announced->waits = far_is(engine) && conn_waits(announced->fd, announced->flags);
	announced->begun = clock_now();
	announced->until = announced->begun + (announced->waits ? FAR_WAIT_NS : WAIT_NS) + engine_tcp_ns(bytes);
}

/* On one host the peer has to be awake. */
bool sources_have_room(struct conn *conn, struct engine *engine, size_t bytes, const struct announced *announced)
{
	struct lane *lane = &engine->channel.out;
	struct far_patience patience = { .until = announced->until,
					 .quiet_ns = FAR_QUIET_NS,
					 .waits = announced->waits };
	bool far = far_is(engine);

	while (source_room(lane) < bytes) {
		if (far && far_waits_for_peer(conn, lane, &patience))
			continue;
		if (far || atomic_load_explicit(&lane->shared->armed, memory_order_relaxed) ||
		    clock_now() > announced->until)
			return false;
		cpu_relax_some();
	}
	return true;
}

/* The peer may have found that it may not fetch, and sleep. */
static void ring_if_asleep(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;

	if (lock_take(&engine->out, &hold)) {
		engine_ring_late(conn, engine, conn_fd(conn));
		lock_give(&engine->out, &hold);
	}
}

void sources_wait(struct conn *conn, struct engine *engine, const struct announced *announced)
{
	struct lane *lane = &engine->channel.out;
	bool far = far_is(engine), late = false;
	uint64_t more = far && announced->waits ? announced->bytes * FAR_BYTE_NS : 0, until = announced->until + more;
	struct far_patience patience = { .until = until,
					 .quiet_ns = FAR_QUIET_NS + more,
					 .waits = announced->waits,
					 .wait = { announced->waits ? announced->begun : 0, announced->bytes } };

	for (unsigned int i = 0; i < announced->count; i++) {
		while (source_taken(lane, announced->number[i]) != SIZE_MAX && clock_now() < until) {
			if (!far)
				cpu_relax_some();
			else if (!far_waits_for_peer(conn, lane, &patience))
				break;
		}
		if (announced->sunk && !i) /* another thread may have kept them all: the device is at them yet */
			far_sink_written(conn, engine);
		late |= source_taken(lane, announced->number[i]) != SIZE_MAX;
		source_keep(lane, announced->number[i]);
	}
	if (far)
		far_has_waited(&patience, !late);
	else if (late)
		ring_if_asleep(conn, engine);
}
