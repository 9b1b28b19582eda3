/* SPDX-License-Identifier: MIT */
/* How the ends of far.h find each other, by the agent. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_meet.h"
#include "preload/far_internal.h"

#define TRIES_MAX 10
#define TRY_AGAIN_NS (2 * NS_PER_MS) /* twice as long each time */
#define OFFER_NS (5 * NS_PER_SEC)    /* of an offer to which nobody comes */
#define SILENT_NS (60 * NS_PER_SEC)  /* for which a host that has not answered is left alone */
#define SILENT_AFTER 3		     /* connections that nobody there came for */
#define HOSTS 64

/* What is known of hosts; the agent's alone. */
static struct host {
	uint64_t key;
	uint64_t until; /* ns */
	uint32_t in_vain;
} hosts[HOSTS];

static struct host *host_of(uint64_t key)
{
	struct host *host = &hosts[key % HOSTS];

	if (host->key != key)
		*host = (struct host){ .key = key };
	return host;
}

static enum stat_reason reason_of(enum verbs_trouble trouble)
{
	switch (trouble) {
	case VERBS_MEMLOCK:
		return REASON_RDMA_MEMLOCK;
	case VERBS_NO_ROUTE:
	case VERBS_UNREACHABLE:
	case VERBS_SILENCE:
		return REASON_RDMA_UNREACHABLE;
	case VERBS_REFUSED:
	case VERBS_PEER_GONE:
		return REASON_NO_PEER;
	case VERBS_OTHER_VERSION:
	case VERBS_PROTOCOL:
		return REASON_MEETING_FAILED;
	default:
		return REASON_RDMA_DEVICE;
	}
}

/* Both locks, or neither. */
struct both {
	struct lock_hold in, out;
};

static bool take_both(struct engine *engine, struct both *both)
{
	if (!lock_take(&engine->in, &both->in))
		return false;
	if (lock_take(&engine->out, &both->out))
		return true;
	lock_give(&engine->in, &both->in);
	return false;
}

static void give_both(struct engine *engine, struct both *both)
{
	lock_give(&engine->out, &both->out);
	lock_give(&engine->in, &both->in);
}

void far_drop_link(struct far *far)
{
	struct verbs_conn *link = atomic_exchange(&far->link, NULL);

	if (link) {
		far_hide_all(far, link);
		table_own_drop(far_verbs->fd(link));
		far_verbs->close(link);
	}
	if (far->listener) {
		table_own_drop(far_verbs->listener_fd(far->listener));
		far_verbs->listener_close(far->listener);
	}
	far->listener = NULL;
}

/* It stays on TCP for good. */
static void fails(struct conn *conn, struct engine *engine, enum verbs_trouble trouble)
{
	struct host *host = host_of(conn->peer_key);
	struct both both;

	log_info("no RDMA with the peer: %s", far_verbs->tell(trouble));
	if (reason_of(trouble) == REASON_RDMA_UNREACHABLE || ++host->in_vain >= SILENT_AFTER)
		host->until = clock_now() + SILENT_NS;
	far_drop_link(conn->far);
	if (!engine_met(engine))
		channel_close(&conn->far->channel);
	if (!take_both(engine, &both))
		return;
	if (atomic_load(&engine->state) == ENGINE_APART) {
		atomic_store(&engine->far.state, FAR_NONE);
		engine_stays_alone(conn, engine, reason_of(trouble));
	}
	give_both(engine, &both);
}

static bool setup_of(struct far *far, struct verbs_setup *setup)
{
	uint32_t bytes = LANE_RING_MIN;

	while (bytes < (uint32_t)settings.ring_bytes)
		bytes *= 2;
	if (!far->channel.header) {
		if (channel_make(&far->channel, bytes) < 0)
			return false;
		sys_call(SYS_close, far->channel.fd, 0, 0, 0, 0, 0);
		far->channel.fd = -1;
	}
	*setup = (struct verbs_setup){ .out = far->channel.out, .in = far->channel.in };
	memcpy(setup->nonce, far->channel.header->nonce, sizeof(setup->nonce));
	return true;
}

/* The connection as both ends name it; the connecting end of TCP is the one that listens here. */
static bool tuple_of(const struct engine *engine, struct verbs_tuple *out)
{
	const struct sockaddr *local = (const struct sockaddr *)&engine->names.local;
	const struct sockaddr *peer = (const struct sockaddr *)&engine->names.peer;
	bool client = engine->role == ROLE_CLIENT;

	return !verbs_tuple_make(client ? local : peer, client ? peer : local, out);
}

