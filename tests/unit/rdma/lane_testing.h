/* SPDX-License-Identifier: MIT */
/*
 * A lane whose memory lies alone: in front of and behind its share, its ring and its area there is no memory, so that
 * whatever leaves them ends the program, with a sanitizer and without. Here it is both ends' at once.
 */
#ifndef ZC_TESTS_LANE_TESTING_H
#define ZC_TESTS_LANE_TESTING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rdma/lane.h"
#include "rdma/source.h"

#define LONELY_GAP (16ul << 20)
#define LONELY_SHARE_BYTES 16384ul

_Static_assert(sizeof(struct lane_shared) + sizeof(struct source_shared) <= LONELY_SHARE_BYTES, "the share has room");

struct lonely_lane {
	struct lane lane;
	uint8_t *base;
	size_t bytes;
	int memory;
};

/* Maps a piece of the lane's file between gaps. Returns where, or NULL; *at goes on behind it. */
static inline uint8_t *lonely_piece(const struct lonely_lane *lonely, uint8_t **at, long offset, size_t bytes)
{
	uint8_t *to = *at;

	*at += bytes;
	if (mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, lonely->memory, offset) != to)
		return NULL;
	return to;
}

/* Makes one with a ring and an area of these sizes (powers of two, whole pages). Ends by lonely_end(). */
static inline bool lonely_make(struct lonely_lane *lonely, uint32_t ring, uint32_t area)
{
	uint8_t *at, *second, *share;

	*lonely = (struct lonely_lane){ .bytes = 4 * LONELY_GAP + LONELY_SHARE_BYTES + 2ul * ring + area };
	lonely->memory = memfd_create("lane", MFD_CLOEXEC);
	lonely->base = mmap(NULL, lonely->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (lonely->memory < 0 || lonely->base == MAP_FAILED ||
	    ftruncate(lonely->memory, (off_t)(LONELY_SHARE_BYTES + ring + area)))
		return false;
	at = lonely->base + LONELY_GAP;
	share = lonely_piece(lonely, &at, 0, LONELY_SHARE_BYTES);
	at += LONELY_GAP;
	lonely->lane.ring = lonely_piece(lonely, &at, LONELY_SHARE_BYTES, ring);
	second = lonely_piece(lonely, &at, LONELY_SHARE_BYTES, ring);
	at += LONELY_GAP;
	lonely->lane.area = lonely_piece(lonely, &at, (long)(LONELY_SHARE_BYTES + ring), area);
	lonely->lane.bytes = ring;
	lonely->lane.area_bytes = area;
	lonely->lane.shared = (struct lane_shared *)share;
	return share && lonely->lane.ring && second && lonely->lane.area;
}

/* Gives it the sources that a channel's lanes have. */
static inline void lonely_with_sources(struct lonely_lane *lonely, struct source_out *out, struct source_in *in)
{
	lonely->lane.sources = (struct source_shared *)(lonely->lane.shared + 1);
	lonely->lane.out = out;
	lonely->lane.in = in;
}

static inline void lonely_end(struct lonely_lane *lonely)
{
	munmap(lonely->base, lonely->bytes);
	close(lonely->memory);
}

/* Bytes that end where their page ends, with none behind it. */
static inline uint8_t *bytes_before_gap(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
	uint8_t *at = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || mprotect(at + whole, page, PROT_NONE))
		return NULL;
	return at + whole - bytes;
}

#endif
