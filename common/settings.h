/* SPDX-License-Identifier: MIT */
/*
 * Settings: what a user can choose through the environment. settings.def lists them; the struct, the parser and the
 * documentation are made from it. A refused value leaves the default in place and is told once, with the setting's
 * name, the value and what is allowed.
 */
#ifndef ZC_COMMON_SETTINGS_H
#define ZC_COMMON_SETTINGS_H

#include <stddef.h>

enum zc_path {
#define ZC_PATH(id, name, sends, help) PATH_##id,
#include "common/paths.def"
#undef ZC_PATH
	PATH_COUNT
};

struct settings {
#define ZC_SETTING_NUMBER(field, env, value, min, max, help) unsigned long field;
#define ZC_SETTING_CHOICE(field, env, value, allowed, help) unsigned int field;
#define ZC_SETTING_TEXT(field, env, help) const char *field;
#include "common/settings.def"
#undef ZC_SETTING_NUMBER
#undef ZC_SETTING_CHOICE
#undef ZC_SETTING_TEXT
};

/* The process's settings; the defaults until settings_load() has run. Read only after that. */
extern struct settings settings;

/*
 * One row of settings.def for those who print the list. `allowed` is "MIN..MAX", "a|b|c" or "text". The standard of a
 * choice is the one with the number `choice` among those allowed, that of a text is none; both have "" for `standard`.
 */
struct setting_row {
	const char *env;
	const char *standard;
	unsigned int choice;
	const char *allowed;
	const char *help;
};
extern const struct setting_row setting_rows[];
extern const size_t setting_row_count;

/* Returns the path's name ("copy"), "?" for a number that is none. */
const char *path_name(enum zc_path path);

/* Returns the path's one-line description. */
const char *path_help(enum zc_path path);

/* Returns whether bytes are counted under this path (false for auto and tcp, which are choices). */
int path_sends(enum zc_path path);

/* Finds a path by name. Returns its number or -EINVAL. */
int path_find(const char *name);

/*
 * Checks one setting without taking it over. Returns 0, -ENOENT when no setting has that name, or -EINVAL; then
 * `message` (of `bytes` bytes) says which setting, which value, and what is allowed.
 */
int settings_check(const char *env, const char *value, char *message, size_t bytes);

/*
 * Reads all settings from the environment. Calls refused(message) for each that is not allowed and for each variable
 * that starts with ZC_ and is no setting. Returns how many were refused. Strings stay owned by the environment.
 */
int settings_load(void (*refused)(const char *message));

/* Returns 1 if the build allows ZC_GUARD=off (debug builds only: it gives up promise 2). */
int settings_guard_can_be_off(void);

#endif
