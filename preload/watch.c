/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/watch.h"

#include <string.h>
#include <sys/mman.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/hot.h"
#include "preload/pool.h"
#include "preload/zerocopy.h"

#define SLAB_BYTES 16384

/* Watches and sets are small and many. */
union piece {
	void *next;
	struct watch watch;
	struct set set;
};

static struct pool pieces = {
	.bytes = sizeof(union piece),
	.link = offsetof(union piece, next),
	.each = SLAB_BYTES / sizeof(union piece),
	.slabs_max = UINT32_MAX,
	.sharing = MAP_PRIVATE,
};
static struct lock sets_lock; /* of `leaving` and `nesting` */

static void *piece_take(void)
{
	void *piece = pool_take(&pieces);

	if (piece)
		memset(piece, 0, sizeof(union piece));
	return piece;
}

void watch_after_fork(void)
{
	atomic_store(&pieces.lock.word, 0);
	atomic_store(&sets_lock.word, 0);
}

void set_open(int fd)
{
	struct set *set;

	if (fd < 0 || (uint32_t)fd >= table_size)
		return;
	conn_close(fd); /* what the number meant before */
	set = piece_take();
	if (!set)
		return;
	atomic_store(&set->descriptors, 1);
	table_put(fd, (uintptr_t)set | TABLE_SET);
}

/* Returns the set behind an epoll descriptor, made now if it was not known; NULL without memory. */
static struct set *set_of(int fd)
{
	if (!table_set(fd) && !table_conn(fd) && !table_is_own(fd))
		set_open(fd);
	return table_set(fd);
}

/* Removes the registrations that `match` names. Under the connection's lock. */
static void remove_watches(struct conn *conn, const struct set *set, int fd)
{
	struct watch **at = &conn->watches;

	while (*at) {
		struct watch *watch = *at;

		if ((set && watch->set != set) || (fd >= 0 && watch->fd != fd)) {
			at = &watch->next;
			continue;
		}
		hot_drop(conn, watch);
		hot_attend(conn, watch, false);
		*at = watch->next;
		pool_give(&pieces, watch);
	}
}

void watch_forget(struct conn *conn)
{
	remove_watches(conn, NULL, -1);
}

static struct set *leaving;

static void leave_set(struct conn *conn)
{
	struct lock_hold hold;

	if (!conn->watches || !lock_take(&conn->lock, &hold))
		return;
	remove_watches(conn, leaving, -1);
	lock_give(&conn->lock, &hold);
}

void set_release(int fd)
{
	struct set *set = table_set(fd);
	struct lock_hold hold;

	if (!set || atomic_fetch_sub(&set->descriptors, 1) > 1)
		return;
	if (!lock_take(&sets_lock, &hold))
		return; /* a few bytes lost */
	leaving = set;
	conn_each(leave_set);
	lock_give(&sets_lock, &hold);
	hot_free(set);
	pool_give(&pieces, set);
}

void watch_forget_descriptor(struct conn *conn, int fd)
{
	/*
	 * The kernel keeps the registration until the last descriptor goes, but nobody can change it any more; events
	 * still come. So it stays, under a number that no epoll_ctl will name.
	 */
	for (struct watch *watch = conn->watches; watch; watch = watch->next) {
		if (watch->fd == fd)
			watch->fd = -1 - fd;
	}
}

static struct watch *find(struct conn *conn, const struct set *set, int fd)
{
	struct watch *watch = conn->watches;

	while (watch && (watch->set != set || watch->fd != fd))
		watch = watch->next;
	return watch;
}

static void follow_conn(struct conn *conn, struct set *set, int set_fd, int op, int fd, const struct epoll_event *event)
{
	struct watch *watch = find(conn, set, fd);

	if (op == EPOLL_CTL_DEL) {
		if (watch)
			remove_watches(conn, set, fd);
		return;
	}
	if (!watch) {
		watch = piece_take();
		if (!watch) {
			conn->zerocopy.refused = true; /* its events could not be told apart */
			return;
		}
		watch->set = set;
		watch->fd = fd;
		watch->next = conn->watches;
		conn->watches = watch;
	}
	hot_drop(conn, watch);
	watch->event = *event;
	watch->seen = false;
	watch->seen_tail = UINT64_MAX;
	watch->added = atomic_load(&set->emptied);
	hot_enters(conn, watch, set_fd);
}

/*
 * Whether an event of the connection could ever have to be hidden: one on plain calls stays there, and only what was sent
 * before that can be a notice. Programs call epoll_ctl as often as they send, so nothing is kept for the others.
 */
static bool matters(const struct conn *conn)
{
	return conn->zerocopy.enabled || engine_is_there(conn) || (conn_active(conn) && conn->policy != PATH_SG);
}

/*
 * A child of vfork or of a raw clone is not told apart here, which would take a system call each time: it has its parent's
 * sets, in the kernel, too.
 */
void watch_follow(int set_fd, int op, int fd, const struct epoll_event *event)
{
	struct conn *conn = table_conn(fd);
	struct lock_hold hold;
	struct set *set;

	if (!conn) {
		if (op == EPOLL_CTL_ADD && table_set(fd))
			watch_nest(fd);
		return;
	}
	if (!matters(conn))
		return;
	set = set_of(set_fd);
	if (!conn_enter(conn, fd, &hold))
		return;
	if (set)
		follow_conn(conn, set, set_fd, op, fd, event);
	else
		conn->zerocopy.refused = true;
	conn_leave(conn, &hold);
}

static struct set *nesting;

static void stop_zerocopy(struct conn *conn)
{
	struct lock_hold hold;

	if (!conn->watches || !lock_take(&conn->lock, &hold))
		return;
	for (struct watch *watch = conn->watches; watch; watch = watch->next) {
		if (watch->set != nesting)
			continue;
		conn->zerocopy.refused = true;
		conn->zerocopy.why = REASON_NESTED;
		hot_cool(conn);
	}
	lock_give(&conn->lock, &hold);
}

void watch_nest(int fd)
{
	struct set *set = table_set(fd);
	struct lock_hold hold;

	if (!set || atomic_exchange(&set->nested, true) || !lock_take(&sets_lock, &hold))
		return;
	nesting = set;
	conn_each(stop_zerocopy);
	lock_give(&sets_lock, &hold);
	/* Who waits for the set looks inside when the kernel says that there is something. */
	if (atomic_load(&set->overdue))
		hot_wake_sleeper(fd);
}

bool watch_nested(const struct conn *conn)
{
	for (const struct watch *watch = conn->watches; watch; watch = watch->next) {
		if (atomic_load_explicit(&watch->set->nested, memory_order_relaxed))
			return true;
	}
	return false;
}
