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
#include "preload/far_compare.h"
#include "preload/far_internal.h"
#include "rdma/counts.h"
#include "rdma/meet.h"

#define TRIES_MAX 10
#define TRIES_MAX_COMPARED 23	     /* in FAR_SEEK_NS */
#define TRY_AGAIN_NS (2 * NS_PER_MS) /* twice as long each time, */
#define TRY_AGAIN_SHIFT_MAX 9	     /* up to a second */
#define OFFER_NS (5 * NS_PER_SEC)    /* of an offer to which nobody comes */
#define SILENT_NS (60 * NS_PER_SEC)  /* for which a host that has not answered is left alone */
#define SILENT_MET_NS NS_PER_SEC     /* the same for one where others did answer */
#define SILENT_AFTER 3		     /* connections that nobody there came for */
#define BRIEF_NS (100 * NS_PER_MS)   /* that a connection has to last where so many were briefer than their meetings */
#define SLACK_MS 1000		     /* of the last bytes: what is sent again may have been there already */
#define HOSTS 64
#define POSITION_SHIFT 40 /* a number's share of the positions of a ring */

/* What is known of hosts. The agent's; the program's threads look whether one is left alone. */
static struct host {
	_Atomic uint64_t key;
	_Atomic uint64_t until; /* ns */
	_Atomic uint32_t brief; /* that ended before their first meeting had, since one that did not */
	uint32_t in_vain;	/* since the last that was not */
	bool has_met;		/* and answered since then whenever it was asked */
	_Atomic int why;	/* the last one was, and with it the host is left alone: an enum stat_reason */
} hosts[HOSTS];

static struct host *host_of(uint64_t key)
{
	struct host *host = &hosts[key % HOSTS];

	if (atomic_load(&host->key) != key) {
		atomic_store(&host->until, 0);
		atomic_store(&host->brief, 0);
		atomic_store(&host->key, key);
		host->in_vain = 0;
		host->has_met = false;
	}
	return host;
}

bool far_leaves_alone(const struct engine *engine)
{
	const struct host *host = &hosts[engine->far.host % HOSTS];

	return atomic_load_explicit(&host->key, memory_order_relaxed) == engine->far.host &&
	       clock_now() < atomic_load_explicit(&host->until, memory_order_relaxed);
}

enum stat_reason far_left_alone_for(const struct engine *engine)
{
	return (enum stat_reason)atomic_load_explicit(&hosts[engine->far.host % HOSTS].why, memory_order_relaxed);
}

bool far_lasts_first(const struct engine *engine)
{
	const struct host *host = &hosts[engine->far.host % HOSTS];

	return !settings.rdma_wait_ms && clock_now() - engine->meets_since < BRIEF_NS &&
	       atomic_load_explicit(&host->key, memory_order_relaxed) == engine->far.host &&
	       atomic_load_explicit(&host->brief, memory_order_relaxed) >= SILENT_AFTER;
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
		return REASON_NO_PEER;
	case VERBS_ANOTHER:
		return REASON_REDIRECTED;
	case VERBS_OTHER_VERSION:
	case VERBS_PEER_FAILED:
	case VERBS_PEER_GONE:
	case VERBS_PROTOCOL:
		return REASON_MEETING_FAILED;
	default:
		return REASON_RDMA_DEVICE;
	}
}

bool far_take_both(struct engine *engine, struct far_both *both)
{
	if (!lock_take(&engine->in, &both->in))
		return false;
	if (lock_take(&engine->out, &both->out))
		return true;
	lock_give(&engine->in, &both->in);
	return false;
}

void far_give_both(struct engine *engine, struct far_both *both)
{
	lock_give(&engine->out, &both->out);
	lock_give(&engine->in, &both->in);
}

static void drop_listener(struct far *far)
{
	if (!far->listener)
		return;
	far_unwatch(far_verbs->listener_fd(far->listener));
	far_verbs->listener_close(far->listener);
	far->listener = NULL;
}

static void drop(struct verbs_conn *link)
{
	if (!link)
		return;
	far_unwatch(far_verbs->fd(link));
	far_verbs->close(link);
}

void far_drop_meeting(struct far *far)
{
	drop(far->opening);
	far->opening = NULL;
	drop_listener(far);
}

void far_drop_meeting_if_over(const struct engine *engine, struct far *far)
{
	if (atomic_load(&engine->state) == ENGINE_OVER || (engine_met(engine) && atomic_load(&engine->far.over)))
		far_drop_meeting(far);
}

void far_drop_all(struct far *far)
{
	struct verbs_conn *link = atomic_exchange(&far->link, NULL);

	if (far->asks)
		atomic_fetch_add(&host_of(far->asks)->brief, 1);
	far->asks = 0;
	far_drop_meeting(far);
	if (link) {
		far_hide_all(far, link);
		far_reserves_nothing(far, link);
	}
	drop(link);
	drop(far->former);
	far->former = NULL;
}

