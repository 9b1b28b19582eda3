/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/send.h"

#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/far_compare.h"
#include "preload/real.h"
#include "preload/zerocopy.h"

__thread uint32_t send_sample __attribute__((tls_model("initial-exec")));
__thread uintptr_t send_site __attribute__((tls_model("initial-exec")));

/* The library itself, as the linker calls its beginning. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

uintptr_t send_call_site(void)
{
	const ElfW(Phdr) *part = (const void *)((const char *)&__ehdr_start + __ehdr_start.e_phoff);
	uintptr_t inside = send_site - (uintptr_t)&__ehdr_start;

	for (int i = 0; i < __ehdr_start.e_phnum; i++) {
		if (part[i].p_type == PT_LOAD && inside - part[i].p_vaddr < part[i].p_memsz)
			return 0;
	}
	return send_site;
}

ssize_t send_tells(ssize_t rc, int flags)
{
	if (rc == -EPIPE && !(flags & MSG_NOSIGNAL))
		sys_call(SYS_tgkill, getpid(), lock_self(), SIGPIPE, 0, 0, 0);
	return rc;
}

/* What bytes already accepted have met is told by the next call, with the signal that goes with it. */
static int tell_error(struct conn *conn, int flags)
{
	return (int)send_tells(-sg_take_error(conn), flags);
}

int send_before_kernel(struct conn *conn, int fd, int flags, enum stat_reason why)
{
	int rc;

	sg_before_send();
	if (why != REASON_NONE)
		stats_reason(conn->slot, why);
	if (__builtin_expect(atomic_load_explicit(&conn->sg.held, memory_order_relaxed) != 0, 0)) {
		rc = sg_drain(conn, fd, conn_waits(fd, flags));
		if (rc < 0)
			return rc;
	}
	return tell_error(conn, flags);
}

ssize_t send_behind(int fd, const struct iovec *iov, int count, size_t done, int flags)
{
	struct iovec rest[count];
	struct msghdr message = { .msg_iov = rest };
	size_t skip = done;
	ssize_t sent;

	for (int i = 0; i < count; i++) {
		size_t cut = skip < iov[i].iov_len ? skip : iov[i].iov_len;

		skip -= cut;
		if (cut < iov[i].iov_len)
			rest[message.msg_iovlen++] =
				(struct iovec){ (char *)iov[i].iov_base + cut, iov[i].iov_len - cut };
	}
	sent = real.sendmsg(fd, &message, flags);
	return sent < 0 ? -errno : sent;
}

/* The rest of a send of which `done` bytes are taken, by the kernel, as the program's own call would. */
static ssize_t send_rest(struct conn *conn, int fd, const struct iovec *iov, int count, size_t done, int flags)
{
	ssize_t sent = send_behind(fd, iov, count, done, flags);

	atomic_store_explicit(&conn->send_blocked, true, memory_order_relaxed);
	if (sent < 0)
		return done ? (ssize_t)done : sent;
	stats_add(&stats->slot[conn->slot].path[PATH_SG][STAT_PATH_SYSCALLS], 1);
	stats_add(&stats->slot[conn->slot].path[PATH_SG][STAT_PATH_BYTES], (uint64_t)sent);
	sg_sent(conn, (size_t)sent);
	return (ssize_t)done + sent;
}

/*
 * Holds a small send, or sends a larger one together with what is held. Returns as send_by_path, SEND_BY_KERNEL if it was
 * not held.
 */
static ssize_t send_gathered(struct conn *conn, int fd, const struct iovec *iov, int count, size_t bytes, int flags,
			     uint64_t now)
{
	struct lock_hold hold;
	ssize_t taken;

	/* A send is a cancellation point, also for a thread whose sends are all held; once a batch is enough to end it. */
	if (!atomic_load_explicit(&conn->sg.held, memory_order_relaxed))
		pthread_testcancel();
	flusher_ready(); /* may start a thread: never under the lock */
	if (!conn_enter(conn, fd, &hold))
		return SEND_BY_KERNEL;
	taken = sg_hold(conn, fd, iov, count, bytes, now);
	conn_leave(conn, &hold);
	if (taken < 0)
		return SEND_BY_KERNEL;
	if (atomic_load_explicit(&conn->sg.error, memory_order_relaxed) && !taken)
		return tell_error(conn, flags);
	return (size_t)taken < bytes ? send_rest(conn, fd, iov, count, (size_t)taken, flags) : taken;
}

bool send_add_up(const struct iovec *iov, int count, size_t *bytes)
{
	if (count < 0 || count > IOV_MAX)
		return false;
	*bytes = 0;
	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > SSIZE_MAX - *bytes)
			return false;
		*bytes += iov[i].iov_len;
	}
	return *bytes > 0;
}

