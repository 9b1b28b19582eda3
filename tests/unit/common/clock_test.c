/* SPDX-License-Identifier: MIT */
/* Monotonic time does not go back and moves with the kernel's. */
#define _GNU_SOURCE
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"

static void time_never_goes_back(void **state)
{
	uint64_t before = clock_now();

	for (int i = 0; i < 100000; i++) {
		uint64_t now = clock_now();

		assert_true(now >= before);
		before = now;
	}
}

static void time_is_the_kernels_monotonic_clock(void **state)
{
	struct timespec early, late;
	uint64_t now;

	clock_gettime(CLOCK_MONOTONIC, &early);
	now = clock_now();
	clock_gettime(CLOCK_MONOTONIC, &late);
	assert_true(now >= (uint64_t)early.tv_sec * NS_PER_SEC + (uint64_t)early.tv_nsec);
	assert_true(now <= (uint64_t)late.tv_sec * NS_PER_SEC + (uint64_t)late.tv_nsec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(time_never_goes_back),
		cmocka_unit_test(time_is_the_kernels_monotonic_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
