/* SPDX-License-Identifier: MIT */
/* Lines of a ring that are asked for before they are needed (docs/design.md): hints, which change nothing but time. */
#ifndef ZC_RDMA_LANE_FETCH_H
#define ZC_RDMA_LANE_FETCH_H

#include "rdma/lane_record.h"

#define FETCH_AHEAD 512u /* bytes of the ring, at the least */
#define FETCH_MAX 1040u	 /* of a record: a core asks for no more lines at a time, and then waits for those */
#define FETCH_RECORDS 2	 /* ahead */

/*
 * The consumer has read the ring's lines at the last turn, so each is fetched from its core when it is written, which publish() then
 * waits for. So they are asked for some records ahead, while there is other work.
 */
static inline void lane_fetch_ahead(const struct lane *lane, const uint8_t *from, size_t bytes)
{
	uint64_t used = atomic_load_explicit(&lane->shared->tail, memory_order_relaxed) - lane->head_known;
	size_t ahead = FETCH_RECORDS * bytes > FETCH_AHEAD ? FETCH_RECORDS * bytes : FETCH_AHEAD;

	if (bytes > FETCH_MAX || used + ahead + 2 * FETCH_MAX > lane->bytes)
		return;
	for (size_t at = 0; at < bytes; at += LANE_LINE)
		lane_will_write(from + ahead + at);
}

/* What the next receive may take comes from the producer's core meanwhile; nothing behind the tail, where that one writes. */
static inline void lane_fetch_next(const struct lane *lane, const struct place *at, size_t got)
{
	size_t there = at->tail - at->head, bytes = got + sizeof(struct record);
	const char *from = (const char *)record_at(lane, at->head);

	if (got > FETCH_MAX || there > lane->bytes)
		return;
	for (size_t i = 0; i < bytes && i < there; i += LANE_LINE)
		__builtin_prefetch(from + i);
}

#endif
