/* SPDX-License-Identifier: MIT */
/*
 * poll and select. What is held leaves first. While zerocopy notices may come, a wait that they alone have ended goes on
 * with the time that is left: take the notices, ask the kernel again; both calls look at levels, so asking twice is right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/signals.h"
#include "preload/trim.h"
#include "preload/watch.h"
#include "preload/zerocopy.h"

/* Whether a notice may end a wait: also one of a send that another thread makes after the wait began. */
static inline bool notices_possible(void)
{
	return __builtin_expect(atomic_load_explicit(&conn_zerocopy_ever, memory_order_relaxed), 0);
}

/* The end of a wait of `timeout`, in ns; UINT64_MAX for no end. */
static uint64_t deadline(const struct timespec *timeout)
{
	uint64_t wait;

	if (!timeout)
		return UINT64_MAX;
	wait = (uint64_t)timeout->tv_sec * NS_PER_SEC + (uint64_t)timeout->tv_nsec;
	return timeout->tv_sec > 1000000000 ? UINT64_MAX : clock_now() + wait;
}

/* What is left of it. Returns NULL for no end. */
static const struct timespec *time_left(uint64_t until, struct timespec *left)
{
	uint64_t now = clock_now();
	uint64_t rest = until > now ? until - now : 0;

	if (until == UINT64_MAX)
		return NULL;
	left->tv_sec = (time_t)(rest / NS_PER_SEC);
	left->tv_nsec = (long)(rest % NS_PER_SEC);
	return left;
}

/* A turn of each connection in the set ends here, and what other threads hold on them leaves. */
static void look_at(int fd)
{
	struct conn *conn = table_conn(fd);

	if (conn && conn_active(conn)) {
		sg_turn_ends(conn);
		if (__builtin_expect(atomic_load_explicit(&conn->sg.held, memory_order_relaxed) != 0, 0))
			sg_drain(conn, fd, false);
	} else if (!conn && table_set(fd)) {
		watch_nest(fd);
	}
}

/*
 * Takes the notices of a descriptor of which the kernel has told `events`. Returns whether that was, or may have been, their
 * doing: another thread may have taken them in between, then the events have no cause any more.
 */
static bool take_notices(int fd, short events)
{
	struct conn *conn = table_conn(fd); /* once: another thread may close it meanwhile */
	struct pollfd now = { .fd = fd, .events = events };

	if (!conn || !conn->zerocopy.enabled)
		return false;
	if (zerocopy_harvest_now(conn) <= 0) {
		sys_call(SYS_poll, (long)&now, 1, 0, 0, 0, 0);
		if (!(events & ~now.revents))
			return false;
	}
	stats_conn(conn->slot, STAT_CONN_HIDDEN_EVENTS, 1);
	return true;
}

static void poll_looks(struct pollfd *fds, nfds_t count)
{
	sg_before_wait();
	for (nfds_t i = 0; i < count; i++)
		look_at(fds[i].fd);
}

/* Returns whether a notice of ours is behind one of the results: then they are not to be told. */
static bool poll_meets_notice(struct pollfd *fds, nfds_t count)
{
	bool met = false;

	for (nfds_t i = 0; i < count; i++) {
		if (fds[i].revents & POLLERR && take_notices(fds[i].fd, POLLERR))
			met = true;
	}
	return met;
}

/* Rings ------------------------------------------------------------------------------------------------------------- */

#define READS (POLLIN | POLLRDNORM)
#define FEW 8	  /* descriptors of a poll that is answered without the kernel */
#define SLEEPS 64 /* connections of a wait that are kept on the stack */
#define LINKS 16  /* descriptors of devices that are polled, too */

/* The sleeps of one wait on the lanes of many connections. */
struct sleeps {
	struct engine_sleep few[SLEEPS];
	struct engine_sleep *list;
	nfds_t used, room;
	nfds_t links, links_max;
};