static void learns(struct host *host, enum verbs_trouble trouble)
{
	enum stat_reason reason = reason_of(trouble);

	/* That one program there has no zc says nothing of the next one's. */
	atomic_store(&host->why, reason == REASON_NO_PEER ? REASON_RDMA_UNREACHABLE : reason);
	if (reason == REASON_RDMA_UNREACHABLE) {
		host->has_met = false;
		atomic_store(&host->until, clock_now() + SILENT_NS);
	} else if (++host->in_vain >= SILENT_AFTER) {
		/* Some programs there have a library, and some have none. */
		atomic_store(&host->until, clock_now() + (host->has_met ? SILENT_MET_NS : SILENT_NS));
	}
}

/* For good, or for a while. */
static void stays_on_tcp(struct conn *conn, struct engine *engine, enum stat_reason reason)
{
	struct far_both both;

	channel_close(&conn->far->channel);
	far_compare_seeks_no_more(engine);
	if (!far_take_both(engine, &both))
		return;
	if (atomic_load(&engine->state) == ENGINE_APART) {
		atomic_store(&engine->far.state, FAR_NONE);
		if (reason == REASON_NO_PEER && far_compare_rests(engine)) {
			conn->far->tries = 0;
			stats_reason(conn->slot, reason);
		} else {
			engine_stays_alone(conn, engine, reason);
		}
	}
	far_give_both(engine, &both);
}

void far_fails(struct conn *conn, struct engine *engine, enum verbs_trouble trouble)
{
	log_info("no RDMA with the peer: %s", far_verbs->tell(trouble));
	far_device_is_open(false);
	far_drop_meeting(conn->far);
	conn->far->asks = 0;
	if (engine_met(engine)) {
		far_was_in_vain(conn, engine);
		return;
	}
	if (trouble != VERBS_ANOTHER) /* which is no fault of the host's */
		learns(host_of(engine->far.host), trouble);
	stays_on_tcp(conn, engine, reason_of(trouble));
}

/* The memory of the lanes for the meeting of that number. */
static bool setup_of(struct far *far, uint32_t number, struct verbs_setup *setup)
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
	channel_begin_at(&far->channel, (uint64_t)number << POSITION_SHIFT);
	*setup = (struct verbs_setup){ .out = far->channel.out, .in = far->channel.in };
	if (sys_call(SYS_getrandom, (long)setup->nonce, sizeof(setup->nonce), 0, 0, 0, 0) < 0)
		return false;
	verbs_nonce_number(setup->nonce, number);
	return true;
}

bool far_tuple(const struct engine *engine, struct verbs_tuple *out)
{
	const struct sockaddr *local = (const struct sockaddr *)&engine->names.local;
	const struct sockaddr *peer = (const struct sockaddr *)&engine->names.peer;
	bool client = engine->role == ROLE_CLIENT;

	return !verbs_tuple_make(client ? local : peer, client ? peer : local, out);
}

/* rdma_cm finds no device for the IPv4 address of a socket of IPv6, as servers have it that serve both. */
static struct sockaddr_storage unmapped(const struct sockaddr_storage *name)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)name;
	struct sockaddr_storage out = { 0 };
	struct sockaddr_in *four = (struct sockaddr_in *)&out;

	if (name->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
		return *name;
	four->sin_family = AF_INET;
	four->sin_port = six->sin6_port;
	memcpy(&four->sin_addr, &six->sin6_addr.s6_addr[12], sizeof(four->sin_addr));
	return out;
}

static int count(const struct far *far, struct counts *out)
{
	return counts_own(conn_fd(far->conn), atomic_load(&far->conn->opened), out);
}

static void reach(struct conn *conn, struct engine *engine, struct far *far)
{
	struct sockaddr_storage from = unmapped(&engine->names.local), to = unmapped(&engine->names.peer);
	struct verbs_tuple tuple;
	struct verbs_setup setup;
	struct verbs_conn *link;
	int rc = engine->far.meeting < VERBS_MEETINGS_MAX && far_tuple(engine, &tuple) &&
				 setup_of(far, ++engine->far.meeting, &setup) ?
			 0 :
			 -ENOMEM;

	if (!rc && !engine_met(engine)) {
		if (count(far, &far->counted) < 0)
			far->counted = (struct counts){ 0 }; /* it is being closed */
		setup.judges = true;
	}
	/* A port of its own: the connection's is TCP's. */
	if (from.ss_family == AF_INET)
		((struct sockaddr_in *)&from)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&from)->sin6_port = 0;
	if (!rc)
		rc = far_open_conn(far, (struct sockaddr *)&from, (struct sockaddr *)&to, &tuple, &setup, &link);
	if (rc < 0) {
		far_fails(conn, engine, rc == -ENODEV ? VERBS_NO_ROUTE : VERBS_FAILED);
		return;
	}
	far->opening = link;
	far->since = clock_now();
	far_watch(far, far_verbs->fd(link));
}

