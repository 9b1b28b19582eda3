/* SPDX-License-Identifier: MIT */
#include "apps/tools/option.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 128
#define HELP_COLUMN 28
#define HELP_COLUMNS 98

static void *field_of(const struct option_row *row, void *values)
{
	return (char *)values + row->offset;
}

static const void *field_of_const(const struct option_row *row, const void *values)
{
	return (const char *)values + row->offset;
}

void options_reset(const struct option_table *table, void *values)
{
	memset(values, 0, table->bytes);
	for (size_t i = 0; i < table->count; i++) {
		const struct option_row *row = &table->rows[i];
		void *field = field_of(row, values);

		if (row->kind == OPTION_NUMBER || row->kind == OPTION_SIZE)
			*(uint64_t *)field = (uint64_t)row->standard;
		else if (row->kind == OPTION_DECIMAL)
			*(double *)field = row->standard;
		else if (row->kind == OPTION_CHOICE)
			*(unsigned int *)field = (unsigned int)row->standard;
		else if (row->kind == OPTION_TEXT)
			*(const char **)field = row->text;
	}
}

/* How a user writes the option: --name, or NAME for an operand. */
static const char *shown(const struct option_row *row, char out[WORD_BYTES])
{
	if (row->flags & OPERAND)
		snprintf(out, WORD_BYTES, "%s", row->words);
	else
		snprintf(out, WORD_BYTES, "--%s", row->name);
	return out;
}

/* Finds one of "a|b|c". Returns its index or -EINVAL. */
static int choice_find(const char *choices, const char *value)
{
	size_t bytes = strlen(value);
	int index = 0;

	for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL, index++)
		if (bytes && strcspn(at, "|") == bytes && !strncmp(at, value, bytes))
			return index;
	return -EINVAL;
}

static void allowed_text(const struct option_row *row, char out[WORD_BYTES])
{
	switch (row->kind) {
	case OPTION_CHOICE:
		snprintf(out, WORD_BYTES, "%s", row->words);
		break;
	case OPTION_TEXT:
		snprintf(out, WORD_BYTES, "a text that is not empty");
		break;
	case OPTION_FLAG:
		snprintf(out, WORD_BYTES, "no value");
		break;
	default:
		snprintf(out, WORD_BYTES, "%s from %.15g to %.15g%s",
			 row->kind == OPTION_DECIMAL ? "a number" : "a whole number", row->min, row->max,
			 row->kind == OPTION_SIZE ? " bytes (K, M or G may follow)" : "");
	}
}

static int refused(const struct option_row *row, const char *value, struct fault *fault)
{
	char name[WORD_BYTES], allowed[WORD_BYTES];

	allowed_text(row, allowed);
	return fault_set(fault, EINVAL, "%s %.100s: allowed is %s", shown(row, name), *value ? value : "''", allowed);
}

/* Parses digits, for a size with a suffix. Returns 0 or -EINVAL; also for what does not fit. */
static int number_parse(const struct option_row *row, const char *value, uint64_t *out)
{
	static const char suffixes[] = "KMG";
	const char *suffix;
	char *end;

	if (*value < '0' || *value > '9')
		return -EINVAL;
	errno = 0;
	*out = strtoull(value, &end, 10);
	if (errno)
		return -EINVAL;
	if (row->kind == OPTION_SIZE && *end && !end[1]) {
		suffix = strchr(suffixes, *end & ~0x20);
		if (suffix && *suffix && __builtin_mul_overflow(*out, 1ull << 10 * (suffix - suffixes + 1), out))
			return -EINVAL;
		if (suffix && *suffix)
			end++;
	}
	return *end || (double)*out < row->min || (double)*out > row->max ? -EINVAL : 0;
}

static int decimal_parse(const struct option_row *row, const char *value, double *out)
{
	char *end;

	if (!*value || strspn(value, "0123456789.") != strlen(value))
		return -EINVAL;
	*out = strtod(value, &end);
	return *end || !(*out >= row->min && *out <= row->max) ? -EINVAL : 0;
}

static int option_set(const struct option_row *row, const char *value, void *values, struct fault *fault)
{
	void *field = field_of(row, values);
	int rc = 0;

	switch (row->kind) {
	case OPTION_NUMBER:
	case OPTION_SIZE:
		rc = number_parse(row, value, field);
		break;
	case OPTION_DECIMAL:
		rc = decimal_parse(row, value, field);
		break;
	case OPTION_CHOICE:
		rc = choice_find(row->words, value);
		if (rc >= 0)
			*(unsigned int *)field = (unsigned int)rc;
		break;
	case OPTION_TEXT:
		rc = *value ? 0 : -EINVAL;
		*(const char **)field = value;
		break;
	case OPTION_FLAG:
		*(bool *)field = true;
	}
	return rc < 0 ? refused(row, value, fault) : 0;
}