static void sleeps_end(struct sleeps *sleeps)
{
	for (nfds_t i = 0; i < sleeps->used; i++)
		engine_wakes(&sleeps->list[i]);
	if (sleeps->list && sleeps->list != sleeps->few)
		sys_call(SYS_munmap, (long)sleeps->list, (long)(sizeof(*sleeps->list) * sleeps->room), 0, 0, 0, 0);
	sleeps->used = 0;
	sleeps->list = NULL;
}

/* Room for `count`; without memory nothing is armed (see sleeps_begin), and a wait looks again at short intervals (see sleeps_until). */
static void sleeps_make(struct sleeps *sleeps, nfds_t count)
{
	sleeps->used = 0;
	sleeps->links = 0;
	sleeps->links_max = 0;
	sleeps->room = count + 1;
	sleeps->list = count <= SLEEPS ? sleeps->few : sys_map(sizeof(*sleeps->list) * sleeps->room, MAP_PRIVATE);
}

/* Until when a wait may sleep that would until `end`. */
static uint64_t sleeps_until(const struct sleeps *sleeps, uint64_t end)
{
	uint64_t soon = sleeps->list ? UINT64_MAX : clock_now() + NS_PER_MS;

	return end < soon ? end : soon;
}

/* Returns whether the ring of the connection has something; else it is armed and counted among the sleeps. */
static bool sleeps_begin(struct sleeps *sleeps, int fd)
{
	struct conn *conn = table_conn(fd);
	struct engine_sleep *sleep;

	if (!conn || !engine_is_there(conn) || !sleeps->list)
		return false;
	sleep = &sleeps->list[sleeps->used];
	*sleep = (struct engine_sleep){ 0 };
	if (engine_sleeps(conn, fd, sleeps->links < sleeps->links_max, sleep)) {
		engine_wakes(sleep);
		return true;
	}
	sleeps->used += sleep->conn != NULL;
	sleeps->links += sleep->conn && sleep->link >= 0;
	return false;
}

static bool reads_a_ring(const struct pollfd *one)
{
	struct conn *conn = one->events & READS ? table_conn(one->fd) : NULL;

	return conn && engine_is_there(conn);
}

/* Looks at the rings of a poll. Returns whether one of them has something. */
static bool poll_arms(struct sleeps *sleeps, const struct pollfd *fds, nfds_t count)
{
	bool ready = false;

	for (nfds_t i = 0; i < count && !ready; i++)
		ready = reads_a_ring(&fds[i]) && sleeps_begin(sleeps, fds[i].fd);
	return ready;
}

/* After the kernel has answered: what is readable is what the rings say. Returns how many descriptors have results. *part: ENGINE_PART. */
static int poll_corrects(struct pollfd *fds, nfds_t count, bool *part)
{
	int ready = 0;

	for (nfds_t i = 0; i < count; i++) {
		struct conn *conn = fds[i].events & READS ? table_conn(fds[i].fd) : NULL;

		if (conn && engine_is_there(conn)) {
			enum engine_ready now = engine_look(conn, fds[i].fd);

			if (now == ENGINE_READABLE)
				fds[i].revents |= fds[i].events & READS;
			else if (now != ENGINE_NOT_OURS)
				fds[i].revents &= ~READS;
			*part |= now == ENGINE_PART;
		}
		ready += fds[i].revents != 0;
	}
	return ready;
}

/*
 * A wait for one connection spins as a receive on it would; for many, the kernel is asked at once (an epoll set is what pays
 * there: hot.h). Returns false if a signal has ended it.
 */
static bool poll_spins(struct pollfd *fds, nfds_t count, uint64_t until)
{
	struct conn *only = NULL;
	int fd = -1;

	for (nfds_t i = 0; i < count; i++) {
		struct conn *conn = fds[i].events & READS ? table_conn(fds[i].fd) : NULL;

		if (!conn || !engine_is_there(conn))
			continue;
		if (only)
			return true;
		only = conn;
		fd = fds[i].fd;
	}
	return !only || engine_spin(only, fd, fds, count, until);
}

