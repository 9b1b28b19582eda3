/* SPDX-License-Identifier: MIT */
/* Rules: what the grammar takes and refuses, and which connection a rule fits. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/rules.h"

static struct rules rules;
static struct rule rule;
static char file[] = "/tmp/zc-rules-test-XXXXXX";

static int parse(const char *line)
{
	const char *what = NULL;
	int rc = rule_parse(line, &rule, &what);

	if (rc < 0)
		assert_true(what && *what);
	return rc;
}

static void assert_refused(const char *line, const char *word)
{
	const char *what = NULL;

	assert_int_equal(rule_parse(line, &rule, &what), -EINVAL);
	if (!strstr(what, word))
		fail_msg("'%s': '%s' does not name '%s'", line, what, word);
}

static void whole_rule_is_read(void **state)
{
	assert_int_equal(parse("use zerocopy client redis-* 10.1.2.0/24:6379-6400 # the cache\n"), 1);
	assert_int_equal(rule.path, PATH_ZEROCOPY);
	assert_int_equal(rule.role, ROLE_CLIENT);
	assert_string_equal(rule.program, "redis-*");
	assert_int_equal(rule.family, AF_INET);
	assert_memory_equal(rule.address, ((uint8_t[]){ 10, 1, 2, 0 }), 4);
	assert_int_equal(rule.prefix, 24);
	assert_int_equal(rule.port_first, 6379);
	assert_int_equal(rule.port_last, 6400);
}

static void parts_may_be_left_open(void **state)
{
	assert_int_equal(parse("use tcp server * *:*"), 1);
	assert_int_equal(rule.family, AF_UNSPEC);
	assert_int_equal(rule.port_first, 0);
	assert_int_equal(rule.port_last, 65535);
	assert_int_equal(parse("\tuse  sg\tserver nginx [2001:db8::1]:443\r\n"), 1);
	assert_int_equal(rule.family, AF_INET6);
	assert_int_equal(rule.prefix, 128);
	assert_int_equal(rule.port_first, 443);
	assert_int_equal(rule.port_last, 443);
	assert_int_equal(parse("use sg server nginx 127.0.0.1:1"), 1);
	assert_int_equal(rule.prefix, 32);
}

static void empty_lines_and_comments_are_no_rules(void **state)
{
	assert_int_equal(parse(""), 0);
	assert_int_equal(parse("\n"), 0);
	assert_int_equal(parse(" \t\r\n"), 0);
	assert_int_equal(parse("# use sg\n"), 0);
	assert_int_equal(parse("   # x"), 0);
}

static void wrong_words_are_named(void **state)
{
	assert_refused("use sg client *", "five words");
	assert_refused("use sg client * *:* more", "five words");
	assert_refused("Use sg client * *:*", "`use`");
	assert_refused("use", "five words");
	assert_refused("use fast client * *:*", "PATH");
	assert_refused("use a-path-that-is-much-too-long-for-any client * *:*", "PATH");
	assert_refused("use sg both * *:*", "server");
	assert_refused("use sg client xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx *:*",
		       "PROGRAM");
}

static void wrong_addresses_are_refused(void **state)
{
	/* clang-format off */
	static const char *const bad[] = {
		"1.2.3:1", "1.2.3.4.5:1", "1.2.3.256:1", "1.2.3.:1", "a.b.c.d:1", "1.2.3.4", "::1:1", "[::1:1", "[]:1",
		"[1]:1", "[:1]:1", "[1::2::3]:1", "[12345::]:1", "[1:2:3:4:5:6:7]:1", "[1:2:3:4:5:6:7:8:9]:1", "[::g]:1",
		"[1:2:3:4:5:6:7:8::]:1", "[::1.2.3]:1", "[1:]:1", ":1", "host:1", "[:::1]:1",
	};
	/* clang-format on */

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char line[128];

		snprintf(line, sizeof(line), "use sg client * %s", bad[i]);
		if (parse(line) != -EINVAL)
			fail_msg("'%s' was taken", line);
	}
}

/* Agrees with the C library about what an address is. */
static void addresses_are_read_as_inet_pton_does(void **state)
{
	/* clang-format off */
	static const char *const good[] = {
		"::", "::1", "1::", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "::ffff:10.0.0.1", "1:2:3:4:5:6:1.2.3.4",
		"fe80::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "ABCD:ef01::", "0:0:0:0:0:0:0:0", "64:ff9b::192.0.2.33",
	};
	/* clang-format on */

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct in6_addr wanted;
		char line[128];

		assert_int_equal(inet_pton(AF_INET6, good[i], &wanted), 1);
		snprintf(line, sizeof(line), "use sg client * [%s]:1", good[i]);
		if (parse(line) != 1)
			fail_msg("'%s' was refused", line);
		assert_memory_equal(rule.address, &wanted, 16);
	}
}

