/* SPDX-License-Identifier: MIT */
/* Spinning that pays goes on; what does not becomes shorter, then seldom. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "preload/spin.h"

#define MOST 50000u

static void what_pays_has_all_its_time(void **state)
{
	struct spin spin = { .ns = 10 };

	(void)state;
	assert_true(spin_may(&spin));
	spin_ends(&spin, true, MOST);
	assert_int_equal(spin.ns, MOST);
	assert_true(spin_may(&spin));
}

static void in_vain_it_is_shorter_then_seldom(void **state)
{
	struct spin spin = { .ns = MOST };
	unsigned int tries = 0, skipped = 0;

	(void)state;
	for (uint32_t before = spin.ns; spin_may(&spin); tries++) {
		spin_ends(&spin, false, MOST);
		assert_true(spin.skip || spin.ns == before / 2);
		before = spin.ns;
	}
	assert_in_range(tries, 5, 6); /* 50, 25, 12, 6, 3, 1.5 us */
	assert_int_equal(spin.ns, SPIN_AGAIN_NS);
	for (skipped = 1; !spin_may(&spin); skipped++)
		;
	assert_int_equal(skipped, SPIN_SKIPPED);
	spin_ends(&spin, true, MOST);
	assert_int_equal(spin.ns, MOST);
}

static void between_hosts_it_is_whole_or_seldom(void **state)
{
	struct spin spin = { .ns = 1 };

	(void)state;
	spin_ends_far(&spin, true, MOST);
	for (unsigned int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < SPIN_VAIN_MAX; i++) {
			assert_true(spin_may(&spin));
			assert_int_equal(spin.ns, MOST);
			spin_ends_far(&spin, false, MOST);
		}
		spin_ends_far(&spin, true, MOST); /* one that pays makes up for them */
	}
	for (uint32_t i = 0; i < SPIN_VAIN_MAX + 1; i++) {
		assert_true(spin_may(&spin));
		spin_ends_far(&spin, false, MOST);
	}
	for (unsigned int round = 0; round < 3; round++) { /* a try at a time */
		for (uint32_t i = 0; i < SPIN_SKIPPED; i++)
			assert_false(spin_may(&spin));
		assert_true(spin_may(&spin));
		assert_int_equal(spin.ns, MOST);
		spin_ends_far(&spin, round == 2, MOST);
	}
	assert_true(spin_may(&spin));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_pays_has_all_its_time),
		cmocka_unit_test(in_vain_it_is_shorter_then_seldom),
		cmocka_unit_test(between_hosts_it_is_whole_or_seldom),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
