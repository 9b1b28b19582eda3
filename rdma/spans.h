/* SPDX-License-Identifier: MIT */
/* Copies between a ring and the spans of an iovec. */
#ifndef ZC_RDMA_SPANS_H
#define ZC_RDMA_SPANS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "rdma/lane_copy.h"

/* Where a gathered send is. */
struct gather {
	const struct iovec *iov;
	int count;
	size_t offset;
};

static inline void gather_copy(struct gather *from, uint8_t *to, size_t bytes)
{
	while (bytes) {
		size_t part = from->iov->iov_len - from->offset;

		part = part < bytes ? part : bytes;
		lane_copy(to, (const uint8_t *)from->iov->iov_base + from->offset, part);
		to += part;
		bytes -= part;
		from->offset += part;
		if (from->offset == from->iov->iov_len) {
			from->iov++;
			from->offset = 0;
		}
	}
}

/* Copies out of a record into iov, from byte *at of iov on. Returns how many. */
static inline size_t scatter(const struct iovec *iov, int count, size_t at, const uint8_t *from, size_t bytes)
{
	size_t done = 0;

	/* The usual one by itself. */
	if (__builtin_expect(count == 1 && at <= iov->iov_len, 1)) {
		done = iov->iov_len - at < bytes ? iov->iov_len - at : bytes;
		memcpy((uint8_t *)iov->iov_base + at, from, done);
		return done;
	}
	for (int i = 0; i < count && done < bytes; i++) {
		size_t part;

		if (at >= iov[i].iov_len) {
			at -= iov[i].iov_len;
			continue;
		}
		part = iov[i].iov_len - at;
		part = part < bytes - done ? part : bytes - done;
		memcpy((uint8_t *)iov[i].iov_base + at, from + done, part);
		done += part;
		at = 0;
	}
	return done;
}

#endif
