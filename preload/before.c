/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/before.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/hot.h"
#include "preload/pool.h"
#include "preload/table.h"
#include "preload/watch.h"

#define ROWS 256
#define SLAB_PIECES 64
#define TWINS 16 /* duplicates of one socket that are followed */

/* A registration; without a set: the number is one of several of its socket. */
struct early {
	struct early *next;
	const struct set *set;
	int set_fd, fd;
	int as; /* the number that it was registered by, or -1 - that: it is closed, and nobody can name it any more */
	struct epoll_event event;
};

_Atomic unsigned int before_seen;

static struct pool pool = {
	.bytes = sizeof(struct early),
	.link = offsetof(struct early, next),
	.each = SLAB_PIECES,
	.slabs_max = UINT32_MAX,
	.sharing = MAP_PRIVATE,
};
static struct early *rows[ROWS];
static struct lock rows_lock; /* none is taken under it but the pool's */

static struct early **row_of(int fd)
{
	return &rows[(uint32_t)fd % ROWS];
}

/* Each step leaves lists that can be gone through: another thread may fork. Under the lock. */
static void drop(struct early **at)
{
	struct early *one = *at;

	*at = one->next;
	pool_give(&pool, one);
}

static void keep(const struct early *what)
{
	struct early *one = pool_take(&pool);

	if (!one)
		return;
	*one = *what;
	one->next = *row_of(what->fd);
	*row_of(what->fd) = one;
}

static struct early **find(int fd, const struct set *set, int set_fd)
{
	struct early **at = row_of(fd);

	/* A set that is known may have several numbers. */
	while (*at && ((*at)->fd != fd || (*at)->as != fd || (*at)->set != set || (!set && (*at)->set_fd != set_fd)))
		at = &(*at)->next;
	return at;
}

/* Returns whether it is a TCP socket that may be connected yet. What is none is not asked again. */
static bool is_unconnected(int fd)
{
	uintptr_t entry = table_entry(fd), none = TABLE_UNKNOWN;
	struct sockaddr_storage peer;
	socklen_t bytes = sizeof(peer);

	if ((entry != TABLE_UNKNOWN && entry != TABLE_EARLY) || fd < 0 || guest_sandboxed() || !conn_process_is_ours())
		return false;
	if (entry == TABLE_EARLY)
		return true;
	if (!conn_may_be(fd)) {
		atomic_compare_exchange_strong(&table[fd], &none, TABLE_OTHER);
		return false;
	}
	return sys_call(SYS_getpeername, fd, (long)&peer, (long)&bytes, 0, 0, 0) < 0;
}

/* What is kept of the number is there already: whoever connects it meanwhile finds that, or is found here. */
static void mark(int fd)
{
	uintptr_t none = TABLE_UNKNOWN;
	struct conn *conn;

	if (atomic_compare_exchange_strong(&table[fd], &none, TABLE_EARLY))
		return;
	conn = table_conn(fd);
	if (conn)
		before_opened(conn, fd);
}

void before_ctl(int set_fd, int op, int fd, const struct epoll_event *event)
{
	const struct set *set = table_set(set_fd);
	struct lock_hold hold;
	struct early **at;

	if (!is_unconnected(fd) || !lock_take(&rows_lock, &hold))
		return;
	at = find(fd, set, set_fd);
	if (op == EPOLL_CTL_DEL && *at)
		drop(at);
	else if (op != EPOLL_CTL_DEL && *at)
		(*at)->event = *event;
	else if (op != EPOLL_CTL_DEL)
		keep(&(struct early){ .set = set, .set_fd = set_fd, .fd = fd, .as = fd, .event = *event });
	before_notes(BEFORE_WATCHED);
	lock_give(&rows_lock, &hold);
	mark(fd);
}

static void keep_twin(int fd)
{
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return;
	if (!*find(fd, NULL, -1))
		keep(&(struct early){ .set_fd = -1, .fd = fd, .as = fd });
	before_notes(BEFORE_TWINS);
	lock_give(&rows_lock, &hold);
	mark(fd);
}

void before_dup(int from, int to)
{
	if (to < 0 || (uint32_t)to >= table_size || !is_unconnected(from))
		return;
	keep_twin(from);
	keep_twin(to);
}

/* Takes one of what is kept of the number out. Returns false if there is none. */
static bool take(int fd, struct early *out)
{
	struct lock_hold hold;
	struct early **at = row_of(fd);
	bool found;

	if (!lock_take(&rows_lock, &hold))
		return false;
	while (*at && (*at)->fd != fd)
		at = &(*at)->next;
	found = *at;
	if (found) {
		*out = **at;
		drop(at);
	}
	lock_give(&rows_lock, &hold);
	return found;
}