/*
 * What rings have, for a poll of few that ask for nothing else; the kernel is asked now and then all the same. Returns how many
 * are ready, 0: ask it now.
 */
static int poll_tells_rings(struct pollfd *fds, nfds_t count)
{
	int ready = 0;

	for (nfds_t i = 0; i < count; i++) {
		struct conn *conn = table_conn(fds[i].fd);

		if (count > FEW || fds[i].events & ~READS)
			return 0;
		fds[i].revents = 0;
		if (!fds[i].events || !conn || !engine_is_there(conn) || !engine_has_bytes(conn, fds[i].fd))
			continue;
		fds[i].revents = fds[i].events;
		ready++;
	}
	return ready;
}

static bool poll_has_rings(const struct pollfd *fds, nfds_t count)
{
	bool has = false;

	for (nfds_t i = 0; i < count && !has; i++)
		has = reads_a_ring(&fds[i]);
	return has;
}

/* As the program asked, and the devices. Returns how many of the program's have results, or -1. */
static int ask_with_links(struct pollfd *fds, nfds_t count, struct sleeps *sleeps, const struct timespec *timeout,
			  const sigset_t *mask)
{
	struct pollfd all[SLEEPS + LINKS];
	nfds_t at = count;
	int ready;

	if (!sleeps->links)
		return real.ppoll(fds, count, timeout, mask);
	memcpy(all, fds, sizeof(*fds) * count);
	for (nfds_t i = 0; i < sleeps->used; i++) {
		if (sleeps->list[i].link >= 0)
			all[at++] = (struct pollfd){ .fd = sleeps->list[i].link, .events = POLLIN };
	}
	ready = real.ppoll(all, at, timeout, mask);
	if (ready < 0 && errno == EINVAL) /* more than RLIMIT_NOFILE, perhaps */
		return real.ppoll(fds, count, &(struct timespec){ 0, NS_PER_MS }, mask);
	/* Behind a signal, too, as the kernel does. */
	for (nfds_t i = 0; i < count; i++)
		fds[i].revents = all[i].revents;
	if (ready < 0)
		return ready;
	at = count;
	for (nfds_t i = 0; i < sleeps->used; i++) {
		if (sleeps->list[i].link < 0 || !all[at++].revents)
			continue;
		sleeps->list[i].told = true;
		ready--;
	}
	return ready;
}

static int poll_rings(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	static const struct timespec none = { 0, 0 };
	uint64_t until = deadline(timeout);
	struct timespec left;
	int ready;

	if (until > clock_now() && !mask && !poll_spins(fds, count, until)) {
		errno = EINTR;
		return -1;
	}
	ready = poll_tells_rings(fds, count);
	if (ready)
		return ready;
	for (;;) {
		__attribute__((cleanup(sleeps_end))) struct sleeps sleeps;
		bool now, part = false;
		uint64_t end;

		sleeps_make(&sleeps, count);
		sleeps.links_max = count <= SLEEPS ? LINKS : 0;
		now = poll_arms(&sleeps, fds, count);
		end = sleeps_until(&sleeps, trim_before_sleep(until));
		ready = ask_with_links(fds, count, &sleeps, now ? &none : time_left(end, &left), mask);
		if (ready < 0 && !(now && errno == EINTR))
			return ready;
		if (ready >= 0 && poll_meets_notice(fds, count))
			continue;
		ready = poll_corrects(fds, count, &part);
		if (ready || (until != UINT64_MAX && clock_now() >= until))
			return ready;
		if (part && watch_pauses(until, mask) < 0)
			return -1;
	}
}

