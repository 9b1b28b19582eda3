/* SPDX-License-Identifier: MIT */
/* Settings: values, limits, refusals that name what is allowed, and a default that stays where a value is refused. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/settings.h"

static struct settings standard;
static int refusals;
static char refusal[1024];

static void remember(const char *message)
{
	refusals++;
	snprintf(refusal, sizeof(refusal), "%s", message);
}

static int fresh(void **state)
{
	clearenv();
	settings = standard;
	refusals = 0;
	refusal[0] = '\0';
	return 0;
}

static int keep_standard(void **state)
{
	standard = settings;
	return 0;
}

static void nothing_set_leaves_the_defaults(void **state)
{
	assert_int_equal(settings_load(remember), 0);
	assert_memory_equal(&settings, &standard, sizeof(settings));
	assert_int_equal(settings.path, PATH_AUTO);
	assert_int_equal(settings.sg_hold_us, 100);
	assert_null(settings.rules);
}

static void values_are_taken_over(void **state)
{
	setenv("ZC_PATH", "sg", 1);
	setenv("ZC_SG_HOLD_US", "10000", 1);
	setenv("ZC_GUARD", "mprotect", 1);
	setenv("ZC_RULES", "/etc/zc.rules", 1);
	setenv("ZCX", "is none of ours", 1);
	assert_int_equal(settings_load(remember), 0);
	assert_int_equal(settings.path, PATH_SG);
	assert_int_equal(settings.sg_hold_us, 10000);
	assert_int_equal(settings.guard, 2);
	assert_string_equal(settings.rules, "/etc/zc.rules");
}

static void every_path_can_be_set(void **state)
{
	for (int path = 0; path < PATH_COUNT; path++) {
		setenv("ZC_PATH", path_name((enum zc_path)path), 1);
		assert_int_equal(settings_load(remember), 0);
		assert_int_equal(settings.path, path);
	}
}

static void refused_value_leaves_the_default_and_is_told(void **state)
{
	static const char *const bad[][2] = {
		{ "ZC_PATH", "fast" },	    { "ZC_PATH", "" },		 { "ZC_PATH", "copy|sg" },
		{ "ZC_PATH", "COPY" },	    { "ZC_SG_HOLD_US", "0" },	 { "ZC_SG_HOLD_US", "10001" },
		{ "ZC_SG_HOLD_US", "" },    { "ZC_SG_HOLD_US", "-1" },	 { "ZC_SG_HOLD_US", " 5" },
		{ "ZC_SG_HOLD_US", "5us" }, { "ZC_SG_HOLD_US", "0x10" }, { "ZC_SG_HOLD_US", "18446744073709551617" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		fresh(NULL);
		setenv(bad[i][0], bad[i][1], 1);
		assert_int_equal(settings_load(remember), 1);
		assert_int_equal(refusals, 1);
		assert_non_null(strstr(refusal, bad[i][0]));
		assert_non_null(strstr(refusal, bad[i][1]));
		assert_non_null(strstr(refusal, "allowed is"));
		assert_memory_equal(&settings, &standard, sizeof(settings));
	}
}

static void unknown_setting_is_told(void **state)
{
	setenv("ZC_PATHS", "copy", 1);
	assert_int_equal(settings_load(remember), 1);
	assert_non_null(strstr(refusal, "ZC_PATHS"));
}

static void each_refusal_counts_and_the_rest_is_taken(void **state)
{
	setenv("ZC_PATH", "fast", 1);
	setenv("ZC_NOTHING", "1", 1);
	setenv("ZC_BLOCK_US", "7", 1);
	assert_int_equal(settings_load(remember), 2);
	assert_int_equal(refusals, 2);
	assert_int_equal(settings.block_us, 7);
	assert_int_equal(settings_load(NULL), 2);
}

static void limits_of_each_row_are_those_that_are_kept(void **state)
{
	char message[256], text[32];
	unsigned long min, max;

	for (size_t i = 0; i < setting_row_count; i++) {
		const struct setting_row *row = &setting_rows[i];

		assert_true(strlen(row->help) > 0);
		if (sscanf(row->allowed, "%lu..%lu", &min, &max) != 2)
			continue;
		snprintf(text, sizeof(text), "%lu", min);
		assert_int_equal(settings_check(row->env, text, message, sizeof(message)), 0);
		snprintf(text, sizeof(text), "%lu", max);
		assert_int_equal(settings_check(row->env, text, message, sizeof(message)), 0);
		snprintf(text, sizeof(text), "%lu", max + 1);
		assert_int_equal(settings_check(row->env, text, message, sizeof(message)), -EINVAL);
		assert_int_equal(settings_check(row->env, row->standard, message, sizeof(message)), 0);
		if (!min)
			continue;
		snprintf(text, sizeof(text), "%lu", min - 1);
		assert_int_equal(settings_check(row->env, text, message, sizeof(message)), -EINVAL);
	}
}

static void choices_of_each_row_are_those_that_are_kept(void **state)
{
	char message[256], words[256], *rest;

	for (size_t i = 0; i < setting_row_count; i++) {
		if (!strchr(setting_rows[i].allowed, '|'))
			continue;
		snprintf(words, sizeof(words), "%s", setting_rows[i].allowed);
		rest = words;
		for (char *word = strtok_r(words, "|", &rest); word; word = strtok_r(NULL, "|", &rest)) {
			int wanted = strcmp(word, "off") || settings_guard_can_be_off() ? 0 : -EINVAL;

			assert_int_equal(settings_check(setting_rows[i].env, word, message, sizeof(message)), wanted);
		}
		assert_int_equal(settings_check(setting_rows[i].env, "none of them", message, sizeof(message)),
				 -EINVAL);
		assert_non_null(strstr(message, setting_rows[i].allowed));
	}
}

static void checking_takes_nothing_over(void **state)
{
	char message[256];

	assert_int_equal(settings_check("ZC_PATH", "copy", message, sizeof(message)), 0);
	assert_int_equal(settings_check("ZC_NONE", "copy", message, sizeof(message)), -ENOENT);
	assert_memory_equal(&settings, &standard, sizeof(settings));
}

static void empty_text_is_no_text(void **state)
{
	setenv("ZC_STATS_DIR", "", 1);
	assert_int_equal(settings_load(remember), 0);
	assert_null(settings.stats_dir);
}

static void long_names_and_values_do_no_harm(void **state)
{
	char name[300], value[5000];

	memset(name, 'A', sizeof(name) - 1);
	memcpy(name, "ZC_", 3);
	name[sizeof(name) - 1] = '\0';
	memset(value, '9', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	setenv(name, "x", 1);
	setenv("ZC_BLOCK_US", value, 1);
	assert_int_equal(settings_load(remember), 1);
	assert_memory_equal(&settings, &standard, sizeof(settings));
}

static void texts_outlive_the_environment_that_they_came_from(void **state)
{
	static char entry[] = "ZC_STATS_DIR=/somewhere/else";
	char **before = environ, *own[] = { entry, NULL };

	environ = own;
	assert_int_equal(settings_load(remember), 0);
	memset(entry, ' ', sizeof(entry) - 1); /* as a program does that writes to its title */
	environ = before;
	assert_string_equal(settings.stats_dir, "/somewhere/else");
}

