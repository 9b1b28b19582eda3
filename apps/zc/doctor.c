/* SPDX-License-Identifier: MIT */
/* zc doctor: runs the list of doctor.def and prints it. */
#include "apps/zc/doctor.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "apps/zc/commands.h"
#include "common/settings.h"
#include "common/version.h"

static const struct {
	const char *id;
	const char *name;
	bool needed;
	const char *purpose;
	const char *remedy;
	void (*find)(struct finding *out);
} checks[] = {
#define ZC_CHECK(id, name, needed, purpose, remedy) { #id, name, needed, purpose, remedy, doctor_##id },
#include "apps/zc/doctor.def"
#undef ZC_CHECK
};
#define CHECKS (sizeof(checks) / sizeof(checks[0]))

static const char *const health_names[] = { "ok", "limited", "missing" };

void finding_is(struct finding *out, enum health health, const char *format, ...)
{
	va_list list;

	out->health = health;
	va_start(list, format);
	vsnprintf(out->value, sizeof(out->value), format, list);
	va_end(list);
}

void finding_means(struct finding *out, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(out->means, sizeof(out->means), format, list);
	va_end(list);
}

void finding_remedy(struct finding *out, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(out->remedy, sizeof(out->remedy), format, list);
	va_end(list);
}

int doctor_read_line(const char *file, char *out, unsigned long bytes)
{
	FILE *stream = fopen(file, "re");
	int rc = stream ? 0 : -errno;

	out[0] = '\0';
	if (stream && !fgets(out, (int)bytes, stream))
		rc = ferror(stream) ? -errno : -ENODATA;
	if (stream)
		fclose(stream);
	out[strcspn(out, "\n")] = '\0';
	return rc;
}

static const char *remedy_of(size_t check, const struct finding *finding)
{
	if (finding->health == HEALTH_OK)
		return "";
	return *finding->remedy ? finding->remedy : checks[check].remedy;
}

static void print_table(const struct finding *findings)
{
	bool tell = false;

	printf("%-17s %-8s %s\n", "what", "state", "found");
	for (size_t i = 0; i < CHECKS; i++)
		printf("%-17s %-8s %s\n", checks[i].name, health_names[findings[i].health], findings[i].value);
	for (size_t i = 0; i < CHECKS; i++) {
		if (findings[i].health == HEALTH_OK)
			continue;
		if (!tell)
			puts("\nWhat is limited or missing, and what helps:");
		tell = true;
		printf("\n%s: %s\n", checks[i].name, *findings[i].means ? findings[i].means : findings[i].value);
		printf("    for:  %s\n", checks[i].purpose);
		if (*remedy_of(i, &findings[i]))
			printf("    help: %s\n", remedy_of(i, &findings[i]));
	}
}

static json_t *text_or_null(const char *text)
{
	return *text ? json_string(text) : json_null();
}

static int print_json(const struct finding *findings, bool ready)
{
	json_t *list = json_array(), *root;
	int rc;

	for (size_t i = 0; i < CHECKS; i++)
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:b, s:s, s:s, s:s, s:o, s:o}", "id", checks[i].id, "name",
						checks[i].name, "needed", checks[i].needed, "state",
						health_names[findings[i].health], "value", findings[i].value, "purpose",
						checks[i].purpose, "means", text_or_null(findings[i].means), "remedy",
						text_or_null(remedy_of(i, &findings[i]))));
	if (json_array_size(list) != CHECKS) {
		json_decref(list);
		return command_failed("doctor", "a text is not UTF-8, so that it can't be written as JSON");
	}
	root = json_pack("{s:s, s:b, s:o}", "version", ZC_VERSION, "ready", ready, "checks", list);
	rc = root ? json_dumpf(root, stdout, JSON_INDENT(2)) : -1;
	json_decref(root);
	putchar('\n');
	return rc ? command_failed("doctor", "JSON can't be written: %s", strerror(errno ? errno : ENOMEM)) : 0;
}

/* Returns 0, EXIT_USAGE, or -1 when everything is done. `probe` is this program's own, run by the check of the library. */
static int parse(int argc, char **argv, bool *json, bool *probe)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "probe", no_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			*json = true;
			break;
		case 'p':
			*probe = true;
			break;
		case 'h':
			command_help("doctor");
			return -1;
		default:
			return command_bad_option("doctor", option, argv);
		}
	}
	return optind < argc ? command_usage("doctor", "'%s': no argument is allowed", argv[optind]) : 0;
}

int zc_doctor(int argc, char **argv)
{
	static struct finding findings[CHECKS];
	bool json = false, probe = false, ready = true;
	int rc = parse(argc, argv, &json, &probe);

	if (rc)
		return rc < 0 ? command_flush("doctor") : rc;
	if (probe)
		return doctor_probe();
	settings_load(NULL); /* those refused are for `zc run` to tell */
	for (size_t i = 0; i < CHECKS; i++) {
		checks[i].find(&findings[i]);
		ready &= !checks[i].needed || findings[i].health != HEALTH_MISSING;
	}
	if (json) {
		rc = print_json(findings, ready);
	} else {
		print_table(findings);
		puts(ready ? "\nPrograms can run under zc: zc run COMMAND" : "\nPrograms can't run under zc here.");
	}
	if (!rc)
		rc = command_flush("doctor");
	return rc ? rc : ready ? EXIT_SUCCESS : EXIT_FAILURE;
}
