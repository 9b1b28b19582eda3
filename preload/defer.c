/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/defer.h"

#include <errno.h>
#include <poll.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/hot.h"

#define READS (EPOLLIN | EPOLLRDNORM)
#define WRITES (EPOLLOUT | EPOLLWRNORM)
#define ALWAYS (EPOLLERR | EPOLLHUP)
#define SPECIAL (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP)
#define LOOKS 64

static _Atomic uint32_t forks;
static _Atomic uint32_t ever; /* whether anything was deferred */

void defer_open(struct set *set)
{
	TAILQ_INIT(&set->deferred);
	set->forks = atomic_load(&forks);
}

/* Whether the set and the connection are nobody's but this process's, and nobody sleeps. Under the set's lock. */
static bool are_ours_alone(const struct conn *conn, struct set *set)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);

	return engine && engine_met(engine) && atomic_load(&engine->holders.count) == 1 &&
	       !atomic_load(&conn->signals) && atomic_load(&set->hot) && !atomic_load(&set->nested) &&
	       atomic_load(&set->descriptors) == 1 && set->forks == atomic_load(&forks) &&
	       !atomic_load(&set->sleeping) && !atomic_load(&set->early_sleepers) && !guest_sandboxed() &&
	       !atomic_load(&guest_rings);
}

static uint32_t kernel_has(const struct watch *watch)
{
	return watch->deferred ? watch->kernel_events : watch->event.events;
}

/* Whether what the kernel has will do for what the program wants. event: NULL for no registration. */
static bool will_do(const struct watch *watch, const struct epoll_event *event)
{
	uint32_t has = kernel_has(watch);

	if (!(has & READS) || has & SPECIAL)
		return false;
	return !event || (!(event->events & ~(has | WRITES | ALWAYS)) && event->data.u64 == watch->event.data.u64);
}

static void unlink_watch(struct set *set, struct watch *watch)
{
	TAILQ_REMOVE(&set->deferred, watch, defer_link);
	watch->deferred = false;
	atomic_fetch_sub(&set->deferred_count, 1);
}

static void link_watch(struct set *set, struct watch *watch, uint32_t kernel_events)
{
	watch->kernel_events = kernel_events;
	watch->deferred = true;
	TAILQ_INSERT_TAIL(&set->deferred, watch, defer_link);
	atomic_fetch_add(&set->deferred_count, 1);
	atomic_store_explicit(&ever, 1, memory_order_relaxed);
}

/* Under the set's lock. */
static void make_up(struct set *set, struct watch *watch)
{
	struct epoll_event event = watch->event;

	unlink_watch(set, watch);
	if (watch->gone)
		watch_leave_index(watch);
	sys_call(SYS_epoll_ctl, set->fd, watch->gone ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, watch->fd, (long)&event, 0, 0);
}

/* The registration is what the program wants from here on. Under both locks. */
static void change(struct conn *conn, struct set *set, struct watch *watch, const struct epoll_event *event)
{
	uint32_t has = kernel_has(watch);

	if (watch->deferred)
		unlink_watch(set, watch);
	hot_drop(conn, watch);
	watch->gone = !event;
	watch->event.events = event ? event->events : 0;
	watch->seen = false;
	watch->seen_tail = UINT64_MAX;
	watch->added = atomic_load(&set->emptied);
	if (!event || event->events != has)
		link_watch(set, watch, has);
	if (event)
		hot_enters(conn, watch, set->fd);
	else
		hot_attend(conn, watch, false);
}

/* Under both locks. Returns as defer_ctl. */
static int decide(struct conn *conn, struct set *set, struct watch *watch, int op, const struct epoll_event *event)
{
	const struct epoll_event *wanted = op == EPOLL_CTL_DEL ? NULL : event;

	if (watch->deferred && op == EPOLL_CTL_ADD && !watch->gone)
		return -EEXIST;
	if (watch->deferred && op != EPOLL_CTL_ADD && watch->gone)
		return -ENOENT;
	if (are_ours_alone(conn, set) && (watch->deferred || (op != EPOLL_CTL_ADD && !watch->gone)) &&
	    (op == EPOLL_CTL_DEL || event) && will_do(watch, wanted)) {
		change(conn, set, watch, wanted);
		if (watch->deferred && atomic_load(&set->sleeping)) /* by now: see defer_sleeps */
			make_up(set, watch);
		return 0;
	}
	if (watch->deferred)
		make_up(set, watch);
	return DEFER_NOT;
}

