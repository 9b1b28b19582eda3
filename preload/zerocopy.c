/* SPDX-License-Identifier: MIT */
/* Sends of zerocopy.h; the notices are in notice.c. */
#define _GNU_SOURCE
#include "preload/zerocopy.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/guest.h"
#include "preload/notice.h"
#include "preload/real.h"
#include "preload/sg.h"
#include "preload/watch.h"
#include "rdma/guard.h"

#define PAGE 4096ul
#define PAGES_MIN (4 * PAGE)	    /* fewer in one piece of memory are copied */
#define CHUNK (1024 * 1024ul)	    /* guarded and handed over at one time */
#define COPIES_MAX 32		    /* pieces that are copied by one system call */
#define PROBE_AFTER (1024 * 1024ul) /* bytes after which `auto` asks what zerocopy costs on a connection */
#define SAMPLES 4		    /* of each way, before `auto` compares */

static void owner_poll(void *owner)
{
	struct conn *conn = owner;
	struct lock_hold hold;

	/* On the thread of a fault, perhaps in a signal handler, perhaps while another thread holds the lock and waits for
	 * this very page: never wait here. */
	if (!lock_try(&conn->lock, &hold))
		return;
	zerocopy_harvest(conn);
	lock_give(&conn->lock, &hold);
}

static void owner_faulted(void *owner, struct guard_record *record)
{
	struct conn *conn = owner;

	atomic_fetch_add_explicit(&conn->zerocopy.faults, 1, memory_order_relaxed);
}

static const struct guard_owner_ops owner_ops = { .poll = owner_poll, .take_copy = NULL, .faulted = owner_faulted };

/* Off for this connection from now on. */
static enum stat_reason refuse(struct conn *conn, enum stat_reason why)
{
	conn->zerocopy.refused = true;
	conn->zerocopy.why = why;
	return why;
}

/* Returns what speaks against it for `auto` alone: it must have moved data, and must cost less than a copy. */
static enum stat_reason auto_decide(struct conn *conn, size_t bytes)
{
	struct zerocopy *zc = &conn->zerocopy;

	zc->sent_bytes += bytes;
	if (zc->sent_bytes < PROBE_AFTER)
		return REASON_SMALL;
	if (choose_is_copied(conn->peer_key))
		return REASON_KERNEL_COPIED;
	if (zc->copy_samples < SAMPLES)
		return REASON_GUARD_COST;
	if (zc->own_samples < SAMPLES || zc->own_cost < zc->copy_cost)
		return REASON_NONE;
	notice_pause(conn, REASON_GUARD_COST);
	zc->own_samples = 0;
	zc->copy_samples = 0;
	return REASON_GUARD_COST;
}

enum stat_reason zerocopy_decide(struct conn *conn, size_t bytes)
{
	struct zerocopy *zc = &conn->zerocopy;

	if (bytes < settings.zerocopy_min)
		return REASON_SMALL;
	if (zc->refused)
		return zc->why;
	if (zc->pause) {
		zc->pause--;
		return zc->why;
	}
	if (guest_sandboxed())
		return refuse(conn, REASON_SECCOMP);
	if (atomic_load_explicit(&guest_rings, memory_order_relaxed) || conn->app_error_queue)
		return refuse(conn, REASON_APP_ERRQUEUE);
	if (!settings.zerocopy_keep && notice_faulting(conn)) {
		notice_pause(conn, REASON_FAULTED);
		return REASON_FAULTED;
	}
	return conn->policy == PATH_AUTO ? auto_decide(conn, bytes) : REASON_NONE;
}

/* Prepares the socket and our records. Under the lock. Returns REASON_NONE or why not. */
static enum stat_reason prepare(struct conn *conn, int fd)
{
	struct zerocopy *zc = &conn->zerocopy;
	int one = 1;

	if (!conn_is_same(conn, fd))
		return refuse(conn, REASON_DETACHED);
	if (zc->enabled)
		return zc->refused ? zc->why : REASON_NONE;
	if (watch_nested(conn))
		return refuse(conn, REASON_NESTED);
	if (!zc->ring)
		zc->ring = sys_map(ZEROCOPY_RING * sizeof(*zc->ring), MAP_PRIVATE);
	if (!zc->ring)
		return refuse(conn, REASON_NO_MEMORY);
	if (sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, (long)&one, sizeof(one), 0) < 0)
		return refuse(conn, REASON_NO_SOCKET_OPTION);
	zc->enabled = true;
	return REASON_NONE;
}

/* Where a send is: the entry of iov, the bytes of it that are gone, and what is left altogether. */
struct cursor {
	const struct iovec *iov;
	size_t offset;
	size_t left;
};

