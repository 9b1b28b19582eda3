/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/share.h"

#include <string.h>

#include "common/sys.h"
#include "preload/evict.h"
#include "preload/send.h"
#include "preload/watch.h"
#include "preload/zerocopy.h"

static void each_descriptor(const struct msghdr *message, void (*visit)(int fd))
{
	struct msghdr *open = (struct msghdr *)message; /* CMSG_NXTHDR only reads */
	int fd;

	if (!message->msg_control || message->msg_controllen < sizeof(struct cmsghdr))
		return;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(open); at; at = CMSG_NXTHDR(open, at)) {
		/* A program's own may say anything; the kernel refuses it. */
		size_t left = message->msg_controllen - (size_t)((char *)at - (char *)message->msg_control);
		size_t bytes = at->cmsg_len < left ? at->cmsg_len : left;

		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(fd)) <= bytes; i++) {
			memcpy(&fd, CMSG_DATA(at) + i * sizeof(fd), sizeof(fd));
			visit(fd);
		}
	}
}

static void pass(int fd)
{
	struct conn *conn = table_conn(fd);

	if (!conn) {
		if (table_set(fd))
			watch_nest(fd); /* who gets it waits in it, too */
		return;
	}
	/* Whoever gets it could not have what is unread here, and would go on behind it. */
	if (!engine_retire(conn, fd))
		evict_reset(conn, fd);
	conn_share(conn);
}

static void take(int fd)
{
	if (table_is_own(fd))
		return;
	conn_close(fd); /* what the number meant before, if anything */
	table_put(fd, TABLE_UNKNOWN);
	conn_classify(fd);
}

void share_passed(const struct msghdr *message)
{
	if (__builtin_expect(message->msg_controllen != 0, 0))
		each_descriptor(message, pass);
}

void share_received(struct msghdr *message)
{
	if (__builtin_expect(message->msg_controllen != 0, 0))
		each_descriptor(message, take);
}

ssize_t send_special(struct conn *conn, int fd, int flags)
{
	int rc;

	if (flags & MSG_ZEROCOPY) {
		conn_detach(conn, REASON_APP_ERRQUEUE);
		/* Without SO_ZEROCOPY of its own the program asks in vain, and gets no notice. */
		if (conn->zerocopy.enabled && !conn->app_error_queue && !conn->token)
			sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, (long)&(int){ 0 }, sizeof(int), 0);
	}
	if (flags & MSG_OOB)
		engine_pin(
			conn,
			fd); /* whether the urgent byte is among those received is the receiver's choice: no count holds */
	rc = send_before_kernel(conn, fd, flags, REASON_FLAGS);
	return rc < 0 ? rc : SEND_BY_KERNEL;
}
