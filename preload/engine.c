/* SPDX-License-Identifier: MIT */
/* Engines of engine.h: where they come from, how the ends meet, how they end. */
#define _GNU_SOURCE
#include "preload/engine.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>

#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_source.h"
#include "preload/evict.h"
#include "preload/guest.h"
#include "preload/hot.h"
#include "preload/pool.h"
#include "preload/send.h"
#include "preload/sg.h"

#define TRANSPORT_NONE 2 /* of ZC_TRANSPORT */
#define SLAB_ENGINES 64
#define SLABS 4096
#define TRIES_MAX 12	 /* at the 1st, 2nd, 4th ... data call */
#define AUTO_FIRST_TRY 4 /* `auto`: a connection that says little is not worth it */
#define PREMADE_MAX 8	 /* channels made for connections that a fork finds apart */
#define OFFER_CALLS_MAX 4096

_Atomic bool engine_ever;

/* Shared memory: both processes of a fork go on with the same engines. */
static struct pool pool = {
	.bytes = sizeof(struct engine),
	.link = offsetof(struct engine, next_free),
	.each = SLAB_ENGINES,
	.slabs_max = SLABS,
	.sharing = MAP_SHARED,
};
static struct lock lost_lock; /* of what is done about lost locks */
uint32_t engine_premade;

/* After fork both processes would hand out the same engines from what was free: the child starts with none. */
void engine_after_fork(void)
{
	atomic_store(&pool.lock.word, 0);
	pool.free = NULL;
	atomic_store(&lost_lock.word, 0);
}

static struct engine *make(struct conn *conn)
{
	struct engine *engine = pool_take(&pool);

	if (!engine)
		return NULL;
	memset(engine, 0, sizeof(*engine));
	engine->role = conn->role;
	engine->offer = -1;
	engine->visitor = -1;
	engine->reached = -1;
	engine->channel.fd = -1;
	engine->rest.fd = -1;
	engine->spin_ns = (uint32_t)settings.spin_us * 1000;
	atomic_store(&engine->in.kind, LOCK_SHARED);
	atomic_store(&engine->out.kind, LOCK_SHARED);
	conn->holder = holders_start(&engine->holders, conn_process());
	return engine;
}

static void give_to(struct conn *conn, struct engine *engine, enum engine_state state)
{
	atomic_store(&engine->state, state);
	atomic_store(&conn->engine, engine);
	atomic_store_explicit(&engine_ever, true, memory_order_relaxed);
}

void engine_open(struct conn *conn, const struct sockaddr_storage *local, const struct sockaddr_storage *peer)
{
	struct meet_names names = { *local, *peer };
	struct engine *engine;

	/* A connect that is under way has no peer yet: that is seen when it has to meet. */
	if (!engine_serves(conn->policy) || settings.transport == TRANSPORT_NONE || guest_sandboxed())
		return;
	if (peer->ss_family && !meet_is_local(&names)) {
		stats_reason(conn->slot, REASON_REMOTE);
		return;
	}
	engine = make(conn);
	if (!engine)
		return;
	engine->names = names;
	engine->next_try = conn->policy == PATH_AUTO ? AUTO_FIRST_TRY : 1;
	give_to(conn, engine, ENGINE_APART);
}

bool engine_take_in(struct conn *conn, const struct channel *rest)
{
	struct engine *engine = make(conn);

	if (!engine)
		return false;
	engine->channel = *rest;
	engine->pinned = true;
	lane_leave(&engine->channel.in);
	give_to(conn, engine, ENGINE_MET);
	return true;
}

void engine_take_back(struct engine *engine, const struct channel *rest)
{
	struct channel before = engine->rest;

	engine->rest = *rest;
	engine->channel.in = rest->out;
	channel_close(&before);
}

/* Use ---------------------------------------------------------------------------------------------------------------- */

static void drop_own(int *fd)
{
	if (*fd < 0)
		return;
	table_own_drop(*fd);
	sys_call(SYS_close, *fd, 0, 0, 0, 0, 0);
	*fd = -1;
}

static void finish(struct conn *conn, struct engine *engine)
{
	struct channel mine = engine->channel; /* mapped in each process that holds it */
	struct channel rest = engine->rest;

	sources_end(conn);
	atomic_store(&conn->engine, NULL);
	drop_own(&conn->engine_fd);
	channel_close(&mine);
	channel_close(&rest);
	if (holders_leave(&engine->holders, &conn->holder)) {
		atomic_store(&engine->state, ENGINE_FREE);
		pool_give(&pool, engine);
	}
}

/* Whoever finds the connection closed and unused ends it, once. */
static bool claims_end(struct conn *conn)
{
	uint32_t closed = ENGINE_CLOSING;

	return atomic_compare_exchange_strong(&conn->engine_users, &closed, 0);
}

