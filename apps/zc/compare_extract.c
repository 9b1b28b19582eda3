/* SPDX-License-Identifier: MIT */
/* Numbers in what a client printed, and where known tools print theirs. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare.h"

/* Presets ---------------------------------------------------------------------------------------------------------------- */

/* clang-format off: one line a field */
static const struct preset {
	const char *name;
	const char *unit;
	bool higher;
	struct extract metric, bytes;
} presets[] = {
	{ "redis-benchmark",
	  "requests/s",
	  true,
	  { .kind = EXTRACT_REGEX, .text = "^\"[^\"]*\",\"([0-9.]+)\"", .scale = 1.0 },
	  { 0 } },
	{ "wrk",
	  "requests/s",
	  true,
	  { .kind = EXTRACT_REGEX, .text = "^Requests/sec: +([0-9.]+)", .scale = 1.0 },
	  { .kind = EXTRACT_REGEX,
	    .text = "requests in [^,]+, +([0-9.]+[KMGTP]?)B read",
	    .scale = 1.0,
	    .has_units = true } },
	{ "iperf3",
	  "Gbit/s",
	  true,
	  { .kind = EXTRACT_POINTER, .text = "/end/sum_received/bits_per_second", .scale = 1e-9 },
	  { .kind = EXTRACT_POINTER, .text = "/end/sum_received/bytes", .scale = 1.0 } },
	{ "zc",
	  "Gbit/s",
	  true,
	  { .kind = EXTRACT_POINTER, .text = "/gbit_s", .scale = 1.0 },
	  { .kind = EXTRACT_POINTER, .text = "/bytes", .scale = 1.0 } },
	{ "zc-latency",
	  "us",
	  false,
	  { .kind = EXTRACT_POINTER, .text = "/latency_us/p50", .scale = 1.0 },
	  { .kind = EXTRACT_POINTER, .text = "/bytes", .scale = 1.0 } },
	{ "zc-latency-p99",
	  "us",
	  false,
	  { .kind = EXTRACT_POINTER, .text = "/latency_us/p99", .scale = 1.0 },
	  { .kind = EXTRACT_POINTER, .text = "/bytes", .scale = 1.0 } },
};
/* clang-format on */
#define PRESETS (sizeof(presets) / sizeof(presets[0]))

int preset_apply(const char *name, struct compare_options *options, char *names, size_t bytes)
{
	size_t used = 0;

	for (size_t i = 0; i < PRESETS; i++) {
		const struct preset *preset = &presets[i];

		if (!strcmp(preset->name, name)) {
			options->metric = preset->metric;
			options->bytes = preset->bytes;
			options->unit = preset->unit;
			options->higher = preset->higher;
			return 0;
		}
		if (used < bytes)
			used += (size_t)snprintf(names + used, bytes - used, "%s%s", i ? ", " : "", preset->name);
	}
	return -ENOENT;
}

/* Extraction ------------------------------------------------------------------------------------------------------------- */

/* Reads a number that is all of the text, but for a unit if there may be one. */
static int parse_number(const struct extract *extract, const char *text, double *out, char *why, size_t bytes)
{
	static const char units[] = "KMGTP";
	const char *unit;
	char *end;

	*out = strtod(text, &end);
	unit = extract->has_units && *end ? strchr(units, *end) : NULL;
	end += unit ? 1 : strspn(end, " \t");
	if (end == text || *end || !isfinite(*out)) {
		snprintf(why, bytes, "'%.40s' is no number", text);
		return -EINVAL;
	}
	for (; unit && unit >= units; unit--)
		*out *= 1024.0;
	*out *= extract->scale;
	return 0;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int extract_regex(const struct extract *extract, const char *text, double *out, char *why, size_t bytes)
{
	regmatch_t match[2];
	const char *after;
	char number[64];
	size_t length;

	if (regexec(&extract->regex, text, 2, match, 0) || match[1].rm_so < 0) {
		snprintf(why, bytes, "nothing in the client's output matches '%s'", extract->text);
		return -EINVAL;
	}
	after = text + match[1].rm_eo;
	length = (size_t)(match[1].rm_eo - match[1].rm_so);
	if (length && is_digit(after[-1]) &&
	    (is_digit(after[0]) || ((after[0] == '.' || after[0] == ',') && is_digit(after[1])))) {
		snprintf(why, bytes, "'%s' matches only the beginning of a number, '%.*s' of '%.*s'", extract->text,
			 (int)length, after - length, (int)(length + strspn(after, "0123456789.,")), after - length);
		return -EINVAL;
	}
	snprintf(number, sizeof(number), "%.*s", (int)(length < sizeof(number) ? length : sizeof(number) - 1),
		 text + match[1].rm_so);
	return parse_number(extract, number, out, why, bytes);
}

/* Returns the member that one token of a pointer (RFC 6901) names, or NULL. */
static const json_t *pointer_step(const json_t *at, const char *token, size_t length)
{
	char key[256];
	size_t used = 0;

	for (size_t i = 0; i < length && used + 1 < sizeof(key); i++) {
		bool escaped = token[i] == '~' && i + 1 < length && (token[i + 1] == '0' || token[i + 1] == '1');

		key[used++] = !escaped ? token[i] : token[++i] == '1' ? '/' : '~';
	}
	key[used] = '\0';
	if (json_is_array(at) && *key && strspn(key, "0123456789") == used)
		return json_array_get(at, strtoul(key, NULL, 10));
	return json_object_get(at, key);
}

static int extract_pointer(const struct extract *extract, const char *text, double *out, char *why, size_t bytes)
{
	const char *start = strpbrk(text, "{["), *token = extract->text;
	json_error_t error;
	json_t *root = start ? json_loads(start, JSON_DISABLE_EOF_CHECK, &error) : NULL;
	const json_t *at = root;
	int rc = -EINVAL;

	if (!root) {
		snprintf(why, bytes, "the client printed no JSON%s%s", start ? ": " : "", start ? error.text : "");
		return rc;
	}
	while (at && *token == '/') {
		size_t length = strcspn(++token, "/");

		at = pointer_step(at, token, length);
		token += length;
	}
	if (!at) {
		snprintf(why, bytes, "there is no %s in the client's JSON", extract->text);
	} else if (json_is_number(at)) {
		*out = json_number_value(at) * extract->scale;
		rc = 0;
	} else if (json_is_string(at)) {
		rc = parse_number(extract, json_string_value(at), out, why, bytes);
	} else {
		snprintf(why, bytes, "%s in the client's JSON is no number", extract->text);
	}
	json_decref(root);
	return rc;
}

int extract_number(const struct extract *extract, const char *text, double *out, char *why, size_t bytes)
{
	if (extract->kind == EXTRACT_REGEX)
		return extract_regex(extract, text, out, why, bytes);
	return extract_pointer(extract, text, out, why, bytes);
}
