/* SPDX-License-Identifier: MIT */
/* What tests send, and when: bytes of which each is known by its position in the stream, and chance from a seed. */
#ifndef ZC_TESTS_STREAM_TESTING_H
#define ZC_TESTS_STREAM_TESTING_H

#include <stddef.h>
#include <stdint.h>

/* What belongs at a position of the stream: never a repeating pattern of a power of two. */
static inline uint8_t byte_at(uint64_t position)
{
	return (uint8_t)((position * 0x9e3779b97f4a7c15ull) >> 56);
}

static inline void fill(uint8_t *to, uint64_t position, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = byte_at(position + i);
}

/* Returns how many bytes are right before the first that is wrong. */
static inline size_t wrong_from(const uint8_t *got, uint64_t position, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		if (got[i] != byte_at(position + i))
			return i;
	}
	return bytes;
}

/* Xorshift. The state is never 0. */
static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * 0x2545f4914f6cdd1dull;
}

static inline size_t random_below(uint64_t *state, size_t limit)
{
	return (size_t)(random_next(state) >> 24) % limit;
}

#endif
