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
#include "preload/engine_meet.h"
#include "preload/engine_source.h"
#include "preload/evict.h"
#include "preload/far_compare.h"
#include "preload/far.h"
#include "preload/guest.h"
#include "preload/hot.h"
#include "preload/pool.h"
#include "preload/send.h"
#include "preload/sg.h"
#include "rdma/later.h"

#define SLAB_ENGINES 64
#define SLABS 4096
#define AUTO_FIRST_TRY 4 /* `auto`: a connection that says little is not worth it */

_Atomic bool engine_ever;

static bool is_back(void *piece)
{
	struct engine *engine = piece;

	if (!holders_are_none(&engine->holders, true))
		return false;
	atomic_store(&engine->state, ENGINE_FREE);
	return true;
}

/*
 * Shared memory: both processes of a fork go on with the same engines. The one that has made an engine hands it out again, and no other, which
 * may be the last to hold it, and end: an engine is lent to whoever holds it longer than its maker.
 */
static struct pool pool = {
	.bytes = sizeof(struct engine),
	.link = offsetof(struct engine, next_free),
	.each = SLAB_ENGINES,
	.slabs_max = SLABS,
	.sharing = MAP_SHARED,
	.is_back = is_back,
};
static struct lock lost_lock; /* of what is done about lost locks */

void engine_after_fork(void)
{
	pool_after_fork(&pool);
	atomic_store(&lost_lock.word, 0);
	far_after_fork();
}

/*
 * All but the lock `out`: a small send that was on its way to the connection that had this one before may take it yet, and gives it back
 * when it has seen that (engine_join.c).
 */
static void clear(struct engine *engine)
{
	const size_t rest = offsetof(struct engine, out) + sizeof(engine->out);
	struct lock_hold hold;
	bool taken = lock_take(&engine->out, &hold);

	memset(engine, 0, offsetof(struct engine, out));
	memset((char *)engine + rest, 0, sizeof(*engine) - rest);
	if (taken)
		lock_give(&engine->out, &hold);
	else
		atomic_store(&engine->out.word, 0); /* of one that was killed */
}

static struct engine *make(struct conn *conn)
{
	struct engine *engine = pool_take(&pool);

	if (!engine) {
		stats_reason(conn->slot, REASON_NO_MEMORY);
		return NULL;
	}
	clear(engine);
	engine->role = conn->role;
	engine->offer = -1;
	engine->visitor = -1;
	engine->reached = -1;
	engine->channel.fd = -1;
	engine->rest.fd = -1;
	engine->spin.ns = (uint32_t)settings.spin_us * 1000;
	atomic_store(&engine->in.kind, LOCK_SHARED);
	atomic_store(&engine->out.kind, LOCK_SHARED);
	conn->holder = holders_start(&engine->holders, conn_process());
	conn->made = true;
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
	struct meet_names names = { .local = *local, .peer = *peer };
	struct engine *engine;

