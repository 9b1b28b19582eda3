/* SPDX-License-Identifier: MIT */
/* Connections of conn.h over a fork: still before it, held by two processes behind it. */
#define _GNU_SOURCE
#include "common/sys.h"
#include "common/thread.h"
#include "preload/conn_internal.h"
#include "preload/engine.h"
#include "preload/engine_source.h"
#include "preload/gate.h"
#include "preload/guest.h"
#include "preload/sg.h"
#include "preload/trim.h"
#include "preload/unseen.h"
#include "preload/watch.h"
#include "preload/zerocopy.h"

static uint64_t forks;	 /* so far */
static uint64_t present; /* the one that prepares connections */

static void quiesce(struct conn *conn)
{
	struct lock_hold hold;

	if (!lock_take(&conn->lock, &hold))
		return;
	if (atomic_load(&conn->mode) != CONN_FREE) /* a moment ago it was not */
		engine_before_fork(conn, present);
	if (atomic_load(&conn->mode) == CONN_ACTIVE) {
		sg_flush(conn);
		zerocopy_settle(conn);
		conn_give_token(conn);
	}
	lock_give(&conn->lock, &hold);
}

/* One thread forks at a time: what it has prepared is its own child's. */
static struct lock fork_lock;
static struct lock_hold fork_hold, pool_hold;
static bool fork_held, pool_held;
static uint32_t nested; /* forks within what a fork prepares; nothing is theirs to release */

uint64_t conn_before_fork(void)
{
	struct lock_hold hold;
	bool held = lock_take(&fork_lock, &hold);
	uint64_t outer = present, mine;

	unseen_announced++;
	if (held) {
		fork_hold = hold;
		gate_close();
	} else {
		nested++;
	}
	fork_held |= held;
	present = mine = ++forks;
	engine_premade = 0;
	conn_each(quiesce);
	present = outer;
	if (held)
		pool_held = lock_take(&conn_pool.lock, &pool_hold);
	return mine;
}

static void release_all(bool child)
{
	struct lock_hold hold = fork_hold;

	if (!child && nested) {
		nested--;
		return;
	}
	nested = 0;
	if (pool_held)
		lock_give(&conn_pool.lock, &pool_hold);
	pool_held = false;
	if (!fork_held)
		return;
	fork_held = false;
	gate_open(child);
	lock_give(&fork_lock, &hold);
}

/* The fork that is over, for the visits of all connections. */
static struct over {
	uint64_t fork;
	pid_t child;
	bool far; /* the parent is in another pid namespace: neither has the other's numbers */
} over;

static void child_starts(struct conn *conn)
{
	engine_forked(conn, over.fork, 0, over.far);
	atomic_store(&conn->lock.word, 0); /* its owner may be a thread that does not exist here */
	atomic_store(&conn->engine_users, 0);
	sources_after_fork(conn);
	atomic_store(&conn->moved, false);
	conn->goes = false;
	conn->inherited = true;
	conn->handed = false;
	sg_after_fork(conn);
	zerocopy_after_fork(conn);
}

static void keep_slot(struct conn *conn)
{
	stats_slot_keep(conn->slot, conn->role, conn->policy, conn_fd(conn));
}

static void parent_goes_on(struct conn *conn)
{
	struct lock_hold hold;

	if (!lock_take(&conn->lock, &hold))
		return;
	engine_forked(conn, over.fork, over.child, false);
	lock_give(&conn->lock, &hold);
}

static void name_heirs(pid_t child, uint64_t fork)
{
	struct over outer = over;

	over = (struct over){ fork, child, false };
	conn_each(parent_goes_on);
	over = outer;
}

static void child_begins(uint64_t fork)
{
	unseen_ends();
	lock_thread = 0;
	over.fork = fork;
	over.far = guest_sandboxed() || !sys_call(SYS_getppid, 0, 0, 0, 0, 0, 0);
	atomic_store(&conn_process_number, (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0));
	trim_after_fork();
	stats_after_fork();
	conn_each(child_starts);
	conn_each(keep_slot);
	watch_after_fork();
	engine_after_fork();
}

void conn_after_fork(pid_t child, uint64_t fork)
{
	if (child) {
		unseen_announced--;
		if (atomic_load_explicit(&engine_ever, memory_order_relaxed))
			name_heirs(child, fork);
	} else {
		child_begins(fork);
	}
	release_all(!child);
}

void conn_doubles(void)
{
	unseen_announced--;
	release_all(false);
}

void conn_child_is(pid_t child, uint64_t fork)
{
	struct lock_hold hold;
	bool held;

	if (!atomic_load_explicit(&engine_ever, memory_order_relaxed))
		return;
	held = lock_take(&fork_lock, &hold); /* not within another fork of this thread, which has it */
	if (held)
		gate_close();
	name_heirs(child, fork);
	if (!held)
		return;
	gate_open(false);
	lock_give(&fork_lock, &hold);
}

void conn_after_unseen_fork(void)
{
	/* One that loads the drivers of RDMA is inside (far_agent.c). */
	if (gate_has_others())
		thread_starts_no_more();
	/* Other threads may have been at it: what was free is lost. */
	conn_pool.free = NULL;
	atomic_store(&conn_pool.lock.word, 0);
	atomic_store(&fork_lock.word, 0);
	pool_held = fork_held = false;
	nested = 0;
	conn_after_fork(0, 0);
	gate_open(true);
}
