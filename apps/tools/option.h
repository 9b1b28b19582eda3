/* SPDX-License-Identifier: MIT */
/*
 * Options of the tools. Each tool lists its own once (TOOL.def; what all have is in shared.def), in rows of the kinds
 *
 *	TOOL_NUMBER(flags, field, "name", standard, min, max, "WORD", help)	a whole number
 *	TOOL_SIZE(flags, field, "name", standard, min, max, "WORD", help)	the same in bytes; K, M, G (binary) may follow
 *	TOOL_DECIMAL(flags, field, "name", standard, min, max, "WORD", help)	a number with a fraction
 *	TOOL_CHOICE(flags, field, "name", standard index, "a|b|c", help)
 *	TOOL_TEXT(flags, field, "name", standard, "WORD", help)
 *	TOOL_FLAG(flags, field, "name", help)
 *
 * and the struct of values, the parser, the messages, --help and what one end tells the other are made from the list. A
 * row with OPERAND has no dashes: operands come in the order of the list.
 */
#ifndef ZC_TOOLS_OPTION_H
#define ZC_TOOLS_OPTION_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "apps/tools/fault.h"

/* Flags of a row. The client is the end that measures and reports. */
#define FOR_SERVER 1u
#define FOR_CLIENT 2u
#define FOR_BOTH (FOR_SERVER | FOR_CLIENT)
#define REQUIRED 4u
#define TOLD 8u /* the client tells it to the server */
#define OPERAND 16u
#define LETTER(letter) ((unsigned int)(letter) << 8)

enum option_kind { OPTION_NUMBER, OPTION_SIZE, OPTION_DECIMAL, OPTION_CHOICE, OPTION_TEXT, OPTION_FLAG };

struct option_row {
	enum option_kind kind;
	unsigned int flags;
	size_t offset; /* of the field in the struct of values */
	const char *name;
	double standard;
	double min;
	double max;
	const char *words; /* the choices, or the word that stands for the value in --help */
	const char *text;  /* the standard value of TOOL_TEXT */
	const char *help;
};

struct option_table {
	const char *tool;
	const char *usage; /* the lines after "Usage: " */
	const char *about;
	const char *server; /* what the two ends are called in messages */
	const char *client;
	const struct option_row *rows;
	size_t count;
	size_t bytes; /* of the struct of values */
};

/* The options of all tools; the first member of every tool's struct of values. */
struct shared_options {
#include "apps/tools/option_fields.h"
#include "apps/tools/shared.def"
};

enum { WAIT_BLOCKING, WAIT_POLL, WAIT_EPOLL }; /* --wait, in the order of shared.def */

/* Sets every field to its standard value. */
void options_reset(const struct option_table *table, void *values);

/*
 * Parses the arguments after the program's name and role. *given gets a bit for each row that was set. Returns 0, 1 when
 * --help was asked for, or -EINVAL with a message that names the option, the value and what is allowed.
 */
int options_parse(const struct option_table *table, int argc, char **argv, void *values, uint64_t *given,
		  struct fault *fault);

/* Checks that the given options belong to `role` and that what it requires is there. Returns 0 or -EINVAL. */
int options_check_role(const struct option_table *table, unsigned int role, uint64_t given, struct fault *fault);

/* Returns whether the option was given. */
bool option_was_given(const struct option_table *table, uint64_t given, const char *name);

/* Returns the name of a choice's value. */
const char *option_choice(const struct option_table *table, const char *name, unsigned int value);

/* Returns an option's value as JSON. Ownership: the caller's. */
json_t *option_json(const struct option_table *table, const void *values, const char *name);

/* Returns the values of all rows that have one of the flags as an object by name. Ownership: the caller's. */
json_t *options_json(const struct option_table *table, const void *values, unsigned int flags);

/* Takes the values that the other end told over, each checked as if it had been typed. Returns 0 or -EINVAL. */
int options_hear(const struct option_table *table, const json_t *told, void *values, struct fault *fault);

void options_help(const struct option_table *table);

#endif
