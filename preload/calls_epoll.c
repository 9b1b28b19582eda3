/* SPDX-License-Identifier: MIT */
/*
 * epoll. The program's registrations go to the kernel as they are. An event that a zerocopy notice of ours has a part in
 * (EPOLLERR) is looked at before it is told: the notices are taken, the socket is asked for its state, and what the program
 * would have been told without them is what it is told. Level-triggered: the state, if any is left. Edge-triggered: the state,
 * if something in it is new since the last event. One-shot: if nothing is left, it is armed again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/defer.h"
#include "preload/engine_in.h"
#include "preload/far.h"
#include "preload/guest.h"
#include "preload/hot.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/signals.h"
#include "preload/spare.h"
#include "preload/trim.h"
#include "preload/watch.h"
#include "preload/zerocopy.h"

#define LASTING (EPOLLHUP | EPOLLRDHUP | EPOLLERR)
#define READABLE (EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDBAND)
#define WRITABLE (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)
#define CACHE_ROWS 1024

/* Finding the connection of an event: a cache in front of the index, which has a lock. */
static struct conn *_Atomic cache[CACHE_ROWS];

static size_t row_of(const struct set *set, uint64_t data)
{
	uint64_t key = data ^ (uintptr_t)set;

	return (key * 0x9e3779b97f4a7c15ull) >> 54;
}

/* Whether an event on the connection may have no cause but ours: a notice, a doorbell, or a change that the kernel does not know. */
static bool may_hide(struct conn *conn)
{
	return conn->zerocopy.enabled || engine_has_met(conn) || conn->watches;
}

/* Returns the connection, locked, with its registration; NULL: none of those. */
static struct conn *find_conn(const struct set *set, const struct epoll_event *event, struct watch **watch,
			      struct lock_hold *hold)
{
	uint64_t data = event->data.u64;
	struct conn *conn = atomic_load_explicit(&cache[row_of(set, data)], memory_order_relaxed);

	for (int tries = 0; tries < 2; tries++) {
		if (conn && may_hide(conn) && lock_take(&conn->lock, hold)) {
			*watch = watch_of_event(conn, set, event);
			if (*watch)
				return conn;
			lock_give(&conn->lock, hold);
		}
		conn = watch_conn_of(set, data, may_hide);
		if (!conn)
			return NULL;
		atomic_store_explicit(&cache[row_of(set, data)], conn, memory_order_relaxed);
	}
	return NULL;
}

/* Bytes that the socket has received so far, and the end of them. */
static uint64_t received(int fd)
{
	struct tcp_info info;
	socklen_t bytes = sizeof(info);

	memset(&info, 0, sizeof(info));
	sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0);
	return info.tcpi_bytes_received;
}

/* The state of the socket as the registration sees it, after all notices are taken. *taken counts those. */
static uint32_t state_of(struct conn *conn, const struct watch *watch, int *taken)
{
	struct pollfd look = { .fd = conn_fd(conn), .events = (short)(watch->event.events & 0xffff) };
	int now;

	*taken = 0;
	do {
		now = zerocopy_harvest(conn);
		*taken += now;
		look.revents = 0;
		sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0);
	} while (now && (look.revents & POLLERR));
	return (uint32_t)(unsigned short)look.revents & (watch->event.events | EPOLLERR | EPOLLHUP);
}

/* Whether somebody, of this process or another one, may wait for room: all that there is has not been told of since. */
static bool room_is_new(struct conn *conn, struct watch *watch)
{
	struct engine *engine = atomic_load(&conn->engine);
	bool refused = engine && engine_was_refused(engine, &watch->seen_refused);

	return atomic_exchange(&conn->send_blocked, false) || refused;
}

/* What of the state an edge-triggered registration has not been told. */
static bool is_new(struct conn *conn, struct watch *watch, uint32_t state)
{
	/*
	 * Nothing was kept of what was told before zerocopy came: what can be read may be new. That there is room was told
	 * by the first wait after the registration that left nothing behind.
	 */
	if (!watch->seen && ((state & ~WRITABLE) || atomic_load(&watch->set->emptied) == watch->added))
		return true;
	if (state & LASTING & ~watch->seen_lasting)
		return true;
	if ((state & READABLE) && received(conn_fd(conn)) != watch->seen_bytes)
		return true;
	return (state & WRITABLE) && room_is_new(conn, watch);
}

static uint64_t bells_seen(struct conn *conn)
{
	return atomic_load(&atomic_load(&conn->engine)->channel.in.shared->bells_seen);
}