static void offer(struct conn *conn, struct engine *engine, struct far *far)
{
	struct sockaddr_storage local = unmapped(&engine->names.local);
	int rc = far_open_listener(far, (struct sockaddr *)&local, &far->listener);

	if (rc < 0) {
		far->listener = NULL;
		far_fails(conn, engine, rc == -ENODEV || rc == -EADDRNOTAVAIL ? VERBS_NO_ROUTE : VERBS_FAILED);
		return;
	}
	far_watch(far, far_verbs->listener_fd(far->listener));
}

void far_seek(struct conn *conn, struct engine *engine, struct far *far)
{
	far->places = atomic_load(&engine->holders.places);
	if (engine->role == ROLE_CLIENT)
		offer(conn, engine, far);
	else
		reach(conn, engine, far);
}

/* The plug-in could not be loaded: there is nothing to ask. */
static void does_without(struct conn *conn, struct engine *engine, struct far *far)
{
	far->asks = 0;
	if (engine_met(engine))
		atomic_store(&engine->far.over, true);
	else
		stays_on_tcp(conn, engine, REASON_RDMA_DEVICE);
}

void far_try_to_reach(struct conn *conn, struct engine *engine, struct far *far)
{
	uint64_t now = clock_now();

	if (far_failed()) {
		does_without(conn, engine, far);
		return;
	}
	if (engine_met(engine) || far->former) {
		far_try_again(conn, engine, far);
		return;
	}
	if (far->listener && now - far->since > (engine->far.seeks ? FAR_SEEK_NS : OFFER_NS))
		far_fails(conn, engine, far_verbs->listener_heard(far->listener));
	if (far->listener || far->opening || atomic_load(&engine->state) != ENGINE_APART ||
	    atomic_load(&engine->far.state) != FAR_APART ||
	    now - far->since < TRY_AGAIN_NS << (far->tries < TRY_AGAIN_SHIFT_MAX ? far->tries : TRY_AGAIN_SHIFT_MAX))
		return;
	far->since = now;
	if (far_leaves_alone(engine)) {
		far->asks = 0;
		stays_on_tcp(conn, engine, far_left_alone_for(engine)); /* and is no reason to be silent for longer */
		return;
	}
	far_seek(conn, engine, far);
}

/* Somebody has come to an offer. */
void far_take_visitor(struct conn *conn, struct engine *engine, struct far *far)
{
	struct verbs_request *request;
	struct verbs_offer offer;
	struct verbs_tuple tuple, peer;
	struct verbs_setup setup;
	struct verbs_conn *link;
	uint32_t number;
	int rc = far_verbs->listener_take(far->listener, &request, &offer);

	if (rc == -EAGAIN)
		return;
	if (rc < 0) {
		far_fails(conn, engine, VERBS_DEVICE_GONE);
		return;
	}
	number = verbs_nonce_read(offer.nonce);
	if (number <= engine->far.meeting || !far_tuple(engine, &tuple) ||
	    memcmp(&tuple, &offer.tuple, sizeof(tuple)) ||
	    verbs_tuple_make((struct sockaddr *)&engine->names.peer, (struct sockaddr *)&engine->names.peer, &peer) ||
	    memcmp(peer.address[0], offer.from, sizeof(offer.from)) || far->opening) {
		far_verbs->refuse(request, VERBS_PROTOCOL);
		return;
	}
	engine->far.meeting = number;
	if (!setup_of(far, number, &setup)) {
		far_verbs->refuse(request, VERBS_MEMLOCK);
		return;
	}
	setup.tells =
		!engine_met(engine) && meet_is_tracked(&engine->names, conn_fd(conn)) && !count(far, &setup.counts);
	rc = far_open_admitted(far, request, &setup, &link);
	if (rc < 0) {
		far_fails(conn, engine, rc == -ENOMEM ? VERBS_MEMLOCK : VERBS_FAILED);
		return;
	}
	far->opening = link;
	far->since = clock_now();
	far_watch(far, far_verbs->fd(link));
}