void engine_leave(struct conn *conn)
{
	if (atomic_fetch_sub(&conn->engine_users, 1) == (ENGINE_CLOSING | 1) && claims_end(conn)) {
		finish(conn, atomic_load(&conn->engine));
		conn_release(conn);
	}
}

struct engine *engine_use(struct conn *conn, int fd)
{
	uint32_t before = atomic_fetch_add(&conn->engine_users, 1);
	struct engine *engine = atomic_load(&conn->engine);

	if (!(before & ENGINE_CLOSING) && engine && table_conn(fd) == conn)
		return engine;
	engine_leave(conn);
	return NULL;
}

/* The end as the kernel's own socket has it: unread bytes reset the connection, doorbells do not. */
static void close_lanes(struct conn *conn, struct engine *engine, int fd)
{
	struct linger reset = { .l_onoff = 1, .l_linger = 0 };

	evict_bells(engine, fd);
	if (evict_has_rest(engine)) {
		sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, (long)&reset, sizeof(reset), 0);
		conn->lingers = true;
	}
	atomic_store(&engine->channel.in.shared->reader, 0);
}

static void end_meeting(struct engine *engine)
{
	if (engine->meeting_process != (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0))
		return; /* they are another's */
	drop_own(&engine->offer);
	drop_own(&engine->visitor);
	drop_own(&engine->reached);
}

/*
 * This process lets go of the connection, and others may hold it, but those that were killed do not. Doorbells that nobody waits
 * for don't stay behind. Under the lock `in`.
 */
static void let_go(struct conn *conn, struct engine *engine, int fd)
{
	if (!engine_met(engine) || guest_sandboxed())
		return;
	if (atomic_load(&engine->holders.count) == 1)
		close_lanes(conn, engine, fd);
	else if (!evict_has_rest(engine))
		evict_bells(engine, fd);
}

void engine_gives_up(struct conn *conn, struct engine *engine)
{
	holders_leave(&engine->holders, &conn->holder);
}

void engine_goes(struct conn *conn)
{
	int fd = conn_fd(conn);
	struct engine *engine = fd < 0 ? NULL : engine_enter(conn, fd);
	struct lock_hold hold;

	if (!engine)
		return;
	sources_keep(conn, engine);
	if (conn->holder.counts && lock_take(&engine->in, &hold)) {
		holders_alive(&engine->holders, &conn->holder);
		let_go(conn, engine, fd);
		engine_gives_up(conn, engine);
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
}

void engine_stays(struct conn *conn)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct linger none = { .l_onoff = 0 };

	if (!engine || conn->holder.counts)
		return;
	conn->holder = holders_start(&engine->holders, conn_process());
	if (conn->lingers)
		sys_call(SYS_setsockopt, conn_fd(conn), SOL_SOCKET, SO_LINGER, (long)&none, sizeof(none), 0);
	conn->lingers = false;
}

bool engine_close(struct conn *conn, int fd)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct lock_hold hold;

	if (!engine)
		return true;
	if (conn->holder.counts)
		holders_alive(&engine->holders, &conn->holder);
	if (conn->holder.counts && lock_take(&engine->in, &hold)) {
		let_go(conn, engine, fd);
		end_meeting(engine);
		lock_give(&engine->in, &hold);
	}
	atomic_fetch_or(&conn->engine_users, ENGINE_CLOSING);
	if (!claims_end(conn))
		return false;
	finish(conn, engine);
	return true;
}

/* Meeting ------------------------------------------------------------------------------------------------------------ */

static void give_up(struct conn *conn, struct engine *engine, enum stat_reason why)
{
	end_meeting(engine);
	drop_own(&conn->engine_fd);
	stats_reason(conn->slot, why);
	atomic_store(&engine->state, ENGINE_OVER);
}

/* The lanes take over what was counted. Under both locks. */
static void meet(struct conn *conn, struct engine *engine)
{
	atomic_store(&engine->channel.out.shared->sent, engine->sent);
	atomic_store(&engine->channel.in.shared->received, engine->received);
	atomic_store(&engine->channel.in.shared->raw, engine->raw_receiving); /* it may not be the first try */
	/* Whoever waits for this connection already did not know of a ring. Before the peer may put anything there. */
	lane_arm(&engine->channel.in);
	if (engine->reader)
		atomic_store(&engine->channel.in.shared->reader, 1);
}

