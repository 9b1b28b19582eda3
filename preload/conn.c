/* SPDX-License-Identifier: MIT */
/* Connections of conn.h: slabs, opening, duplicates, closing. Over a fork: conn_fork.c. */
#define _GNU_SOURCE
#include "preload/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>

#include "common/log.h"
#include "common/sys.h"
#include "preload/before.h"
#include "preload/choose.h"
#include "preload/conn_internal.h"
#include "preload/engine.h"
#include "preload/gate.h"
#include "preload/guest.h"
#include "preload/sg.h"
#include "preload/unseen.h"
#include "preload/watch.h"
#include "preload/zerocopy.h"

#define SLAB_CONNS 64
#define SLABS 16384

_Atomic unsigned int conn_zerocopy_used;
_Atomic bool conn_zerocopy_ever;

static void *slabs[SLABS];
struct pool conn_pool = {
	.bytes = sizeof(struct conn),
	.link = offsetof(struct conn, next_free),
	.each = SLAB_CONNS,
	.slabs_max = SLABS,
	.sharing = MAP_PRIVATE,
	.slab = slabs,
};
_Atomic int conn_process_number;

void conn_release(struct conn *conn)
{
	pool_give(&conn_pool, conn);
}

bool conn_process_is_ours(void)
{
	if (guest_sandboxed())
		return true; /* it can't be asked any more */
	unseen_settle();

	int pid = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	int none = 0;

	return atomic_compare_exchange_strong(&conn_process_number, &none, pid) || none == pid;
}

int conn_process(void)
{
	return atomic_load_explicit(&conn_process_number, memory_order_relaxed);
}

static void read_address(long call, int fd, struct sockaddr_storage *out)
{
	socklen_t bytes = sizeof(*out);

	memset(out, 0, sizeof(*out));
	sys_call(call, fd, (long)out, (long)&bytes, 0, 0, 0);
}

static void reset(struct conn *conn)
{
	struct zerocopy_send *ring = conn->zerocopy.ring;

	memset(&conn->sg, 0, sizeof(conn->sg));
	memset(&conn->zerocopy, 0, sizeof(conn->zerocopy));
	conn->zerocopy.ring = ring;
	conn->token = NULL;
	conn->app_error_queue = false;
	conn->watches = NULL;
	atomic_store(&conn->attention, 0);
	atomic_store(&conn->signals, false);
	atomic_store(&conn->recv_ends, 0);
	conn->engine_fd = -1;
	conn->holder = (struct holder){ 0 };
	memset(conn->heirs, 0, sizeof(conn->heirs));
	conn->made = false;
	conn->inherited = false;
	conn->handed = false;
	atomic_store(&conn->spawned, 0);
	conn->alone = false;
	conn->left_sets = false;
	conn->lingers = false;
	atomic_store(&conn->cookie, 0);
	conn->believed = false;
	atomic_store(&conn->opened, 0);
	conn->extra = 0;
	atomic_store(&conn->send_blocked, false);
}

static void name_slot(struct conn *conn)
{
	struct sockaddr_storage local, peer;

	if (!conn->slot || !conn->descriptors)
		return;
	read_address(SYS_getsockname, conn->fds[0], &local);
	read_address(SYS_getpeername, conn->fds[0], &peer);
	stats_slot_name(conn->slot, &local, &peer);
}

void conn_publish_counts(void)
{
	if (guest_sandboxed() || !conn_process_is_ours())
		return;
	stats_publish();
	table_own_refresh();
	conn_each(name_slot);
}

struct opening {
	enum stats_role role;
	bool plain;
	bool always;			     /* also where the rules leave it alone */
	const struct sockaddr_storage *peer; /* NULL: the kernel is to be asked */
};

