/* SPDX-License-Identifier: MIT */
/*
 * Rules: which path a connection takes, by program and address. The grammar is libsdp's, extended:
 *
 *	use PATH|tcp server|client PROGRAM ADDRESS/PREFIX:PORT		# comment
 *
 * PATH is a name of paths.def. PROGRAM is the program's file name, with * and ? as in a shell. ADDRESS is IPv4, IPv6 in
 * brackets, or *; /PREFIX may be left out (the whole address); PORT is a number, a range A-B, or *. For a server the
 * address and port are its own end of the connection, for a client the other end. The first match wins.
 */
#ifndef ZC_COMMON_RULES_H
#define ZC_COMMON_RULES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/settings.h"
#include "common/stats.h"

#define RULES_MAX 256
#define RULE_PROGRAM_BYTES 64

struct rule {
	enum zc_path path;
	enum stats_role role;
	char program[RULE_PROGRAM_BYTES];
	sa_family_t family; /* AF_UNSPEC: any address */
	uint8_t address[16];
	uint8_t prefix;	     /* in bits */
	uint16_t port_first; /* host order */
	uint16_t port_last;
};

struct rules {
	size_t count;
	struct rule row[RULES_MAX];
};

/*
 * Parses one line (its end may be "\n" or a '\0'). Returns 1 with a rule, 0 for an empty line or a comment, -EINVAL; then
 * *what names the word that is wrong and what is allowed there (static text).
 */
int rule_parse(const char *line, struct rule *out, const char **what);

/*
 * Reads a file of rules. Returns 0 or -errno (-EINVAL for a malformed line, -E2BIG for too many); `message` then names the
 * file, the line and what is allowed. Raw system calls, no allocation: it runs at a guest's start.
 */
int rules_read(const char *file, struct rules *out, char *message, size_t bytes);

/* Returns the path of the first rule that fits, or -ENOENT. `address` is AF_INET or AF_INET6; v4-mapped counts as IPv4. */
int rules_match(const struct rules *rules, enum stats_role role, const char *program, const struct sockaddr *address);

#endif
