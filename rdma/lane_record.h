/* SPDX-License-Identifier: MIT */
/* How a lane's ring is written, for the files of lane.h. */
#ifndef ZC_RDMA_LANE_RECORD_H
#define ZC_RDMA_LANE_RECORD_H

#include <errno.h>

#include "rdma/lane.h"

enum record_kind { RECORD_DATA = 1, RECORD_TAKEOVER, RECORD_SWITCH, RECORD_SOURCE, RECORD_AVAIL };

/*
 * In the ring, aligned to RECORD_ALIGN, followed by `bytes` of data (AVAIL: of avail.h); of a source `bytes` is its number. So data are 16 bytes into
 * a page where a program's buffer is at its beginning: with 8, a copy ran at a tenth of its speed (`rep movsb` of AMD's
 * processors, where the target is less than 16 bytes ahead of the origin modulo 4096).
 */
struct record {
	uint32_t kind;
	uint32_t bytes;
	uint32_t codes; /* of a move */
	uint32_t unused;
};

#define RECORD_ALIGN 16u

static inline uint64_t padded(uint64_t bytes)
{
	return (bytes + RECORD_ALIGN - 1) & ~(uint64_t)(RECORD_ALIGN - 1);
}

/* Bytes of the ring behind a record's head, as it says itself. */
static inline uint64_t record_length(struct record record)
{
	return record.kind == RECORD_DATA || record.kind == RECORD_AVAIL ? padded(record.bytes) : 0;
}

static inline struct record *record_at(const struct lane *lane, uint64_t position)
{
	return (struct record *)(lane->ring + (position & (lane->bytes - 1) & ~(uint64_t)(RECORD_ALIGN - 1)));
}

static inline ssize_t between(const struct lane *lane, uint64_t head, uint64_t tail)
{
	uint64_t used = tail - head;

	return used > lane->bytes || head % RECORD_ALIGN ? -EPROTO : (ssize_t)used;
}

/* A record as it is now: what is decided by it is read once. */
static inline struct record record_read(const struct lane *lane, uint64_t position)
{
	const volatile struct record *record = record_at(lane, position);

	return (struct record){ .kind = record->kind, .bytes = record->bytes, .codes = record->codes };
}

/* This core is about to write there, soon. What is not to be had is no fault. */
static inline void lane_will_write(const void *at)
{
#ifdef __x86_64__
	/* __builtin_prefetch() would ask for a copy to read, which is worse than nothing, where not every processor knows another. */
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1);
#endif
}

/* What is free of the ring where so much is used, or -EPROTO, but for `reserve`. */
static inline ssize_t free_beside(const struct lane *lane, ssize_t used, size_t reserve)
{
	size_t taken = used < 0 ? 0 : (size_t)used + reserve;

	return used < 0 ? used : taken >= lane->bytes ? 0 : (ssize_t)(lane->bytes - taken);
}

/* Where the consumer is; written back unless it only peeks. */
struct place {
	uint64_t head, tail;
	uint32_t taken;
	uint32_t passed; /* sources */
};

/*
 * A source at the place, of whatever kind. Returns LANE_DATA to go on, LANE_EMPTY when iov is full or nothing can be had now, or
 * -errno.
 */
int lane_take_source(struct lane *lane, struct place *at, struct record record, const struct iovec *iov, int count,
		     bool peek, size_t *got);

/* Whether the consumer has left, as it knows itself. */
static inline uint32_t away(const struct lane *lane)
{
	return atomic_load_explicit(&lane->shared->away, memory_order_relaxed);
}

/* Bytes of the records from `head` to `tail`; of the first of them `taken` don't count any more. */
size_t lane_between(const struct lane *lane, uint64_t head, uint64_t tail, uint32_t taken);

#endif