static void reach(struct conn *conn, struct engine *engine, struct far *far)
{
	struct sockaddr_storage from = engine->names.local;
	struct verbs_tuple tuple;
	struct verbs_setup setup;
	struct verbs_conn *link;
	int rc = tuple_of(engine, &tuple) && setup_of(far, &setup) ? 0 : -ENOMEM;

	/* A port of its own: the connection's is TCP's. */
	if (from.ss_family == AF_INET)
		((struct sockaddr_in *)&from)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&from)->sin6_port = 0;
	if (!rc)
		rc = far_verbs->connect((struct sockaddr *)&from, (struct sockaddr *)&engine->names.peer, &tuple,
					&setup, &link);
	if (rc < 0) {
		fails(conn, engine, rc == -ENODEV ? VERBS_NO_ROUTE : VERBS_FAILED);
		return;
	}
	atomic_store(&far->link, link);
	far_watch(far, far_verbs->fd(link));
}

static void offer(struct conn *conn, struct engine *engine, struct far *far)
{
	int rc = far_verbs->listen((struct sockaddr *)&engine->names.local, 2, &far->listener);

	if (rc < 0) {
		far->listener = NULL;
		fails(conn, engine, rc == -ENODEV || rc == -EADDRNOTAVAIL ? VERBS_NO_ROUTE : VERBS_FAILED);
		return;
	}
	far_watch(far, far_verbs->listener_fd(far->listener));
}

void far_try_to_reach(struct conn *conn, struct engine *engine, struct far *far)
{
	uint64_t now = clock_now();

	if (far->listener && now - far->since > OFFER_NS)
		fails(conn, engine, VERBS_REFUSED);
	if (far->listener || atomic_load(&far->link) || atomic_load(&engine->state) != ENGINE_APART ||
	    now - far->since < TRY_AGAIN_NS << far->tries)
		return;
	far->since = now;
	if (now < host_of(conn->peer_key)->until)
		fails(conn, engine, VERBS_UNREACHABLE);
	else if (engine->role == ROLE_CLIENT)
		offer(conn, engine, far);
	else
		reach(conn, engine, far);
}

/* Somebody has come to an offer. */
void far_take_visitor(struct conn *conn, struct engine *engine, struct far *far)
{
	struct verbs_request *request;
	struct verbs_offer offer;
	struct verbs_tuple tuple, peer;
	struct verbs_setup setup;
	struct verbs_conn *link;
	int rc = far_verbs->listener_take(far->listener, &request, &offer);

	if (rc == -EAGAIN)
		return;
	if (rc < 0) {
		fails(conn, engine, VERBS_DEVICE_GONE);
		return;
	}
	if (!tuple_of(engine, &tuple) || memcmp(&tuple, &offer.tuple, sizeof(tuple)) ||
	    verbs_tuple_make((struct sockaddr *)&engine->names.peer, (struct sockaddr *)&engine->names.peer, &peer) ||
	    memcmp(peer.address[0], offer.from, sizeof(offer.from)) || atomic_load(&far->link)) {
		far_verbs->refuse(request, VERBS_PROTOCOL);
		return;
	}
	if (!setup_of(far, &setup)) {
		far_verbs->refuse(request, VERBS_MEMLOCK);
		return;
	}
	rc = far_verbs->admit(request, &setup, &link);
	if (rc < 0) {
		fails(conn, engine, rc == -ENOMEM ? VERBS_MEMLOCK : VERBS_FAILED);
		return;
	}
	atomic_store(&far->link, link);
	far_watch(far, far_verbs->fd(link));
}

/* The queue pair is there: the lanes begin. */
static void meets(struct conn *conn, struct engine *engine, struct far *far)
{
	struct both both;
	bool met = false;

	if (!take_both(engine, &both))
		return;
	if (atomic_load(&engine->state) == ENGINE_APART && atomic_load(&engine->holders.count) == 1) {
		engine->channel = far->channel;
		far->channel.header = NULL;
		engine_lanes_begin(conn, engine);
		far_sources_begin(conn, engine);
		atomic_store(&engine->far.state, FAR_UP);
		atomic_store(&engine->state, ENGINE_MET);
		engine->far.told = UINT32_MAX;
		far_look(conn, engine, conn_fd(conn));
		far_arm(conn, engine);
		stats_conn(conn->slot, STAT_CONN_MEETINGS, 1);
		stats_conn(conn->slot, STAT_CONN_RDMA_MEETINGS, 1);
		log_trace("met its peer on another host");
		met = true;
	}
	give_both(engine, &both);
	if (!met)
		far_drop_link(far);
	else if (far->listener) {
		table_own_drop(far_verbs->listener_fd(far->listener));
		far_verbs->listener_close(far->listener);
		far->listener = NULL;
	}
}

void far_meet_step(struct conn *conn, struct engine *engine, struct far *far)
{
	enum verbs_trouble why;
	enum verbs_state now = far_verbs->state(atomic_load(&far->link), &why);

	if (now == VERBS_UP) {
		meets(conn, engine, far);
	} else if (now == VERBS_BROKEN && engine->role == ROLE_SERVER && why == VERBS_REFUSED &&
		   ++far->tries < TRIES_MAX) {
		far_drop_link(far); /* it may not have offered yet */
	} else if (now == VERBS_BROKEN) {
		fails(conn, engine, why);
	}
}
