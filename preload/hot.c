/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/hot.h"

#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/defer.h"
#include "preload/engine_in.h"
#include "preload/far.h"
#include "preload/hot_rest.h"
#include "preload/real.h"
#include "preload/spread.h"

#define HOT_MAX 240 /* more active connections than that in one set are cold */
#define IDLE_MAX 8  /* sleeps after which one that had nothing stays cold */
#define IDLE_MAX_AT_REST 1000
#define KERNEL_EVERY_NS 20000 /* the kernel's events wait no longer than that behind those of rings */
#define READS (EPOLLIN | EPOLLRDNORM)
#define WRITES (EPOLLOUT | EPOLLWRNORM)

struct hot_entry {
	struct conn *conn;
	struct watch *watch;
	uint32_t idle; /* sleeps since there was something */
};

struct hot {
	struct lock lock;
	struct hot *_Atomic next; /* of all there are */
	uint32_t count;
	uint32_t first; /* where the next wait begins to look, so that none is always last */
	uint32_t turn;
	uint32_t sleepers;
	struct spin spin;
	bool far; /* what is first is from another host: a hint, of the last spin */
	_Atomic uint64_t kernel_asked;
	struct hot_rest rest;
	struct hot_entry entry[HOT_MAX];
};

static struct hot *_Atomic all;
static struct lock all_lock; /* of changes: at any moment it can be walked */

static bool has_news(const struct hot_entry *entry);
static struct epoll_event event_of(const struct hot_entry *entry);

static void enter_all(struct hot *hot)
{
	struct lock_hold hold;

	if (!lock_take(&all_lock, &hold))
		return;
	atomic_store(&hot->next, atomic_load(&all));
	atomic_store(&all, hot);
	lock_give(&all_lock, &hold);
}

static void leave_all(struct hot *hot)
{
	struct hot *_Atomic *at = &all;
	struct lock_hold hold;

	if (!lock_take(&all_lock, &hold))
		return;
	while (atomic_load(at) && atomic_load(at) != hot)
		at = &atomic_load(at)->next;
	if (atomic_load(at))
		atomic_store(at, atomic_load(&hot->next));
	lock_give(&all_lock, &hold);
}

/* Returns the list of a set, made now if need be; NULL without memory. */
static struct hot *list_of(struct set *set)
{
	struct hot *hot = atomic_load_explicit(&set->hot, memory_order_acquire);
	struct hot *none = NULL;

	if (hot)
		return hot;
	hot = sys_map(sizeof(*hot), MAP_PRIVATE);
	if (!hot)
		return NULL;
	hot->spin.ns = (uint32_t)settings.spin_us * 1000;
	hot->rest.fd = -1;
	enter_all(hot);
	if (atomic_compare_exchange_strong(&set->hot, &none, hot))
		return hot;
	leave_all(hot);
	sys_call(SYS_munmap, (long)hot, sizeof(*hot), 0, 0, 0, 0);
	return none;
}

/* All connections were made cold for the fork. The lists may have been in use by threads that are not here. */
void hot_after_fork(void)
{
	atomic_store(&all_lock.word, 0);
	for (struct hot *hot = atomic_load(&all); hot; hot = atomic_load(&hot->next)) {
		atomic_store(&hot->lock.word, 0);
		hot->count = 0;
		hot->sleepers = 0;
		hot_rest_close(&hot->rest); /* what is in it is the parent's */
	}
}

static struct hot *list_there_is(struct set *set)
{
	return atomic_load_explicit(&set->hot, memory_order_acquire);
}

void hot_free(struct set *set)
{
	struct hot *hot = atomic_exchange(&set->hot, NULL);

	if (!hot)
		return;
	leave_all(hot);
	hot_rest_close(&hot->rest);
	sys_call(SYS_munmap, (long)hot, sizeof(*hot), 0, 0, 0, 0);
}

/* A registration has a place under its connection's lock alone, and loses it under the list's: without that, 0 is certain. */
static uint32_t place_of(struct watch *watch)
{
	return atomic_load_explicit(&watch->place, memory_order_acquire);
}

