/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/far_linger.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/room.h"
#include "common/sys.h"
#include "preload/engine_out.h"
#include "preload/evict.h"
#include "preload/far_internal.h"
#include "preload/gate.h"
#include "preload/guest.h"
#include "rdma/verbs_replay.h"

#define HOPE_NS NS_PER_SEC	      /* without anything that goes */
#define HOPE_ALL_NS (10 * NS_PER_SEC) /* in all, and where the network does not answer */
#define LOOK_MS 10
#define SOON_MS 5 /* until it is looked whether the peer has acknowledged all; and when it has not for: */
#define SOON_NS NS_PER_SEC
#define LATE_MS 100
#define STATE_CLOSED 7 /* TCP_CLOSE, in the kernel's numbers */

struct lingering {
	struct lingering *next;
	size_t mapped;
	int fd;
	enum far_linger_how how;
	bool watched;
	uint64_t sent;	/* ns: when the last byte was; 0 */
	size_t at, end; /* of bytes[] */
	uint8_t bytes[];
};

static _Atomic int agents_set = -1;
static void *agents_marker;
static struct lingering *_Atomic taken; /* by the program's threads; then the agent's: */
static struct lingering *all;
static _Atomic uint32_t count; /* of both */
static _Atomic bool ever;      /* there has been one */
/* Of those that wait, at the last look: */
static _Atomic bool silent;
static _Atomic uint64_t left; /* bytes, that the peer has not acknowledged */

struct seen {
	uint64_t under_way;
	bool silent;
	int ms; /* until the next look, -1: there need be none */
};

void far_linger_begin(int set, void *marker)
{
	agents_set = set;
	agents_marker = marker;
}

bool far_lingers(void)
{
	return atomic_load(&count);
}

bool far_hopes(struct far_hope *hope, uint64_t its, bool is_silent)
{
	uint64_t now = clock_now();

	if (!hope->begun)
		hope->begun = now;
	if (!hope->since || hope->progress != its) {
		hope->since = now;
		hope->progress = its;
	}
	return now - hope->begun < HOPE_ALL_NS && (is_silent || now - hope->since < HOPE_NS);
}

static struct tcp_info info_of(int fd)
{
	struct tcp_info info = { .tcpi_state = STATE_CLOSED };
	socklen_t bytes = sizeof(info);

	sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0);
	return info;
}

bool far_is_silent(int fd)
{
	struct tcp_info info = info_of(fd);

	/* The first probe of a window that is closed is sent to any peer, and answered. */
	return info.tcpi_retransmits || info.tcpi_probes > 1;
}

uint64_t far_under_way(int fd)
{
	int bytes = 0;

	return sys_call(SYS_ioctl, fd, SIOCOUTQ, (long)&bytes, 0, 0, 0) >= 0 && bytes > 0 ? (uint64_t)bytes : 0;
}

static struct linger orders_of(int fd)
{
	struct linger asked = { 0 };
	socklen_t bytes = sizeof(asked);

	sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, (long)&asked, (long)&bytes, 0);
	return asked;
}

static bool has_unread(struct conn *conn, int fd)
{
	int bytes = 0;

	if (!engine_unread(conn, fd, &bytes))
		sys_call(SYS_ioctl, fd, FIONREAD, (long)&bytes, 0, 0, 0);
	return bytes > 0;
}

/* Whether a close() throws away what is under way, and tells the peer so. */
static bool resets(struct conn *conn, int fd)
{
	struct linger orders = orders_of(fd);

	return (orders.l_onoff && !orders.l_linger) || has_unread(conn, fd);
}

static bool may(struct conn *conn, int fd, enum far_linger_how how)
{
	if (agents_set < 0 || !room_for_own() || orders_of(fd).l_onoff)
		return false;
	/* What comes is thrown away, and nobody else may want it. */
	return how != FAR_LINGER_CLOSE || (conn->left_sets && !conn->handed && !atomic_load(&conn->spawned));
}

