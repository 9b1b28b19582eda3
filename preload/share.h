/* SPDX-License-Identifier: MIT */
/* Descriptors that travel in SCM_RIGHTS messages, and what a send with special flags means for its connection. */
#ifndef ZC_PRELOAD_SHARE_H
#define ZC_PRELOAD_SHARE_H

#include <sys/socket.h>

#include "preload/conn.h"

/* A message is about to be sent: connections that it passes on are shared from now on. */
void share_passed(const struct msghdr *message);

/* A message was received: descriptors in it are new, whatever their numbers meant before. */
void share_received(struct msghdr *message);

/* Before a send that is not bytes alone. Returns SEND_BY_KERNEL or -errno (send.h). */
ssize_t send_special(struct conn *conn, int fd, int flags);

#endif