static void put_at(struct watch *watch, uint32_t place)
{
	atomic_store_explicit(&watch->place, place, memory_order_release);
}

/* Entries ------------------------------------------------------------------------------------------------------------ */

void hot_attend(struct conn *conn, struct watch *watch, bool attentive)
{
	if (watch->attentive != attentive)
		atomic_fetch_add(&conn->attention, attentive ? 1 : -1);
	watch->attentive = attentive;
}

static bool may_be_hot(const struct conn *conn, const struct watch *watch)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);

	return engine && engine_met(engine) && atomic_load(&engine->holders.count) == 1 &&
	       !atomic_load(&conn->signals) && watch->event.events & READS &&
	       !(watch->event.events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) && !atomic_load(&watch->set->nested);
}

/* Cold for the time of a sleep, or for good. Under the list's lock. */
static void cool(const struct hot_entry *entry)
{
	hot_rest_ends(entry->conn, entry->watch);
	entry->watch->hot = false;
	hot_attend(entry->conn, entry->watch, true);
}

static void heat(const struct hot_entry *entry)
{
	entry->watch->hot = true;
	hot_attend(entry->conn, entry->watch, false);
	engine_disarm(entry->conn, atomic_load(&entry->conn->engine));
}

/* Threads that are not in the list's count: in a set around it, or asleep since before the first connection. */
static bool sleeps_unseen(const struct set *set)
{
	return atomic_load(&set->nested) || atomic_load(&set->early_sleepers);
}

bool hot_add(struct conn *conn, struct watch *watch)
{
	struct hot *hot = may_be_hot(conn, watch) ? list_of(watch->set) : NULL;
	struct lock_hold hold;

	if (watch->hot || !hot)
		return watch->hot;
	if (!lock_take(&hot->lock, &hold))
		return false;
	if (hot->count < HOT_MAX && !hot->sleepers && !sleeps_unseen(watch->set)) {
		hot->entry[hot->count++] = (struct hot_entry){ conn, watch, 0 };
		put_at(watch, hot->count);
		heat(&hot->entry[hot->count - 1]);
	}
	lock_give(&hot->lock, &hold);
	return watch->hot;
}

/* Its place is the last one's from here on. Under the list's lock. */
static void leave_place(struct hot *hot, uint32_t at)
{
	put_at(hot->entry[at].watch, 0);
	hot_rest_leaves(&hot->rest, hot->entry[at].watch);
	if (at == --hot->count)
		return;
	hot->entry[at] = hot->entry[hot->count];
	put_at(hot->entry[at].watch, at + 1);
}

void hot_drop(struct conn *conn, struct watch *watch)
{
	struct hot *hot = place_of(watch) ? list_there_is(watch->set) : NULL;
	struct lock_hold hold;
	uint32_t place;

	if (!hot || !lock_take(&hot->lock, &hold))
		return;
	place = place_of(watch); /* by now: it may have been armed for good */
	if (place) {
		cool(&hot->entry[place - 1]);
		leave_place(hot, place - 1);
	}
	lock_give(&hot->lock, &hold);
}

/* Tells of an overdue registration, if it still is one. Returns how many events. */
static int tell_overdue(struct conn *conn, struct watch *overdue, struct set *set, int set_fd,
			struct epoll_event *event)
{
	struct hot_entry entry = { conn, conn->watches, 0 };
	struct engine *engine = atomic_load(&conn->engine);
	const struct lane *in;

	while (entry.watch && (entry.watch != overdue || overdue->set != set))
		entry.watch = entry.watch->next;
	if (!entry.watch || !engine)
		return 0;
	overdue->turn = atomic_load_explicit(&set->turn, memory_order_relaxed);
	if (!engine_met(engine) || !(overdue->event.events & READS) || overdue->spent || !has_news(&entry))
		return 0;
	overdue->spent = overdue->event.events & EPOLLONESHOT;
	*event = event_of(&entry);
	/* What is left has no doorbell that would go on telling. */
	in = &engine->channel.in;
	if ((lane_has_left(in) || (!overdue->hot && !lane_bells_sure(in))) &&
	    !(overdue->event.events & (EPOLLET | EPOLLONESHOT))) {
		watch_mark_overdue(overdue);
		if (atomic_load(&set->nested))
			hot_wake_sleeper(set_fd);
	}
	return 1;
}