static void tell(struct conn *conn, struct watch *watch, uint32_t state)
{
	if (!(watch->event.events & EPOLLET))
		return;
	watch->seen = true;
	watch->seen_lasting = state & LASTING;
	watch->seen_bytes = received(conn_fd(conn));
	watch->seen_bells = engine_has_met(conn) ? bells_seen(conn) : 0;
	if (state & WRITABLE)
		room_is_new(conn, watch);
}

/* A one-shot registration whose event is not told has to be armed again. */
static bool hide(int set_fd, struct conn *conn, const struct watch *watch)
{
	stats_conn(conn->slot, STAT_CONN_HIDDEN_EVENTS, 1);
	if (watch->event.events & EPOLLONESHOT && watch->fd >= 0)
		real.epoll_ctl(set_fd, EPOLL_CTL_MOD, watch->fd, (struct epoll_event *)&watch->event);
	return false;
}

/*
 * There is nothing to be read from the connection. Whether that is because the event is another registration's: a program may give
 * several of one set the same data, and has to look at each of them then. It was a doorbell of ours if one was taken, or is there.
 */
static bool is_of_another(int set_fd, struct conn *conn, const struct watch *watch, uint64_t bells_before)
{
	struct pollfd look = { .fd = conn_fd(conn), .events = POLLIN };

	return bells_seen(conn) == bells_before && sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) == 0 &&
	       watch_data_is_shared(set_fd, watch->event.data.u64);
}

/*
 * Between hosts a byte of ours may be taken by the agent, or by another thread, after it has woken the kernel's set and before that
 * tells: then the edge is of what else is true of the socket, for which there was none.
 */
static bool is_left_of_bell(struct conn *conn, struct watch *watch, uint32_t events)
{
	uint64_t before = watch->seen_bells;

	if (!(watch->event.events & EPOLLET) || events & ~WRITABLE || !far_is(atomic_load(&conn->engine)))
		return false;
	watch->seen_bells = bells_seen(conn);
	return watch->seen_bells != before;
}

/* Whether the event may have been of a byte of ours, which was taken before `bells`, or since, by the agent or another thread. */
static bool was_of_bell(struct conn *conn, const struct watch *watch, uint64_t bells)
{
	uint64_t now = bells_seen(conn);

	return now != bells ||
	       (watch->event.events & EPOLLET && now != watch->seen_bells && far_is(atomic_load(&conn->engine)));
}

/* What the kernel tells of the stream's end by now, where what makes the event true may be that end. */
static uint32_t end_of(struct conn *conn, const struct watch *watch)
{
	struct pollfd look = { .fd = conn_fd(conn), .events = POLLRDHUP };

	sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0);
	return (uint32_t)(unsigned short)look.revents & (EPOLLHUP | (watch->event.events & EPOLLRDHUP));
}

/*
 * The kernel says readable: a doorbell says so, too. Takes it out if that was all. What else an edge tells then was no edge of
 * its own, unless there was something to wait for.
 */
static bool look_at_ring(int set_fd, struct conn *conn, struct watch *watch, struct epoll_event *event)
{
	uint32_t left = event->events & ~(uint32_t)(EPOLLIN | EPOLLRDNORM);
	enum engine_ready ready;
	uint64_t bells;

	if (!(event->events & (EPOLLIN | EPOLLRDNORM)))
		return !is_left_of_bell(conn, watch, event->events) || room_is_new(conn, watch);
	bells = bells_seen(conn);
	ready = engine_look(conn, conn_fd(conn));
	if (ready == ENGINE_PART) {
		atomic_store_explicit(&watch->set->has_part, true, memory_order_relaxed);
	} else if (ready != ENGINE_SPURIOUS || is_of_another(set_fd, conn, watch, bells)) {
		if (was_of_bell(conn, watch, bells))
			event->events |= end_of(conn, watch);
		return true;
	}
	event->events = left;
	if (watch->event.events & EPOLLET && !(left & ~WRITABLE))
		return (left & WRITABLE) && room_is_new(conn, watch);
	return left != 0;
}

/*
 * The event is told: the next ones of a ring need no doorbell, and none of this turn is told again. The kernel knows nothing of
 * what came to a ring without one: that is of the same event, as a program may have closed all when it comes to a second one.
 */