/* All that far->frame and the ring have. Returns false if the ring does not. */
static bool copy(struct engine *engine, struct lingering *to)
{
	const struct far_part *far = &engine->far;
	const struct verbs_entry entry = { far->entry, far->entry_at };
	uint64_t at = far->resend_at;

	memcpy(to->bytes, far->frame + FAR_FRAME_BYTES - far->frame_left, far->frame_left);
	to->end = far->frame_left;
	while (at != far->resend_to) {
		ssize_t got = verbs_replay(&engine->channel.out, &entry, at, to->bytes + to->end, far->resend_to - at);

		if (got <= 0)
			return false;
		to->end += (size_t)got;
		at += (uint64_t)got;
	}
	return true;
}

static void release(struct lingering *its)
{
	sys_call(SYS_munmap, (long)its, (long)its->mapped, 0, 0, 0, 0);
}

static int duplicate(int fd)
{
	long own = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, SYS_FD_HIGH, 0, 0, 0);

	return (int)(own < 0 ? sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0, 0, 0, 0) : own);
}

static struct lingering *make(struct engine *engine, int fd)
{
	const struct far_part *far = &engine->far;
	size_t bytes = sizeof(struct lingering) + far->frame_left + (far->resend_to - far->resend_at);
	struct lingering *its = sys_map(bytes, MAP_PRIVATE);

	if (!its)
		return NULL;
	its->mapped = bytes;
	its->fd = copy(engine, its) ? duplicate(fd) : -1;
	if (its->fd >= 0)
		return its;
	release(its);
	return NULL;
}

/* Under the lock `out`: the lane owes nothing from here on. */
static bool take(struct conn *conn, struct engine *engine, int fd, enum far_linger_how how)
{
	struct far_part *far = &engine->far;
	struct lingering *its;

	if (far->out != FAR_OUT_OWES || !may(conn, fd, how))
		return false;
	its = make(engine, fd);
	if (!its)
		return false;
	table_own_keep(its->fd);
	its->how = how;
	atomic_fetch_add(&engine->channel.out.shared->bells, far->frame_left);
	far->frame_left = 0;
	far->resend_at = far->resend_to;
	far->out = FAR_OUT_FREE;
	engine_restore_options(engine, fd);
	atomic_store(&far->lingers, true);
	log_info("fd %d: %zu bytes more go to its peer by TCP behind its end", fd, its->end);
	atomic_fetch_add(&count, 1);
	atomic_store(&ever, true);
	its->next = atomic_load(&taken);
	while (!atomic_compare_exchange_weak(&taken, &its->next, its))
		;
	return true;
}

/* That the queue pair has broken may not be known yet. */
bool far_may_linger(struct engine *engine)
{
	struct lock_hold hold;
	bool may = false;

	if (lock_take(&engine->out, &hold)) {
		may = engine->far.out != FAR_OUT_FREE || atomic_load(&engine->far.lingers) ||
		      atomic_load(&engine->channel.out.shared->on_ring);
		lock_give(&engine->out, &hold);
	}
	return may;
}

bool far_linger(struct conn *conn, struct engine *engine, int fd, enum far_linger_how how)
{
	struct lock_hold hold;
	bool done;
	int rc;

	if (guest_sandboxed())
		return false;
	rc = far_before_raw(conn, engine, fd, MSG_DONTWAIT);
	done = rc != -EAGAIN;
	if (done)
		far_keep_error(engine, rc);
	else if (how == FAR_LINGER_CLOSE && resets(conn, fd))
		return true;
	gate_enter(); /* a fork sees all of it, or nothing */
	if (!done && lock_take(&engine->out, &hold)) {
		done = engine->far.out == FAR_OUT_FREE || take(conn, engine, fd, how);
		lock_give(&engine->out, &hold);
	}
	gate_leave();
	if (far_lingers())
		far_kick();
	return done;
}

/* A send would use up the error, and the program may receive yet. Not POLLERR: that may be notices of the kernel's. */
static bool has_failed(int fd)
{
	struct pollfd look = { .fd = fd };

	return sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) > 0 && look.revents & POLLHUP;
}

