/* SPDX-License-Identifier: MIT */
/* How the two ends of a connection find each other: engine_step() of engine.h. */
#define _GNU_SOURCE
#include "preload/engine_meet.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/room.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/far.h"
#include "preload/far_compare.h"
#include "preload/guest.h"

/* A peer that has not come by then has no library. A process that has just been woken is slower than many small calls. */
#define TRIES_MAX 12 /* at the 1st, 2nd, 4th ... data call */
#define OFFER_CALLS_MAX 4096
#define MEET_NS NS_PER_SEC
#define COMPARE_CALLS 8

static _Atomic int kept; /* descriptors of meetings, between calls */

static void keep(int fd)
{
	atomic_fetch_add(&kept, 1);
	table_own_keep(fd);
}

static void keep_no_more(int fd)
{
	atomic_fetch_sub(&kept, 1);
	table_own_drop(fd);
}

/* Whether one more meeting may begin: one with a peer that never comes keeps what it has open. */
static bool may_begin(void)
{
	return atomic_load(&kept) < atomic_load_explicit(&room_for_meetings, memory_order_relaxed);
}

void engine_drop_own(int *fd)
{
	if (*fd < 0)
		return;
	keep_no_more(*fd);
	sys_call(SYS_close, *fd, 0, 0, 0, 0, 0);
	*fd = -1;
}

/* Whether a meeting has left descriptors open, in this process. */
static bool has_begun(const struct engine *engine)
{
	return (engine->offer >= 0 || engine->visitor >= 0 || engine->reached >= 0) &&
	       engine->meeting_process == (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

void engine_meeting_ends(struct engine *engine)
{
	if (!has_begun(engine))
		return;
	engine_drop_own(&engine->offer);
	engine_drop_own(&engine->visitor);
	engine_drop_own(&engine->reached);
}

void engine_stays_alone(struct conn *conn, struct engine *engine, enum stat_reason why)
{
	engine_meeting_ends(engine);
	engine_drop_own(&conn->engine_fd);
	stats_reason(conn->slot, why);
	conn->alone = true;
	atomic_store(&engine->state, ENGINE_OVER);
	if (conn->far && !guest_sandboxed())
		far_kick(); /* what it may have open */
}

void engine_lanes_begin(struct conn *conn, struct engine *engine)
{
	atomic_store(&engine->channel.out.shared->sent, engine->sent);
	atomic_store(&engine->channel.in.shared->received, engine->received);
	atomic_store(&engine->channel.in.shared->raw, engine->raw_receiving); /* it may not be the first try */
	/* Whoever waits for this connection already did not know of a ring. Before the peer may put anything there. */
	lane_arm(&engine->channel.in);
	if (engine->reader)
		atomic_store(&engine->channel.in.shared->reader, 1);
	if (atomic_load(&engine->shut) & SHUT_OUT)
		atomic_store(&engine->channel.out.shared->shut, 1);
}

static void met(struct conn *conn, struct engine *engine, int fd)
{
	uint8_t identity[TRANSPORT_IDENTITY_BYTES];

	engine_meeting_ends(engine);
	meet_identity(&engine->names, engine->role == ROLE_CLIENT ? CHANNEL_CONNECTING : CHANNEL_ACCEPTING, fd,
		      identity);
	channel_open_sources(&engine->channel, &transport_cma, identity);
	atomic_store(&engine->state, ENGINE_MET);
	if (atomic_load(&engine->shut) & SHUT_OUT) /* meanwhile, by somebody who did not find it met */
		atomic_store(&engine->channel.out.shared->shut, 1);
	stats_conn(conn->slot, STAT_CONN_MEETINGS, 1);
	log_trace("met its peer on this host");
}

bool engine_asks_names(const struct conn *conn, const struct sockaddr_storage *peer)
{
	return engine_serves(conn->policy) && settings.transport != TRANSPORT_NONE && far_possible() &&
	       !(far_compares(conn) && far_compare_is_vain(peer)) && !atomic_load(&guest_rings);
}

static bool names_are_known(const struct conn *conn, struct engine *engine, int fd)
{
	socklen_t bytes = sizeof(engine->names.local);

	if (sys_call(SYS_getsockname, fd, (long)&engine->names.local, (long)&bytes, 0, 0, 0) < 0)
		return false;
	engine->names.space = meet_space(fd);
	bytes = sizeof(engine->names.peer);
	if (sys_call(SYS_getpeername, fd, (long)&engine->names.peer, (long)&bytes, 0, 0, 0) < 0)
		return false;
	stats_slot_name(conn->slot, &engine->names.local, &engine->names.peer);
	return true;
}

int engine_make_channel(struct conn *conn, struct engine *engine)
{
	uint32_t bytes = LANE_RING_MIN;
	int rc;

	if (!room_for_own())
		return -EMFILE;
	while (bytes < (uint32_t)settings.ring_bytes)
		bytes *= 2;
	rc = channel_make(&engine->channel, bytes);

	if (rc < 0)
		return rc;
	conn->engine_fd = engine->channel.fd; /* each process has its own */
	engine->channel.fd = -1;
	keep(conn->engine_fd);
	return 0;
}

static int reach(struct engine *engine)
{
	int self = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);

	if (engine->reached >= 0)
		return engine->meeting_process == self ? engine->reached : -EAGAIN; /* another holder is at it */
	if (!may_begin())
		return -EAGAIN;
	if (!room_for_own())
		return -EMFILE;
	engine->reached = meet_reach(&engine->names);
	engine->meeting_process = self;
	if (engine->reached >= 0)
		keep(engine->reached);
	return engine->reached;
}

static bool is_redirected(const struct engine *engine, int fd)
{
	return engine->role == ROLE_SERVER && meet_is_redirected(&engine->names, fd);
}

/*
 * The accepting end. Under both locks. Returns 0 when they have met, -EAGAIN if the other end has to let it in first, -EXDEV if whoever
 * offers is not the other end.
 */
static int reach_out(struct conn *conn, struct engine *engine, int fd)
{
	int rc = reach(engine);

	if (rc >= 0 && !engine->channel.header) /* only now: most ends have no peer that offers */
		rc = meet_is_peer(&engine->names, fd);
	if (rc >= 0 && !engine->channel.header)
		rc = engine_make_channel(conn, engine);
	if (rc >= 0) {
		struct channel given = engine->channel;

		given.fd = conn->engine_fd;
		engine_lanes_begin(conn, engine); /* before the peer can see it */
		rc = meet_give(engine->reached, &given);
	}
	if (rc >= 0) {
		engine->channel.peer = meet_process(engine->reached);
		engine_drop_own(&conn->engine_fd);
	}
	return rc;
}

/* Asked first, as accept() uses a number, if only for a moment, where nobody has come. */
static bool has_news(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };
	struct timespec now = { 0, 0 };

	return sys_call(SYS_ppoll, (long)&look, 1, (long)&now, 0, 0, 0) != 0;
}

