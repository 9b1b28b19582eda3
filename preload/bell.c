/* SPDX-License-Identifier: MIT */
/*
 * A doorbell must go at once, also into a buffer of the kernel that is full. Bytes in it that are not sent yet will wake the peer
 * as well. But those that were sent may have been received long ago, and be held only until they are acknowledged: nothing of
 * them wakes anybody, and the kernel takes up to 200 ms for that. A send over TCP that has room for its bytes in the ring's stead
 * would not wait so long; so the buffer is made larger for a moment, by just what the doorbell needs: a larger one would tell those
 * who wait for room that there is some.
 *
 * A program that sets SO_SNDBUF in this moment may find its own size or the old one, whichever is set last.
 */
#define _GNU_SOURCE
#include "preload/bell.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/sys.h"
#include "preload/guest.h"

#define ACKNOWLEDGED_MS 250 /* the kernel's longest delay of an acknowledgement, and some more */

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#define SNDBUF_LOCK 1 /* the program has set the size: the kernel leaves it alone */

static long push(int fd, uint8_t value)
{
	return sys_call(SYS_sendto, fd, (long)&value, 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
}

static long set(int fd, int name, int value)
{
	return sys_call(SYS_setsockopt, fd, SOL_SOCKET, name, (long)&value, sizeof(value), 0);
}

static long get(int fd, int name, int *value)
{
	socklen_t bytes = sizeof(*value);

	return sys_call(SYS_getsockopt, fd, SOL_SOCKET, name, (long)value, (long)&bytes, 0);
}

/* Bytes to which SO_SNDBUF can be set, as getsockopt tells them; 0 if that is not known. */
static uint32_t largest_buffer(void)
{
	static _Atomic uint32_t known;
	int bytes = (int)atomic_load_explicit(&known, memory_order_relaxed);
	long fd;

	if (bytes)
		return (uint32_t)bytes;
	fd = sys_call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, 0, 0, 0);
	if (fd < 0)
		return 0;
	if (set((int)fd, SO_SNDBUF, INT32_MAX) < 0 || get((int)fd, SO_SNDBUF, &bytes) < 0)
		bytes = 0;
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	atomic_store_explicit(&known, (uint32_t)bytes, memory_order_relaxed);
	return (uint32_t)bytes;
}

/*
 * The kernel doubles what it is told, and cuts it to a limit: a buffer beyond that could not be put back, and is left. It is
 * none that a few bytes without acknowledgement fill. The kernel also takes the size as the program's wish from then on,
 * unless it is told otherwise (Linux 5.14).
 */
static long push_into_larger(int fd, uint8_t value)
{
	uint32_t info[SK_MEMINFO_VARS];
	socklen_t bytes = sizeof(info);
	int lock = SNDBUF_LOCK;
	long rc;

	if (sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, (long)info, (long)&bytes, 0) < 0 ||
	    info[SK_MEMINFO_WMEM_QUEUED] < info[SK_MEMINFO_SNDBUF])
		return push(fd, value); /* there is room by now */
	if (info[SK_MEMINFO_WMEM_QUEUED] + 2 > largest_buffer())
		return -EAGAIN;
	get(fd, SO_BUF_LOCK, &lock);
	if (set(fd, SO_SNDBUF, (int)(info[SK_MEMINFO_WMEM_QUEUED] / 2 + 1)) < 0)
		return -EAGAIN;
	rc = push(fd, value);
	set(fd, SO_SNDBUF, (int)(info[SK_MEMINFO_SNDBUF] / 2));
	if (!(lock & SNDBUF_LOCK))
		set(fd, SO_BUF_LOCK, lock);
	return rc;
}

long bell_send(int fd, uint8_t value)
{
	struct pollfd look = { .fd = fd, .events = POLLOUT };
	int unsent = 0;
	long rc;

	for (int tries = 0;; tries++) {
		rc = push(fd, value);
		if (rc != -EAGAIN || tries == 2 || guest_sandboxed() ||
		    sys_call(SYS_ioctl, fd, SIOCOUTQNSD, (long)&unsent, 0, 0, 0) < 0 || unsent)
			return rc;
		rc = push_into_larger(fd, value);
		if (rc != -EAGAIN)
			return rc;
		sys_call(SYS_poll, (long)&look, 1, ACKNOWLEDGED_MS, 0, 0, 0);
	}
}