static void wrong_prefixes_and_ports_are_named(void **state)
{
	assert_refused("use sg client * 1.2.3.4/33:1", "PREFIX");
	assert_refused("use sg client * 1.2.3.4/:1", "PREFIX");
	assert_refused("use sg client * [::]/129:1", "PREFIX");
	assert_refused("use sg client * 1.2.3.4:0", "PORT");
	assert_refused("use sg client * 1.2.3.4:65536", "PORT");
	assert_refused("use sg client * 1.2.3.4:99999999999999999999", "PORT");
	assert_refused("use sg client * 1.2.3.4:9-8", "PORT");
	assert_refused("use sg client * 1.2.3.4:1-", "PORT");
	assert_refused("use sg client * 1.2.3.4:-1", "PORT");
	assert_refused("use sg client * 1.2.3.4:1x", "PORT");
	assert_refused("use sg client * 1.2.3.4:", "PORT");
	assert_refused("use sg client * */8:1", "PORT");
}

static int match(enum stats_role role, const char *program, const char *address, uint16_t port)
{
	struct sockaddr_in six_or_four = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(port) };

	if (inet_pton(AF_INET, address, &six_or_four.sin_addr) == 1)
		return rules_match(&rules, role, program, (struct sockaddr *)&six_or_four);
	assert_int_equal(inet_pton(AF_INET6, address, &six.sin6_addr), 1);
	return rules_match(&rules, role, program, (struct sockaddr *)&six);
}

static void set_rules(const char *text)
{
	char *copy = strdup(text), *rest = copy;

	rules.count = 0;
	for (char *line = strtok_r(copy, ";", &rest); line; line = strtok_r(NULL, ";", &rest)) {
		assert_int_equal(parse(line), 1);
		rules.row[rules.count++] = rule;
	}
	free(copy);
}

static void first_match_wins(void **state)
{
	set_rules("use sg client * 10.0.0.0/8:80;use zerocopy client * *:80;use copy client * *:*");
	assert_int_equal(match(ROLE_CLIENT, "x", "10.9.9.9", 80), PATH_SG);
	assert_int_equal(match(ROLE_CLIENT, "x", "11.9.9.9", 80), PATH_ZEROCOPY);
	assert_int_equal(match(ROLE_CLIENT, "x", "11.9.9.9", 81), PATH_COPY);
	assert_int_equal(match(ROLE_SERVER, "x", "10.9.9.9", 80), -ENOENT);
}

static void prefixes_cut_in_the_middle_of_a_byte(void **state)
{
	set_rules("use sg client * 192.168.160.0/19:1-10;use copy client * [fd00::]/9:*;use tcp client * 0.0.0.0/0:99");
	assert_int_equal(match(ROLE_CLIENT, "x", "192.168.191.255", 1), PATH_SG);
	assert_int_equal(match(ROLE_CLIENT, "x", "192.168.192.0", 1), -ENOENT);
	assert_int_equal(match(ROLE_CLIENT, "x", "192.168.160.0", 10), PATH_SG);
	assert_int_equal(match(ROLE_CLIENT, "x", "192.168.160.0", 11), -ENOENT);
	assert_int_equal(match(ROLE_CLIENT, "x", "fd7f::1", 11), PATH_COPY);
	assert_int_equal(match(ROLE_CLIENT, "x", "fd80::1", 11), -ENOENT);
	assert_int_equal(match(ROLE_CLIENT, "x", "1.1.1.1", 99), PATH_TCP);
	assert_int_equal(match(ROLE_CLIENT, "x", "::1", 99), -ENOENT);
}

static void mapped_addresses_count_as_ipv4(void **state)
{
	set_rules("use sg server * 127.0.0.1:80");
	assert_int_equal(match(ROLE_SERVER, "x", "::ffff:127.0.0.1", 80), PATH_SG);
	assert_int_equal(match(ROLE_SERVER, "x", "::127.0.0.1", 80), -ENOENT);
}

