/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/inq.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/evict.h"

_Atomic bool inq_ever;

static bool is_asked_for(int fd)
{
	int value = 0;
	socklen_t bytes = sizeof(value);

	return sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INQ, (long)&value, (long)&bytes, 0) >= 0 && value;
}

/* As the kernel has it: an end that is still to be told counts as a byte, so that the program comes for it. */
static int left_of(struct conn *conn, int fd)
{
	int left = 0;

	if (!engine_unread(conn, fd, &left))
		sys_call(SYS_ioctl, fd, FIONREAD, (long)&left, 0, 0, 0);
	return left ? left : !evict_may_come(fd);
}

void inq_tell(struct conn *conn, int fd, struct msghdr *message, size_t room)
{
	struct cmsghdr head = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_TCP, .cmsg_type = TCP_CM_INQ };
	char all[CMSG_SPACE(sizeof(int))] = { 0 };
	int left;

	if (!is_asked_for(fd))
		return;
	if (!message->msg_control || room < head.cmsg_len)
		message->msg_flags |= MSG_CTRUNC;
	if (!message->msg_control || room < sizeof(head))
		return;
	if (room < head.cmsg_len)
		head.cmsg_len = room; /* a part, as the kernel has it */
	left = left_of(conn, fd);
	memcpy(all, &head, sizeof(head));
	memcpy(all + CMSG_LEN(0), &left, sizeof(left));
	memcpy(message->msg_control, all, head.cmsg_len);
	message->msg_controllen = room < sizeof(all) ? room : sizeof(all);
}