static void open_inside(int fd, const struct opening *how)
{
	struct sockaddr_storage local = { 0 }, peer;
	struct lock_hold hold;
	bool moves;
	struct conn *conn = pool_take(&conn_pool);

	if (!conn)
		return;
	if (!lock_take(&conn->lock, &hold)) {
		conn_release(conn);
		return;
	}
	reset(conn);
	if (how->peer)
		peer = *how->peer;
	else
		read_address(SYS_getpeername, fd, &peer);
	if (how->role == ROLE_SERVER)
		read_address(SYS_getsockname, fd, &local);
	conn->peer_key = choose_peer_key((struct sockaddr *)&peer);
	conn->role = how->role;
	conn->policy = choose_policy(how->role, (struct sockaddr *)(how->role == ROLE_SERVER ? &local : &peer));
	if (conn->policy == PATH_TCP && how->always)
		conn->policy = PATH_COPY;
	if (conn->policy == PATH_TCP) {
		lock_give(&conn->lock, &hold);
		conn_release(conn);
		table_put(fd, TABLE_OTHER);
		return;
	}
	conn_counts();
	stats_publish();
	table_own_refresh();
	conn->slot = stats_slot_open(how->role, conn->policy, fd);
	moves = !how->plain && conn->policy != PATH_COPY;
	if (how->role == ROLE_CLIENT && !(moves && engine_asks_names(conn, &peer)))
		read_address(SYS_getsockname, fd, &local);
	stats_slot_name(conn->slot, &local, &peer);
	conn->fds[0] = fd;
	conn->descriptors = 1;
	if (moves) {
		conn->believed = how->role == ROLE_CLIENT && table_was_made(fd);
		if (!conn->believed)
			atomic_store(&conn->cookie, conn_cookie_of(fd));
		engine_open(conn, &local, &peer);
	}
	atomic_store(&conn->mode, moves ? CONN_ACTIVE : CONN_PLAIN);
	table_put(fd, (uintptr_t)conn);
	lock_give(&conn->lock, &hold);
	if (conn_active(conn) && conn->policy != PATH_SG)
		atomic_store_explicit(&conn_zerocopy_ever, true, memory_order_relaxed);
	log_trace("fd %d: %s, path %s%s", fd, how->role == ROLE_SERVER ? "accepted" : "connected",
		  path_name(conn->policy), how->plain ? " (plain: inherited)" : "");
}

static void open_as(int fd, const struct opening *how)
{
	if (table_conn(fd))
		conn_close(fd); /* its number was given up behind our back */
	if ((uint32_t)fd >= table_size || guest_sandboxed() || !conn_process_is_ours())
		return;
	gate_enter();
	open_inside(fd, how);
	gate_leave();
}

void conn_open(int fd, enum stats_role role, const struct sockaddr_storage *peer)
{
	open_as(fd, &(struct opening){ .role = role, .peer = peer });
}

struct conn *conn_take_in(int fd)
{
	struct conn *conn;

	if (!conn_may_be(fd))
		return NULL;
	open_as(fd, &(struct opening){ .role = ROLE_SERVER, .plain = true, .always = true });
	conn = table_conn(fd);
	if (conn)
		atomic_store(&conn->cookie, conn_cookie_of(fd));
	return conn;
}

struct conn *conn_classify(int fd)
{
	struct sockaddr_storage peer;
	socklen_t bytes = sizeof(peer);

	/* A call before our start-up: if bytes were left to this program, they come first. */
	if (!table_size && guest_start_early) {
		guest_start_early();
		if (table_entry(fd) != TABLE_UNKNOWN)
			return table_conn(fd);
	}
	if ((uint32_t)fd >= table_size || fd < 0 || guest_sandboxed() || !conn_may_be(fd))
		goto other;
	/* Not connected yet: connect or accept will take it in. */
	if (sys_call(SYS_getpeername, fd, (long)&peer, (long)&bytes, 0, 0, 0) < 0)
		return NULL;
	/* Who else holds a descriptor that came from elsewhere can't be known. */
	open_as(fd, &(struct opening){ .role = ROLE_SERVER, .plain = true });
	return table_conn(fd);
other:
	if (fd >= 0 && table_entry(fd) == TABLE_UNKNOWN)
		table_put(fd, TABLE_OTHER);
	return NULL;
}

bool conn_enter(struct conn *conn, int fd, struct lock_hold *hold)
{
	if (!lock_take(&conn->lock, hold))
		return false;
	if (table_conn(fd) == conn)
		return true;
	lock_give(&conn->lock, hold);
	return false;
}

void conn_leave(struct conn *conn, const struct lock_hold *hold)
{
	lock_give(&conn->lock, hold);
}

int conn_fd(const struct conn *conn)
{
	return atomic_load_explicit(&conn->descriptors, memory_order_relaxed) ?
		       atomic_load_explicit(&conn->fds[0], memory_order_relaxed) :
		       -1;
}

/*
 * The last descriptor goes: everything ends here but the kernel's socket. Under the lock. Returns false if a call that is
 * under way releases the connection.
 */
static bool end(struct conn *conn, int fd)
{
	bool unused;

	conn->left_sets = engine_may_linger(conn, fd) && watch_leave_sets(conn);
	watch_forget(conn); /* before the engine that a hot one looks at */
	unused = engine_close(conn, fd);
	sg_close(conn, fd);
	zerocopy_close(conn, fd);
	stats_slot_close(conn->slot);
	conn->slot = 0;
	atomic_store(&conn->mode, CONN_FREE);
	return unused;
}

