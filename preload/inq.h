/* SPDX-License-Identifier: MIT */
/* TCP_INQ: a receive that takes control messages is told by one how many bytes are there behind those that it got. */
#ifndef ZC_PRELOAD_INQ_H
#define ZC_PRELOAD_INQ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "preload/conn.h"

/* Whether this process has ever set it: the kernel knows of which socket, accepted ones have their listener's. */
extern _Atomic bool inq_ever;

/*
 * Behind a receive by the ring, which has put no control message: what the kernel's would have put, if the socket is asked to. `room`:
 * bytes that the program has given at message->msg_control.
 */
void inq_tell(struct conn *conn, int fd, struct msghdr *message, size_t room);

#endif
