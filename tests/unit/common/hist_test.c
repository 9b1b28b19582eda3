/* SPDX-License-Identifier: MIT */
/* The histogram: every value is kept within 1/64 of itself, and sums are those of the values. */
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/hist.h"

static struct hist hist, other;

static int fresh(void **state)
{
	hist_reset(&hist);
	hist_reset(&other);
	return 0;
}

static void assert_within(uint64_t got, uint64_t value)
{
	assert_true(got >= value);
	assert_true(got - value <= value / HIST_SUB);
}

static void empty_histogram_is_all_zero(void **state)
{
	assert_int_equal(hist_percentile(&hist, 50.0), 0);
	assert_true(hist_mean(&hist) == 0.0);
}

static void single_value_is_every_percentile(void **state)
{
	hist_record(&hist, 123456);
	for (double percent = 0.0; percent <= 100.0; percent += 12.5)
		assert_int_equal(hist_percentile(&hist, percent), 123456);
	assert_int_equal(hist.min, 123456);
	assert_int_equal(hist.max, 123456);
}

/* Around each power of two, where the buckets change their width. */
static void values_are_kept_within_a_64th(void **state)
{
	for (int power = 0; power < 47; power++) {
		for (int64_t step = -2; step <= 2; step++) {
			uint64_t value = (1ull << power) + (uint64_t)step;

			if (step < 0 && (uint64_t)-step > 1ull << power)
				continue;
			fresh(NULL);
			hist_record(&hist, value);
			hist_record(&hist, UINT64_MAX / 2); /* so that the maximum does not bound it */
			assert_within(hist_percentile(&hist, 50.0), value);
		}
	}
}

static void percentiles_are_those_of_the_sorted_values(void **state)
{
	const uint64_t count = 100000;

	for (uint64_t i = 1; i <= count; i++)
		hist_record(&hist, i * 1000);
	assert_within(hist_percentile(&hist, 50.0), count / 2 * 1000);
	assert_within(hist_percentile(&hist, 90.0), count / 10 * 9 * 1000);
	assert_within(hist_percentile(&hist, 99.9), count / 1000 * 999 * 1000);
	assert_int_equal(hist_percentile(&hist, 100.0), count * 1000);
	assert_true(hist_mean(&hist) == (double)(count + 1) / 2.0 * 1000.0);
}

static void small_values_are_exact(void **state)
{
	for (uint64_t value = 0; value < HIST_SUB; value++)
		hist_record(&hist, value);
	for (uint64_t value = 0; value < HIST_SUB; value++)
		assert_int_equal(hist_percentile(&hist, 100.0 * (double)(value + 1) / HIST_SUB), value);
}

static void huge_values_stay_in_the_last_bucket(void **state)
{
	hist_record(&hist, UINT64_MAX);
	hist_record(&hist, UINT64_MAX - 1);
	assert_int_equal(hist.buckets[HIST_BUCKETS - 1], 2);
	assert_int_equal(hist.max, UINT64_MAX);
	assert_true(hist_percentile(&hist, 50.0) >= 1ull << 47);
}

static void adding_is_recording_both(void **state)
{
	struct hist *both = calloc(1, sizeof(*both));

	hist_reset(both);
	for (uint64_t i = 0; i < 1000; i++) {
		hist_record(i % 3 ? &hist : &other, i * i);
		hist_record(both, i * i);
	}
	hist_add(&hist, &other);
	assert_int_equal(hist.count, both->count);
	assert_int_equal(hist.min, both->min);
	assert_int_equal(hist.max, both->max);
	assert_memory_equal(hist.buckets, both->buckets, sizeof(hist.buckets));
	assert_true(hist_mean(&hist) == hist_mean(both));
	free(both);
}

static void adding_nothing_changes_nothing(void **state)
{
	hist_record(&hist, 7);
	hist_add(&hist, &other);
	assert_int_equal(hist.min, 7);
	assert_int_equal(hist.count, 1);
	hist_add(&other, &hist);
	assert_int_equal(other.min, 7);
}

static void mean_is_that_of_the_values(void **state)
{
	static const uint64_t values[] = { 2, 4, 4, 4, 5, 5, 7, 9 };

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		hist_record(&hist, values[i]);
	assert_true(hist_mean(&hist) == 5.0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(empty_histogram_is_all_zero, fresh),
		cmocka_unit_test_setup(single_value_is_every_percentile, fresh),
		cmocka_unit_test_setup(values_are_kept_within_a_64th, fresh),
		cmocka_unit_test_setup(percentiles_are_those_of_the_sorted_values, fresh),
		cmocka_unit_test_setup(small_values_are_exact, fresh),
		cmocka_unit_test_setup(huge_values_stay_in_the_last_bucket, fresh),
		cmocka_unit_test_setup(adding_is_recording_both, fresh),
		cmocka_unit_test_setup(adding_nothing_changes_nothing, fresh),
		cmocka_unit_test_setup(mean_is_that_of_the_values, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