static void advance(struct cursor *at, size_t bytes)
{
	at->left -= bytes;
	at->offset += bytes;
	while (at->left && at->offset >= at->iov->iov_len) {
		at->offset -= at->iov->iov_len;
		at->iov++;
	}
}

/* Bytes from the cursor to the first whole page of its entry, if enough whole pages follow; else the entry's rest. */
static size_t bytes_to_copy(const struct iovec *iov, size_t offset, bool *pages_follow)
{
	uintptr_t start = (uintptr_t)iov->iov_base + offset;
	uintptr_t end = (uintptr_t)iov->iov_base + iov->iov_len;
	uintptr_t first = (start + PAGE - 1) & ~(PAGE - 1);

	*pages_follow = first < end && ((end & ~(PAGE - 1)) - first) >= PAGES_MIN && (end & ~(PAGE - 1)) > first;
	return *pages_follow ? first - start : end - start;
}

static long send_raw(int fd, struct iovec *iov, size_t count, int flags)
{
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = count };

	return sys_call(SYS_sendmsg, fd, (long)&message, flags | MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0, 0);
}

/* Copies what lies before the next whole pages. Returns bytes taken, 0 when pages start right here, or -errno. */
static long push_copy(struct conn *conn, int fd, struct cursor *at, int flags)
{
	struct iovec pieces[COPIES_MAX];
	struct cursor end = *at;
	size_t count = 0, bytes = 0;
	bool pages = false;
	long taken;

	while (end.left && count < COPIES_MAX && !pages) {
		size_t part = bytes_to_copy(end.iov, end.offset, &pages);

		if (!part)
			continue;
		pieces[count++] = (struct iovec){ (char *)end.iov->iov_base + end.offset, part };
		bytes += part;
		advance(&end, part);
	}
	if (!count)
		return 0;
	taken = send_raw(fd, pieces, count, end.left ? flags | MSG_MORE : flags);
	if (taken > 0) {
		stats_sent(conn->slot, PATH_COPY, (uint64_t)taken, 1);
		stats_reason(conn->slot, REASON_UNALIGNED);
		sg_sent(conn, (size_t)taken);
	}
	return taken;
}

/* Sends the chunk at the cursor as a copy, since zerocopy can't have it. */
static long push_chunk_copied(struct conn *conn, int fd, struct iovec *chunk, int flags)
{
	long taken = send_raw(fd, chunk, 1, flags);

	if (taken > 0) {
		stats_sent(conn->slot, PATH_COPY, (uint64_t)taken, 1);
		sg_sent(conn, (size_t)taken);
	}
	return taken;
}

static void keep(struct conn *conn, struct guard_record *record, size_t bytes)
{
	struct zerocopy *zc = &conn->zerocopy;
	struct zerocopy_send *send = &zc->ring[zc->next % ZEROCOPY_RING];

	*send = (struct zerocopy_send){ .record = record, .bytes = bytes };
	zc->next++;
	zc->bytes += bytes;
	if (!atomic_exchange(&zc->used, true)) {
		atomic_fetch_add(&conn_zerocopy_used, 1);
		table_own_refresh(); /* the guard may have opened descriptors of its own with its first range */
	}
}

/*
 * Bytes of whole pages that go at one time. The kernel joins no two large ones in a segment: the last is never a little, which
 * would be a small segment behind a small one, and wait for its acknowledgement.
 */
static size_t chunk_of(size_t pages)
{
	if (pages <= CHUNK)
		return pages;
	return pages < 2 * CHUNK ? pages / 2 & ~(PAGE - 1) : CHUNK;
}

