/* SPDX-License-Identifier: MIT */
#include "apps/tools/pattern.h"

#include <string.h>

#define ODD 0x9e3779b97f4a7c15ull
#define WORD sizeof(uint64_t)

/* splitmix64's finalizer (S. Vigna): neighbouring inputs give unrelated outputs. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint64_t pattern_seed(const struct pattern *pattern, uint64_t message, uint32_t part)
{
	uint64_t where = mix(pattern->session + ((uint64_t)pattern->connection << 1 | pattern->way) * ODD);

	return mix(mix(where + message) + part * ODD);
}

void pattern_fill(void *bytes, size_t count, uint64_t seed)
{
	char *at = bytes;
	uint64_t word = seed;

	for (; count >= WORD; count -= WORD, at += WORD, word += ODD)
		memcpy(at, &word, WORD);
	memcpy(at, &word, count);
}

void pattern_touch(void *bytes, size_t count, uint64_t seed)
{
	uint64_t word = seed;

	for (size_t at = 0; at < count; at += PATTERN_STRIDE, word += ODD)
		memcpy((char *)bytes + at, &word, count - at < WORD ? count - at : WORD);
}

/* Compares one word, or the rest of one. Returns true if it is right. */
static bool check_word(const char *at, size_t count, uint64_t word, size_t offset, struct mismatch *wrong)
{
	uint8_t expected[WORD];

	if (!memcmp(at, &word, count))
		return true;
	memcpy(expected, &word, WORD);
	for (size_t i = 0; i < count; i++) {
		if ((uint8_t)at[i] == expected[i])
			continue;
		*wrong = (struct mismatch){ offset + i, expected[i], (uint8_t)at[i] };
		break;
	}
	return false;
}

/* Checks words from `offset`, the first being number offset / WORD of the pattern. */
static bool check_range(const char *bytes, size_t offset, size_t end, uint64_t seed, struct mismatch *wrong)
{
	uint64_t word = seed + offset / WORD * ODD, got;
	size_t at = offset;

	for (; end - at >= WORD; at += WORD, word += ODD) {
		memcpy(&got, bytes + at, WORD);
		if (got != word)
			return check_word(bytes + at, WORD, word, at, wrong);
	}
	return check_word(bytes + at, end - at, word, at, wrong);
}

bool pattern_check(const void *bytes, size_t count, uint64_t seed, struct mismatch *wrong)
{
	return check_range(bytes, 0, count, seed, wrong);
}

bool pattern_check_touched(const void *bytes, size_t count, uint64_t seed, uint64_t touched, struct mismatch *wrong)
{
	uint64_t word = touched;

	for (size_t at = 0; at < count; at += PATTERN_STRIDE, word += ODD) {
		size_t end = count - at < PATTERN_STRIDE ? count : at + PATTERN_STRIDE;
		size_t head = end - at < WORD ? end - at : WORD;

		if (!check_word((const char *)bytes + at, head, word, at, wrong) ||
		    !check_range(bytes, at + head, end, seed, wrong))
			return false;
	}
	return true;
}

uint64_t pattern_read(const void *bytes, size_t count)
{
	uint64_t sum = 0, word = 0;
	const char *at = bytes;

	for (; count >= WORD; count -= WORD, at += WORD) {
		memcpy(&word, at, WORD);
		sum += word;
	}
	word = 0;
	memcpy(&word, at, count);
	return sum + word;
}