/* Finds the row of "--name", "--name=value" or "-x". Returns its index or -ENOENT. */
static int row_of_word(const struct option_table *table, const char *word)
{
	for (size_t i = 0; i < table->count; i++) {
		const struct option_row *row = &table->rows[i];
		unsigned int letter = row->flags >> 8;

		if (row->flags & OPERAND)
			continue;
		if (letter && word[0] == '-' && (unsigned char)word[1] == letter && !word[2])
			return (int)i;
		if (!strncmp(word, "--", 2) && strlen(row->name) == strcspn(word + 2, "=") &&
		    !strncmp(word + 2, row->name, strlen(row->name)))
			return (int)i;
	}
	return -ENOENT;
}

static int row_of_operand(const struct option_table *table, unsigned int place)
{
	for (size_t i = 0; i < table->count; i++)
		if (table->rows[i].flags & OPERAND && !place--)
			return (int)i;
	return -ENOENT;
}

/* Parses argv[*at], and the value after it. Returns 0 or -EINVAL; *at moves to the next argument. */
static int parse_option(const struct option_table *table, int argc, char **argv, int *at, void *values, uint64_t *given,
			struct fault *fault)
{
	const char *word = argv[(*at)++];
	const char *value = word[1] == '-' ? strchr(word, '=') : NULL;
	int i = row_of_word(table, word);

	if (i < 0)
		return fault_set(fault, EINVAL, "there is no option %.100s; see --help", word);
	if (table->rows[i].kind == OPTION_FLAG && value)
		return refused(&table->rows[i], value + 1, fault);
	if (value)
		value++;
	else if (table->rows[i].kind != OPTION_FLAG && *at < argc)
		value = argv[(*at)++];
	if (!value && table->rows[i].kind != OPTION_FLAG)
		return refused(&table->rows[i], "without a value", fault);
	*given |= 1ull << i;
	return option_set(&table->rows[i], value, values, fault);
}

int options_parse(const struct option_table *table, int argc, char **argv, void *values, uint64_t *given,
		  struct fault *fault)
{
	bool only_operands = false;
	unsigned int place = 0;
	int rc = 0;

	*given = 0;
	options_reset(table, values);
	for (int i = 0; i < argc; i++)
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return 1;
	for (int at = 0; at < argc && !rc;) {
		int row;

		if (!only_operands && argv[at][0] == '-' && argv[at][1]) {
			only_operands = !strcmp(argv[at], "--");
			if (only_operands)
				at++;
			else
				rc = parse_option(table, argc, argv, &at, values, given, fault);
			continue;
		}
		row = row_of_operand(table, place++);
		if (row < 0)
			return fault_set(fault, EINVAL, "%.100s is one argument too many; see --help", argv[at]);
		*given |= 1ull << row;
		rc = option_set(&table->rows[row], argv[at++], values, fault);
	}
	return rc;
}

int options_check_role(const struct option_table *table, unsigned int role, uint64_t given, struct fault *fault)
{
	char name[WORD_BYTES];

	for (size_t i = 0; i < table->count; i++) {
		const struct option_row *row = &table->rows[i];
		bool belongs = row->flags & role;

		if (given >> i & 1 && !belongs)
			return fault_set(fault, EINVAL, "%s is allowed for the %s only; see --help", shown(row, name),
					 role == FOR_SERVER ? table->client : table->server);
		if (!(given >> i & 1) && belongs && row->flags & REQUIRED)
			return fault_set(fault, EINVAL, "%s is missing: %s", shown(row, name), row->help);
	}
	return 0;
}

bool option_was_given(const struct option_table *table, uint64_t given, const char *name)
{
	for (size_t i = 0; i < table->count; i++)
		if (!strcmp(table->rows[i].name, name))
			return given >> i & 1;
	return false;
}

static size_t choice_at(const char *choices, unsigned int value, const char **at)
{
	for (*at = choices; value && strchr(*at, '|'); value--)
		*at = strchr(*at, '|') + 1;
	return strcspn(*at, "|");
}

const char *option_choice(const struct option_table *table, const char *name, unsigned int value)
{
	static _Thread_local char out[WORD_BYTES];
	const char *at;
	size_t bytes;

	for (size_t i = 0; i < table->count; i++) {
		if (strcmp(table->rows[i].name, name))
			continue;
		bytes = choice_at(table->rows[i].words, value, &at);
		snprintf(out, sizeof(out), "%.*s", (int)bytes, at);
		return out;
	}
	return "?";
}

static json_t *value_as_json(const struct option_row *row, const void *values)
{
	const void *field = field_of_const(row, values);
	size_t bytes;
	const char *at;

	switch (row->kind) {
	case OPTION_NUMBER:
	case OPTION_SIZE:
		return json_integer((json_int_t) * (const uint64_t *)field);
	case OPTION_DECIMAL:
		return json_real(*(const double *)field);
	case OPTION_CHOICE:
		bytes = choice_at(row->words, *(const unsigned int *)field, &at);
		return json_stringn(at, bytes);
	case OPTION_FLAG:
		return json_boolean(*(const bool *)field);
	default:
		return *(const char *const *)field ? json_string(*(const char *const *)field) : json_null();
	}
}