/* Guards and sends whole pages at the cursor. Returns bytes taken or -errno. */
static long push_pages(struct conn *conn, int fd, const struct cursor *at, int flags)
{
	struct zerocopy *zc = &conn->zerocopy;
	uintptr_t start = (uintptr_t)at->iov->iov_base + at->offset;
	size_t pages = ((uintptr_t)at->iov->iov_base + at->iov->iov_len - start) & ~(PAGE - 1);
	struct iovec chunk = { (void *)start, chunk_of(pages) };
	struct guard_record *record = NULL;
	int more = chunk.iov_len < at->left ? flags | MSG_MORE : flags;
	long taken;
	int rc;

	if (zc->next - zc->oldest >= ZEROCOPY_RING || zc->bytes + chunk.iov_len > settings.zerocopy_bytes_max) {
		stats_reason(conn->slot, REASON_IN_FLIGHT);
		return push_chunk_copied(conn, fd, &chunk, more);
	}
	rc = guard_protect(chunk.iov_base, chunk.iov_len, &owner_ops, conn, &record);
	if (rc < 0) {
		stats_reason(conn->slot, notice_protect_reason(rc));
		if (rc == -ENOTSUP)
			refuse(conn, REASON_NO_GUARD);
		return push_chunk_copied(conn, fd, &chunk, more);
	}
	taken = send_raw(fd, &chunk, 1, more | MSG_ZEROCOPY);
	if (taken <= 0) {
		guard_release(record);
		if (taken != -ENOBUFS)
			return taken;
		notice_pause(conn, REASON_ENOBUFS);
		stats_reason(conn->slot, REASON_ENOBUFS);
		return push_chunk_copied(conn, fd, &chunk, more);
	}
	if ((size_t)taken < chunk.iov_len)
		guard_shrink(record, (size_t)taken);
	/* A thread that wrote while we were sending has got a fresh page, and perhaps it is that page which was sent. */
	rc = guard_pinned(record);
	if (rc < 0)
		log_warn("pages written to during a send could not be guarded again: %d", -rc);
	keep(conn, record, (size_t)taken);
	stats_sent(conn->slot, PATH_ZEROCOPY, (uint64_t)taken, 1);
	sg_sent(conn, (size_t)taken);
	return taken;
}

/* Whether what is left goes by one call. */
static bool is_one_part(const struct cursor *at)
{
	bool pages;
	size_t copied = bytes_to_copy(at->iov, at->offset, &pages);
	size_t whole = (at->iov->iov_len - at->offset) & ~(PAGE - 1);

	return copied == at->left || (!copied && whole == at->left && whole <= CHUNK);
}

static void set_option(int fd, int name, int value)
{
	sys_call(SYS_setsockopt, fd, IPPROTO_TCP, name, (long)&value, sizeof(value), 0);
}

/* Returns whether it is on, or can't be read. */
static bool has_option(int fd, int name)
{
	int value = 0;
	socklen_t bytes = sizeof(value);

	return sys_call(SYS_getsockopt, fd, IPPROTO_TCP, name, (long)&value, (long)&bytes, 0) < 0 || value;
}

/*
 * A send in parts has to be one run of segments, as the program's own call would be: a small one in the middle makes Nagle's
 * algorithm hold the end back until the peer acknowledges, 40 ms. MSG_MORE alone does not see to it: whatever acknowledgement
 * comes between two calls sends what the first has left. TCP_CORK does. Not with a cork of the program's, nor if it has more to
 * say, which taking ours away would not wait for; and with its TCP_NODELAY nothing is held back. Under the lock, for which the
 * program's own TCP_CORK and TCP_NODELAY wait. `begun`: this is the rest of a send. Returns whether it is to be taken away.
 */
static bool cork(int fd, const struct cursor *at, int flags, bool begun)
{
	if (flags & MSG_MORE || (!begun && is_one_part(at)) || has_option(fd, TCP_NODELAY) || has_option(fd, TCP_CORK))
		return false;
	set_option(fd, TCP_CORK, 1);
	return true;
}

/*
 * Between two parts segments grow as the peer's window does, and then one of the first part is a small one to Nagle's algorithm.
 * Where TCP_NODELAY is set, what waits to be sent need wait no more, even after that has been taken away again.
 */
static void uncork(int fd)
{
	set_option(fd, TCP_NODELAY, 1);
	set_option(fd, TCP_NODELAY, 0);
	set_option(fd, TCP_CORK, 0);
}

static long push_parts(struct conn *conn, int fd, struct cursor *at, int flags)
{
	while (at->left) {
		long taken = push_copy(conn, fd, at, flags);

		if (!taken)
			taken = push_pages(conn, fd, at, flags);
		if (taken < 0)
			return taken;
		advance(at, (size_t)taken);
	}
	return 0;
}

/*
 * Hands over as much as the kernel takes without waiting, of a send of which some is gone if it has `begun`, maybe all. Under the
 * lock. Returns 0, or -errno (-EAGAIN: buffer full).
 */
static long push(struct conn *conn, int fd, struct cursor *at, int flags, bool begun)
{
	bool corked;
	long rc;

	if (zerocopy_used(conn))
		zerocopy_harvest(conn);
	if (sg_flush(conn) < 0)
		return -EAGAIN;
	corked = cork(fd, at, flags, begun);
	rc = push_parts(conn, fd, at, flags);
	if (corked)
		uncork(fd); /* also in front of a full buffer: what is taken must not stay behind */
	return rc;
}