/* One of those that were too many. */
static int find_extra(const struct conn *conn)
{
	for (uint32_t fd = 0; fd < table_size; fd++) {
		if (table_conn((int)fd) == conn)
			return (int)fd;
	}
	return -1;
}

/*
 * The number is not in the table any more. One of those that were too many takes its place: there is one as long as there are any, and whoever
 * asks just then (conn_fd()) finds one of the two.
 */
static void forget_descriptor(struct conn *conn, int fd)
{
	int at = 0, other = -1;

	while (at < conn->descriptors && conn->fds[at] != fd)
		at++;
	if (at == conn->descriptors) {
		conn->extra--;
		return;
	}
	if (conn->descriptors == 1 && conn->extra)
		other = find_extra(conn);
	if (other >= 0) {
		conn->fds[0] = other;
		conn->extra--;
	} else {
		conn->fds[at] = conn->fds[conn->descriptors - 1];
		conn->descriptors--;
	}
}

static void close_inside(struct conn *conn, int fd)
{
	struct lock_hold hold;
	bool last, unused = false;

	if (!conn_enter(conn, fd, &hold))
		return;
	sg_flush(conn);
	last = conn->descriptors + conn->extra == 1;
	if (last)
		unused = end(conn, fd);
	else if (conn->watches)
		watch_forget_descriptor(conn, fd);
	table_put(fd, TABLE_UNKNOWN);
	forget_descriptor(conn, fd);
	if (!last)
		engine_number_goes(conn);
	conn_leave(conn, &hold);
	if (unused)
		conn_release(conn);
}

void conn_close(int fd)
{
	struct conn *conn = table_conn(fd);

	table_makes(fd, false);
	if (!conn) {
		if (table_entry(fd) != TABLE_UNKNOWN && table_entry(fd) != TABLE_OWN && conn_process_is_ours()) {
			gate_enter(); /* a child that finds the number, but no set any more, would free it again */
			set_release(fd);
			before_closes(fd);
			table_put(fd, TABLE_UNKNOWN);
			gate_leave();
		}
		return;
	}
	if (!conn_process_is_ours())
		return;
	gate_enter();
	close_inside(conn, fd);
	gate_leave();
}

bool conn_stays_open(int fd)
{
	long flags = sys_call(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0);

	return flags >= 0 && !(flags & FD_CLOEXEC);
}

void conn_dup(int from, int to)
{
	struct conn *conn = table_conn(from);
	struct lock_hold hold;
	bool many;

	if (to < 0 || !conn_process_is_ours())
		return;
	if (table_set(from)) {
		set_dup(from, to);
		return;
	}
	if (!conn || (uint32_t)to >= table_size || !conn_enter(conn, from, &hold))
		return;
	/* Another thread may have closed `from`, and opened it again: then this is what it was before. */
	if (conn_identify(conn, from) && !guest_sandboxed() && !conn_is_same(conn, to)) {
		conn_leave(conn, &hold);
		return;
	}
	table_put(to, (uintptr_t)conn);
	conn->handed |= guest_sandboxed() || conn_stays_open(to);
	if (conn->descriptors < CONN_DESCRIPTORS)
		conn->fds[conn->descriptors++] = to;
	else
		conn->extra++;
	many = conn->extra;
	conn_leave(conn, &hold);
	if (many)
		conn_detach(conn, REASON_DETACHED);
}

void conn_detach(struct conn *conn, enum stat_reason reason)
{
	struct lock_hold hold;

	if (!conn_active(conn) || !lock_take(&conn->lock, &hold))
		return;
	if (atomic_load(&conn->mode) == CONN_ACTIVE) {
		sg_flush(conn);
		zerocopy_settle(conn);
		atomic_store(&conn->mode, CONN_PLAIN);
		stats_reason(conn->slot, reason);
	}
	lock_give(&conn->lock, &hold);
}

void conn_each(void (*visit)(struct conn *conn))
{
	uint32_t count = atomic_load(&conn_pool.slabs);

	for (uint32_t i = 0; i < count; i++) {
		struct conn *slab = slabs[i];

		for (int k = 0; k < SLAB_CONNS; k++) {
			if (atomic_load(&slab[k].mode) != CONN_FREE)
				visit(&slab[k]);
		}
	}
}

struct conn *conn_next(uint32_t *at)
{
	uint32_t count = atomic_load(&conn_pool.slabs) * SLAB_CONNS;

	while (*at < count) {
		struct conn *conn = (struct conn *)slabs[*at / SLAB_CONNS] + *at % SLAB_CONNS;

		++*at;
		if (atomic_load(&conn->mode) != CONN_FREE)
			return conn;
	}
	return NULL;
}
