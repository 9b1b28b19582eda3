/* SPDX-License-Identifier: MIT */
/*
 * A lane whose ring lies alone: in front of it and behind it there is no memory, so that whatever leaves it ends the program,
 * with a sanitizer and without.
 */
#ifndef ZC_TESTS_LANE_TESTING_H
#define ZC_TESTS_LANE_TESTING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rdma/lane.h"

#define GUARD_BYTES (16u << 20) /* more than the largest ring mapped twice */

/* Moves both mappings of a lane's ring to a place between guards. */
static inline bool lane_isolate(struct lane *lane)
{
	uint8_t *place = mmap(NULL, 2ul * GUARD_BYTES + 2ul * lane->bytes, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (place == MAP_FAILED)
		return false;
	place += GUARD_BYTES;
	for (int i = 0; i < 2; i++) {
		if (mremap(lane->ring + (size_t)i * lane->bytes, lane->bytes, lane->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
			   place + (size_t)i * lane->bytes) == MAP_FAILED)
			return false;
	}
	lane->ring = place;
	return true;
}

static inline void lane_isolated_unmap(struct lane *lane)
{
	munmap(lane->ring - GUARD_BYTES, 2ul * GUARD_BYTES + 2ul * lane->bytes);
	lane->ring = NULL;
}

/* Bytes that end where their page ends, with none behind it. */
static inline uint8_t *bytes_before_guard(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
	uint8_t *at = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || mprotect(at + whole, page, PROT_NONE))
		return NULL;
	return at + whole - bytes;
}

#endif
