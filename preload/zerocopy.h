/* SPDX-License-Identifier: MIT */
/*
 * zerocopy: large sends leave with MSG_ZEROCOPY, the whole pages of the buffer under guard until the kernel says that it is
 * done with them, so that a program that reuses its buffer at once is right. Head and tail that do not fill a page are
 * copied. The kernel numbers such sends from 0 on, per socket; its notices (Linux, Documentation/networking/msg_zerocopy.rst)
 * come through the error queue in ranges, in any order, and are taken from there before a program can see them.
 *
 * Where the kernel copies all the same (loopback, veth, old drivers), where it runs out of notification or pinned memory,
 * and where buffers are rewritten at once, the path pauses: for a number of sends that doubles each time.
 */
#ifndef ZC_PRELOAD_ZEROCOPY_H
#define ZC_PRELOAD_ZEROCOPY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "preload/conn.h"

#define ZEROCOPY_RING 256 /* sends of a connection that may be outstanding; power of two */

/* Decides whether a send of `bytes` goes this way. Under the lock. Returns REASON_NONE for yes, else why not. */
enum stat_reason zerocopy_decide(struct conn *conn, size_t bytes);

/*
 * Sends, waiting as the socket's own send would. Without the lock. Returns the bytes taken (fewer than all as send does) or
 * -errno; -ENOBUFS never.
 */
ssize_t zerocopy_send(struct conn *conn, int fd, const struct iovec *iov, int count, int flags);

/* Takes the notices that are there, and frees the pages that they name. Under the lock. Returns how many there were. */
int zerocopy_harvest(struct conn *conn);

/* As zerocopy_harvest, taking the lock. Returns how many there were. */
int zerocopy_harvest_now(struct conn *conn);

/* Frees all pages at once, by copy; notices still come. Under the lock. */
void zerocopy_settle(struct conn *conn);

/* The last descriptor closes. Under the lock. */
void zerocopy_close(struct conn *conn, int fd);

/* In the child: guards are gone, the notices of the parent's sends may still come. */
void zerocopy_after_fork(struct conn *conn);

/* Returns whether notices of ours may be in the socket's error queue. */
static inline bool zerocopy_used(const struct conn *conn)
{
	return atomic_load_explicit(&conn->zerocopy.used, memory_order_relaxed);
}

/* Times one large send by copy, for comparison, when that is due. */
uint64_t zerocopy_copy_begins(struct conn *conn);
void zerocopy_copy_ends(struct conn *conn, uint64_t begun, ssize_t sent);

#endif