void before_set_closes(const struct set *set)
{
	struct lock_hold hold;

	if (!(atomic_load_explicit(&before_seen, memory_order_relaxed) & BEFORE_WATCHED) ||
	    !lock_take(&rows_lock, &hold))
		return;
	for (int i = 0; i < ROWS; i++) {
		struct early **at = &rows[i];

		while (*at) {
			if ((*at)->set == set)
				drop(at);
			else
				at = &(*at)->next;
		}
	}
	lock_give(&rows_lock, &hold);
}

/* The registrations of a number that names the connection now. */
static void hand_over(int fd)
{
	struct early one;

	while (take(fd, &one)) {
		int set = one.set_fd;

		if (one.set && table_set(set) != one.set)
			set = set_number(one.set);
		if (set >= 0)
			watch_follow_as(set, EPOLL_CTL_ADD, fd, one.as, &one.event);
	}
}

/* Puts other numbers of its socket, TWINS at most, into fds. Returns how many. */
static int list_twins(int fd, int *fds)
{
	uint64_t cookie = conn_cookie_of(fd);
	struct lock_hold hold;
	int count = 0;

	if (!cookie || !lock_take(&rows_lock, &hold))
		return 0;
	for (int i = 0; i < ROWS; i++) {
		for (struct early *one = rows[i]; one && count < TWINS; one = one->next) {
			if (!one->set && one->set_fd < 0 && one->fd != fd && conn_cookie_of(one->fd) == cookie)
				fds[count++] = one->fd;
		}
	}
	lock_give(&rows_lock, &hold);
	return count;
}

static void keep_for(int twin, struct early *one)
{
	struct lock_hold hold;

	if (!lock_take(&rows_lock, &hold))
		return;
	one->fd = twin;
	one->as = one->as < 0 ? one->as : -1 - one->as;
	keep(one);
	lock_give(&rows_lock, &hold);
}

/* The kernel keeps a registration as long as the socket has another number. */
void before_closes(int fd)
{
	int twins[TWINS];
	bool has_twin =
		atomic_load_explicit(&before_seen, memory_order_relaxed) & BEFORE_TWINS && list_twins(fd, twins);
	struct early one;

	while (take(fd, &one)) {
		if (has_twin && one.set_fd >= 0)
			keep_for(twins[0], &one);
	}
}

static void follow_twins(int fd)
{
	int fds[TWINS], count = list_twins(fd, fds);

	for (int i = 0; i < count; i++) {
		conn_dup(fd, fds[i]);
		hand_over(fds[i]);
	}
}

static int option_of(int fd, int level, int name)
{
	int value = 0;
	socklen_t bytes = sizeof(value);

	return sys_call(SYS_getsockopt, fd, level, name, (long)&value, (long)&bytes, 0) < 0 ? 0 : value;
}

/* Whether the program may get notices of its own by the error queue. */
static bool has_own_notices(int fd)
{
	return option_of(fd, SOL_SOCKET, SO_ZEROCOPY) || option_of(fd, SOL_SOCKET, SO_TIMESTAMPING) ||
	       option_of(fd, SOL_IP, IP_RECVERR) || option_of(fd, SOL_IPV6, IPV6_RECVERR);
}

static void look_at_options(struct conn *conn, int fd)
{
	if (option_of(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT)) {
		engine_pin(conn, fd);
		conn_detach(conn, REASON_DETACHED);
	}
	if (has_own_notices(fd)) {
		conn_detach(conn, REASON_APP_ERRQUEUE);
		conn->app_error_queue = true;
	}
}

void before_inherits(int fd)
{
	if (option_of(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT) || has_own_notices(fd))
		before_notes(BEFORE_OPTIONS);
}

void before_raises(struct conn *conn, int fd)
{
	struct lock_hold hold;

	conn_detach(conn, REASON_APP_ERRQUEUE);
	atomic_store(&conn->signals, true);
	engine_watch(conn, fd);
	if (conn_enter(conn, fd, &hold)) {
		hot_cool(conn);
		conn_leave(conn, &hold);
	}
}

void before_opened(struct conn *conn, int fd)
{
	unsigned int seen = atomic_load(&before_seen);

	if (conn && seen & BEFORE_OPTIONS)
		look_at_options(conn, fd);
	if (conn && seen & BEFORE_SIGNALS && sys_call(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0) & O_ASYNC)
		before_raises(conn, fd);
	if (seen & (BEFORE_WATCHED | BEFORE_TWINS))
		hand_over(fd);
	if (conn && seen & BEFORE_TWINS)
		follow_twins(fd);
}

void before_after_fork(void)
{
	atomic_store(&pool.lock.word, 0);
	atomic_store(&rows_lock.word, 0);
}
