/* SPDX-License-Identifier: MIT */
/* zc: dispatch and help, both from commands.def. */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/commands.h"
#include "common/settings.h"
#include "common/version.h"

#define LINE_COLUMNS 96

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *synopsis;
	const char *summary;
	const char *description;
} commands[] = {
#define ZC_COMMAND(id, synopsis, summary, description) { #id, zc_##id, synopsis, summary, description },
#include "apps/zc/commands.def"
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct {
	const char *command;
	const char *option;
	const char *help;
} options[] = {
#define ZC_OPTION(command, option, help) { #command, option, help },
#include "apps/zc/commands.def"
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static void print_message(const char *command, const char *format, va_list list)
{
	fflush(stdout);
	fprintf(stderr, "zc %s: ", command);
	vfprintf(stderr, format, list);
	fputc('\n', stderr);
}

int command_usage(const char *command, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	print_message(command, format, list);
	va_end(list);
	fprintf(stderr, "See `zc help %s`.\n", command);
	return EXIT_USAGE;
}

int command_failed(const char *command, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	print_message(command, format, list);
	va_end(list);
	return EXIT_FAILURE;
}

int command_bad_option(const char *command, int refusal, char **argv)
{
	const char *word = argv[optind - 1];

	if (refusal == ':')
		return command_usage(command, "option %s needs a value", word);
	if (optopt && strncmp(word, "--", 2))
		return command_usage(command, "there is no option -%c", optopt);
	if (optopt)
		return command_usage(command, "option %.*s takes no value", (int)strcspn(word, "="), word);
	return command_usage(command, "there is no option %s, or it is not unique", word);
}

int command_flush(const char *command)
{
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	return command_failed(command, "standard output can't be written: %s", strerror(errno));
}

/* Prints text wrapped to the line, each line after `indent` spaces; the first begins at `column`. */
static void print_wrapped(const char *text, int indent, int column)
{
	while (*text) {
		int bytes = (int)strcspn(text, " \n");

		if (column > indent && column + 1 + bytes > LINE_COLUMNS) {
			putchar('\n');
			column = 0;
		} else if (column > indent) {
			putchar(' ');
			column++;
		}
		if (column < indent) {
			printf("%*s", indent - column, "");
			column = indent;
		}
		printf("%.*s", bytes, text);
		column += bytes;
		text += bytes;
		for (; *text == ' ' || *text == '\n'; text++) {
			if (*text == '\n') {
				putchar('\n');
				column = 0;
			}
		}
	}
	putchar('\n');
}

static void print_row(const char *name, const char *help, int indent)
{
	int used = printf("  %s", name);

	if (used + 2 > indent) {
		putchar('\n');
		used = 0;
	}
	used += printf("%*s", indent - used, "");
	print_wrapped(help, indent, used);
}

int command_help(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++) {
		char summary[256];
		int any = 0;

		if (strcmp(commands[i].name, name))
			continue;
		printf("Usage: zc %s %s\n\n", name, commands[i].synopsis);
		snprintf(summary, sizeof(summary), "zc %s %s.\n", name, commands[i].summary);
		print_wrapped(summary, 0, 0);
		print_wrapped(commands[i].description, 0, 0);
		for (size_t k = 0; k < OPTIONS; k++) {
			if (strcmp(options[k].command, name))
				continue;
			if (!any++)
				puts("\nOptions:");
			print_row(options[k].option, options[k].help, 26);
		}
		return 0;
	}
	return -ENOENT;
}

static int print_help(void)
{
	puts("Usage: zc COMMAND [ARGUMENT...]\n\n"
	     "Moves the bytes of unmodified TCP programs over the cheapest correct path.\n\nCommands:");
	for (size_t i = 0; i < COMMANDS; i++)
		print_row(commands[i].name, commands[i].summary, 14);
	print_row("help", "shows the help of a command: zc help COMMAND", 14);
	puts("\nPaths (zc run -p PATH, ZC_PATH):");
	for (int i = 0; i < PATH_COUNT; i++)
		print_row(path_name((enum zc_path)i), path_help((enum zc_path)i), 14);
	puts("\nzc --version prints the version. Settings are described in libzc(7).");
	return command_flush("help");
}

static int unknown(const char *name)
{
	fprintf(stderr, "zc: there is no command '%s'; commands are:", name);
	for (size_t i = 0; i < COMMANDS; i++)
		fprintf(stderr, " %s", commands[i].name);
	fputs(" help\n", stderr);
	return EXIT_USAGE;
}

static int help(int argc, char **argv)
{
	if (argc < 2)
		return print_help();
	if (argc > 2) {
		fputs("zc help: one COMMAND at a time\n", stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "help"))
		return print_help();
	return command_help(argv[1]) ? unknown(argv[1]) : command_flush("help");
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	if (!name) {
		fputs("zc: a command is missing; see `zc --help`\n", stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
		puts("zc " ZC_VERSION);
		return command_flush("--version");
	}
	if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help"))
		return help(argc - 1, argv + 1);
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return commands[i].run(argc - 1, argv + 1);
	return unknown(name);
}