	/* A connect that is under way has no peer yet: that is seen when it has to meet. */
	if (!engine_serves(conn->policy) || settings.transport == TRANSPORT_NONE || guest_sandboxed())
		return;
	if (peer->ss_family && !meet_is_local(&names) && !far_possible()) {
		stats_reason(conn->slot, far_absent_for());
		return;
	}
	if (peer->ss_family && far_compares(conn) && !meet_is_local(&names) && far_compare_is_vain(peer)) {
		stats_reason(conn->slot, REASON_RDMA_SLOWER);
		return;
	}
	if (atomic_load(&guest_rings)) {
		stats_reason(conn->slot, REASON_IO_URING);
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
	/* Of a peer on another host nothing is looked for in this ring. */
	engine->far.looked = atomic_load(&rest->out.shared->tail);
	engine->far.left = engine->far.owed = 0;
	engine->far.expects = false;
	channel_close(&before);
}

/* Use ---------------------------------------------------------------------------------------------------------------- */

/* Returns whether it was the last one. */
static bool has_gone(struct conn *conn, struct engine *engine)
{
	bool last = holders_leave(&engine->holders, &conn->holder);

	atomic_fetch_sub(&engine->going, conn->goes ? 1 : 0);
	conn->goes = false;
	return last;
}

/* This process never comes to it again. Who has not made it must not touch it from here on: its maker may have it back at any time. */
static void part(struct conn *conn, struct engine *engine)
{
	bool made = conn->made;

	conn->made = false;
	if (has_gone(conn, engine))
		atomic_store(&engine->state, ENGINE_FREE);
	holders_forget(&engine->holders, &conn->holder);
	if (!made)
		return;
	if (holders_are_none(&engine->holders, false))
		pool_give(&pool, engine);
	else
		pool_lend(&pool, engine);
}

static void finish(struct conn *conn, struct engine *engine)
{
	struct channel mine, rest;

	sources_end(conn); /* from here on no fault looks at them */
	far_compare_seeks_no_more(engine);
	if (engine_met(engine))
		later_settle_lane(engine->channel.in.shared);
	mine = engine->channel; /* mapped in each process that holds it */
	rest = engine->rest;
	atomic_store(&conn->engine, NULL);
	/* Only now: the agent may come at any time, and must not find it as it goes. */
	atomic_fetch_and(&conn->engine_users, ~(ENGINE_CLOSING | ENGINE_ENDING));
	engine_drop_own(&conn->engine_fd);
	if (!far_bury(conn, &mine))
		channel_close(&mine);
	channel_close(&rest);
	part(conn, engine);
}

/* Whoever finds the connection closed and unused ends it, once. */
static bool claims_end(struct conn *conn)
{
	uint32_t closed = ENGINE_CLOSING;

	return atomic_compare_exchange_strong(&conn->engine_users, &closed, ENGINE_CLOSING | ENGINE_ENDING);
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
	uint32_t before;
	struct engine *engine;

	if (unseen_fork())
		unseen_settle();
	before = atomic_fetch_add(&conn->engine_users, 1);
	engine = atomic_load(&conn->engine);
	if (!(before & ENGINE_CLOSING) && engine && table_conn(fd) == conn)
		return engine;
	engine_leave(conn);
	return NULL;
}

/* The end as the kernel's own socket has it: unread bytes reset the connection, doorbells do not. */
static void close_lanes(struct conn *conn, struct engine *engine, int fd)
{
	struct linger reset = { .l_onoff = 1, .l_linger = 0 };

	far_look(conn, engine, fd); /* there, doorbells are known by a look */
	if (!evict_has_rest(engine)) {
		far_says_bye(conn, engine, fd);
		evict_bells(engine, fd);
	}
	/* It may have come meanwhile; and behind a break what the peer had sent may come again in a moment. */
	if (evict_has_rest(engine) || (!engine->far.elsewhere && far_part_is_owed(&engine->far, &engine->channel.in))) {
		sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, (long)&reset, sizeof(reset), 0);
		conn->lingers = true;
	}
	lane_reads(&engine->channel.in, false);
}

/*
 * This process lets go of the connection, which others may hold, but none that were killed. Doorbells are what others wait for:
 * the last one takes them out of the stream, and of two that go at the same time the second. Under the lock `in`.
 */
static void let_go(struct conn *conn, struct engine *engine, int fd)
{
	conn->goes = true;
	if (later_active() && engine_met(engine))
		later_settle_lane(engine->channel.in.shared);
	if (atomic_fetch_add(&engine->going, 1) + 1 < atomic_load(&engine->holders.count) || !engine_met(engine) ||
	    guest_sandboxed())
		return;
	if (conn_is_same(conn, fd))
		close_lanes(conn, engine, fd);
	else /* the number was given up behind our back, and is another's */
		lane_reads(&engine->channel.in, false);
}

bool engine_is_held(struct conn *conn, int fd)
{
	return conn->holder.counts && !conn->goes && conn_is_same(conn, fd);
}

void engine_gives_up(struct conn *conn, struct engine *engine)
{
	has_gone(conn, engine);
}

/* Before this process lets go: its last bytes are in the peer's ring or on their way by TCP, as after a send. Under no lock. */
static void far_ends(struct conn *conn, struct engine *engine, int fd, enum far_linger_how how)
{
	if (!far_is(engine) || !conn->holder.counts || !conn_is_same(conn, fd))
		return;
	if (holders_alive(&engine->holders, &conn->holder) == 1)
		evict_out_at_end(conn, engine, fd, how);
	else
		far_parts_settled(conn, engine, fd);
}

