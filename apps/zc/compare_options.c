/* SPDX-License-Identifier: MIT */
/* zc compare: the command line. Everything that can be refused is refused here, before anything runs. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/commands.h"
#include "apps/zc/compare.h"

#define TIMEOUT_DEFAULT_S 60.0
#define TIMEOUT_MAX_S 86400.0

enum {
	OPT_SERVER = 256,
	OPT_CLIENT,
	OPT_PATHS,
	OPT_REPEAT,
	OPT_WARMUP,
	OPT_READY,
	OPT_PRESET,
	OPT_METRIC,
	OPT_METRIC_JSON,
	OPT_UNIT,
	OPT_HIGHER,
	OPT_LOWER,
	OPT_BYTES,
	OPT_BYTES_JSON,
	OPT_PRELOAD,
	OPT_VERIFY,
	OPT_TIMEOUT,
	OPT_ISOLATE,
	OPT_LAB,
	OPT_JSON,
	OPT_CSV,
	OPT_HTML,
	OPT_NAME,
	OPT_NOTE,
	OPT_MERGE,
	OPT_QUIET,
};

static const struct option table[] = {
	{ "server", required_argument, NULL, OPT_SERVER },
	{ "client", required_argument, NULL, OPT_CLIENT },
	{ "paths", required_argument, NULL, OPT_PATHS },
	{ "repeat", required_argument, NULL, OPT_REPEAT },
	{ "warmup", required_argument, NULL, OPT_WARMUP },
	{ "ready", required_argument, NULL, OPT_READY },
	{ "preset", required_argument, NULL, OPT_PRESET },
	{ "metric", required_argument, NULL, OPT_METRIC },
	{ "metric-json", required_argument, NULL, OPT_METRIC_JSON },
	{ "unit", required_argument, NULL, OPT_UNIT },
	{ "higher", no_argument, NULL, OPT_HIGHER },
	{ "lower", no_argument, NULL, OPT_LOWER },
	{ "bytes", required_argument, NULL, OPT_BYTES },
	{ "bytes-json", required_argument, NULL, OPT_BYTES_JSON },
	{ "preload", required_argument, NULL, OPT_PRELOAD },
	{ "verify", required_argument, NULL, OPT_VERIFY },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "isolate", no_argument, NULL, OPT_ISOLATE },
	{ "lab", no_argument, NULL, OPT_LAB },
	{ "json", required_argument, NULL, OPT_JSON },
	{ "csv", required_argument, NULL, OPT_CSV },
	{ "html", required_argument, NULL, OPT_HTML },
	{ "name", required_argument, NULL, OPT_NAME },
	{ "note", required_argument, NULL, OPT_NOTE },
	{ "merge", no_argument, NULL, OPT_MERGE },
	{ "quiet", no_argument, NULL, OPT_QUIET },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static int parse_count(const char *option, const char *text, unsigned int min, unsigned int *out)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (!*text || *end || strspn(text, "0123456789") != strlen(text) || value < min || value > COMPARE_REPEAT_MAX)
		return command_usage("compare", "%s: '%s'; allowed is a number from %u to %d", option, text, min,
				     COMPARE_REPEAT_MAX);
	*out = (unsigned int)value;
	return 0;
}

static int parse_seconds(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end == text || *end || !(*out > 0.0 && *out <= TIMEOUT_MAX_S))
		return command_usage("compare", "--timeout: '%s'; allowed are seconds, above 0 and up to %.0f", text,
				     TIMEOUT_MAX_S);
	return 0;
}

static int refuse_path(const char *name, size_t length)
{
	char names[128] = "";
	size_t used = 0;

	for (int i = 0; i < PATH_COUNT && used < sizeof(names); i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
					 path_name((enum zc_path)i));
	return command_usage("compare", "--paths: there is no path '%.*s'; paths are %s", (int)length, name, names);
}

static int parse_paths(const char *text, struct compare_options *out)
{
	out->paths = 0;
	while (text) {
		size_t length = strcspn(text, ",");
		int found = -1;

		for (int i = 0; i < PATH_COUNT; i++)
			if (strlen(path_name((enum zc_path)i)) == length &&
			    !strncmp(path_name((enum zc_path)i), text, length))
				found = i;
		if (found < 0)
			return refuse_path(text, length);
		for (size_t i = 0; i < out->paths; i++)
			if (out->path[i] == (enum zc_path)found)
				return command_usage("compare", "--paths: '%s' stands there twice",
						     path_name((enum zc_path)found));
		out->path[out->paths++] = (enum zc_path)found;
		text = text[length] ? text + length + 1 : NULL;
	}
	return 0;
}

static int compile(const char *option, const char *text, regex_t *out, bool needs_group)
{
	int rc = regcomp(out, text, REG_EXTENDED | REG_NEWLINE | (needs_group ? 0 : REG_NOSUB));
	char why[128];

	if (rc) {
		regerror(rc, out, why, sizeof(why));
		return command_usage("compare", "%s: '%s' is no extended regular expression: %s", option, text, why);
	}
	if (needs_group && out->re_nsub != 1)
		return command_usage("compare", "%s: '%s' needs exactly one group, in parentheses, around the number",
				     option, text);
	return 0;
}

static int set_extract(struct extract *out, enum extract_kind kind, const char *option, const char *text)
{
	*out = (struct extract){ .kind = kind, .text = text, .scale = 1.0 };
	if (kind == EXTRACT_POINTER && *text != '/')
		return command_usage("compare",
				     "%s: '%s' is no JSON pointer: it begins with / and names the members on the "
				     "way, as in /end/sum/bytes",
				     option, text);
	return 0;
}

static int parse_ready(const char *text, struct compare_options *out)
{
	if (!strncmp(text, "port:", 5) && text[5]) {
		out->ready = READY_PORT;
		out->ready_text = text + 5;
		return 0;
	}
	if (!strncmp(text, "line:", 5) && text[5]) {
		out->ready = READY_LINE;
		out->ready_text = text + 5;
		return 0;
	}
	return command_usage("compare", "--ready: '%s'; allowed are port:NUMBER, port:{port} and line:EXPRESSION",
			     text);
}

static int parse_preload(const char *text, struct compare_options *out)
{
	out->preload_server = !strcmp(text, "server") || !strcmp(text, "both");
	out->preload_client = !strcmp(text, "client") || !strcmp(text, "both");
	if (!out->preload_server && !out->preload_client)
		return command_usage("compare", "--preload: '%s'; allowed are server, client and both", text);
	return 0;
}

static int parse_preset(const char *text, struct compare_options *out)
{
	char names[256] = "";

	if (preset_apply(text, out, names, sizeof(names)))
		return command_usage("compare", "--preset: '%s'; presets are %s", text, names);
	return 0;
}

static int parse_note(const char *text, struct compare_options *out)
{
	const char *equals = strchr(text, '=');
	char key[64];

	if (!equals || equals == text || (size_t)(equals - text) >= sizeof(key))
		return command_usage("compare", "--note: '%s'; allowed is NAME=TEXT", text);
	snprintf(key, sizeof(key), "%.*s", (int)(equals - text), text);
	if (json_object_set_new(out->notes, key, json_string(equals + 1)))
		return command_usage("compare", "--note: '%s' is not UTF-8", text);
	return 0;
}

/* Options that only keep their text. */
static const char **text_of(int option, struct compare_options *out)
{
	switch (option) {
	case OPT_SERVER:
		return &out->server;
	case OPT_CLIENT:
		return &out->client;
	case OPT_VERIFY:
		return &out->verify;
	case OPT_UNIT:
		return &out->unit;
	case OPT_JSON:
		return &out->json;
	case OPT_CSV:
		return &out->csv;
	case OPT_HTML:
		return &out->html;
	case OPT_NAME:
		return &out->name;
	default:
		return NULL;
	}
}