static void met(struct conn *conn, struct engine *engine, int fd)
{
	uint8_t identity[TRANSPORT_IDENTITY_BYTES];

	end_meeting(engine);
	meet_identity(&engine->names, engine->role == ROLE_CLIENT ? CHANNEL_CONNECTING : CHANNEL_ACCEPTING, fd,
		      identity);
	channel_open_sources(&engine->channel, &transport_cma, identity);
	atomic_store(&engine->state, ENGINE_MET);
	stats_conn(conn->slot, STAT_CONN_MEETINGS, 1);
	log_trace("met its peer on this host");
}

static bool names_are_known(struct engine *engine, int fd)
{
	socklen_t bytes = sizeof(engine->names.local);

	if (sys_call(SYS_getsockname, fd, (long)&engine->names.local, (long)&bytes, 0, 0, 0) < 0)
		return false;
	bytes = sizeof(engine->names.peer);
	return sys_call(SYS_getpeername, fd, (long)&engine->names.peer, (long)&bytes, 0, 0, 0) >= 0;
}

static int make_channel(struct conn *conn, struct engine *engine)
{
	uint32_t bytes = LANE_RING_MIN;
	int rc;

	while (bytes < (uint32_t)settings.ring_bytes)
		bytes *= 2;
	rc = channel_make(&engine->channel, bytes);

	if (rc < 0)
		return rc;
	conn->engine_fd = engine->channel.fd; /* each process has its own */
	engine->channel.fd = -1;
	table_own_keep(conn->engine_fd);
	return 0;
}

static int reach(struct engine *engine)
{
	int self = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);

	if (engine->reached >= 0)
		return engine->meeting_process == self ? engine->reached : -EAGAIN; /* another holder is at it */
	engine->reached = meet_reach(&engine->names);
	engine->meeting_process = self;
	if (engine->reached >= 0)
		table_own_keep(engine->reached);
	return engine->reached;
}

/* The accepting end. Under both locks. Returns 0 when they have met, -EAGAIN if the other end has to let it in first. */
static int reach_out(struct conn *conn, struct engine *engine)
{
	int rc = reach(engine);

	if (rc >= 0 && !engine->channel.header)
		rc = make_channel(conn, engine);
	if (rc >= 0) {
		struct channel given = engine->channel;

		given.fd = conn->engine_fd;
		meet(conn, engine); /* before the peer can see it */
		rc = meet_give(engine->reached, &given);
	}
	if (rc >= 0) {
		engine->channel.peer = meet_process(engine->reached);
		drop_own(&conn->engine_fd);
	}
	return rc;
}

/* The connecting end. Under both locks. */
static int pick_up(struct conn *conn, struct engine *engine)
{
	int rc;

	if (engine->offer < 0) {
		engine->offer = meet_offer(&engine->names);
		if (engine->offer < 0)
			return engine->offer;
		engine->meeting_process = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
		table_own_keep(engine->offer);
		return -EAGAIN;
	}
	rc = meet_pick_up(&engine->names, engine->offer, &engine->visitor, &engine->channel);
	if (engine->visitor >= 0)
		table_own_keep(engine->visitor);
	if (!rc)
		meet(conn, engine);
	return rc == -EPERM || rc == -EPROTO ? -EAGAIN : rc;
}

static void try_to_meet(struct conn *conn, struct engine *engine, int fd)
{
	bool client = engine->role == ROLE_CLIENT;
	int rc = -EAGAIN;

	if (!names_are_known(engine, fd))
		return; /* not connected yet */
	if (!meet_is_local(&engine->names)) {
		give_up(conn, engine, REASON_REMOTE);
		return;
	}
	rc = client ? pick_up(conn, engine) : reach_out(conn, engine);
	if (!rc)
		met(conn, engine, fd);
	else if (rc != -EAGAIN && (client || rc != -ECONNREFUSED)) {
		log_info("fd %d: no meeting with the peer on this host: error %d", fd, -rc);
		give_up(conn, engine, REASON_MEETING_FAILED);
	} else if (rc == -EAGAIN ? atomic_load(&engine->calls) > OFFER_CALLS_MAX : ++engine->tries >= TRIES_MAX)
		give_up(conn, engine, REASON_NO_PEER);
}

/* Neither end waits for the other: the accepting one asks ever more rarely, the connecting one looks more often. */
static uint32_t next_try(const struct engine *engine, uint32_t calls)
{
	if (engine->role == ROLE_SERVER && engine->reached < 0)
		return 2 * calls;
	return calls + (calls < 16 ? 1 : calls / 8);
}

void engine_step(struct conn *conn, struct engine *engine, int fd)
{
	uint32_t calls = atomic_fetch_add_explicit(&engine->calls, 1, memory_order_relaxed) + 1;
	struct lock_hold in, out;

	if (calls < engine->next_try || guest_sandboxed() || atomic_load(&conn->sg.held))
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

void engine_pin(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);

	if (!engine)
		return;
	evict_out(conn, engine, fd);
	engine_leave(conn);
}