static void path_numbers_and_names_belong_together(void **state)
{
	for (int path = 0; path < PATH_COUNT; path++) {
		assert_int_equal(path_find(path_name((enum zc_path)path)), path);
		assert_true(strlen(path_help((enum zc_path)path)) > 0);
	}
	assert_int_equal(path_find(""), -EINVAL);
	assert_string_equal(path_name((enum zc_path)PATH_COUNT), "?");
	assert_string_equal(path_name((enum zc_path) - 1), "?");
	assert_string_equal(path_help((enum zc_path)99), "");
	assert_true(path_sends(PATH_COPY) && path_sends(PATH_SG) && path_sends(PATH_ZEROCOPY));
	assert_false(path_sends(PATH_AUTO) || path_sends(PATH_TCP) || path_sends((enum zc_path)99));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(nothing_set_leaves_the_defaults, fresh),
		cmocka_unit_test_setup(values_are_taken_over, fresh),
		cmocka_unit_test_setup(every_path_can_be_set, fresh),
		cmocka_unit_test_setup(refused_value_leaves_the_default_and_is_told, fresh),
		cmocka_unit_test_setup(unknown_setting_is_told, fresh),
		cmocka_unit_test_setup(each_refusal_counts_and_the_rest_is_taken, fresh),
		cmocka_unit_test_setup(limits_of_each_row_are_those_that_are_kept, fresh),
		cmocka_unit_test_setup(choices_of_each_row_are_those_that_are_kept, fresh),
		cmocka_unit_test_setup(checking_takes_nothing_over, fresh),
		cmocka_unit_test_setup(empty_text_is_no_text, fresh),
		cmocka_unit_test_setup(long_names_and_values_do_no_harm, fresh),
		cmocka_unit_test_setup(texts_outlive_the_environment_that_they_came_from, fresh),
		cmocka_unit_test_setup(path_numbers_and_names_belong_together, fresh),
	};

	return cmocka_run_group_tests(tests, keep_standard, NULL);
}