static int take_option(int option, struct compare_options *out, int *direction)
{
	switch (option) {
	case OPT_PATHS:
		return parse_paths(optarg, out);
	case OPT_REPEAT:
		return parse_count("--repeat", optarg, 1, &out->repeat);
	case OPT_WARMUP:
		return parse_count("--warmup", optarg, 0, &out->warmup);
	case OPT_READY:
		return parse_ready(optarg, out);
	case OPT_PRESET:
		return parse_preset(optarg, out);
	case OPT_METRIC:
		return set_extract(&out->metric, EXTRACT_REGEX, "--metric", optarg);
	case OPT_METRIC_JSON:
		return set_extract(&out->metric, EXTRACT_POINTER, "--metric-json", optarg);
	case OPT_BYTES:
		return set_extract(&out->bytes, EXTRACT_REGEX, "--bytes", optarg);
	case OPT_BYTES_JSON:
		return set_extract(&out->bytes, EXTRACT_POINTER, "--bytes-json", optarg);
	case OPT_PRELOAD:
		return parse_preload(optarg, out);
	case OPT_TIMEOUT:
		return parse_seconds(optarg, &out->timeout_s);
	case OPT_NOTE:
		return parse_note(optarg, out);
	case OPT_HIGHER:
	case OPT_LOWER:
		*direction = option;
		return 0;
	case OPT_ISOLATE:
		out->isolate = true;
		return 0;
	case OPT_LAB:
		out->lab = true;
		return 0;
	case OPT_MERGE:
		out->merge = true;
		return 0;
	default:
		out->quiet = true;
		return 0;
	}
}

