/* SPDX-License-Identifier: MIT */
/* What a fuzz target makes of its input: numbers, of which the last ones are all the same, and a condition that must hold. */
#ifndef ZC_TESTS_FUZZ_INPUT_H
#define ZC_TESTS_FUZZ_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static const uint8_t *input, *input_end;

static inline void must(bool holds)
{
	if (!holds)
		abort();
}

static inline uint8_t next_byte(void)
{
	return input < input_end ? *input++ : 0xff;
}

static inline uint64_t next_number(void)
{
	uint64_t number = 0;
	uint8_t bytes = next_byte() % 9;

	for (uint8_t i = 0; i < bytes; i++)
		number |= (uint64_t)next_byte() << (8 * i);
	return number;
}

#endif
