/* SPDX-License-Identifier: MIT */
/*
 * Path `auto` between hosts, where no setting says which transport to take: RDMA is compared with TCP (far_trial.h), and used only where it
 * was measured to be better. All of it is asked of connections for which far_compares() holds.
 */
#ifndef ZC_PRELOAD_FAR_COMPARE_H
#define ZC_PRELOAD_FAR_COMPARE_H

#include "preload/engine.h"
#include "preload/far_trial.h"

/* Whether it is to be found out for this connection, if its peer is on another host. */
static inline bool far_compares(const struct conn *conn)
{
	return conn->policy == PATH_AUTO && settings.transport == TRANSPORT_AUTO;
}

/* At the start: what is found out is shared with the children to come. */
void far_compare_start(void);

/* A new connection: whether it need not even be looked at. */
bool far_compare_is_vain(const struct sockaddr_storage *peer);

/* Whether it is to meet now. Under both locks. */
enum far_pays far_compare_pays(struct engine *engine);

/* It has met, which took so many ns of a processor. Under both locks. */
void far_compare_met(struct engine *engine, uint64_t spent);

/*
 * Its peer was sought in vain: it may not have been at work for long enough there, or not know yet that it pays. Returns whether it is to be sought again, minutes
 * later; a few times. Under both locks.
 */
#define FAR_VAIN_MAX 3u
bool far_compare_rests(struct engine *engine);

/*
 * It was to meet, and has not, or knows what is better, or is over: another connection may. Under any lock. And: the peer tells of what
 * use a ring is for what it sends. Under the lock `in`.
 */
void far_compare_seeks_no_more(struct engine *engine);
void far_compare_is_told(struct engine *engine, enum lane_use use);

/*
 * Counts, for that, what goes by before it has met: a send that was begun then (0: it is not known), under the lock `out`, with its bytes in
 * engine->sent. Bytes that have come: under the lock `in`.
 */
void far_compare_sent_there(struct engine *engine, size_t bytes, uint64_t begun);

/* Whether that is to be known of the send that begins: of each until something is known, then of so many in a row, of more. */
#define FAR_COMPARE_TIMED 64u
#define FAR_COMPARE_OF 512u
static inline bool far_compare_times(const struct engine *engine)
{
	return !engine->far.trial.base || engine->far.sends % FAR_COMPARE_OF < FAR_COMPARE_TIMED;
}

static inline void far_compare_sent(struct engine *engine, size_t bytes, uint64_t begun)
{
	if (__builtin_expect(engine->far.compares, 0))
		far_compare_sent_there(engine, bytes, begun);
}

/* Whether the queue pair is of no use to both ends: the peer has said so, and this one does not send, or has found the same. Under the lock `out`. */
bool far_compare_needs_none(const struct engine *engine);

/* The way of a send that begins, which holds for all of it. Under the lock `out`. */
enum far_way far_compare_way(struct conn *conn, struct engine *engine, size_t bytes);

/* The same again, of the present send. */
static inline enum far_way far_compare_way_taken(const struct engine *engine)
{
	return engine->far.compares ? atomic_load_explicit(&engine->far.way, memory_order_relaxed) : FAR_BY_RING;
}

/* Whether it goes by TCP for that: then as on any connection that has no ring. A hint without a lock. */
static inline bool far_compare_takes_tcp(const struct conn *conn)
{
	const struct engine *engine = atomic_load(&conn->engine);

	return engine && far_compare_way_taken(engine) == FAR_BY_TCP;
}

/* The program has received bytes. Under the lock `in`. */
void far_compare_came_there(struct conn *conn);

static inline void far_compare_came(struct conn *conn, const struct engine *engine)
{
	if (__builtin_expect(engine->far.compares, 0))
		far_compare_came_there(conn);
}

#endif