/* The connecting end. Under both locks. */
static int pick_up(struct conn *conn, struct engine *engine)
{
	int rc;

	if (engine->offer < 0) {
		if (!may_begin())
			return -EAGAIN;
		if (!room_for_own())
			return -EMFILE;
		engine->offer = meet_offer(&engine->names);
		if (engine->offer < 0)
			return engine->offer;
		engine->meeting_process = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
		keep(engine->offer);
		return -EAGAIN;
	}
	if (!has_news(engine->visitor < 0 ? engine->offer : engine->visitor))
		return -EAGAIN;
	if (!room_for_own())
		return -EMFILE;
	if (engine->visitor >= 0)
		keep_no_more(engine->visitor); /* it may be closed */
	rc = meet_pick_up(&engine->names, engine->offer, &engine->visitor, &engine->channel);
	if (engine->visitor >= 0)
		keep(engine->visitor);
	if (!rc)
		engine_lanes_begin(conn, engine);
	return rc == -EPERM || rc == -EPROTO ? -EAGAIN : rc;
}

static void will_not_meet(struct conn *conn, struct engine *engine, enum stat_reason why)
{
	far_compare_seeks_no_more(engine);
	engine_stays_alone(conn, engine, why);
}

/* Before a meeting begins. */
static bool lacks_room(struct conn *conn, struct engine *engine)
{
	if (channel_has_room())
		return false;
	will_not_meet(conn, engine, REASON_MAPPINGS);
	return true;
}

/* The peer is on another host. The agent has to be there first, which can't be started here. */
static void step_far(struct conn *conn, struct engine *engine, int fd)
{
	enum far_pays pays = FAR_PAYS;

	if (atomic_load(&engine->far.state) == FAR_APART && !far_failed()) {
		far_step(conn, engine);
		return;
	}
	if (!far_possible()) {
		will_not_meet(conn, engine, far_absent_for());
		return;
	}
	engine->far.host = choose_peer_key((const struct sockaddr *)&engine->names.peer);
	if (far_leaves_alone(engine)) {
		if (!engine->far.vain)
			engine_stays_alone(conn, engine, far_left_alone_for(engine));
		return;
	}
	if (!engine->meets_since)
		engine->meets_since = clock_now();
	if (far_compares(conn))
		pays = far_compare_pays(engine);
	else if (far_lasts_first(engine))
		pays = FAR_PAYS_LATER;
	if (pays == FAR_PAYS && lacks_room(conn, engine))
		return;
	if (pays == FAR_PAYS && is_redirected(engine, fd)) {
		will_not_meet(conn, engine, REASON_REDIRECTED);
		return;
	}
	if (pays == FAR_PAYS)
		atomic_store(&engine->far.state, FAR_APART);
	else if (pays == FAR_PAYS_NOT)
		engine_stays_alone(conn, engine, REASON_RDMA_SLOWER);
	else if (far_compares(conn))
		stats_reason(conn->slot, REASON_RDMA_NOT_YET);
}