int hot_tell_overdue(struct set *set, int set_fd, struct epoll_event *events, int count)
{
	int told = 0;

	/* As many as there are now: some come again. */
	for (uint32_t left = atomic_load(&set->overdue); left && told < count; left--) {
		struct watch *watch;
		struct conn *conn = watch_take_overdue(set, &watch);
		struct lock_hold hold;

		if (!conn || !lock_take(&conn->lock, &hold))
			continue;
		told += tell_overdue(conn, watch, set, set_fd, &events[told]);
		lock_give(&conn->lock, &hold);
	}
	return told;
}

/*
 * What came to a ring between its registration's last place in the list and its arming has no doorbell. Whoever is not asleep yet
 * finds the registration overdue before he is.
 */
static void tell_sleepers(struct watch *watch)
{
	struct hot *hot = list_there_is(watch->set);
	struct lock_hold hold;
	bool sleeps = false;
	int fd;

	watch_mark_overdue(watch);
	if (hot && lock_take(&hot->lock, &hold)) {
		sleeps = hot->sleepers;
		lock_give(&hot->lock, &hold);
	}
	fd = sleeps || sleeps_unseen(watch->set) ? set_number(watch->set) : -1;
	if (fd >= 0)
		hot_wake_sleeper(fd);
}

void hot_cool(struct conn *conn)
{
	struct engine *engine = atomic_load(&conn->engine);

	for (struct watch *watch = conn->watches; watch; watch = watch->next) {
		defer_settle(watch);
		hot_drop(conn, watch);
	}
	if (engine && conn->watches && !engine_arm(conn, engine)) {
		for (struct watch *watch = conn->watches; watch; watch = watch->next)
			tell_sleepers(watch);
	}
}

void hot_enters(struct conn *conn, struct watch *watch, int set_fd)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct hot *hot = list_there_is(watch->set);

	hot_attend(conn, watch, watch->event.events & READS);
	if (hot && watch->event.events & EPOLLET && watch->event.events & WRITES) /* the edge of room is the kernel's */
		atomic_store_explicit(&hot->kernel_asked, 0, memory_order_relaxed);
	if (!engine || !watch->attentive || hot_add(conn, watch) || engine_arm(conn, engine))
		return;
	/* Bytes whose doorbell is in the stream are the kernel's to tell: of a one-shot registration only one of us may. */
	if (lane_bells_sure(&engine->channel.in))
		return;
	watch_mark_overdue(watch);
	hot = list_there_is(watch->set);
	if ((hot && hot->sleepers) || sleeps_unseen(watch->set))
		hot_wake_sleeper(set_fd);
}

/* Telling ------------------------------------------------------------------------------------------------------------ */

void hot_turn(struct set *set)
{
	struct hot *hot = list_there_is(set);

	if (hot || atomic_load_explicit(&set->deferred_count, memory_order_relaxed))
		atomic_fetch_add_explicit(&set->turn, 1, memory_order_relaxed);
}

static struct engine *engine_of(const struct hot_entry *entry)
{
	return atomic_load_explicit(&entry->conn->engine, memory_order_acquire);
}

static struct lane *lane_of(const struct hot_entry *entry)
{
	return &engine_of(entry)->channel.in;
}

/* Whether there is something in the ring that the program has not been told of, or is to be told of again. */
static bool has_news(const struct hot_entry *entry)
{
	struct lane *in = lane_of(entry);
	uint64_t tail;

	if (!(entry->watch->event.events & READS))
		return false; /* the program does not ask at present */
	far_poll(entry->conn, engine_of(entry));
	tail = atomic_load_explicit(&in->shared->tail, memory_order_acquire);
	if (tail == atomic_load_explicit(&in->shared->head, memory_order_relaxed))
		return false;
	if (entry->watch->event.events & EPOLLET && tail == entry->watch->seen_tail)
		return false;
	return lane_unread(in) > 0 || lane_backlog(in) < 0;
}

