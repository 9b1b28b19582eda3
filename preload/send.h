/* SPDX-License-Identifier: MIT */
/*
 * One send of the program, on a connection that sg or zerocopy may serve. The wrappers turn every call of the family into
 * spans and flags; what no path takes, they hand to the kernel by the very call that the program made.
 */
#ifndef ZC_PRELOAD_SEND_H
#define ZC_PRELOAD_SEND_H

#include <errno.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "common/clock.h"
#include "preload/conn.h"
#include "preload/guest.h"
#include "preload/sg.h"

#define SEND_BY_KERNEL (-4096) /* no path took it: make the call as the program did */

/* Flags that leave the choice of a path open. */
#define SEND_FLAGS (MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE | MSG_EOR)

/*
 * Sends by the path that fits. Returns bytes taken, -errno, or SEND_BY_KERNEL; then everything held is with the kernel
 * already. Threads: any.
 */
ssize_t send_by_path(struct conn *conn, int fd, const struct iovec *iov, int count, int flags);

/* Before a send that only the kernel can serve. Returns 0, or -errno: an earlier send failed, or this one would wait. */
int send_before_kernel(struct conn *conn, int fd, int flags, enum stat_reason why);

/* A send of the program ends so, which is what it returns: -EPIPE comes with its signal. */
ssize_t send_tells(ssize_t rc, int flags);

/* Adds up, as the kernel would check it. Returns false for nothing, and for what the kernel must refuse itself. */
bool send_add_up(const struct iovec *iov, int count, size_t *bytes);

/* Sends what is behind the first `done` bytes, by the kernel, as the program's own call would. Returns bytes or -errno. */
ssize_t send_behind(int fd, const struct iovec *iov, int count, size_t done, int flags);

extern __thread uint32_t send_sample __attribute__((tls_model("initial-exec")));

/*
 * Where in the program this thread's last send was made: kept by the wrappers, for those who remember what comes of sends by
 * where they come from. One store, as most sends are too small for that.
 */
extern __thread uintptr_t send_site __attribute__((tls_model("initial-exec")));
#define SEND_SITE() ((uintptr_t)__builtin_extract_return_addr(__builtin_return_address(0)))

/* Returns the place of the present send; 0, not known, for one that the library makes for another call: stdio, syscall(). */
uintptr_t send_call_site(void);

/*
 * Returns the time for one send in STATS_SAMPLE, 0 for the others, which are not timed. A sandbox may have no clock: in seccomp's
 * strict mode reading it is a fault, and on some machines it is a system call.
 */
static inline uint64_t send_clock(void)
{
	return __builtin_expect(++send_sample % STATS_SAMPLE == 0, 0) && !guest_sandboxed() ? clock_now() : 0;
}

/* Around a call that the kernel serves: counts it, times some. */
static inline uint64_t send_begins(void)
{
	/* What this thread holds on other connections, or on another number of this one, comes first. */
	sg_before_send();
	conn_counts();
	return send_clock();
}

static inline void send_ends(struct conn *conn, uint64_t begun, ssize_t sent)
{
	_Atomic uint64_t *row = stats->slot[conn->slot].path[PATH_COPY];

	if (__builtin_expect(sent < 0, 0)) {
		atomic_store_explicit(&conn->send_blocked, true, memory_order_relaxed);
		return;
	}
	stats_add(&row[STAT_PATH_CALLS], 1);
	stats_add(&row[STAT_PATH_BYTES], (uint64_t)sent);
	stats_add(&row[STAT_PATH_SYSCALLS], 1);
	if (conn_active(conn))
		sg_sent(conn, (size_t)sent);
	if (__builtin_expect(begun != 0, 0)) {
		int saved = errno;

		stats_latency(conn->slot, PATH_COPY, clock_now() - begun);
		errno = saved;
	}
}

/* -ECODE becomes -1 with errno. */
static inline ssize_t send_result(ssize_t rc)
{
	if (rc >= 0)
		return rc;
	errno = (int)-rc;
	return -1;
}

#endif
