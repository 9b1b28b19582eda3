/* SPDX-License-Identifier: MIT */
/* The doorbell: one byte in the TCP stream that wakes a peer which sleeps in the kernel (rdma/lane.h). */
#ifndef ZC_PRELOAD_BELL_H
#define ZC_PRELOAD_BELL_H

#include <stdint.h>

/* Returns 1, -EAGAIN if unsent bytes fill the kernel's buffer (they wake the peer as well), or the -errno of a send. */
long bell_send(int fd, uint8_t value);

#endif