void engine_goes(struct conn *conn)
{
	int fd = conn_fd(conn);
	struct engine *engine = fd < 0 ? NULL : engine_enter(conn, fd);
	struct lock_hold hold;

	if (!engine)
		return;
	sources_keep(conn, engine);
	far_ends(conn, engine, fd, FAR_LINGER_EXIT);
	if (lock_take(&engine->in, &hold)) {
		if (engine_is_held(conn, fd)) {
			holders_alive(&engine->holders, &conn->holder);
			let_go(conn, engine, fd);
			engine_gives_up(conn, engine);
		}
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
	holders_return(&engine->holders, &conn->holder, conn_process());
	far_stays(conn, engine);
	if (conn->lingers)
		sys_call(SYS_setsockopt, conn_fd(conn), SOL_SOCKET, SO_LINGER, (long)&none, sizeof(none), 0);
	conn->lingers = false;
}

/*
 * The agent, or a small send (engine_join.c), may be at it at this moment, and its number will be another's when it is closed. Whoever
 * has taken one of the locks since sees that it is (engine_is_closing).
 */
void engine_awaits_those_inside(struct engine *engine)
{
	struct lock_hold hold;

	if (lock_take(&engine->out, &hold))
		lock_give(&engine->out, &hold);
	if (lock_take(&engine->in, &hold))
		lock_give(&engine->in, &hold);
}

void engine_number_goes(struct conn *conn)
{
	struct engine *engine = atomic_load(&conn->engine);

	if (engine && far_is(engine))
		engine_awaits_those_inside(engine);
}

bool engine_may_linger(struct conn *conn, int fd)
{
	struct engine *engine = atomic_load(&conn->engine);

	/* A set may be shared as well, and the registration in it be another holder's, too. */
	return engine && far_is(engine) && !guest_sandboxed() && atomic_load(&engine->holders.count) == 1 &&
	       conn_is_same(conn, fd) && far_may_linger(engine);
}

bool engine_close(struct conn *conn, int fd)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct lock_hold hold;

	if (!engine)
		return true;
	if (conn->holder.counts)
		holders_alive(&engine->holders, &conn->holder);
	far_ends(conn, engine, fd, FAR_LINGER_CLOSE);
	if (conn->holder.counts && lock_take(&engine->in, &hold)) {
		let_go(conn, engine, fd);
		engine_meeting_ends(engine);
		lock_give(&engine->in, &hold);
	}
	atomic_fetch_add(&conn->engine_users, 1);
	atomic_fetch_or(&conn->engine_users, ENGINE_CLOSING);
	engine_awaits_those_inside(engine);
	atomic_fetch_sub(&conn->engine_users, 1);
	if (!claims_end(conn))
		return false;
	finish(conn, engine);
	return true;
}

void engine_pin(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);

	if (!engine)
		return;
	evict_out(conn, engine, fd);
	engine_leave(conn);
}

bool engine_shuts(struct conn *conn, int fd, int how)
{
	struct engine *engine = engine_enter(conn, fd);
	uint32_t ways = how == SHUT_RD	 ? SHUT_IN :
			how == SHUT_WR	 ? SHUT_OUT :
			how == SHUT_RDWR ? SHUT_IN | SHUT_OUT :
					   0;
	struct lock_hold hold;
	bool later;

	if (!engine)
		return false;
	if (ways & SHUT_OUT)
		evict_out_at_end(conn, engine, fd, FAR_LINGER_SHUT);
	atomic_fetch_or(&engine->shut, ways);
	if (ways & SHUT_OUT && engine_met(engine))
		atomic_store(&engine->channel.out.shared->shut, 1); /* before the peer can see the end */
	if (engine_is_shut(engine) && lock_take(&engine->in, &hold)) {
		if (engine_met(engine) && !guest_sandboxed()) {
			far_says_bye(conn, engine, fd);
			evict_bells(engine, fd);
		}
		lock_give(&engine->in, &hold);
	}
	later = ways & SHUT_OUT && atomic_load(&engine->far.lingers);
	engine_leave(conn);
	return later;
}

void engine_stays_apart(struct conn *conn, struct engine *engine)
{
	if (atomic_load(&engine->state) != ENGINE_APART)
		return;
	if (conn_process_is_ours())
		engine_stays_alone(conn, engine, REASON_SHARED);
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
			if (all)
				engine->far.owed = 0; /* nobody counts what comes from here on */
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
				lane_reads(&engine->channel.in, false);
			engine_meeting_ends(engine);
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
static int socket_of(struct conn *conn)
{
	int fd = conn_fd(conn);

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
			lane_reads(&engine->channel.in, false);
		/* Only now: from here on, calls go by the kernel. */
		atomic_store(&engine->state, ENGINE_OVER);
	}
	engine_meeting_ends(engine);
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