static void programs_match_by_pattern(void **state)
{
	static const struct {
		const char *pattern, *name;
		bool fits;
	} cases[] = {
		{ "*", "", true },	   { "*", "any", true },	   { "a", "a", true },
		{ "a", "b", false },	   { "a", "ab", false },	   { "a*", "a", true },
		{ "*b*", "abc", true },	   { "*b*", "ac", false },	   { "?", "a", true },
		{ "?", "", false },	   { "??*", "a", false },	   { "*a*b", "aabab", true },
		{ "*a*b", "aaba", false }, { "nginx*", "nginx: w", true }, { "a*b*c", "a-b-b-c", true },
		{ "**", "x", true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char line[64];

		snprintf(line, sizeof(line), "use sg client %s *:*", cases[i].pattern);
		set_rules(line);
		if (match(ROLE_CLIENT, cases[i].name, "1.1.1.1", 1) != (cases[i].fits ? PATH_SG : -ENOENT))
			fail_msg("%s against %s", cases[i].pattern, cases[i].name);
	}
}

static void other_families_match_nothing(void **state)
{
	struct sockaddr local = { .sa_family = AF_UNIX };

	set_rules("use sg client * *:*");
	assert_int_equal(rules_match(&rules, ROLE_CLIENT, "x", &local), -ENOENT);
}

static void write_file(const char *text)
{
	FILE *out = fopen(file, "w");

	fputs(text, out);
	fclose(out);
}

static void file_is_read_line_by_line(void **state)
{
	char message[256] = "";

	write_file("# paths\n\nuse sg client * *:80\nuse copy server * *:*\t# the last line has no end");
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), 0);
	assert_int_equal(rules.count, 2);
	assert_int_equal(rules.row[1].role, ROLE_SERVER);
	write_file("");
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), 0);
	assert_int_equal(rules.count, 0);
}

static void wrong_line_is_named_by_file_and_number(void **state)
{
	char message[256] = "", wanted[64];

	write_file("use sg client * *:80\n\nuse sg client * *:port\n");
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), -EINVAL);
	snprintf(wanted, sizeof(wanted), "%s, line 3", file);
	assert_non_null(strstr(message, wanted));
	assert_non_null(strstr(message, "PORT"));
}

static void longest_line_is_taken_and_a_longer_one_refused(void **state)
{
	char message[256] = "", text[1100];

	memset(text, '#', sizeof(text));
	snprintf(text + 511, sizeof(text) - 511, "\nuse sg client * *:80\n");
	write_file(text);
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), 0);
	assert_int_equal(rules.count, 1);
	memset(text, '#', sizeof(text));
	snprintf(text + 512, sizeof(text) - 512, "\n");
	write_file(text);
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), -ENAMETOOLONG);
	assert_non_null(strstr(message, "line 1"));
}

static void as_many_rules_as_allowed_and_not_one_more(void **state)
{
	char message[256] = "";
	FILE *out = fopen(file, "w");

	for (int i = 0; i < RULES_MAX; i++)
		fprintf(out, "use sg client * *:%d\n", i + 1);
	fclose(out);
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), 0);
	assert_int_equal(rules.count, RULES_MAX);
	out = fopen(file, "a");
	fputs("use sg client * *:9999\n", out);
	fclose(out);
	assert_int_equal(rules_read(file, &rules, message, sizeof(message)), -E2BIG);
	assert_non_null(strstr(message, "256"));
}

static void unreadable_file_is_named(void **state)
{
	char message[256] = "";

	assert_int_equal(rules_read("/nowhere/rules", &rules, message, sizeof(message)), -ENOENT);
	assert_non_null(strstr(message, "/nowhere/rules"));
	assert_int_equal(rules_read("/tmp", &rules, message, sizeof(message)), -EISDIR);
	assert_non_null(strstr(message, "/tmp"));
}

static int make_file(void **state)
{
	int fd = mkstemp(file);

	close(fd);
	return fd < 0;
}

static int remove_file(void **state)
{
	return unlink(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole_rule_is_read),
		cmocka_unit_test(parts_may_be_left_open),
		cmocka_unit_test(empty_lines_and_comments_are_no_rules),
		cmocka_unit_test(wrong_words_are_named),
		cmocka_unit_test(wrong_addresses_are_refused),
		cmocka_unit_test(addresses_are_read_as_inet_pton_does),
		cmocka_unit_test(wrong_prefixes_and_ports_are_named),
		cmocka_unit_test(first_match_wins),
		cmocka_unit_test(prefixes_cut_in_the_middle_of_a_byte),
		cmocka_unit_test(mapped_addresses_count_as_ipv4),
		cmocka_unit_test(programs_match_by_pattern),
		cmocka_unit_test(other_families_match_nothing),
		cmocka_unit_test(file_is_read_line_by_line),
		cmocka_unit_test(wrong_line_is_named_by_file_and_number),
		cmocka_unit_test(longest_line_is_taken_and_a_longer_one_refused),
		cmocka_unit_test(as_many_rules_as_allowed_and_not_one_more),
		cmocka_unit_test(unreadable_file_is_named),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
