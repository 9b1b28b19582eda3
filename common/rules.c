/* SPDX-License-Identifier: MIT */
/* The parser and the matcher of rules.h. They run at a guest's start: raw system calls, no allocation, no locale. */
#define _GNU_SOURCE
#include "common/rules.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "common/log.h"
#include "common/sys.h"

#define LINE_BYTES 512
#define WORDS 5

struct word {
	const char *at;
	size_t bytes;
};

static const char *const what_words = "a rule has five words: use PATH|tcp server|client PROGRAM ADDRESS/PREFIX:PORT";
static const char *const what_use = "a rule begins with the word `use`";
static const char *const what_path = "PATH is one of:"
#define ZC_PATH(id, name, sends, help) " " name
#include "common/paths.def"
#undef ZC_PATH
	;
static const char *const what_role = "the third word is `server` or `client`";
static const char *const what_program = "PROGRAM is a file name of at most 63 characters, with * and ?";
static const char *const what_address = "ADDRESS is IPv4, IPv6 in brackets, or *";
static const char *const what_prefix = "PREFIX is 0 to 32 for IPv4, 0 to 128 for IPv6";
static const char *const what_port = "PORT is 1 to 65535, a range A-B of these, or *";

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static bool is_end(char c)
{
	return c == '\0' || c == '\n' || c == '#';
}

/* Splits a line into words. Returns how many there are; WORDS + 1 for too many. */
static int split(const char *line, struct word *words)
{
	int count = 0;

	for (;;) {
		while (is_blank(*line))
			line++;
		if (is_end(*line))
			return count;
		if (count == WORDS)
			return WORDS + 1;
		words[count].at = line;
		while (!is_blank(*line) && !is_end(*line))
			line++;
		words[count].bytes = (size_t)(line - words[count].at);
		count++;
	}
}

static bool word_is(const struct word *word, const char *text)
{
	return strlen(text) == word->bytes && !memcmp(word->at, text, word->bytes);
}

/* Reads a decimal number of at most `max`. Returns false if there is none; *at moves behind it. */
static bool read_number(const char **at, const char *end, unsigned int max, unsigned int *out)
{
	unsigned int value = 0;
	const char *c = *at;

	while (c < end && *c >= '0' && *c <= '9' && value <= max)
		value = value * 10 + (unsigned int)(*c++ - '0');
	if (c == *at || value > max)
		return false;
	*at = c;
	*out = value;
	return true;
}

static bool read_ipv4(const char *at, const char *end, uint8_t *out)
{
	for (int i = 0; i < 4; i++) {
		unsigned int part;

		if ((i && (at == end || *at++ != '.')) || !read_number(&at, end, 255, &part))
			return false;
		out[i] = (uint8_t)part;
	}
	return at == end;
}

static int hex_of(char c)
{
	return c >= '0' && c <= '9' ? c - '0' :
	       c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 :
				      -1;
}

/* Groups of hexadecimal digits, one run of zeros left out as "::", the last two perhaps as IPv4 (RFC 4291, 2.2). */
static bool read_ipv6(const char *at, const char *end, uint8_t *out)
{
	uint8_t parts[16] = { 0 };
	int used = 0, gap = -1;

	if (end - at >= 2 && at[0] == ':' && at[1] == ':') {
		gap = 0;
		at += 2;
	}
	while (at < end) {
		const char *start = at;
		unsigned int value = 0;

		while (at < end && hex_of(*at) >= 0 && at - start < 4)
			value = value << 4 | (unsigned int)hex_of(*at++);
		if (at < end && *at == '.' && used <= 12) {
			if (!read_ipv4(start, end, parts + used))
				return false;
			used += 4;
			break;
		}
		if (at == start || used > 14)
			return false;
		parts[used++] = (uint8_t)(value >> 8);
		parts[used++] = (uint8_t)value;
		if (at == end)
			break;
		if (*at++ != ':' || at == end)
			return false;
		if (*at == ':') {
			if (gap >= 0)
				return false;
			gap = used;
			at++;
		}
	}
	if (gap < 0 ? used != 16 : used >= 16)
		return false;
	memset(out, 0, 16);
	memcpy(out, parts, gap < 0 ? 16 : (size_t)gap);
	if (gap >= 0)
		memcpy(out + 16 - (used - gap), parts + gap, (size_t)(used - gap));
	return true;
}

