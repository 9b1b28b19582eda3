/* SPDX-License-Identifier: MIT */
/* The subcommands of zc and what they have in common: how they fail. */
#ifndef ZC_APPS_ZC_COMMANDS_H
#define ZC_APPS_ZC_COMMANDS_H

#define EXIT_USAGE 2

#define ZC_COMMAND(id, synopsis, summary, description) int zc_##id(int argc, char **argv);
#include "apps/zc/commands.def"

/* Prints "zc COMMAND: message" and where help is to be had, on standard error. Returns EXIT_USAGE. */
int command_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints "zc COMMAND: message" on standard error. Returns EXIT_FAILURE. */
int command_failed(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Names the option that getopt_long has just refused (it returned ':' or '?'). Returns EXIT_USAGE. */
int command_bad_option(const char *command, int refusal, char **argv);

/* Prints the subcommand's help. Returns 0, or -ENOENT when there is none of that name. */
int command_help(const char *name);

/* Writes all that stdio holds. Returns 0, or EXIT_FAILURE with a message: a full disk is no success. */
int command_flush(const char *command);

#endif