ZC_EXPORT int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec left;
	sigset_t given;
	uint64_t until;
	int ready;

	mask = signals_given(SIG_SETMASK, mask, &given);
	poll_looks(fds, count);
	if (timeout && !watch_time_is_valid(timeout))
		return real.ppoll(fds, count, timeout, mask);
	if (engine_possible() && poll_has_rings(fds, count))
		return poll_rings(fds, count, timeout, mask);
	if (!notices_possible())
		return real.ppoll(fds, count, timeout, mask);
	until = deadline(timeout);
	do {
		ready = real.ppoll(fds, count, time_left(until, &left), mask);
	} while (ready > 0 && poll_meets_notice(fds, count));
	return ready;
}

ZC_EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	struct timespec time = { timeout / 1000, timeout % 1000 * (long)NS_PER_MS };

	if (notices_possible() || engine_possible())
		return ppoll(fds, count, timeout < 0 ? NULL : &time, NULL);
	poll_looks(fds, count);
	return real.poll(fds, count, timeout);
}

ZC_EXPORT int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room)
{
	return room / sizeof(*fds) < count ? real.__poll_chk(fds, count, timeout, room) : poll(fds, count, timeout);
}

ZC_EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask,
			  size_t room)
{
	return room / sizeof(*fds) < count ? real.__ppoll_chk(fds, count, timeout, mask, room) :
					     ppoll(fds, count, timeout, mask);
}

/* A set of descriptors of any size, as select's callers may allocate it. */
static bool in_set(const fd_set *set, int fd)
{
	return set && ((const unsigned long *)set)[fd / 64] >> (fd % 64) & 1;
}

static void select_looks(int count, const fd_set *in, const fd_set *out, const fd_set *except)
{
	sg_before_wait();
	for (int fd = 0; fd < count; fd++) {
		if (table_entry(fd) > TABLE_OWN && (in_set(in, fd) || in_set(out, fd) || in_set(except, fd)))
			look_at(fd);
	}
}

static bool select_meets_notice(int count, const fd_set *in, const fd_set *out)
{
	bool met = false;

	for (int fd = 0; fd < count; fd++) {
		short told = (short)((in_set(in, fd) ? POLLIN : 0) | (in_set(out, fd) ? POLLOUT : 0));

		if (told && take_notices(fd, told))
			met = true;
	}
	return met;
}

#define SELECT_BYTES(count) (((size_t)(count) + 63) / 64 * 8)

static void copy_set(void *to, const void *from, int count)
{
	if (from)
		memcpy(to, from, SELECT_BYTES(count));
}

static void put_in_set(fd_set *set, int fd, bool in)
{
	unsigned long *word = (unsigned long *)set + fd / 64;

	*word = in ? *word | 1ul << (fd % 64) : *word & ~(1ul << (fd % 64));
}

/* Looks at the rings of a select. Returns whether one of them has something. */
static bool select_arms(struct sleeps *sleeps, int count, const unsigned long *asked)
{
	bool ready = false;

	for (int fd = 0; asked && fd < count && !ready; fd++)
		ready = asked[fd / 64] >> (fd % 64) & 1 && table_conn(fd) && sleeps_begin(sleeps, fd);
	return ready;
}

/* What is readable is what the rings say. Returns by how much the number of results changes. *part: ENGINE_PART. */
static int select_corrects(int count, fd_set *in, const unsigned long *asked, bool *part)
{
	int change = 0;

	for (int fd = 0; in && fd < count; fd++) {
		struct conn *conn = asked[fd / 64] >> (fd % 64) & 1 ? table_conn(fd) : NULL;
		enum engine_ready now = conn && engine_is_there(conn) ? engine_look(conn, fd) : ENGINE_NOT_OURS;
		bool told = in_set(in, fd);

		*part |= now == ENGINE_PART;
		if (now == ENGINE_NOT_OURS || told == (now == ENGINE_READABLE))
			continue;
		put_in_set(in, fd, !told);
		change += told ? -1 : 1;
	}
	return change;
}