static enum stat_reason decide_gather(struct conn *conn, size_t bytes, int count, uint64_t *now)
{
	if (conn->policy == PATH_ZEROCOPY)
		return REASON_SMALL;
	*now = clock_now();
	if (bytes > settings.sg_send_max || count > SG_SPANS_MAX) {
		sg_turn_ends(conn);
		return REASON_LARGE;
	}
	return sg_decide(conn, bytes, *now);
}

/* The decision looks at what notices have taught, so under the lock. */
static enum stat_reason decide_large(struct conn *conn, int fd, size_t bytes)
{
	enum stat_reason why;
	struct lock_hold hold;

	if (!conn_enter(conn, fd, &hold))
		return REASON_DETACHED;
	why = zerocopy_decide(conn, bytes);
	conn_leave(conn, &hold);
	return why;
}

static ssize_t send_large(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	ssize_t rc = send_before_kernel(conn, fd, flags, REASON_NONE);

	if (rc < 0)
		return rc;
	pthread_testcancel(); /* what follows waits only when the buffer is full */
	rc = send_tells(zerocopy_send(conn, fd, iov, count, flags), flags);
	return rc == -EOPNOTSUPP ? SEND_BY_KERNEL : rc;
}

/* Sends by the path that fits, and tells which. Returns as send_by_path. */
static ssize_t take_path(struct conn *conn, int fd, const struct iovec *iov, int count, int flags, enum zc_path *path)
{
	enum stat_reason why;
	uint64_t now = 0;
	size_t bytes = 0;
	ssize_t rc;

	if (!send_add_up(iov, count, &bytes))
		why = REASON_FLAGS;
	else if (guest_sandboxed())
		why = REASON_SECCOMP;
	else if (!conn_take_token(conn))
		why = REASON_SHARED;
	else if (bytes >= settings.zerocopy_min && conn->policy != PATH_SG)
		why = decide_large(conn, fd, bytes);
	else
		why = decide_gather(conn, bytes, count, &now);
	*path = now ? PATH_SG : PATH_ZEROCOPY;
	if (why == REASON_NONE && !atomic_load_explicit(&conn->sg.error, memory_order_relaxed)) {
		rc = now ? send_gathered(conn, fd, iov, count, bytes, flags, now) :
			   send_large(conn, fd, iov, count, flags);
		if (rc != SEND_BY_KERNEL)
			return rc;
	}
	/* A larger one may leave with what is held before it, in one call. */
	if (why == REASON_LARGE && count <= SG_SPANS_MAX &&
	    atomic_load_explicit(&conn->sg.held, memory_order_relaxed)) {
		rc = send_gathered(conn, fd, iov, count, bytes, flags, SG_NOW_OR_NEVER);
		if (rc != SEND_BY_KERNEL)
			return rc;
	}
	rc = send_before_kernel(conn, fd, flags, why);
	return rc < 0 ? rc : SEND_BY_KERNEL;
}

/* On a connection with an engine: the ring, or what path it has as long as both ends have not met. Returns as send_by_path. */
static ssize_t send_by_engine(struct conn *conn, int fd, const struct iovec *iov, int count, int flags,
			      enum zc_path *path)
{
	ssize_t rc = engine_send(conn, fd, iov, count, flags, path);

	if (rc != SEND_BY_KERNEL)
		return rc;
	if (conn->policy != PATH_AUTO || (engine_has_met(conn) && !far_compare_takes_tcp(conn))) {
		rc = send_before_kernel(conn, fd, flags, REASON_NONE);
		return rc < 0 ? rc : SEND_BY_KERNEL;
	}
	{
		__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conn, fd, flags);

		raw.done = raw.error ? raw.error : take_path(conn, fd, iov, count, flags, path);
		return raw.done;
	}
}

ssize_t send_by_path(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	uint64_t begun = send_clock();
	enum zc_path path = PATH_SG;
	ssize_t rc;

	if (engine_is_there(conn))
		rc = send_by_engine(conn, fd, iov, count, flags, &path);
	else if (count == 1 && atomic_load_explicit(&conn->sg.held, memory_order_relaxed) && !conn->token &&
		 sg_join(conn, fd, iov->iov_base, iov->iov_len))
		rc = (ssize_t)iov->iov_len;
	else
		rc = take_path(conn, fd, iov, count, flags, &path);
	if (__builtin_expect(begun != 0, 0) && rc >= 0)
		stats_latency(conn->slot, path, clock_now() - begun);
	return rc;
}
