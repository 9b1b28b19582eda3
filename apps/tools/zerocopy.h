/* SPDX-License-Identifier: MIT */
/*
 * MSG_ZEROCOPY as a program uses it by itself: send, count, and read the completions from the socket's error queue before
 * the memory is written to again.
 */
#ifndef ZC_TOOLS_ZEROCOPY_H
#define ZC_TOOLS_ZEROCOPY_H

#include <stdint.h>

#include "apps/tools/stream.h"

struct zerocopy {
	uint64_t sends; /* that the kernel has taken with MSG_ZEROCOPY */
	uint64_t completed;
	uint64_t copied; /* of these the kernel made a copy after all */
};

/* Returns 0 or -errno: the kernel may not know SO_ZEROCOPY. */
int zerocopy_open(const struct stream *stream);

/* Sends all of the vector as stream_push() does. */
int zerocopy_push(struct stream *stream, struct zerocopy *state, struct iovec *iov, int count, size_t *done);

/* Waits until all that was sent is complete, so that its memory may be written to. Returns 0 or -errno. */
int zerocopy_settle(struct stream *stream, struct zerocopy *state);

#endif