static bool has_had_its_time(const struct engine *engine)
{
	return clock_now() - engine->meets_since > MEET_NS;
}

static void try_to_meet(struct conn *conn, struct engine *engine, int fd)
{
	bool client = engine->role == ROLE_CLIENT;
	int rc = -EAGAIN;

	if (!conn_identify(conn, fd) && conn->believed) { /* what socket() made was closed unseen */
		engine_stays_alone(conn, engine, REASON_DETACHED);
		return;
	}
	if (!engine->far.begun && !names_are_known(conn, engine, fd))
		return; /* not connected yet */
	if (!meet_is_local(&engine->names)) {
		step_far(conn, engine, fd);
		return;
	}
	if (settings.transport == TRANSPORT_VERBS) {
		engine_stays_alone(conn, engine, REASON_NO_PEER);
		return;
	}
	if (!has_begun(engine) && !engine->channel.header && lacks_room(conn, engine))
		return;
	if (!engine->meets_since)
		engine->meets_since = clock_now();
	rc = client ? pick_up(conn, engine) : reach_out(conn, engine, fd);
	if (!rc)
		met(conn, engine, fd);
	else if (rc == -EXDEV)
		engine_stays_alone(conn, engine, REASON_REDIRECTED);
	else if (rc != -EAGAIN && (client || rc != -ECONNREFUSED)) {
		log_info("fd %d: no meeting with the peer on this host: error %d", fd, -rc);
		engine_stays_alone(conn, engine, REASON_MEETING_FAILED);
	} else if ((rc == -EAGAIN ? atomic_load(&engine->calls) > OFFER_CALLS_MAX : ++engine->tries >= TRIES_MAX) &&
		   has_had_its_time(engine))
		engine_stays_alone(conn, engine, is_redirected(engine, fd) ? REASON_REDIRECTED : REASON_NO_PEER);
}

/* Neither end waits for the other: the accepting one asks ever more rarely, the connecting one looks more often. */
static uint32_t next_try(const struct engine *engine, uint32_t calls)
{
	if (engine->far.compares && atomic_load(&engine->far.state) == FAR_NONE && calls >= 16) {
		/* Until it may pay, which is a matter of time. */
		uint32_t pace = engine->far.pace ? engine->far.pace : calls / 8;

		return calls + (pace < calls / 8 ? pace : calls / 8);
	}
	if ((engine->role == ROLE_SERVER || engine->far.host) && engine->reached < 0 &&
	    atomic_load(&engine->far.state) == FAR_NONE)
		return 2 * calls;
	if (engine->far.compares && atomic_load(&engine->far.state) == FAR_APART)
		return calls + COMPARE_CALLS; /* it begins late */
	return calls + (calls < 16 ? 1 : calls / 8);
}

void engine_step(struct conn *conn, struct engine *engine, int fd)
{
	uint32_t calls = atomic_fetch_add_explicit(&engine->calls, 1, memory_order_relaxed) + 1;
	struct lock_hold in, out;

	if (calls == 1)
		conn_identify(conn, fd);
	if (calls < engine->next_try || guest_sandboxed() || atomic_load(&guest_rings) || atomic_load(&conn->sg.held))
		return;
	if (atomic_load(&engine->far.state) == FAR_APART && !far_ready() && !far_failed())
		return;
	if (!lock_take(&engine->in, &in))
		return;
	if (lock_take(&engine->out, &out)) {
		if (calls >= engine->next_try && atomic_load(&engine->state) == ENGINE_APART) {
			try_to_meet(conn, engine, fd);
			engine->next_try = next_try(engine, calls);
		}
		lock_give(&engine->out, &out);
	}
	lock_give(&engine->in, &in);
}

static bool has_open(const struct conn *conn, const struct engine *engine)
{
	return conn->engine_fd >= 0 || has_begun(engine);
}

bool engine_spares(struct conn *conn)
{
	int fd = conn_fd(conn);
	struct engine *engine = fd < 0 ? NULL : engine_enter(conn, fd);
	struct lock_hold in, out;
	bool any = false;

	if (!engine)
		return false;
	/* Also where there is nothing: a meeting of another thread may be about to open something. */
	if ((atomic_load(&engine->state) == ENGINE_APART || conn->engine_fd >= 0) && lock_take(&engine->in, &in)) {
		if (lock_take(&engine->out, &out)) {
			any = has_open(conn, engine);
			if (any && atomic_load(&engine->state) == ENGINE_APART)
				engine_stays_alone(conn, engine, REASON_MEETING_FAILED);
			else if (any) /* another process that holds it has done without this one */
				engine_drop_own(&conn->engine_fd);
			lock_give(&engine->out, &out);
		}
		lock_give(&engine->in, &in);
	}
	engine_leave(conn);
	return any;
}