static bool select_has_rings(int count, const fd_set *in)
{
	for (int fd = 0; in && fd < count; fd++) {
		struct conn *conn = in_set(in, fd) ? table_conn(fd) : NULL;

		if (conn && engine_is_there(conn))
			return true;
	}
	return false;
}

/* select with notices or doorbells expected: the sets are kept aside to ask again with. */
static int select_again(int count, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout,
			const sigset_t *mask)
{
	static const struct timespec none = { 0, 0 };
	unsigned long kept[3][SELECT_BYTES(count) / 8 + 1];
	bool rings = engine_possible() && select_has_rings(count, in);
	uint64_t until = deadline(timeout);
	struct timespec left;
	int ready;

	copy_set(kept[0], in, count);
	copy_set(kept[1], out, count);
	copy_set(kept[2], except, count);
	for (;;) {
		__attribute__((cleanup(sleeps_end))) struct sleeps sleeps = { .list = NULL };
		uint64_t end = rings ? trim_before_sleep(until) : until;
		bool now = false, part = false;

		if (rings) {
			sleeps_make(&sleeps, (nfds_t)count);
			now = select_arms(&sleeps, count, in ? kept[0] : NULL);
			end = sleeps_until(&sleeps, end);
		}
		ready = real.pselect(count, in, out, except, now ? &none : time_left(end, &left), mask);
		if (ready < 0)
			return ready;
		if (!ready || !select_meets_notice(count, in, out)) {
			if (!rings)
				return ready;
			ready += select_corrects(count, in, kept[0], &part);
			if (ready || (until != UINT64_MAX && clock_now() >= until))
				return ready;
		}
		if (in)
			copy_set(in, kept[0], count);
		if (out)
			copy_set(out, kept[1], count);
		if (except)
			copy_set(except, kept[2], count);
		/* A signal ends it with the sets as they were. */
		if (part && watch_pauses(until, mask) < 0)
			return -1;
	}
}

/*
 * What the kernel makes of a count: it looks at no more than its table has room for, and programs count on that who pass getdtablesize() with a
 * set of FD_SETSIZE. The library's own numbers make that table larger.
 */
static int select_count(int count)
{
	int room = FD_SETSIZE, highest;

	if (__builtin_expect(count <= FD_SETSIZE, 1) || guest_sandboxed())
		return count;
	highest = table_highest_of_program();
	while (room <= highest)
		room *= 2;
	return count < room ? count : room;
}

static bool select_may_meet(int count)
{
	return count > 0 && count <= (int)TABLE_DESCRIPTORS && (notices_possible() || engine_possible());
}

ZC_EXPORT int pselect(int count, fd_set *in, fd_set *out, fd_set *except, const struct timespec *timeout,
		      const sigset_t *mask)
{
	sigset_t given;

	mask = signals_given(SIG_SETMASK, mask, &given);
	count = select_count(count);
	select_looks(count, in, out, except);
	if (!select_may_meet(count) || (timeout && !watch_time_is_valid(timeout)))
		return real.pselect(count, in, out, except, timeout, mask);
	return select_again(count, in, out, except, timeout, mask);
}

ZC_EXPORT int select(int count, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout)
{
	struct timespec time, left;
	uint64_t until;
	int ready;

	count = select_count(count);
	select_looks(count, in, out, except);
	if (!select_may_meet(count) || (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
		return real.select(count, in, out, except, timeout);
	if (!timeout)
		return select_again(count, in, out, except, NULL, NULL);
	time.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
	time.tv_nsec = timeout->tv_usec % 1000000 * (long)NS_PER_US;
	until = deadline(&time);
	ready = select_again(count, in, out, except, &time, NULL);
	/* Linux tells how much time was left, and programs count on it. */
	time_left(until == UINT64_MAX ? 0 : until, &left);
	timeout->tv_sec = left.tv_sec;
	timeout->tv_usec = left.tv_nsec / (long)NS_PER_US;
	return ready;
}
