/* SPDX-License-Identifier: MIT */
/* The copy of a send's bytes into a ring. */
#ifndef ZC_RDMA_LANE_COPY_H
#define ZC_RDMA_LANE_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANE_COPY_LINE 64u
#define LANE_COPY_OWN 20480u /* bytes, from which on memcpy() is not the best */

typedef long long copy_block __attribute__((vector_size(16), may_alias));
typedef long long copy_block_anywhere __attribute__((vector_size(16), may_alias, aligned(1)));

/*
 * As memcpy(). That one copies much by `rep movsb`, which into lines that the consumer's core has read at the last turn takes up to
 * 1.6 times as long as stores of whole lines while the consumer is close behind (decision 0019).
 */
static inline void lane_copy(void *to, const void *from, size_t bytes)
{
	size_t at = -(uintptr_t)to % LANE_COPY_LINE;

	if (bytes < LANE_COPY_OWN) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, LANE_COPY_LINE);
	for (; at + 2 * LANE_COPY_LINE <= bytes; at += 2 * LANE_COPY_LINE) {
		const copy_block_anywhere *in = (const copy_block_anywhere *)((const uint8_t *)from + at);
		copy_block *out = (copy_block *)((uint8_t *)to + at);
		const copy_block a = in[0], b = in[1], c = in[2], d = in[3], e = in[4], f = in[5], g = in[6], h = in[7];

		out[0] = a;
		out[1] = b;
		out[2] = c;
		out[3] = d;
		out[4] = e;
		out[5] = f;
		out[6] = g;
		out[7] = h;
	}
	memcpy((uint8_t *)to + at, (const uint8_t *)from + at, bytes - at);
}

#endif