json_t *option_json(const struct option_table *table, const void *values, const char *name)
{
	for (size_t i = 0; i < table->count; i++)
		if (!strcmp(table->rows[i].name, name))
			return value_as_json(&table->rows[i], values);
	return json_null();
}

json_t *options_json(const struct option_table *table, const void *values, unsigned int flags)
{
	json_t *object = json_object();

	for (size_t i = 0; i < table->count; i++)
		if (table->rows[i].flags & flags)
			json_object_set_new(object, table->rows[i].name, value_as_json(&table->rows[i], values));
	return object;
}

static int hear_one(const struct option_row *row, const json_t *value, void *values, struct fault *fault)
{
	char text[WORD_BYTES] = "";

	if (row->kind == OPTION_FLAG && json_is_boolean(value)) {
		*(bool *)field_of(row, values) = json_is_true(value);
		return 0;
	}
	if (json_is_integer(value))
		snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
	else if (json_is_real(value))
		snprintf(text, sizeof(text), "%.9f", json_real_value(value));
	else if (json_is_string(value))
		snprintf(text, sizeof(text), "%s", json_string_value(value));
	return row->kind == OPTION_FLAG ? refused(row, text, fault) : option_set(row, text, values, fault);
}

int options_hear(const struct option_table *table, const json_t *told, void *values, struct fault *fault)
{
	size_t known = 0;
	int rc = 0;

	options_reset(table, values);
	for (size_t i = 0; i < table->count && !rc; i++) {
		const json_t *value = json_object_get(told, table->rows[i].name);

		if (!(table->rows[i].flags & TOLD) || table->rows[i].kind == OPTION_TEXT)
			continue;
		if (!value)
			return fault_set(fault, EINVAL, "the hello lacks --%s", table->rows[i].name);
		known++;
		rc = hear_one(&table->rows[i], value, values, fault);
	}
	if (!rc && known != json_object_size(told))
		return fault_set(fault, EINVAL, "the hello has %zu options, %zu of them are known here",
				 json_object_size(told), known);
	return rc;
}

/* Prints text from HELP_COLUMN on, wrapped; the cursor is at `column`. */
static void print_wrapped(const char *text, int column)
{
	while (*text) {
		int bytes = (int)strcspn(text, " ");

		if (column > HELP_COLUMN && column + 1 + bytes > HELP_COLUMNS) {
			putchar('\n');
			column = 0;
		} else if (column > HELP_COLUMN) {
			putchar(' ');
			column++;
		}
		if (column < HELP_COLUMN)
			column += printf("%*s", HELP_COLUMN - column, "");
		column += printf("%.*s", bytes, text);
		text += bytes;
		text += *text == ' ';
	}
	putchar('\n');
}

/* What is allowed and what holds without the option, for the end of a row's help. */
static void help_values(const struct option_row *row, char *out, size_t bytes)
{
	char allowed[WORD_BYTES];
	const char *at;
	size_t length;

	*out = '\0';
	if (row->kind <= OPTION_DECIMAL) {
		allowed_text(row, allowed);
		if (row->flags & REQUIRED)
			snprintf(out, bytes, " (%s)", allowed);
		else
			snprintf(out, bytes, " (%s; %.15g if not given)", allowed, row->standard);
	} else if (row->kind == OPTION_CHOICE && !(row->flags & REQUIRED)) {
		length = choice_at(row->words, (unsigned int)row->standard, &at);
		snprintf(out, bytes, " (%.*s if not given)", (int)length, at);
	} else if (row->text) {
		snprintf(out, bytes, " (%s if not given)", row->text);
	}
}

static void help_row(const struct option_row *row)
{
	char name[WORD_BYTES], values[2 * WORD_BYTES], text[8 * WORD_BYTES];
	int used = printf("  ");

	if (row->flags >> 8)
		used += printf("-%c, ", (int)(row->flags >> 8));
	used += printf("%s", shown(row, name));
	if (row->kind != OPTION_FLAG && !(row->flags & OPERAND))
		used += printf(" %s", row->words);
	if (used + 2 > HELP_COLUMN) {
		putchar('\n');
		used = 0;
	}
	help_values(row, values, sizeof(values));
	snprintf(text, sizeof(text), "%s%s", row->help, values);
	print_wrapped(text, used);
}

void options_help(const struct option_table *table)
{
	static const unsigned int roles[] = { FOR_CLIENT, FOR_SERVER, FOR_BOTH };

	printf("Usage: %s\n\n%s\n", table->usage, table->about);
	for (size_t r = 0; r < sizeof(roles) / sizeof(roles[0]); r++) {
		if (roles[r] == FOR_BOTH)
			puts("\nBoth ends:");
		else
			printf("\nThe %s:\n", roles[r] == FOR_CLIENT ? table->client : table->server);
		for (size_t i = 0; i < table->count; i++)
			if ((table->rows[i].flags & FOR_BOTH) == roles[r])
				help_row(&table->rows[i]);
	}
	puts("  -h, --help                show this\n\n"
	     "Exit status: 0, 1 for a failure (also a wrong byte), 2 for arguments that are not allowed.");
}
