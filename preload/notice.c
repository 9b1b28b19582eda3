/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/notice.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/zerocopy.h"

#define PAUSE_FIRST 64
#define PAUSE_MAX 16384
#define COPIED_MAX 8	/* in a row, until a path that was asked for pauses; `auto` does so at the first */
#define FAULT_WINDOW 16 /* sends */

static struct sock_extended_err *find_error(struct msghdr *message)
{
	for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
		if ((at->cmsg_level == SOL_IP && at->cmsg_type == IP_RECVERR) ||
		    (at->cmsg_level == SOL_IPV6 && at->cmsg_type == IPV6_RECVERR))
			return (struct sock_extended_err *)CMSG_DATA(at);
	}
	return NULL;
}

bool notice_parse(struct msghdr *message, struct notice *out)
{
	struct sock_extended_err *error = find_error(message);

	if (!error || error->ee_origin != SO_EE_ORIGIN_ZEROCOPY || error->ee_errno)
		return false;
	out->first = error->ee_info;
	out->last = error->ee_data;
	out->copied = error->ee_code & SO_EE_CODE_ZEROCOPY_COPIED;
	return true;
}

bool notice_for_program(struct conn *conn, struct msghdr *message)
{
	struct sock_extended_err *error = find_error(message);

	if (!error || error->ee_origin != SO_EE_ORIGIN_ZEROCOPY || !conn->zerocopy.next)
		return true;
	if (error->ee_data - conn->zerocopy.oldest < conn->zerocopy.next - conn->zerocopy.oldest ||
	    error->ee_data < conn->zerocopy.next)
		return false;
	/* The kernel joins our last notice and the program's first in one range: the program's part begins at 0. */
	error->ee_info = (int32_t)(error->ee_info - conn->zerocopy.next) < 0 ? 0 : error->ee_info - conn->zerocopy.next;
	error->ee_data -= conn->zerocopy.next;
	return true;
}

void notice_pause(struct conn *conn, enum stat_reason why)
{
	struct zerocopy *zc = &conn->zerocopy;

	zc->pause = zc->pause_next ? zc->pause_next : PAUSE_FIRST;
	zc->pause_next = zc->pause * 2 < PAUSE_MAX ? zc->pause * 2 : PAUSE_MAX;
	zc->why = why;
}

bool notice_faulting(struct conn *conn)
{
	struct zerocopy *zc = &conn->zerocopy;

	if (++zc->sends < FAULT_WINDOW)
		return false;
	zc->sends = 0;
	return atomic_exchange_explicit(&zc->faults, 0, memory_order_relaxed) > FAULT_WINDOW / 4;
}

/* What the kernel says about copying decides whether the path goes on. */
static void learn(struct conn *conn, bool copied)
{
	struct zerocopy *zc = &conn->zerocopy;

	if (!copied) {
		zc->copied = 0;
		zc->pause_next = 0;
		return;
	}
	zc->copied++;
	if (conn->policy == PATH_AUTO) {
		choose_remember_copied(conn->peer_key);
	} else if (!settings.zerocopy_keep && zc->copied >= COPIED_MAX && !zc->pause) {
		notice_pause(conn, REASON_KERNEL_COPIED);
		zc->copied = COPIED_MAX - 1; /* one more is enough after the pause */
	}
}

void notice_complete(struct conn *conn, const struct notice *notice)
{
	struct zerocopy *zc = &conn->zerocopy;
	uint32_t outstanding = zc->next - zc->oldest;
	uint32_t from = notice->first - zc->oldest, to = notice->last - zc->oldest;

	/* Numbers wrap at 2^32; what is not outstanding is not ours (another process's, after a fork). */
	if (to >= outstanding)
		return;
	for (uint32_t i = from <= to ? from : 0; i <= to; i++) {
		struct zerocopy_send *send = &zc->ring[(zc->oldest + i) % ZEROCOPY_RING];

		if (send->done)
			continue;
		send->done = true;
		zc->bytes -= send->bytes;
		if (send->record)
			guard_release(send->record);
		send->record = NULL;
		stats_conn(conn->slot, STAT_CONN_COMPLETIONS, 1);
		if (notice->copied)
			stats_conn(conn->slot, STAT_CONN_COPIED, 1);
	}
	learn(conn, notice->copied);
	while (zc->oldest != zc->next && zc->ring[zc->oldest % ZEROCOPY_RING].done)
		zc->oldest++;
	if (zc->oldest == zc->next && atomic_exchange(&zc->used, false))
		atomic_fetch_sub(&conn_zerocopy_used, 1);
}

int zerocopy_harvest(struct conn *conn)
{
	char control[256] __attribute__((aligned(8)));
	struct notice notice;
	int count = 0;

	if (!zerocopy_used(conn) || conn->app_error_queue)
		return 0;
	while (zerocopy_used(conn)) {
		struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };

		if (sys_call(SYS_recvmsg, conn_fd(conn), (long)&message, MSG_ERRQUEUE | MSG_DONTWAIT, 0, 0, 0) < 0)
			break;
		count++;
		if (notice_parse(&message, &notice))
			notice_complete(conn, &notice);
	}
	return count;
}

int zerocopy_harvest_now(struct conn *conn)
{
	struct lock_hold hold;
	int count;

	if (!lock_take(&conn->lock, &hold))
		return 0;
	count = zerocopy_harvest(conn);
	lock_give(&conn->lock, &hold);
	return count;
}

void zerocopy_settle(struct conn *conn)
{
	struct zerocopy *zc = &conn->zerocopy;

	if (!zerocopy_used(conn))
		return;
	zerocopy_harvest(conn);
	guard_settle_owner(conn);
	for (uint32_t id = zc->oldest; id != zc->next; id++)
		zc->ring[id % ZEROCOPY_RING].record = NULL;
}

void zerocopy_close(struct conn *conn, int fd)
{
	zerocopy_settle(conn);
	if (atomic_exchange(&conn->zerocopy.used, false))
		atomic_fetch_sub(&conn_zerocopy_used, 1);
}

void zerocopy_after_fork(struct conn *conn)
{
	struct zerocopy *zc = &conn->zerocopy;

	if (!zc->ring)
		return;
	for (uint32_t id = zc->oldest; id != zc->next; id++)
		zc->ring[id % ZEROCOPY_RING].record = NULL;
}

enum stat_reason notice_protect_reason(int error)
{
	return error == -EINVAL	 ? REASON_NOT_PRIVATE :
	       error == -ENOTSUP ? REASON_NO_GUARD :
	       error == -ENOMEM	 ? REASON_NO_MEMORY :
				   REASON_GUARD_FAILED;
}