bool hot_is_news(struct conn *conn, struct watch *watch)
{
	struct hot_entry entry = { conn, watch, 0 };

	return watch->hot && has_news(&entry);
}

bool hot_has_news(struct set *set)
{
	struct hot *hot = list_there_is(set);
	struct lock_hold hold;
	bool news = false;

	if (!hot || !lock_take(&hot->lock, &hold))
		return false;
	for (uint32_t i = 0; i < hot->count && !news; i++)
		news = has_news(&hot->entry[i]);
	lock_give(&hot->lock, &hold);
	return news;
}

/*
 * The event of an entry. A level-triggered registration is told of room, too, if it asks; an edge-triggered one where the kernel's
 * edge, with a doorbell, would have told of it.
 */
static struct epoll_event event_of(const struct hot_entry *entry)
{
	struct watch *watch = entry->watch;
	struct epoll_event event = { .events = watch->event.events & READS, .data = watch->event.data };
	struct pollfd look = { .fd = conn_fd(entry->conn), .events = POLLOUT };

	watch->seen_tail = atomic_load_explicit(&lane_of(entry)->shared->tail, memory_order_acquire);
	if (watch->event.events & WRITES && (watch->link || !(watch->event.events & EPOLLET)) &&
	    sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) == 1 && look.revents & POLLOUT)
		event.events |= watch->event.events & WRITES;
	return event;
}

int hot_tell(struct set *set, struct epoll_event *events, int count)
{
	struct hot *hot = list_there_is(set);
	uint32_t turn = atomic_load_explicit(&set->turn, memory_order_relaxed);
	struct lock_hold hold;
	int told = 0;

	if (!hot || !hot->count || !lock_take(&hot->lock, &hold))
		return 0;
	for (uint32_t i = 0; i < hot->count && told < count; i++) {
		uint32_t at = (hot->first + i) % hot->count;
		struct hot_entry *entry = &hot->entry[at];

		if (!entry->watch->hot || entry->watch->turn == turn || !has_news(entry))
			continue;
		entry->watch->turn = turn;
		entry->idle = 0;
		events[told++] = event_of(entry);
		if (told == count)
			hot->first = at + 1;
	}
	lock_give(&hot->lock, &hold);
	return told;
}

bool hot_kernel_waits_long(struct set *set)
{
	struct hot *hot = list_there_is(set);

	return !hot || clock_now() - atomic_load_explicit(&hot->kernel_asked, memory_order_relaxed) >= KERNEL_EVERY_NS;
}

bool hot_kernel_waits(struct set *set)
{
	struct hot *hot = list_there_is(set);

	return hot && (hot->count || atomic_load_explicit(&set->deferred_count, memory_order_relaxed)) &&
	       hot_kernel_waits_long(set);
}

void hot_kernel_asked(struct set *set)
{
	struct hot *hot = list_there_is(set);

	if (hot)
		atomic_store_explicit(&hot->kernel_asked, clock_now(), memory_order_relaxed);
}

/* Spinning and sleeping ---------------------------------------------------------------------------------------------- */

/* One for all: as a rule they are of one peer. Returns the engine of one of them, or NULL. Under the list's lock. */
static struct engine *engine_of_first(const struct hot *hot)
{
	return hot->count ? atomic_load(&hot->entry[hot->first % hot->count].conn->engine) : NULL;
}

/* Between hosts the connection's own: it knows when its lane comes to the ring. */
static struct spin *spin_of(struct hot *hot, struct engine *engine)
{
	return far_is(engine) ? &engine->spin : &hot->spin;
}