static int check_merge(char **files, struct compare_options *out)
{
	if (out->server || out->client || out->lab)
		return command_usage(
			"compare",
			"--merge shows results that are there: it goes without --server, --client and --lab");
	if (!*files)
		return command_usage("compare", "--merge needs FILEs that --json has written");
	out->file = files;
	return 0;
}

/* Without a word on it, readiness is the port that the server was given. */
static int check_ready(struct compare_options *out)
{
	unsigned int port;
	char *end;

	if (!out->ready_text && strstr(out->server, "{port}"))
		out->ready_text = "{port}";
	if (!out->ready_text)
		return command_usage("compare",
				     "how is the server known to be ready? Write {port} where its port stands "
				     "in both commands, or give --ready port:NUMBER or --ready line:EXPRESSION");
	if (out->ready == READY_LINE)
		return compile("--ready", out->ready_text, &out->ready_regex, false);
	if (!strcmp(out->ready_text, "{port}"))
		return 0;
	port = (unsigned int)strtoul(out->ready_text, &end, 10);
	if (*end || strspn(out->ready_text, "0123456789") != strlen(out->ready_text) || !port || port > 65535)
		return command_usage("compare", "--ready: port:%s; allowed are port:{port} and ports from 1 to 65535",
				     out->ready_text);
	return 0;
}

static bool names_lab(const char *command)
{
	return strstr(command, "{address}") || strstr(command, LAB_SERVER_ADDRESS) || strstr(command, "fd09::2");
}

/* A comparison within one host would be measured, and taken for one between two. */
static int check_lab(const struct compare_options *out)
{
	if (!out->lab)
		return 0;
	if (out->isolate)
		return command_usage("compare",
				     "--lab and --isolate: the lab's hosts are in the guest's own network already");
	if (!names_lab(out->server) || !names_lab(out->client))
		return command_usage(
			"compare",
			"--lab: write {address} where the %s command has the server's address; it is " LAB_SERVER_ADDRESS
			" in the lab, and 127.0.0.1 elsewhere",
			names_lab(out->server) ? "client's" : "server's");
	return 0;
}

static int check(struct compare_options *out, int direction, char **rest)
{
	int rc = 0;

	if (out->merge)
		return check_merge(rest, out);
	if (*rest)
		return command_usage(
			"compare", "'%s' belongs to no option; a COMMAND with arguments is one word in quotes", *rest);
	if (!out->server || !*out->server || !out->client || !*out->client)
		return command_usage("compare", "--%s 'COMMAND' is missing",
				     out->server && *out->server ? "client" : "server");
	if (direction)
		out->higher = direction == OPT_HIGHER;
	if (out->metric.kind == EXTRACT_NONE)
		out->higher = false;
	if (out->metric.kind == EXTRACT_NONE && (out->unit || direction == OPT_HIGHER))
		return command_usage("compare",
				     "%s goes with --metric or --metric-json; the client's seconds are taken "
				     "otherwise",
				     out->unit ? "--unit" : "--higher");
	if (out->metric.kind != EXTRACT_NONE && !out->unit)
		out->unit = "";
	if (out->metric.kind == EXTRACT_REGEX)
		rc = compile("--metric", out->metric.text, &out->metric.regex, true);
	if (!rc && out->bytes.kind == EXTRACT_REGEX)
		rc = compile("--bytes", out->bytes.text, &out->bytes.regex, true);
	if (!rc)
		rc = check_lab(out);
	return rc ? rc : check_ready(out);
}

int compare_parse(int argc, char **argv, struct compare_options *out)
{
	int option, rc, direction = 0;

	*out = (struct compare_options){
		.path = { PATH_TCP },
		.paths = 1,
		.repeat = 5,
		.warmup = 1,
		.higher = true,
		.preload_server = true,
		.preload_client = true,
		.timeout_s = TIMEOUT_DEFAULT_S,
		.notes = json_object(),
	};
	for (int i = 0; i < PATH_COUNT; i++)
		if (i != PATH_TCP)
			out->path[out->paths++] = (enum zc_path)i;
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":h", table, NULL)) != -1) {
		const char **text = text_of(option, out);

		if (option == 'h') {
			command_help("compare");
			return -1;
		}
		if (option == '?' || option == ':')
			return command_bad_option("compare", option, argv);
		rc = text ? 0 : take_option(option, out, &direction);
		if (text)
			*text = optarg;
		if (rc)
			return rc;
	}
	return check(out, direction, argv + optind);
}