/* ADDRESS and PREFIX; *at moves to the colon of the port. */
static const char *parse_address(const char **at, const char *end, struct rule *out)
{
	const char *from = *at, *close = from;
	unsigned int bits = 0, most = 0;

	if (from < end && *from == '*') {
		*at = from + 1;
		out->family = AF_UNSPEC;
		return NULL;
	}
	if (from < end && *from == '[') {
		while (close < end && *close != ']')
			close++;
		if (close == end || !read_ipv6(from + 1, close, out->address))
			return what_address;
		close++;
		out->family = AF_INET6;
		most = 128;
	} else {
		while (close < end && *close != '/' && *close != ':')
			close++;
		if (!read_ipv4(from, close, out->address))
			return what_address;
		out->family = AF_INET;
		most = 32;
	}
	bits = most;
	if (close < end && *close == '/') {
		close++;
		if (!read_number(&close, end, most, &bits))
			return what_prefix;
	}
	out->prefix = (uint8_t)bits;
	*at = close;
	return NULL;
}

static const char *parse_port(const char *at, const char *end, struct rule *out)
{
	unsigned int first, last;

	if (at == end || *at++ != ':')
		return what_port;
	out->port_first = 0;
	out->port_last = 65535;
	if (end - at == 1 && *at == '*')
		return NULL;
	if (!read_number(&at, end, 65535, &first))
		return what_port;
	last = first;
	if (at < end && *at == '-') {
		at++;
		if (!read_number(&at, end, 65535, &last))
			return what_port;
	}
	if (at != end || !first || last < first)
		return what_port;
	out->port_first = (uint16_t)first;
	out->port_last = (uint16_t)last;
	return NULL;
}

static const char *parse_words(const struct word *words, struct rule *out)
{
	char name[16] = "";
	const char *at = words[4].at, *end = at + words[4].bytes, *wrong;
	int path;

	if (!word_is(&words[0], "use"))
		return what_use;
	if (words[1].bytes < sizeof(name))
		memcpy(name, words[1].at, words[1].bytes);
	path = path_find(name);
	if (path < 0)
		return what_path;
	out->path = (enum zc_path)path;
	if (!word_is(&words[2], "server") && !word_is(&words[2], "client"))
		return what_role;
	out->role = word_is(&words[2], "server") ? ROLE_SERVER : ROLE_CLIENT;
	if (words[3].bytes >= RULE_PROGRAM_BYTES)
		return what_program;
	memcpy(out->program, words[3].at, words[3].bytes);
	wrong = parse_address(&at, end, out);
	return wrong ? wrong : parse_port(at, end, out);
}

int rule_parse(const char *line, struct rule *out, const char **what)
{
	struct word words[WORDS];
	int count = split(line, words);

	if (!count)
		return 0;
	*what = what_words;
	if (count != WORDS)
		return -EINVAL;
	memset(out, 0, sizeof(*out));
	*what = parse_words(words, out);
	return *what ? -EINVAL : 1;
}

/* Reads a file piece by piece, line by line. */
struct reader {
	long fd;
	char buffer[1024];
	size_t used, at;
};

/* Returns 1 with a line, 0 at the end, -errno; a line that is too long is -ENAMETOOLONG. */
static int read_line(struct reader *reader, char *line, size_t bytes)
{
	size_t length = 0;

	for (;;) {
		if (reader->at == reader->used) {
			long got =
				sys_call(SYS_read, reader->fd, (long)reader->buffer, sizeof(reader->buffer), 0, 0, 0);

			if (got < 0)
				return (int)got;
			if (!got) {
				line[length] = '\0';
				return length > 0;
			}
			reader->used = (size_t)got;
			reader->at = 0;
		}
		char c = reader->buffer[reader->at++];

		if (c == '\n') {
			line[length] = '\0';
			return 1;
		}
		if (length + 1 == bytes)
			return -ENAMETOOLONG;
		line[length++] = c;
	}
}