uint32_t hot_spin_ns(struct set *set)
{
	struct hot *hot = list_there_is(set);
	struct engine *engine;
	struct lock_hold hold;
	uint32_t ns = 0;

	if (!hot || !hot->count || !settings.spin_us || !lock_take(&hot->lock, &hold))
		return 0;
	engine = engine_of_first(hot);
	hot->far = engine && far_is(engine);
	if (engine && spin_may(spin_of(hot, engine)) && (hot->far || spread_apart(engine)))
		ns = spin_of(hot, engine)->ns;
	lock_give(&hot->lock, &hold);
	return ns;
}

void hot_has_spun(struct set *set, bool paid)
{
	struct hot *hot = list_there_is(set);
	struct engine *engine;
	struct lock_hold hold;

	if (!hot)
		return;
	if (!hot->far) { /* the set's own, and no lock on the way of each wait */
		spin_ends(&hot->spin, paid, (uint32_t)settings.spin_us * 1000);
		return;
	}
	if (!lock_take(&hot->lock, &hold))
		return;
	engine = engine_of_first(hot);
	if (engine)
		engine_has_spun(spin_of(hot, engine), engine, paid);
	lock_give(&hot->lock, &hold);
}

/* What stays hot without a doorbell may be quiet for longer. */
static bool is_idle(const struct hot_entry *entry)
{
	return entry->idle > (entry->watch->link ? IDLE_MAX_AT_REST : IDLE_MAX);
}

/* All are hot again, but for those that had nothing for a while: they are armed, and stay cold. Under the list's lock. */
static void heat_all(struct hot *hot, uint32_t slept)
{
	for (uint32_t i = hot->count; i > 0; i--) {
		struct hot_entry *entry = &hot->entry[i - 1];

		entry->idle += slept;
		if (is_idle(entry)) {
			cool(entry);
			if (engine_arm(entry->conn, engine_of(entry))) {
				leave_place(hot, i - 1);
				continue;
			}
		}
		hot_rest_ends(entry->conn, entry->watch);
		if (!entry->watch->hot)
			heat(entry);
	}
}

/* Makes sure that what comes wakes who sleeps. Returns whether there is something already. */
static bool watch_entry(struct hot *hot, struct hot_entry *entry)
{
	if (!hot->sleepers && !sleeps_unseen(entry->watch->set) &&
	    hot_rest_begins(&hot->rest, entry->conn, entry->watch))
		return has_news(entry);
	if (entry->watch->hot)
		cool(entry);
	hot_rest_leaves(&hot->rest, entry->watch);
	return !engine_arm(entry->conn, engine_of(entry)) && has_news(entry);
}

/* The same for all; behind one that has something it does not matter. */
static bool watch_all(struct hot *hot, const struct set *set)
{
	bool news = false;

	hot->rest.crowded |= hot->sleepers > 0 || sleeps_unseen(set);
	for (uint32_t i = 0; i < hot->count && !news; i++)
		news = watch_entry(hot, &hot->entry[i]);
	return news;
}

bool hot_sleeps(struct set *set, int *more)
{
	struct hot *hot = list_of(set);
	struct lock_hold hold;
	bool news;

	*more = -1;
	if (!hot || !lock_take(&hot->lock, &hold))
		return true;
	news = watch_all(hot, set) || atomic_load(&set->overdue);
	if (!news) {
		hot->sleepers++;
		*more = hot->rest.crowded ? -1 : hot->rest.fd;
	} else if (!hot->sleepers && !sleeps_unseen(set)) {
		heat_all(hot, 0);
	}
	lock_give(&hot->lock, &hold);
	return !news;
}

void hot_device_told(struct set *set)
{
	struct hot *hot = list_there_is(set);
	struct lock_hold hold;

	if (!hot || !lock_take(&hot->lock, &hold))
		return;
	hot_rest_told(&hot->rest);
	lock_give(&hot->lock, &hold);
}

void hot_wakes(struct set *set)
{
	struct hot *hot = list_there_is(set);
	struct lock_hold hold;

	if (!hot || !lock_take(&hot->lock, &hold))
		return;
	if (hot->sleepers && !--hot->sleepers && !sleeps_unseen(set))
		heat_all(hot, 1);
	lock_give(&hot->lock, &hold);
}