static void told_of_ring(struct conn *conn, struct watch *watch, struct epoll_event *event)
{
	struct engine *engine = atomic_load(&conn->engine);

	if (!engine || !engine_met(engine))
		return;
	watch->spent = watch->event.events & EPOLLONESHOT;
	if (hot_is_news(conn, watch))
		event->events |= watch->event.events & (EPOLLIN | EPOLLRDNORM);
	/* One event of each registration in a wait: what comes in this moment is told by the next one. */
	watch->turn = atomic_load_explicit(&watch->set->turn, memory_order_relaxed);
	if (!(event->events & READABLE))
		return;
	watch->seen_tail = atomic_load(&engine->channel.in.shared->tail);
	hot_add(conn, watch);
}

/* A one-shot registration was told of something in the ring, and the kernel does not know. By now it does, or the event is another's. */
static bool was_spent(int set_fd, struct conn *conn, const struct watch *watch)
{
	if (!watch->spent || watch_data_is_shared(set_fd, watch->event.data.u64))
		return false;
	stats_conn(conn->slot, STAT_CONN_HIDDEN_EVENTS, 1);
	return true;
}

/* Returns whether the event is to be told, and puts it right. */
static bool look_through(int set_fd, struct conn *conn, struct watch *watch, struct epoll_event *event)
{
	uint32_t state;
	bool due;
	int taken;

	if (engine_has_met(conn) && !look_at_ring(set_fd, conn, watch, event))
		return hide(set_fd, conn, watch);
	state = event->events;
	if (!(event->events & EPOLLERR)) {
		tell(conn, watch, state);
		return true;
	}
	state = state_of(conn, watch, &taken);
	if (!taken && (state & EPOLLERR)) { /* an error of the program's own */
		tell(conn, watch, state);
		return true;
	}
	due = state &&
	      (!(watch->event.events & EPOLLET) || (watch->event.events & EPOLLONESHOT) || is_new(conn, watch, state));
	if (!due)
		return hide(set_fd, conn, watch);
	event->events = state;
	tell(conn, watch, state);
	return true;
}

/* Takes events out that are ours alone. Returns how many are left. */
static int filter(int set_fd, struct epoll_event *events, int count)
{
	struct set *set = table_set(set_fd);
	int left = 0;

	if (!set)
		return count;
	for (int i = 0; i < count; i++) {
		struct lock_hold hold;
		struct watch *watch;
		struct conn *conn = find_conn(set, &events[i], &watch, &hold);
		bool told = !hot_is_wake(&events[i]);

		if (conn) {
			told = !was_spent(set_fd, conn, watch) && defer_corrects(conn, watch, &events[i]) &&
			       look_through(set_fd, conn, watch, &events[i]);
			if (told)
				told_of_ring(conn, watch, &events[i]);
			lock_give(&conn->lock, &hold);
		}
		if (told)
			events[left++] = events[i];
	}
	return left;
}

static inline bool notices_now(void)
{
	return __builtin_expect(atomic_load_explicit(&conn_zerocopy_used, memory_order_relaxed) != 0, 0);
}

static inline bool events_possible(void)
{
	return __builtin_expect(atomic_load_explicit(&conn_zerocopy_ever, memory_order_relaxed), 0) ||
	       engine_possible();
}

static bool has_error(const struct epoll_event *events, int count)
{
	for (int i = 0; i < count; i++) {
		if (events[i].events & EPOLLERR)
			return true;
	}
	return false;
}

/* Returns how many of `count` events are to be told; 0: ask again. `room` is what the program had room for. */
static int told(int set_fd, struct epoll_event *events, int count, int room)
{
	struct set *set = count < room ? table_set(set_fd) : NULL;
	int saved = errno;

	/* Notices taken by another thread meanwhile have left an event without a cause: that is looked at too. */
	if (notices_now() || engine_possible() || has_error(events, count)) {
		count = filter(set_fd, events, count);
		errno = saved;
	}
	if (set)
		atomic_fetch_add_explicit(&set->emptied, 1, memory_order_relaxed);
	return count;
}

/* A wait: what the program asked, and until when. */
struct wait {
	int set;
	struct epoll_event *events;
	int count;
	uint64_t until; /* UINT64_MAX: for ever; 0: it only looks */
	const sigset_t *mask;
	bool fine;	      /* epoll_pwait2 */
	uint32_t interrupted; /* signals_run at its beginning */
};

