/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/before.h"
#include "preload/defer.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/hot.h"
#include "preload/pool.h"
#include "preload/real.h"
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

/*
 * The registrations by set and data, for events. A row's list is short unless the program gives many connections the same data.
 * Its lock is taken under a connection's, and none under it.
 */
#define ROWS 16384
static struct watch *rows[ROWS];
static struct lock rows_lock; /* of the sets' lists of overdue registrations, too */

static struct watch **row_of(const struct set *set, uint64_t data)
{
	return &rows[((data ^ (uintptr_t)set) * 0x9e3779b97f4a7c15ull) >> 50];
}

/* Each step leaves a list that can be gone through: another thread may fork. */
static void index_put(struct watch *watch)
{
	struct watch **row = row_of(watch->set, watch->event.data.u64);
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return;
	watch->row_next = *row;
	*row = watch;
	lock_give(&rows_lock, &hold);
}

static void unlink_overdue(struct watch *watch)
{
	struct set *set = watch->set;

	*watch->overdue_link = watch->overdue_next;
	if (watch->overdue_next)
		watch->overdue_next->overdue_link = watch->overdue_link;
	else
		set->overdue_last = watch->overdue_link;
	watch->overdue = false;
	atomic_fetch_sub(&set->overdue, 1);
}

static void index_drop(struct watch *watch, bool for_good)
{
	struct watch **at = row_of(watch->set, watch->event.data.u64);
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return;
	while (*at && *at != watch)
		at = &(*at)->row_next;
	if (*at)
		*at = watch->row_next;
	if (for_good && watch->overdue)
		unlink_overdue(watch);
	lock_give(&rows_lock, &hold);
}

void watch_leave_index(struct watch *watch)
{
	index_drop(watch, false);
}

struct conn *watch_conn_of(const struct set *set, uint64_t data, bool (*may_hide)(struct conn *conn))
{
	struct conn *found = NULL;
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return NULL;
	for (struct watch *watch = *row_of(set, data); watch && !found; watch = watch->row_next) {
		if (watch->set == set && watch->event.data.u64 == data && may_hide(watch->conn))
			found = watch->conn;
	}
	lock_give(&rows_lock, &hold);
	return found;
}

/* A line of a set's fdinfo, such as "tfd:        5 events:       19 data:                7  pos:0 ino:...". */
static bool line_has_data(const char *line, uint64_t data)
{
	const char *at = strstr(line, " data:");

	return !strncmp(line, "tfd:", 4) && at && strtoull(at + strlen(" data:"), NULL, 16) == data;
}

bool watch_data_is_shared(int set_fd, uint64_t data)
{
	char path[64], text[1024], line[128];
	size_t used = 0;
	int count = 0;
	long fd, got;

	log_format(path, sizeof(path), "/proc/self/fdinfo/%d", set_fd);
	fd = guest_sandboxed() ? -1 : sys_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
	while (fd >= 0 && count < 2 && (got = sys_call(SYS_read, fd, (long)text, sizeof(text), 0, 0, 0)) > 0) {
		for (long i = 0; i < got; i++) {
			if (text[i] != '\n') {
				line[used] = text[i];
				used += used < sizeof(line) - 1;
				continue;
			}
			line[used] = '\0';
			used = 0;
			count += line_has_data(line, data);
		}
	}
	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return count > 1;
}

void watch_mark_overdue(struct watch *watch)
{
	struct set *set = watch->set;
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return;
	if (!watch->overdue) {
		watch->overdue = true;
		watch->overdue_next = NULL;
		watch->overdue_link = set->overdue_first ? set->overdue_last : &set->overdue_first;
		*watch->overdue_link = watch;
		set->overdue_last = &watch->overdue_next;
		atomic_fetch_add(&set->overdue, 1);
	}
	lock_give(&rows_lock, &hold);
}

struct conn *watch_take_overdue(struct set *set, struct watch **watch)
{
	struct conn *conn = NULL;
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return NULL;
	*watch = set->overdue_first;
	if (*watch) {
		conn = (*watch)->conn;
		unlink_overdue(*watch);
	}
	lock_give(&rows_lock, &hold);
	return conn;
}

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
	atomic_store(&rows_lock.word, 0);
	hot_after_fork();
	before_after_fork();
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
	defer_open(set);
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
		defer_forget(watch);
		hot_drop(conn, watch);
		hot_attend(conn, watch, false);
		index_drop(watch, true);
		*at = watch->next;
		pool_give(&pieces, watch);
	}
}