/* Before the first bytes of a queue pair: nothing is known of its lanes, whose rings begin at that position. */
static void begin_books(struct far_part *far, uint64_t position)
{
	far->out = FAR_OUT_FREE;
	far->rung = 0;
	far->confirm = far->entry = position;
	far->entry_at = far->resend_at = far->resend_to = 0;
	far->was_void = far->has_left = false;
	far->kept = false;
	far->frame_left = 0;
	far->looked = far->entered = position;
	far->armed_at = far->armed_bells = 0;
	far->told = UINT32_MAX;
	far->peer_use = LANE_USE_UNKNOWN;
	far->peer_wants = false;
	far->told_passed = 0;
	far->told_end = 0;
	atomic_store(&far->quiet, false);
	far->owes_word = false;
	far->left = 0;
	far->expects = false;
	far->skip = far->owed = 0;
}

/* A fork may have prepared some, for a peer on this host. */
static void take_first_lanes(struct conn *conn, struct engine *engine, struct far *far)
{
	engine_drop_own(&conn->engine_fd);
	channel_close(&engine->channel);
	engine->channel = far->channel;
	far->channel.header = NULL;
}

/* Under both locks. */
static void begin_lanes(struct conn *conn, struct engine *engine, struct far *far)
{
	bool again = engine_met(engine);

	begin_books(&engine->far, atomic_load(&far->channel.out.shared->tail));
	if (again) {
		far_take_lanes(engine, far);
	} else {
		take_first_lanes(conn, engine, far);
	}
	engine_lanes_begin(conn, engine);
	if (again) {
		if (!far->adopted)
			far_sources_again(conn, engine);
		else
			far_sources_begin(conn, engine);
		far->adopted = false;
		atomic_store(&far->left, false);
	} else
		far_sources_begin(conn, engine);
	far_compare_met(engine, far->spent);
	far->spent = 0;
	atomic_store(&far->link, far->opening);
	far->opening = NULL;
	atomic_store(&engine->far.up_at, clock_now());
	atomic_store(&engine->far.state, FAR_UP);
	atomic_store(&engine->state, ENGINE_MET);
	far_look(conn, engine, conn_fd(conn));
	far_arm(conn, engine);
	stats_conn(conn->slot, STAT_CONN_MEETINGS, 1);
	stats_conn(conn->slot, STAT_CONN_RDMA_MEETINGS, 1);
	stats_conn(conn->slot, STAT_CONN_RDMA_RETURNS, again);
}

/*
 * Whether this process alone holds it, and has since the meeting began: one whose exec has failed counts again, and must find the lanes where
 * it left them.
 */
static bool is_alone(const struct engine *engine, const struct far *far)
{
	return atomic_load(&engine->holders.count) == 1 && atomic_load(&engine->holders.places) == far->places;
}

/* The queue pair is there: the lanes begin. */
static void meets(struct conn *conn, struct engine *engine, struct far *far)
{
	struct host *host = host_of(engine->far.host);
	bool again = engine_met(engine), met;
	struct far_both both;
	uint32_t trip = far_verbs->trip(far->opening);
	uint64_t spent = far->spent;

	if (!far_take_both(engine, &both))
		return;
	met = is_alone(engine, far) &&
	      (again ? far_may_again(conn, engine) : atomic_load(&engine->state) == ENGINE_APART);
	if (met) {
		begin_lanes(conn, engine, far);
		atomic_store_explicit(&engine->far.trip_ns, trip, memory_order_relaxed);
	}
	far_give_both(engine, &both);
	far_drop_meeting(far);
	if (met) {
		far->asks = 0;
		far_device_is_open(true);
		atomic_store(&host->brief, 0);
		host->in_vain = 0;
		host->has_met = true;
	}
	if (met)
		log_trace(
			"met its peer on another host%s, for %llu us of a processor; a write takes %u ns there and back",
			again ? " again" : "", (unsigned long long)(spent / NS_PER_US), trip);
	if (met && again)
		channel_empty(&far->channel);
}

/*
 * Whether who answers is this connection's other end. Where the client's own port was changed (SNAT, masquerading), another connection of its
 * host may have the name that this one's has here.
 */
static void judge(struct far *far)
{
	struct counts told, now;

	if (far_verbs->answered(far->opening, &told))
		far_verbs->agree(far->opening,
				 !count(far, &now) && !counts_compare(&far->counted, &now, &told, SLACK_MS));
}

void far_meet_step(struct conn *conn, struct engine *engine, struct far *far)
{
	enum verbs_trouble why;
	enum verbs_state now;

	judge(far);
	now = far_verbs->state(far->opening, &why);
	if (now == VERBS_UP) {
		meets(conn, engine, far);
	} else if (now == VERBS_BROKEN && engine->role == ROLE_SERVER && why == VERBS_REFUSED && !engine_met(engine) &&
		   ++far->tries < (engine->far.seeks ? TRIES_MAX_COMPARED : TRIES_MAX)) {
		far_drop_meeting(far); /* it may not have offered yet */
	} else if (now == VERBS_BROKEN) {
		far_fails(conn, engine, why);
	}
}