void engine_stays_apart(struct conn *conn, struct engine *engine)
{
	if (atomic_load(&engine->state) != ENGINE_APART)
		return;
	if (conn_process_is_ours())
		give_up(conn, engine, REASON_SHARED);
	else /* what it has open is its parent's to close */
		atomic_store(&engine->state, ENGINE_OVER);
}

bool engine_retire(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);
	struct lock_hold hold;
	bool all = true;

	if (!engine)
		return true;
	if (lock_take(&engine->in, &hold)) {
		if (engine_met(engine)) {
			all = !evict_has_rest(engine) && evict_in(conn, engine, fd);
		} else {
			engine_stays_apart(conn, engine);
		}
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
	if (all)
		engine_pin(conn, fd);
	return all;
}

void engine_dissolve(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);
	int saved = errno;
	struct lock_hold in, out;

	if (!engine)
		return;
	if (lock_take(&engine->in, &in)) {
		if (lock_take(&engine->out, &out)) {
			if (engine_met(engine))
				atomic_store(&engine->channel.in.shared->reader, 0);
			end_meeting(engine);
			atomic_store(&engine->state, ENGINE_OVER);
			lock_give(&engine->out, &out);
		}
		lock_give(&engine->in, &in);
	}
	engine_leave(conn);
	errno = saved;
}

static struct conn *conn_of_lock(const struct lock *lock)
{
	struct conn *conn;

	for (uint32_t at = 0; (conn = conn_next(&at));) {
		struct engine *engine = atomic_load(&conn->engine);

		if (engine && (lock == &engine->in || lock == &engine->out))
			return conn;
	}
	return NULL;
}

/* Returns a descriptor that certainly names the connection's socket, or -1. */
static int socket_of(const struct conn *conn)
{
	int fd = conn_fd(conn);

	for (uint32_t i = 0; fd < 0 && i < table_size; i++) /* one that is not followed */
		fd = table_conn((int)i) == conn ? (int)i : -1;
	return fd >= 0 && conn_is_same(conn, fd) ? fd : -1;
}

/* Under lost_lock, for the threads of this process; those of others may do the same at the same time. */
static void mourn(struct conn *conn, struct engine *engine)
{
	int fd = atomic_load(&engine->state) == ENGINE_OVER ? -1 : socket_of(conn);

	if (fd >= 0) {
		log_info("fd %d: a process that shared it was killed in the middle of a call", fd);
		evict_reset(conn, fd);
		if (engine_met(engine))
			atomic_store(&engine->channel.in.shared->reader, 0);
		/* Only now: from here on, calls go by the kernel. */
		atomic_store(&engine->state, ENGINE_OVER);
	}
	end_meeting(engine);
}

void engine_lost(const struct lock *lock)
{
	struct conn *conn = conn_of_lock(lock);
	struct engine *engine = conn ? atomic_load(&conn->engine) : NULL;
	struct lock_hold hold;
	int saved = errno;

	if (engine && lock_take(&lost_lock, &hold)) {
		mourn(conn, engine);
		lock_give(&lost_lock, &hold);
	}
	errno = saved;
}

void engine_before_fork(struct conn *conn)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct lock_hold in, out;

	if (!engine)
		return;
	if (lock_take(&engine->in, &in)) {
		if (lock_take(&engine->out, &out)) {
			end_meeting(engine); /* it would be both's: whoever comes to it begins again */
			/* Where both processes could meet, only a channel that both have can serve them. */
			if (atomic_load(&engine->state) == ENGINE_APART && !engine->channel.header &&
			    (engine->role == ROLE_CLIENT || engine_premade >= PREMADE_MAX ||
			     make_channel(conn, engine) < 0))
				give_up(conn, engine, REASON_SHARED);
			engine_premade++;
			lock_give(&engine->out, &out);
		}
		lock_give(&engine->in, &in);
	}
	conn->heir = holders_expect(&engine->holders);
	hot_cool(conn);
}

void engine_forked(struct conn *conn, pid_t child, bool far)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct holder heir = conn->heir;

	conn->heir = (struct holder){ 0 };
	if (!child)
		conn->holder = heir; /* not the parent's, in any case */
	if (!engine || !heir.counts)
		return;
	if (child < 0) {
		holders_leave(&engine->holders, &heir);
		return;
	}
	if (far) { /* before it can take a lock, or be asked for */
		atomic_store(&engine->in.kind, LOCK_FAR);
		atomic_store(&engine->out.kind, LOCK_FAR);
		atomic_store(&engine->holders.far, true);
	}
	holders_name(&engine->holders, &heir, child ? child : conn_process());
}
