/* SPDX-License-Identifier: MIT */
/*
 * The parser of settings.h. It runs inside a guest's start-up, possibly before the guest's allocator is usable: no
 * malloc, no stdio, no locale.
 */
#include "common/settings.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

extern char **environ;

struct settings settings = {
#define ZC_SETTING_NUMBER(field, env, value, min, max, help) .field = (value),
#define ZC_SETTING_CHOICE(field, env, value, allowed, help) .field = (value),
#define ZC_SETTING_TEXT(field, env, help) .field = NULL,
#include "common/settings.def"
#undef ZC_SETTING_NUMBER
#undef ZC_SETTING_CHOICE
#undef ZC_SETTING_TEXT
};

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const struct setting_row setting_rows[] = {
#define ZC_SETTING_NUMBER(field, env, value, min, max, help) { env, TEXT(value), 0, TEXT(min) ".." TEXT(max), help },
#define ZC_SETTING_CHOICE(field, env, value, allowed, help) { env, "", value, allowed, help },
#define ZC_SETTING_TEXT(field, env, help) { env, "", 0, "text", help },
#include "common/settings.def"
#undef ZC_SETTING_NUMBER
#undef ZC_SETTING_CHOICE
#undef ZC_SETTING_TEXT
};
const size_t setting_row_count = sizeof(setting_rows) / sizeof(setting_rows[0]);

static const struct {
	const char *name;
	const char *help;
	int sends;
} paths[] = {
#define ZC_PATH(id, name, sends, help) { name, help, sends },
#include "common/paths.def"
#undef ZC_PATH
};

const char *path_name(enum zc_path path)
{
	return (unsigned int)path < PATH_COUNT ? paths[path].name : "?";
}

const char *path_help(enum zc_path path)
{
	return (unsigned int)path < PATH_COUNT ? paths[path].help : "";
}

int path_sends(enum zc_path path)
{
	return (unsigned int)path < PATH_COUNT && paths[path].sends;
}

int path_find(const char *name)
{
	for (int i = 0; i < PATH_COUNT; i++)
		if (!strcmp(paths[i].name, name))
			return i;
	return -EINVAL;
}

int settings_guard_can_be_off(void)
{
#ifdef NDEBUG
	return 0;
#else
	return 1;
#endif
}

static int parse_number(const char *value, unsigned long min, unsigned long max, unsigned long *out)
{
	unsigned long number = 0;

	if (!*value)
		return -EINVAL;
	for (const char *c = value; *c; c++) {
		unsigned int digit = (unsigned int)(*c - '0');

		if (digit > 9 || number > (UINT64_MAX - digit) / 10)
			return -EINVAL;
		number = number * 10 + digit;
	}
	if (number < min || number > max)
		return -EINVAL;
	*out = number;
	return 0;
}

static int parse_choice(const char *value, const char *allowed, unsigned int *out)
{
	size_t bytes = strlen(value);
	unsigned int index = 0;

	for (const char *word = allowed; word; index++) {
		const char *end = strchr(word, '|');
		size_t word_bytes = end ? (size_t)(end - word) : strlen(word);

		if (bytes == word_bytes && !memcmp(value, word, bytes)) {
			*out = index;
			return 0;
		}
		word = end ? end + 1 : NULL;
	}
	return -EINVAL;
}

/* Takes `value` over into `into`. Returns 0, -ENOENT or -EINVAL; *allowed then says what would have been right. */
static int settings_set(struct settings *into, const char *env, const char *value, const char **allowed)
{
#define ZC_SETTING_NUMBER(field, env_name, standard, min, max, help)                                                   \
	if (!strcmp(env, env_name)) {                                                                                  \
		*allowed = "a whole number, " TEXT(min) " to " TEXT(max);                                              \
		return parse_number(value, min, max, &into->field);                                                    \
	}
#define ZC_SETTING_CHOICE(field, env_name, standard, choices, help)                                                    \
	if (!strcmp(env, env_name)) {                                                                                  \
		*allowed = choices;                                                                                    \
		return parse_choice(value, choices, &into->field);                                                     \
	}
#define ZC_SETTING_TEXT(field, env_name, help)                                                                         \
	if (!strcmp(env, env_name)) {                                                                                  \
		*allowed = "text";                                                                                     \
		into->field = *value ? value : NULL;                                                                   \
		return 0;                                                                                              \
	}
#include "common/settings.def"
#undef ZC_SETTING_NUMBER
#undef ZC_SETTING_CHOICE
#undef ZC_SETTING_TEXT
	*allowed = "";
	return -ENOENT;
}

/* As settings_set(), with the rule that a release build has no ZC_GUARD=off. */
static int settings_take(struct settings *into, const char *env, const char *value, const char **allowed)
{
	struct settings next = *into;
	int rc = settings_set(&next, env, value, allowed);

	if (!rc && !strcmp(env, "ZC_GUARD") && !strcmp(value, "off") && !settings_guard_can_be_off()) {
		*allowed = "auto|uffd|mprotect (off in debug builds only)";
		rc = -EINVAL;
	}
	if (!rc)
		*into = next;
	return rc;
}

static void refuse(char *message, size_t bytes, const char *env, const char *value, const char *allowed)
{
	log_format(message, bytes, "setting %s refuses '%s': allowed is %s", env, value, allowed);
}

int settings_check(const char *env, const char *value, char *message, size_t bytes)
{
	struct settings scratch = settings;
	const char *allowed;
	int rc = settings_take(&scratch, env, value, &allowed);

	if (rc == -ENOENT)
		log_format(message, bytes, "there is no setting %s; libzc(7) lists them", env);
	else if (rc)
		refuse(message, bytes, env, value, allowed);
	return rc;
}

/*
 * Keeps a copy: programs that write to their title (redis, nginx, postgres) overwrite the memory that environ pointed to.
 * Returns NULL when there is no more room.
 */
static const char *keep(const char *value)
{
	static char kept[16384];
	static size_t used;
	size_t bytes = strlen(value) + 1;

	for (size_t at = 0; at < used; at += strlen(kept + at) + 1)
		if (!strcmp(kept + at, value))
			return kept + at;
	if (bytes > sizeof(kept) - used)
		return NULL;
	memcpy(kept + used, value, bytes);
	used += bytes;
	return kept + used - bytes;
}

int settings_load(void (*refused)(const char *message))
{
	int count = 0;

	for (char **entry = environ; entry && *entry; entry++) {
		char name[64], message[256];
		const char *equals = strchr(*entry, '=');
		const char *allowed = "less text", *value;

		if (strncmp(*entry, "ZC_", 3) || !equals || (size_t)(equals - *entry) >= sizeof(name))
			continue;
		memcpy(name, *entry, (size_t)(equals - *entry));
		name[equals - *entry] = '\0';
		value = keep(equals + 1);
		if (value && !settings_take(&settings, name, value, &allowed))
			continue;
		if (value)
			settings_check(name, value, message, sizeof(message));
		else
			refuse(message, sizeof(message), name, "(too long)", allowed);
		count++;
		if (refused)
			refused(message);
	}
	return count;
}