void watch_forget(struct conn *conn)
{
	remove_watches(conn, NULL, -1);
}

int set_number(const struct set *set)
{
	for (uint32_t fd = 0; fd < table_size; fd++) {
		if (table_set((int)fd) == set)
			return (int)fd;
	}
	return -1;
}

/* Returns whether the kernel's set does not have it any more. */
static bool leaves_kernel(const struct watch *watch)
{
	struct epoll_event none = { 0 };
	int set = watch->fd < 0 ? -1 : set_number(watch->set);
	long rc = set < 0 ? -EBADF : sys_call(SYS_epoll_ctl, set, EPOLL_CTL_DEL, watch->fd, (long)&none, 0, 0);

	return rc >= 0 || rc == -ENOENT;
}

bool watch_leave_sets(struct conn *conn)
{
	bool all = true;

	for (struct watch *watch = conn->watches; watch; watch = watch->next)
		all &= leaves_kernel(watch);
	return all;
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

/* Both under sets_lock: who finds a set in the table there may count on it. */
void set_dup(int from, int to)
{
	struct lock_hold hold;
	struct set *set;

	if (!lock_take(&sets_lock, &hold))
		return;
	set = table_set(from); /* another thread may have closed it */
	if (set) {
		atomic_fetch_add(&set->descriptors, 1);
		defer_settle_set(set);
		table_put(to, (uintptr_t)set | TABLE_SET);
	}
	lock_give(&sets_lock, &hold);
}

void set_release(int fd)
{
	struct lock_hold hold;
	struct set *set;

	if (!lock_take(&sets_lock, &hold))
		return; /* a few bytes lost */
	set = table_set(fd);
	if (set)
		table_put(fd, TABLE_UNKNOWN);
	if (set && atomic_fetch_sub(&set->descriptors, 1) > 1)
		set = NULL;
	leaving = set;
	if (set)
		conn_each(leave_set);
	lock_give(&sets_lock, &hold);
	if (!set)
		return;
	before_set_closes(set);
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
		if (watch->fd != fd)
			continue;
		defer_settle(watch);
		watch->fd = -1 - fd;
	}
}

struct watch *watch_find(struct conn *conn, const struct set *set, int fd)
{
	struct watch *watch = conn->watches;

	while (watch && (watch->set != set || watch->fd != fd))
		watch = watch->next;
	return watch;
}

void watch_changes(struct conn *conn, struct set *set, int set_fd, int op, int fd, const struct epoll_event *event)
{
	struct watch *watch = watch_find(conn, set, fd);

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
		watch->conn = conn;
		watch->set = set;
		watch->fd = fd;
		watch->next = conn->watches;
		conn->watches = watch;
	} else {
		index_drop(watch, false);
	}
	hot_drop(conn, watch);
	watch->gone = false;
	watch->event = *event;
	index_put(watch);
	watch->seen = false;
	watch->seen_refused = UINT32_MAX; /* that there is room at its beginning is to be told */
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
void watch_follow_as(int set_fd, int op, int fd, int as, const struct epoll_event *event)
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
		watch_changes(conn, set, set_fd, op, as, event);
	else
		conn->zerocopy.refused = true;
	conn_leave(conn, &hold);
}

void watch_follow(int set_fd, int op, int fd, const struct epoll_event *event)
{
	watch_follow_as(set_fd, op, fd, fd, event);
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

struct watch *watch_of_event(struct conn *conn, const struct set *set, const struct epoll_event *event)
{
	struct watch *first = NULL;

	for (struct watch *watch = conn->watches; watch; watch = watch->next) {
		if (watch->set != set || watch->event.data.u64 != event->data.u64 || (watch->gone && !watch->deferred))
			continue;
		if (!watch->spent && event->events & (watch->event.events | EPOLLERR | EPOLLHUP))
			return watch;
		if (!first)
			first = watch;
	}
	return first;
}

int watch_pauses(uint64_t until, const sigset_t *mask)
{
	uint64_t now = clock_now(), left = until > now ? until - now : 0;
	struct timespec pause = { 0, (long)(left < NS_PER_MS ? left : NS_PER_MS) };

	return real.ppoll(NULL, 0, &pause, mask);
}