/* Returns whether there is more to send, and no room. */
static bool sends(struct lingering *its)
{
	while (its->at < its->end) {
		if (has_failed(its->fd)) {
			its->end = its->at;
			break;
		}
		long rc = sys_call(SYS_sendto, its->fd, (long)(its->bytes + its->at), (long)(its->end - its->at),
				   MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);

		if (rc == -EAGAIN)
			return true;
		if (rc < 0 && rc != -EINTR)
			its->end = its->at; /* nobody can be told: it is closed */
		its->at += rc > 0 ? (size_t)rc : 0;
	}
	return false;
}

static void watch(struct lingering *its)
{
	struct epoll_event event = { .events = EPOLLOUT | EPOLLONESHOT, .data.ptr = agents_marker };

	sys_call(SYS_epoll_ctl, agents_set, its->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, its->fd, (long)&event, 0, 0);
	its->watched = true;
}

static void throw_away_what_came(int fd)
{
	long rc;

	do {
		rc = sys_call(SYS_recvfrom, fd, 0, INT32_MAX, MSG_DONTWAIT | MSG_TRUNC, 0, 0);
	} while (rc > 0 || rc == -EINTR);
}

/* Whether something is under way that the peer has not acknowledged, and may yet. */
static bool awaits_peer(int fd)
{
	return far_under_way(fd) && info_of(fd).tcpi_state != STATE_CLOSED;
}

/* Of one that waits: what its peer acknowledges makes room in the end. */
static void note(const struct lingering *its, struct seen *seen)
{
	seen->under_way += far_under_way(its->fd) + (its->end - its->at);
	seen->silent |= far_is_silent(its->fd);
}

/* Returns whether it has ended. */
static bool step(struct lingering *its, struct seen *seen)
{
	if (sends(its)) {
		note(its, seen);
		watch(its);
		return false;
	}
	if (!its->sent) {
		if (its->how == FAR_LINGER_SHUT)
			sys_call(SYS_shutdown, its->fd, SHUT_WR, 0, 0, 0, 0);
		its->sent = clock_now();
	}
	if (its->how == FAR_LINGER_CLOSE)
		throw_away_what_came(its->fd);
	if (!awaits_peer(its->fd))
		return true;
	note(its, seen);
	seen->ms = clock_now() - its->sent < SOON_NS || seen->ms == SOON_MS ? SOON_MS : LATE_MS;
	return false;
}

int far_linger_step(void)
{
	struct lingering *new = atomic_exchange(&taken, NULL), **at = &all;
	struct seen seen = { .ms = -1 };

	while (*at)
		at = &(*at)->next;
	*at = new;
	for (at = &all; *at;) {
		struct lingering *its = *at;

		if (!step(its, &seen)) {
			at = &its->next;
			continue;
		}
		*at = its->next;
		if (its->watched) /* the program may have the socket yet */
			sys_call(SYS_epoll_ctl, agents_set, EPOLL_CTL_DEL, its->fd, 0, 0, 0);
		table_own_close(its->fd);
		release(its);
		atomic_fetch_sub(&count, 1);
	}
	atomic_store(&silent, seen.silent);
	atomic_store(&left, seen.under_way);
	return seen.ms;
}

static void allow(struct conn *conn)
{
	int fd = conn_fd(conn);
	struct engine *engine = fd < 0 ? NULL : engine_enter(conn, fd);

	if (!engine)
		return;
	if (!(atomic_load(&engine->shut) & SHUT_OUT))
		atomic_store(&engine->far.lingers, false);
	engine_leave(conn);
}

void far_linger_end(void)
{
	struct far_hope hope = { 0 };

	while (far_lingers() && far_hopes(&hope, atomic_load(&left), atomic_load(&silent))) {
		far_kick();
		sys_call(SYS_poll, 0, 0, LOOK_MS, 0, 0, 0);
	}
	if (atomic_load(&ever) && !far_lingers())
		conn_each(allow);
}

/* They are the parent's, whose agent was not in the middle of them: a fork waits for the gate. */
static void forget(struct lingering *first)
{
	while (first) {
		struct lingering *next = first->next;

		table_own_close(first->fd);
		release(first);
		first = next;
	}
}

void far_linger_after_fork(void)
{
	forget(atomic_exchange(&taken, NULL));
	forget(all);
	all = NULL;
	atomic_store(&count, 0);
	atomic_store(&ever, false);
	agents_set = -1;
}
