/* SPDX-License-Identifier: MIT */
/*
 * The pattern that --verify fills messages with. Each message (and each of its parts) of each connection, session and
 * direction has a seed of its own; word i of 64 bits is mix(seed) + i * odd. So every word of a run differs from every
 * other but by chance, and a flipped byte, a shift, a swap, a repeat or a stale page is seen. One addition and one
 * comparison a word.
 */
#ifndef ZC_TOOLS_PATTERN_H
#define ZC_TOOLS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PATTERN_STRIDE 4096 /* pattern_touch() writes one word in so many bytes */

enum pattern_way { PATTERN_TO_SERVER, PATTERN_TO_CLIENT };

struct pattern {
	uint64_t session;
	uint32_t connection;
	enum pattern_way way;
};

struct mismatch {
	size_t offset;
	uint8_t expected;
	uint8_t got;
};

/* Returns the seed of a part of a message. */
uint64_t pattern_seed(const struct pattern *pattern, uint64_t message, uint32_t part);

void pattern_fill(void *bytes, size_t count, uint64_t seed);

/* Rewrites one word every PATTERN_STRIDE bytes. */
void pattern_touch(void *bytes, size_t count, uint64_t seed);

/* Returns true if all bytes are right; otherwise `wrong` tells the first that is not. */
bool pattern_check(const void *bytes, size_t count, uint64_t seed, struct mismatch *wrong);

/* The same for bytes that were filled with one seed and then touched with another. */
bool pattern_check_touched(const void *bytes, size_t count, uint64_t seed, uint64_t touched, struct mismatch *wrong);

/* Reads every word. Returns their sum, so that no compiler leaves the reading out. */
uint64_t pattern_read(const void *bytes, size_t count);

#endif
