/* SPDX-License-Identifier: MIT */
/* The copy of a send's bytes into a ring. */
#ifndef ZC_RDMA_LANE_COPY_H
#define ZC_RDMA_LANE_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANE_COPY_OWN 20480u /* bytes, from which on memcpy() is not the best */

/* As memcpy(), of LANE_COPY_OWN bytes at least, wherever both are. */
void lane_copy_lines(void *to, const void *from, size_t bytes);

/*
 * As memcpy(). That one copies much by `rep movsb`, which into lines that the consumer's core has read at the last turn takes up to
 * 1.6 times as long as stores of vectors while the consumer is close behind (decision 0019).
 */
static inline void lane_copy(void *to, const void *from, size_t bytes)
{
	if (bytes < LANE_COPY_OWN)
		memcpy(to, from, bytes);
	else
		lane_copy_lines(to, from, bytes);
}

#endif