static int read_rules(struct reader *reader, const char *file, struct rules *out, char *message, size_t bytes)
{
	char line[LINE_BYTES];
	const char *what = "";
	struct rule rule;
	int rc;

	for (unsigned int number = 1;; number++) {
		rc = read_line(reader, line, sizeof(line));
		if (!rc)
			return 0;
		if (rc < 0) {
			log_format(message, bytes,
				   "ZC_RULES=%s, line %u: can't be read (errno %d; a line has at most %d bytes)", file,
				   number, -rc, LINE_BYTES - 1);
			return rc;
		}
		rc = rule_parse(line, &rule, &what);
		if (rc < 0) {
			log_format(message, bytes, "ZC_RULES=%s, line %u: %s", file, number, what);
			return rc;
		}
		if (rc && out->count == RULES_MAX) {
			log_format(message, bytes, "ZC_RULES=%s, line %u: at most %d rules are allowed", file, number,
				   RULES_MAX);
			return -E2BIG;
		}
		if (rc)
			out->row[out->count++] = rule;
	}
}

int rules_read(const char *file, struct rules *out, char *message, size_t bytes)
{
	struct reader reader = { .fd = sys_call(SYS_openat, AT_FDCWD, (long)file, O_RDONLY | O_CLOEXEC, 0, 0, 0) };
	int rc;

	out->count = 0;
	if (reader.fd < 0) {
		log_format(message, bytes, "ZC_RULES=%s: the file can't be opened (errno %d)", file, (int)-reader.fd);
		return (int)reader.fd;
	}
	rc = read_rules(&reader, file, out, message, bytes);
	sys_call(SYS_close, reader.fd, 0, 0, 0, 0, 0);
	return rc;
}

/* Shell patterns of * and ?; the last star is where a mismatch goes back to. */
static bool name_matches(const char *pattern, const char *name)
{
	const char *star = NULL, *back = NULL;

	while (*name) {
		if (*pattern == '*') {
			star = pattern++;
			back = name;
		} else if (*pattern == '?' || *pattern == *name) {
			pattern++;
			name++;
		} else if (star) {
			pattern = star + 1;
			name = ++back;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return !*pattern;
}

static bool bits_match(const uint8_t *a, const uint8_t *b, unsigned int bits)
{
	unsigned int whole = bits / 8, rest = bits % 8;

	if (memcmp(a, b, whole))
		return false;
	return !rest || !((a[whole] ^ b[whole]) >> (8 - rest));
}

static bool rule_matches(const struct rule *rule, sa_family_t family, const uint8_t *address, uint16_t port)
{
	if (port < rule->port_first || port > rule->port_last)
		return false;
	if (rule->family == AF_UNSPEC)
		return true;
	return rule->family == family && bits_match(rule->address, address, rule->prefix);
}

int rules_match(const struct rules *rules, enum stats_role role, const char *program, const struct sockaddr *address)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
	const struct sockaddr_in *four = (const struct sockaddr_in *)address;
	const uint8_t *bytes = (const uint8_t *)&four->sin_addr;
	sa_family_t family = address->sa_family;
	uint16_t port;

	if (family != AF_INET && family != AF_INET6)
		return -ENOENT;
	port = ntohs(family == AF_INET ? four->sin_port : six->sin6_port);
	if (family == AF_INET6) {
		bytes = (const uint8_t *)&six->sin6_addr;
		if (!memcmp(bytes, mapped, sizeof(mapped))) {
			bytes += sizeof(mapped);
			family = AF_INET;
		}
	}
	for (size_t i = 0; i < rules->count; i++) {
		const struct rule *rule = &rules->row[i];

		if (rule->role == role && name_matches(rule->program, program) &&
		    rule_matches(rule, family, bytes, port))
			return (int)rule->path;
	}
	return -ENOENT;
}