/*
 * Events of a new registration with the data of one that has gone must not be taken for that one's: programs use memory again.
 * Under no lock of a set.
 */
static void make_way(struct set *set, const struct epoll_event *event)
{
	struct watch *watch, *next;
	struct lock_hold hold;

	if (!atomic_load(&set->deferred_count) || !lock_take(&set->defer_lock, &hold))
		return;
	for (watch = TAILQ_FIRST(&set->deferred); watch; watch = next) {
		next = TAILQ_NEXT(watch, defer_link);
		if (watch->gone && watch->event.data.u64 == event->data.u64)
			make_up(set, watch);
	}
	lock_give(&set->defer_lock, &hold);
}

static int ctl_of_conn(struct conn *conn, struct set *set, int set_fd, int op, int fd, const struct epoll_event *event)
{
	struct lock_hold conn_hold, hold;
	struct watch *watch;
	int rc = DEFER_NOT;

	if (!conn_enter(conn, fd, &conn_hold))
		return DEFER_NOT;
	watch = watch_find(conn, set, fd);
	/* Before the kernel arms it: what it tells then is to be heard. */
	if (watch && op == EPOLL_CTL_MOD)
		watch->spent = false;
	if (watch && lock_take(&set->defer_lock, &hold)) {
		set->fd = set_fd;
		rc = decide(conn, set, watch, op, event);
		lock_give(&set->defer_lock, &hold);
	}
	conn_leave(conn, &conn_hold);
	return rc;
}

int defer_ctl(int set_fd, int op, int fd, const struct epoll_event *event)
{
	struct conn *conn = table_conn(fd);
	struct set *set = table_set(set_fd);
	int rc = DEFER_NOT;

	if (!set || op < EPOLL_CTL_ADD || op > EPOLL_CTL_MOD)
		return DEFER_NOT;
	if (conn && conn->watches)
		rc = ctl_of_conn(conn, set, set_fd, op, fd, event);
	if (rc == DEFER_NOT && op != EPOLL_CTL_DEL && event)
		make_way(set, event);
	return rc;
}

/* What the kernel does not look at. */
static bool lacks_room(const struct watch *watch)
{
	return watch->deferred && watch->event.events & ~watch->kernel_events & WRITES;
}

bool defer_corrects(struct conn *conn, struct watch *watch, struct epoll_event *event)
{
	struct pollfd look = { .fd = conn_fd(conn), .events = POLLOUT };

	if (!watch->deferred && !watch->gone)
		return true;
	event->events &= watch->gone ? 0 : watch->event.events | ALWAYS;
	if (!event->events) {
		defer_settle(watch); /* level-triggered: it would come again and again */
		return false;
	}
	/* Of one event, as the kernel would: bytes that come again and again must not keep room from being told. */
	if (lacks_room(watch) && sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) == 1 && look.revents & POLLOUT)
		event->events |= watch->event.events & WRITES;
	return true;
}

bool defer_asks_for_room(struct set *set)
{
	struct lock_hold hold;
	struct watch *watch;
	bool asks = false;

	if (!atomic_load_explicit(&set->deferred_count, memory_order_relaxed) || !lock_take(&set->defer_lock, &hold))
		return false;
	TAILQ_FOREACH(watch, &set->deferred, defer_link)
	{
		if ((asks = lacks_room(watch)))
			break;
	}
	lock_give(&set->defer_lock, &hold);
	return asks;
}

