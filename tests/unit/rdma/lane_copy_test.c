/* SPDX-License-Identifier: MIT */
#include "rdma/lane_copy.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define BYTES_MAX (LANE_COPY_OWN + 1000)
#define PLACES 70u /* more than a line */
#define UNTOUCHED 0xee

static uint8_t from[BYTES_MAX + PLACES], to[BYTES_MAX + 2 * PLACES];

static void copy_and_look(size_t to_at, size_t from_at, size_t bytes)
{
	memset(to, UNTOUCHED, sizeof(to));
	lane_copy(to + to_at, from + from_at, bytes);
	assert_memory_equal(to + to_at, from + from_at, bytes);
	for (size_t i = 0; i < to_at; i++)
		assert_int_equal(to[i], UNTOUCHED);
	for (size_t i = to_at + bytes; i < sizeof(to); i++)
		assert_int_equal(to[i], UNTOUCHED);
}

static void every_place_is_copied_whole(void **state)
{
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)(i * 7 + i / 251) & 0x7f;
	for (size_t place = 0; place < PLACES; place++) {
		copy_and_look(place, 0, LANE_COPY_OWN + 131);
		copy_and_look(0, place, LANE_COPY_OWN + 131);
		copy_and_look(place, PLACES - 1 - place, LANE_COPY_OWN);
	}
}

static void every_length_is_copied_whole(void **state)
{
	copy_and_look(1, 1, 0);
	copy_and_look(1, 1, 1);
	for (size_t bytes = LANE_COPY_OWN - 2; bytes <= BYTES_MAX; bytes++)
		copy_and_look(16, 3, bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_place_is_copied_whole),
		cmocka_unit_test(every_length_is_copied_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
