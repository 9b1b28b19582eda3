/* SPDX-License-Identifier: MIT */
/* The log: its own formatting agrees with printf's, lines are whole, and errno is kept. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/sys.h"

/* Compares with what snprintf makes of the same. */
#define SAME(...)                                                                                                      \
	do {                                                                                                           \
		char ours_[256], theirs_[256];                                                                         \
		size_t used_ = log_format(ours_, sizeof(ours_), __VA_ARGS__);                                          \
		int wanted_ = snprintf(theirs_, sizeof(theirs_), __VA_ARGS__);                                         \
		assert_string_equal(ours_, theirs_);                                                                   \
		assert_int_equal(used_, wanted_);                                                                      \
	} while (0)

static void formats_as_printf_does(void **state)
{
	SAME("plain %% text");
	SAME("%s|%s|%c", "word", "", 'x');
	SAME("%d %d %d %d", 0, -1, INT_MAX, INT_MIN);
	SAME("%u %u", 0u, UINT_MAX);
	SAME("%ld %ld %lu", LONG_MAX, LONG_MIN, ULONG_MAX);
	SAME("%zu", SIZE_MAX);
	SAME("%x %lx %08x %8x", 0xdeadu, ULONG_MAX, 0xbeefu, 0xbeefu);
	SAME("%x", UINT_MAX);
}

static void null_text_is_told_as_such(void **state)
{
	const char *volatile nothing = NULL; /* the compiler would know better */
	char out[32];

	log_format(out, sizeof(out), "<%s>", nothing);
	assert_string_equal(out, "<(null)>");
}

static void long_text_is_cut_and_its_length_told(void **state)
{
	char out[8];

	memset(out, 'x', sizeof(out));
	assert_int_equal(log_format(out, 5, "%s", "123456789"), 9);
	assert_string_equal(out, "1234");
	assert_int_equal(out[5], 'x');
	assert_int_equal(log_format(out, 0, "%s", "ab"), 2);
	assert_int_equal(out[5], 'x');
	assert_int_equal(log_format(out, 1, "%d", 7), 1);
	assert_int_equal(out[0], '\0');
}

static char name[] = "/tmp/zc-log-test-XXXXXX";

static size_t read_log(char *out, size_t bytes)
{
	int fd = open(name, O_RDONLY);
	ssize_t got = read(fd, out, bytes - 1);

	close(fd);
	out[got > 0 ? got : 0] = '\0';
	return got > 0 ? (size_t)got : 0;
}

static void silent_until_opened(void **state)
{
	assert_int_equal(log_descriptor(), -1);
	assert_int_equal(log_level_now, LOG_NONE);
	log_error("nobody sees this");
	assert_int_equal(log_open(LOG_NONE, NULL), 0);
	assert_int_equal(log_descriptor(), -1);
}

static void file_that_cannot_be_written_leaves_it_off(void **state)
{
	assert_int_equal(log_open(LOG_TRACE, "/nowhere/log"), -ENOENT);
	assert_int_equal(log_descriptor(), -1);
	assert_int_equal(log_level_now, LOG_NONE);
}

static void lines_up_to_the_level_are_written_whole(void **state)
{
	char text[2048], wanted[128];

	assert_int_equal(log_open(LOG_WARN, name), 0);
	errno = EDOM;
	log_error("one %d", 1);
	log_warn("two");
	log_info("three");
	assert_int_equal(errno, EDOM);
	snprintf(wanted, sizeof(wanted), "zc[%d] error: one 1\nzc[%d] warn: two\n", getpid(), getpid());
	read_log(text, sizeof(text));
	assert_string_equal(text, wanted);
}

static void descriptor_is_out_of_the_programs_way(void **state)
{
	assert_true(log_descriptor() >= SYS_FD_HIGH);
	assert_int_equal(fcntl(log_descriptor(), F_GETFD), FD_CLOEXEC);
}

static void endless_line_is_cut_with_its_end(void **state)
{
	char longest[4096], text[8192];
	size_t used;

	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(truncate(name, 0), 0);
	log_error("%s", longest);
	log_error("next");
	used = read_log(text, sizeof(text));
	assert_true(used < 700);
	assert_non_null(strstr(text, "aaa\nzc["));
	assert_int_equal(text[used - 1], '\n');
}

static int make_file(void **state)
{
	int fd = mkstemp(name);

	close(fd);
	return fd < 0;
}

static int remove_file(void **state)
{
	return unlink(name);
}

int main(void)
{
	/* In this order: the log opens once and stays open. */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(formats_as_printf_does),
		cmocka_unit_test(null_text_is_told_as_such),
		cmocka_unit_test(long_text_is_cut_and_its_length_told),
		cmocka_unit_test(silent_until_opened),
		cmocka_unit_test(file_that_cannot_be_written_leaves_it_off),
		cmocka_unit_test(lines_up_to_the_level_are_written_whole),
		cmocka_unit_test(descriptor_is_out_of_the_programs_way),
		cmocka_unit_test(endless_line_is_cut_with_its_end),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