static int left_ms(uint64_t until)
{
	uint64_t now = clock_now();

	/* Rounded up, as the kernel never wakes early. */
	return until == UINT64_MAX ? -1 : until > now ? (int)((until - now + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

/* Asks the kernel, into the events from `from` on; until 0: only looks. */
static int ask_kernel(const struct wait *wait, int from, uint64_t until)
{
	bool looks = !until;
	uint64_t now = wait->fine && !looks && until != UINT64_MAX ? clock_now() : 0;
	uint64_t rest = until > now && !looks ? until - now : 0;
	struct timespec left = { (time_t)(rest / NS_PER_SEC), (long)(rest % NS_PER_SEC) };

	if (!wait->fine)
		return real.epoll_pwait(wait->set, wait->events + from, wait->count - from, looks ? 0 : left_ms(until),
					wait->mask);
	return real.epoll_pwait2(wait->set, wait->events + from, wait->count - from,
				 looks || until != UINT64_MAX ? &left : NULL, wait->mask);
}

/* What rings have. Returns how many events; now and then those of the kernel are in front of them. */
static int tell_rings(const struct wait *wait, struct set *set)
{
	int ready, more;

	hot_turn(set);
	ready = hot_tell_overdue(set, wait->set, wait->events, wait->count);
	if (ready ? ready < wait->count && hot_kernel_waits_long(set) : hot_kernel_waits(set)) {
		if (!ready && !hot_has_news(set) &&
		    !defer_asks_for_room(set)) /* it is asked at once, for as long as the program likes */
			return 0;
		hot_kernel_asked(set);
		more = ask_kernel(wait, ready, 0);
		ready += more > 0 ? told(wait->set, wait->events + ready, more, wait->count - ready) : 0;
	}
	if (ready < wait->count)
		ready += defer_tell_room(set, wait->events + ready, wait->count - ready);
	return ready + (ready < wait->count ? hot_tell(set, wait->events + ready, wait->count - ready) : 0);
}

#define LOOKS 128

/* Spins while that has paid lately. Returns whether there is something: in a ring, or for the kernel to tell. */
static bool spin(const struct wait *wait, struct set *set)
{
	uint32_t ns = hot_spin_ns(set);
	uint64_t until = ns ? clock_now() + ns : 0;

	while (ns && clock_now() < until) {
		struct pollfd look = { .fd = wait->set, .events = POLLIN };

		for (int i = 0; i < LOOKS; i++) {
			if (hot_has_news(set)) {
				hot_has_spun(set, true);
				return true;
			}
			cpu_relax();
		}
		if (signals_run != wait->interrupted || sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) > 0)
			return true;
	}
	if (ns)
		hot_has_spun(set, false);
	return false;
}

static void sleep_ends(struct set **set)
{
	if (!*set)
		return;
	hot_wakes(*set);
	defer_wakes(*set);
}

/* The set, and devices. Returns as ask_kernel(). */
static int ask_with_devices(const struct wait *wait, struct set *set, int devices, uint64_t until)
{
	struct pollfd both[2] = { { .fd = wait->set, .events = POLLIN }, { .fd = devices, .events = POLLIN } };
	uint64_t now = until == UINT64_MAX ? 0 : clock_now(), rest = until > now ? until - now : 0;
	struct timespec left = { (time_t)(rest / NS_PER_SEC), (long)(rest % NS_PER_SEC) };
	int ready = real.ppoll(both, 2, until == UINT64_MAX ? NULL : &left, wait->mask);

	if (ready < 0)
		return ready;
	if (both[1].revents)
		hot_device_told(set);
	return both[0].revents ? ask_kernel(wait, 0, 0) : 0;
}

static int sleep_in_kernel(const struct wait *wait, struct set *set)
{
	__attribute__((cleanup(sleep_ends))) struct set *sleeping = NULL;
	uint64_t until = trim_before_sleep(wait->until);
	int ready, devices;

	defer_sleeps(set);
	if (!hot_sleeps(set, &devices)) {
		defer_wakes(set);
		return 0;
	}
	sleeping = set; /* NOLINT(clang-analyzer-deadcode.DeadStores): for the cleanup */
	ready = devices < 0 ? ask_kernel(wait, 0, until) : ask_with_devices(wait, set, devices, until);
	hot_kernel_asked(set);
	return ready;
}

/* Whether an event was not told because of an ENGINE_PART. */
static bool met_part(struct set *set)
{
	return __builtin_expect(atomic_load_explicit(&set->has_part, memory_order_relaxed), 0) &&
	       atomic_exchange(&set->has_part, false);
}

#define ASKS_AT_ONCE 256 /* a bound for what a peer can do to a wait that only looks */

/* Returns what the program is told, or 0 when its time is over. */
static int wait_for_rings(struct wait *wait)
{
	struct set *set = guest_sandboxed() || wait->count <= 0 ? NULL : table_set(wait->set);
	int asks = ASKS_AT_ONCE, ready;
	bool part, full, over;

	wait->interrupted = signals_run;
	for (;;) {
		ready = set ? tell_rings(wait, set) : 0;
		if (ready)
			return ready;
		if (set && wait->until && !wait->mask && spin(wait, set)) {
			if (signals_run != wait->interrupted) {
				errno = EINTR;
				return -1;
			}
			hot_kernel_asked(set);
			ready = ask_kernel(wait, 0, 0);
		} else if (set && wait->until) {
			ready = sleep_in_kernel(wait, set);
		} else {
			ready = ask_kernel(wait, 0, wait->until);
		}
		if (ready < 0)
			return ready;
		full = ready == wait->count;
		ready = ready ? told(wait->set, wait->events, ready, wait->count) : 0;
		part = set && met_part(set);
		over = !ready && wait->until != UINT64_MAX && clock_now() >= wait->until;
		/* What is not told may have stood in front of what is. */
		if (ready || (over && !(full && asks-- > 0)))
			return ready;
		if (part && !over && watch_pauses(wait->until, wait->mask) < 0)
			return -1;
	}
}

/* A sleep that is not in the list's count; the set may be closed meanwhile. */
struct early_sleep {
	struct set *set;
	int fd;
};

static void early_sleep_ends(struct early_sleep *sleep)
{
	if (sleep->set && table_set(sleep->fd) == sleep->set)
		atomic_fetch_sub(&sleep->set->early_sleepers, 1);
}

static int sleep_early(const struct wait *wait, struct set *set)
{
	__attribute__((cleanup(early_sleep_ends))) struct early_sleep sleep = { NULL, wait->set };

	atomic_fetch_add(&set->early_sleepers, 1);
	sleep.set = set; /* NOLINT(clang-analyzer-deadcode.DeadStores): for the cleanup */
	return events_possible() ? 0 : ask_kernel(wait, 0, wait->until);
}

/* Whether no connection of this process has events that are looked at, and none will. */
static inline bool is_plain(void)
{
	return !choose_moves && !events_possible();
}

/*
 * No connection yet. Another thread may begin one while this one sleeps: so it is counted, and what it is told then is looked at.
 * Returns as the kernel does.
 */
static int wait_early(struct wait *wait)
{
	struct set *set = wait->until ? table_set(wait->set) : NULL;
	int ready;

	if (!set)
		return ask_kernel(wait, 0, wait->until);
	ready = sleep_early(wait, set);
	if (!events_possible() || ready < 0)
		return ready;
	ready = told(wait->set, wait->events, ready, wait->count);
	return ready ? ready : wait_for_rings(wait);
}

ZC_EXPORT int epoll_pwait(int set, struct epoll_event *events, int count, int timeout, const sigset_t *mask)
{
	struct wait wait = { .set = set, .events = events, .count = count };
	sigset_t given;

	wait.mask = signals_given(SIG_SETMASK, mask, &given);
	sg_before_wait();
	if (is_plain())
		return real.epoll_pwait(set, events, count, timeout, wait.mask);
	wait.until = timeout < 0 ? UINT64_MAX : timeout ? clock_now() + (uint64_t)timeout * NS_PER_MS : 0;
	return __builtin_expect(!events_possible(), 1) ? wait_early(&wait) : wait_for_rings(&wait);
}

ZC_EXPORT int epoll_wait(int set, struct epoll_event *events, int count, int timeout)
{
	if (!is_plain())
		return epoll_pwait(set, events, count, timeout, NULL);
	sg_before_wait();
	return real.epoll_wait(set, events, count, timeout);
}

ZC_EXPORT int epoll_pwait2(int set, struct epoll_event *events, int count, const struct timespec *timeout,
			   const sigset_t *mask)
{
	struct wait wait = { .set = set, .events = events, .count = count, .fine = true };
	sigset_t given;

	mask = wait.mask = signals_given(SIG_SETMASK, mask, &given);
	sg_before_wait();
	if (is_plain() || (timeout && !watch_time_is_valid(timeout)))
		return real.epoll_pwait2(set, events, count, timeout, mask);
	if (!timeout || timeout->tv_sec > 1000000000)
		wait.until = UINT64_MAX;
	else if (timeout->tv_sec || timeout->tv_nsec)
		wait.until = clock_now() + (uint64_t)timeout->tv_sec * NS_PER_SEC + (uint64_t)timeout->tv_nsec;
	return __builtin_expect(!events_possible(), 1) ? wait_early(&wait) : wait_for_rings(&wait);
}