/* Those that ask for room and have not been told of anything in this turn. Returns how many. Under the set's lock. */
static int those_that_ask(struct set *set, struct watch **asking, struct pollfd *looks, int count)
{
	uint32_t turn = atomic_load_explicit(&set->turn, memory_order_relaxed);
	struct watch *watch;
	int found = 0;

	TAILQ_FOREACH(watch, &set->deferred, defer_link)
	{
		if (found == count)
			break;
		if (!lacks_room(watch) || watch->turn == turn)
			continue;
		looks[found] = (struct pollfd){ .fd = watch->fd, .events = POLLOUT };
		asking[found++] = watch;
	}
	return found;
}

/* Under the set's lock. Returns whether it is told. */
static bool tell_room(struct set *set, struct watch *watch, short state, struct epoll_event *event)
{
	if (state != POLLOUT) { /* none, or something that the kernel tells better */
		make_up(set, watch);
		return false;
	}
	/* The next wait begins with another. */
	TAILQ_REMOVE(&set->deferred, watch, defer_link);
	TAILQ_INSERT_TAIL(&set->deferred, watch, defer_link);
	watch->turn = atomic_load_explicit(&set->turn, memory_order_relaxed);
	*event = watch->event;
	event->events &= WRITES | (hot_is_news(watch->conn, watch) ? READS : 0);
	return true;
}

int defer_tell_room(struct set *set, struct epoll_event *events, int count)
{
	struct watch *asking[LOOKS];
	struct pollfd looks[LOOKS];
	struct lock_hold hold;
	int found, told = 0;

	if (!atomic_load_explicit(&set->deferred_count, memory_order_relaxed) || !lock_take(&set->defer_lock, &hold))
		return 0;
	found = those_that_ask(set, asking, looks, count < LOOKS ? count : LOOKS);
	if (found && sys_call(SYS_poll, (long)looks, found, 0, 0, 0, 0) >= 0) {
		for (int i = 0; i < found; i++)
			told += tell_room(set, asking[i], looks[i].revents, &events[told]);
	}
	lock_give(&set->defer_lock, &hold);
	return told;
}

void defer_settle_set(struct set *set)
{
	struct lock_hold hold;

	if (!atomic_load(&set->deferred_count) || !lock_take(&set->defer_lock, &hold))
		return;
	while (!TAILQ_EMPTY(&set->deferred))
		make_up(set, TAILQ_FIRST(&set->deferred));
	lock_give(&set->defer_lock, &hold);
}

void defer_sleeps(struct set *set)
{
	/* One of the two sees the other: whoever has deferred something looks for sleepers after that. */
	atomic_fetch_add(&set->sleeping, 1);
	defer_settle_set(set);
}

void defer_wakes(struct set *set)
{
	atomic_fetch_sub(&set->sleeping, 1);
}

void defer_settle(struct watch *watch)
{
	struct lock_hold hold;

	if (!watch->deferred || !lock_take(&watch->set->defer_lock, &hold))
		return;
	if (watch->deferred)
		make_up(watch->set, watch);
	lock_give(&watch->set->defer_lock, &hold);
}

void defer_forget(struct watch *watch)
{
	struct lock_hold hold;

	if (!watch->deferred || !lock_take(&watch->set->defer_lock, &hold))
		return;
	if (watch->deferred && watch->gone)
		make_up(watch->set, watch);
	else if (watch->deferred)
		unlink_watch(watch->set, watch);
	lock_give(&watch->set->defer_lock, &hold);
}

static void settle_conn(struct conn *conn)
{
	struct lock_hold hold;

	if (!conn->watches || !lock_take(&conn->lock, &hold))
		return;
	for (struct watch *watch = conn->watches; watch; watch = watch->next)
		defer_settle(watch);
	lock_give(&conn->lock, &hold);
}

void defer_settle_all(void)
{
	if (atomic_load_explicit(&ever, memory_order_relaxed) && conn_process_is_ours())
		conn_each(settle_conn);
}

void defer_before_fork(void)
{
	atomic_fetch_add(&forks, 1);
	defer_settle_all();
}

void defer_after_unseen_fork(struct watch *watch)
{
	struct set *set = watch->set;

	atomic_fetch_add(&forks, 1);
	atomic_store(&set->defer_lock.word, 0);
	TAILQ_INIT(&set->deferred);
	atomic_store(&set->deferred_count, 0);
	watch->deferred = false;
}
