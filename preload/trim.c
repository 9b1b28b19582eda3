/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/trim.h"

#include <errno.h>
#include <poll.h>
#include <sys/time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/engine.h"
#include "preload/far.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/signals.h"

/*
 * A stack that any thread pushes to and one at a time takes as a whole. A connection is in it, or with the one who has taken it,
 * as long as conn->moved is set; it may have been closed since, or be another by now.
 */
static struct conn *_Atomic moved;
static _Atomic uint64_t due; /* when it is to be looked through again */
static _Atomic bool young;   /* some of them have sent since they were looked at last */

/* The sleeper that ends in time for `due`. It may have gone elsewhere since: then the next one that is late does it. */
static _Atomic uint64_t claimed;
static __thread uint64_t own_claim __attribute__((tls_model("initial-exec")));

static void push(struct conn *conn)
{
	conn->moved_next = atomic_load(&moved);
	while (!atomic_compare_exchange_weak(&moved, &conn->moved_next, conn))
		;
}

void trim_list(struct conn *conn)
{
	if (!settings.idle_ms || atomic_exchange(&conn->moved, true))
		return;
	push(conn);
	atomic_store(&young, true);
}

/*
 * Returns whether the connection is to be looked at again. It may be one between hosts that has got its place from one of this host:
 * a device reads its ring from the pages that it had when it was registered, and the program would write to others.
 * Under the lock `out`.
 */
static bool trim(struct conn *conn, struct engine *engine)
{
	struct lane *out = &engine->channel.out;
	uint64_t tail = atomic_load_explicit(&out->shared->tail, memory_order_relaxed);
	ssize_t used = tail - atomic_load_explicit(&out->shared->head, memory_order_acquire);

	if (far_is(engine)) {
		atomic_store(&conn->moved, false);
		return false;
	}
	if (tail != conn->moved_tail) {
		conn->moved_tail = tail;
		atomic_store(&young, true);
		return true;
	}
	if (used)
		return true; /* unread: nobody need wake for it, but it is looked at when somebody is awake */
	atomic_store(&conn->moved, false);
	if (lane_trim(out))
		stats_conn(conn->slot, STAT_CONN_TRIMS, 1);
	source_trim(out);
	return false;
}

/* Returns whether it stays in the list. */
static bool look(struct conn *conn)
{
	int fd = conn_fd(conn);
	struct engine *engine = fd < 0 ? NULL : engine_enter(conn, fd);
	struct lock_hold hold;
	bool stays = false;

	if (!engine || !engine_met(engine)) {
		atomic_store(&conn->moved, false);
	} else if (lock_try(&engine->out, &hold)) {
		stays = trim(conn, engine);
		lock_give(&engine->out, &hold);
	} else {
		stays = !lock_is_lost(&engine->out);
		atomic_store(&conn->moved, stays);
		atomic_store(&young, true);
	}
	if (engine)
		engine_leave(conn);
	return stays;
}

static void look_through(void)
{
	struct conn *list, *next;

	atomic_store(&young, false);
	for (list = atomic_exchange(&moved, NULL); list; list = next) {
		next = list->moved_next;
		if (look(list))
			push(list);
	}
}

uint64_t trim_before_sleep(uint64_t until)
{
	uint64_t now, at;

	if (!atomic_load_explicit(&moved, memory_order_relaxed) || guest_sandboxed())
		return until;
	now = clock_now();
	at = atomic_load(&due);
	if (now >= at && atomic_compare_exchange_strong(&due, &at, now + (uint64_t)settings.idle_ms * NS_PER_MS))
		look_through();
	at = atomic_load(&due);
	if (at >= until || !atomic_load(&young))
		return until;
	if (own_claim != at && atomic_exchange(&claimed, at) == at)
		return until; /* another one's */
	own_claim = at;
	return at;
}

/* A receive that ends by itself, in time or at once: such a one can't be made to wait here. */
static bool ends_by_itself(int fd)
{
	struct timeval limit = { 0 };
	socklen_t bytes = sizeof(limit);

	if (!conn_waits(fd, 0))
		return true;
	return sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, (long)&limit, (long)&bytes, 0) < 0 ||
	       limit.tv_sec || limit.tv_usec;
}

int trim_in_sleep(int fd)
{
	const short ends = POLLRDHUP | POLLHUP | POLLERR;
	struct pollfd look = { .fd = fd, .events = POLLIN | POLLRDHUP };
	uint32_t ran = signals_run, ended = signals_end_calls;
	uint64_t until = trim_before_sleep(UINT64_MAX);

	while (until != UINT64_MAX && !ends_by_itself(fd)) {
		uint64_t now = clock_now(), left = until > now ? until - now : 0;
		int rc = real.poll(&look, 1, (int)((left + NS_PER_MS - 1) / NS_PER_MS));

		if (rc > 0)
			return !(look.revents & ends);
		/* A handler that nobody has counted may be one that ends calls. */
		if (rc < 0 && (errno != EINTR || signals_end_calls != ended || signals_run == ran))
			return errno == EINTR ? -EINTR : 0;
		until = trim_before_sleep(UINT64_MAX);
	}
	return 0;
}

void trim_after_fork(void)
{
	atomic_store(&moved, NULL);
	atomic_store(&young, false);
	own_claim = 0;
	atomic_store(&claimed, 0);
}