/*
 * Waits for room as the kernel does, by a plain send of a little: signals, SO_SNDTIMEO, cancellation and O_NONBLOCK mean what
 * they always do. Returns bytes taken or -errno.
 */
static ssize_t wait_by_sending(struct conn *conn, int fd, const struct cursor *at, int flags)
{
	uintptr_t start = (uintptr_t)at->iov->iov_base + at->offset;
	size_t rest = at->iov->iov_len - at->offset;
	size_t part = PAGE - (start & (PAGE - 1));
	ssize_t sent;

	part = part < rest ? part : rest;
	sent = real.send(fd, (void *)start, part, (part < at->left ? flags | MSG_MORE : flags) | MSG_NOSIGNAL);
	if (sent < 0)
		return -errno;
	stats_sent(conn->slot, PATH_COPY, (uint64_t)sent, 1);
	stats_reason(conn->slot, REASON_WAITED);
	return sent;
}

/* Books what a large send of `bytes` has cost, by either way. */
static void learn_cost(struct conn *conn, bool own, uint64_t ns, size_t bytes)
{
	struct zerocopy *zc = &conn->zerocopy;
	uint32_t *samples = own ? &zc->own_samples : &zc->copy_samples;
	uint64_t *cost = own ? &zc->own_cost : &zc->copy_cost;
	uint64_t value = ns * 1024 / bytes;
	struct lock_hold hold;

	if (!lock_take(&conn->lock, &hold))
		return;
	*cost = *samples ? (*cost * 3 + value) / 4 : value;
	if (*samples < SAMPLES)
		(*samples)++;
	lock_give(&conn->lock, &hold);
}

ssize_t zerocopy_send(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	struct cursor at = { iov, 0, 0 };
	bool measure = conn->policy == PATH_AUTO;
	uint64_t begun = measure ? clock_thread() : 0;
	struct lock_hold hold;
	uint64_t cookie = 0;
	size_t all;
	long rc;

	for (int i = 0; i < count; i++)
		at.left += iov[i].iov_len;
	all = at.left;
	advance(&at, 0);
	for (;;) {
		bool entered = conn_enter(conn, fd, &hold);
		enum stat_reason why;

		/* While it waited, the number has become another's, whose bytes these would be; that may have the same place in memory. */
		if (cookie && (!entered || conn->cookie != cookie)) {
			if (entered)
				conn_leave(conn, &hold);
			return at.left < all ? (ssize_t)(all - at.left) : -EBADF;
		}
		why = entered ? prepare(conn, fd) : REASON_DETACHED;
		cookie = entered ? conn->cookie : 0;
		rc = why == REASON_NONE ? push(conn, fd, &at, flags, at.left < all) : -EAGAIN;
		if (entered)
			conn_leave(conn, &hold);
		if (why != REASON_NONE && at.left == all) {
			stats_reason(conn->slot, why);
			return -EOPNOTSUPP;
		}
		if (rc != -EAGAIN || (flags & MSG_DONTWAIT) || !at.left)
			break;
		rc = wait_by_sending(conn, fd, &at, flags);
		if (rc < 0)
			break;
		advance(&at, (size_t)rc);
	}
	if (rc == -EAGAIN && at.left)
		atomic_store_explicit(&conn->send_blocked, true, memory_order_relaxed);
	if (measure && at.left < all)
		learn_cost(conn, true, clock_thread() - begun + guard_cost_ns(all - at.left), all - at.left);
	if (rc < 0 && rc != -EAGAIN && rc != -EINTR && rc != -EFAULT && at.left < all && conn_enter(conn, fd, &hold)) {
		if (conn->cookie == cookie)
			atomic_store(&conn->sg.error, (int)-rc); /* told by the next call, as the kernel would */
		conn_leave(conn, &hold);
	}
	return at.left < all ? (ssize_t)(all - at.left) : rc;
}

uint64_t zerocopy_copy_begins(struct conn *conn)
{
	struct zerocopy *zc = &conn->zerocopy;
	struct lock_hold hold;
	bool due;

	if (conn->policy != PATH_AUTO || choose_is_copied(conn->peer_key) || !lock_take(&conn->lock, &hold))
		return 0;
	due = !zc->refused && zc->copy_samples < SAMPLES && zc->sent_bytes >= PROBE_AFTER;
	lock_give(&conn->lock, &hold);
	return due ? clock_thread() : 0;
}

void zerocopy_copy_ends(struct conn *conn, uint64_t begun, ssize_t sent)
{
	if (begun && sent > 0)
		learn_cost(conn, false, clock_thread() - begun, (size_t)sent);
}
