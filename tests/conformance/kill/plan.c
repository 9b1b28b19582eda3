/* SPDX-License-Identifier: MIT */
/* What a seed makes of a run, and the stream. */
#include <string.h>

#include "kill.h"

#define TABLE_BYTES 4194301u /* a prime: more than can be under way, and no multiple of anything */

static unsigned char table[TABLE_BYTES];

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t limit)
{
	return limit ? (uint32_t)(random_next(state) % limit) : 0;
}

/* Any magnitude is as likely as another. */
static uint32_t spread(uint64_t *state, uint32_t min, uint32_t max)
{
	uint32_t bits = 0;
	uint64_t value;

	while ((uint64_t)min << (bits + 1) <= max)
		bits++;
	value = (uint64_t)min << below(state, bits + 1);
	value += random_next(state) % value;
	return value > max ? max : (uint32_t)value;
}

void plan_make(struct plan *plan, uint64_t seed)
{
	uint64_t state = seed * 0x2545f4914f6cdd1dull + 1;
	unsigned int steps;

	memset(plan, 0, sizeof(*plan));
	plan->seed = seed;
	plan->victim = below(&state, 16) ? below(&state, 2) : NOBODY;
	plan->connects = below(&state, 2);
	plan->rounds = below(&state, ROUNDS_MAX + 1);
	plan->messages = 1 + below(&state, MESSAGES_MAX);
	for (unsigned int i = 0; i < plan->rounds; i++)
		plan->bytes[i] = spread(&state, 16384, 131072);
	for (unsigned int i = 0; i < plan->messages; i++)
		plan->bytes[plan->rounds + i] = spread(&state, 1, MESSAGE_BYTES_MAX);
	plan->send = below(&state, SEND_STYLES);
	plan->receive = below(&state, RECEIVE_STYLES);
	plan->confirms = below(&state, 2);
	plan->half_close = below(&state, 2);
	plan->lazy = below(&state, 2);
	plan->hasty = below(&state, 2);
	/* The ends of a life are short: they get their share all the same. */
	steps = plan->rounds + plan->messages;
	switch (below(&state, 8)) {
	case 0:
		plan->death = 0;
		break;
	case 1:
		plan->death = 1 + steps;
		break;
	default:
		plan->death = 1 + below(&state, steps);
		break;
	}
	plan->death_ns = spread(&state, 128, DEATH_NS_MAX);
}

void stream_make(void)
{
	uint64_t state = 1;

	for (size_t i = 0; i < TABLE_BYTES; i++)
		table[i] = (unsigned char)(random_next(&state) >> 32);
}

const unsigned char *stream_at(uint64_t seed, uint64_t at, size_t *bytes)
{
	size_t place = (seed * 65537 + at) % TABLE_BYTES;

	if (*bytes > TABLE_BYTES - place)
		*bytes = TABLE_BYTES - place;
	return table + place;
}
