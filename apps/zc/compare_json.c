/* SPDX-License-Identifier: MIT */
/*
 * Results as JSON, and back. The runs are the result; medians and verdicts stand there for other readers, and are computed
 * anew when results are read back. A file that is read is input: each part is checked for its kind and bounds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare.h"

#define FORMAT "zc-compare-1"
#define COMPARISONS_MAX 1000

/* Out ---------------------------------------------------------------------------------------------------------------- */

static json_t *number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *summary_json(const struct summary *summary)
{
	if (!summary->count)
		return json_null();
	return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "count", (json_int_t)summary->count, "median",
			 number(summary->median), "q1", number(summary->q1), "q3", number(summary->q3), "min",
			 number(summary->min), "max", number(summary->max));
}

static json_t *run_json(const struct run *run)
{
	json_t *out =
		json_pack("{s:i, s:i, s:b}", "round", (int)run->round, "order", (int)run->order, "ok", !run->failed);

	if (run->failed) {
		json_object_set_new(out, "failure", json_string(run->failure ? run->failure : "?"));
		return out;
	}
	json_object_set_new(out, "value", number(run->value));
	json_object_set_new(out, "wall_s", number(run->wall_s));
	json_object_set_new(out, "cpu_server_s", number(run->cpu_server_s));
	json_object_set_new(out, "cpu_client_s", number(run->cpu_client_s));
	json_object_set_new(out, "bytes", number(run->bytes));
	json_object_set_new(out, "payload_min", number(run->payload_min));
	json_object_set_new(out, "payload_max", number(run->payload_max));
	return out;
}

static void set_counters(json_t *out, const struct stat_row *rows, const uint64_t *values, int count)
{
	for (int i = 0; i < count; i++)
		if (values[i])
			json_object_set_new(out, rows[i].name, json_integer((json_int_t)values[i]));
}

static json_t *statistics_json(const struct stats_sum *sum)
{
	json_t *out = json_object(), *paths = json_object(), *reasons = json_object();

	json_object_set_new(out, "processes", json_integer(sum->processes));
	for (int p = 0; p < PATH_COUNT; p++) {
		json_t *path = json_object();

		set_counters(path, stat_path_rows, sum->all.path[p].counter, STAT_PATH_COUNT);
		if (json_object_size(path))
			json_object_set(paths, path_name((enum zc_path)p), path);
		json_decref(path);
	}
	json_object_set_new(out, "paths", paths);
	set_counters(out, stat_conn_rows, sum->all.counter, STAT_CONN_COUNT);
	set_counters(out, stat_process_rows, sum->process, STAT_PROCESS_COUNT);
	set_counters(reasons, stat_reason_rows, sum->all.reason, REASON_COUNT);
	json_object_set_new(out, "reasons", reasons);
	return out;
}

static json_t *path_json(const struct comparison *comparison, const struct path_result *result)
{
	json_t *out = json_object(), *runs = json_array();
	char text[64];

	json_object_set_new(out, "path", json_string(path_name(result->path)));
	json_object_set_new(out, "verdict", json_string(verdict_text(comparison, result, text, sizeof(text))));
	json_object_set_new(out, "change", number(result->change));
	json_object_set_new(out, "rounds_better", json_integer((json_int_t)result->rounds.better));
	json_object_set_new(out, "rounds_worse", json_integer((json_int_t)result->rounds.worse));
	json_object_set_new(out, "failures", json_integer((json_int_t)result->failures));
	json_object_set_new(out, "value", summary_json(&result->value));
	json_object_set_new(out, "cpu_s", summary_json(&result->cpu));
	json_object_set_new(out, "cpu_s_per_gb", summary_json(&result->cpu_gb));
	json_object_set_new(out, "explanation", json_string(result->explanation));
	for (size_t i = 0; i < result->runs; i++)
		json_array_append_new(runs, run_json(&result->run[i]));
	json_object_set_new(out, "runs", runs);
	if (result->statistics)
		json_object_set(out, "statistics", result->statistics);
	else if (result->sum.processes)
		json_object_set_new(out, "statistics", statistics_json(&result->sum));
	return out;
}

static json_t *comparison_json(const struct comparison *comparison)
{
	json_t *paths = json_array(), *winner = json_null();

	for (size_t i = 0; i < comparison->paths; i++)
		json_array_append_new(paths, path_json(comparison, &comparison->path[i]));
	if (comparison->winner >= 0)
		winner = json_string(path_name(comparison->path[comparison->winner].path));
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:s, s:s, s:s, s:s, s:i, s:s, s:o, s:s, s:s, s:O, s:o}",
			 "name", comparison->name, "server", comparison->server, "client", comparison->client, "unit",
			 comparison->unit, "metric", comparison->metric, "higher_is_better", comparison->higher,
			 "bytes_source", comparison->bytes_source, "gb_source", divisor_source(comparison),
			 "cpu_source", comparison->cpu_source, "preload", comparison->preload, "repeat",
			 (int)comparison->repeat, "conclusion", comparison->conclusion, "winner", winner, "spread",
			 spread_name(comparison), "rule", verdict_rule, "environment", comparison->environment, "paths",
			 paths);
}

int json_print(FILE *out, const struct comparison *list, size_t count)
{
	json_t *all = json_array(), *root;
	int rc = 0;

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(all, comparison_json(&list[i])))
			rc = -EINVAL; /* a command or name that is no UTF-8 */
	root = json_pack("{s:s, s:o}", "format", FORMAT, "comparisons", all);
	if (!rc && (!root || json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(12))))
		rc = -EIO;
	fputc('\n', out);
	json_decref(root);
	return rc;
}

/* In ----------------------------------------------------------------------------------------------------------------- */

static bool take_text(const json_t *from, const char *key, char **out)
{
	const char *text = json_string_value(json_object_get(from, key));

	*out = text ? strdup(text) : NULL;
	return *out;
}

static double take_number(const json_t *from, const char *key)
{
	const json_t *value = json_object_get(from, key);

	return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool take_run(const json_t *from, struct path_result *result)
{
	struct run *run;

	if (!json_is_object(from) || !json_is_boolean(json_object_get(from, "ok")) ||
	    result->runs >= COMPARE_REPEAT_MAX)
		return false;
	run = comparison_add(result);
	if (!run)
		return false;
	run->round = (unsigned int)json_integer_value(json_object_get(from, "round"));
	run->order = (unsigned int)json_integer_value(json_object_get(from, "order"));
	run->failed = !json_is_true(json_object_get(from, "ok"));
	run->value = take_number(from, "value");
	run->wall_s = take_number(from, "wall_s");
	run->cpu_server_s = take_number(from, "cpu_server_s");
	run->cpu_client_s = take_number(from, "cpu_client_s");
	run->bytes = take_number(from, "bytes");
	run->payload_min = take_number(from, "payload_min");
	run->payload_max = take_number(from, "payload_max");
	if (run->failed)
		return take_text(from, "failure", &run->failure);
	return isfinite(run->value);
}

static bool take_path(const json_t *from, struct comparison *out)
{
	struct path_result *result = &out->path[out->paths];
	const char *name = json_string_value(json_object_get(from, "path"));
	const json_t *runs = json_object_get(from, "runs");
	json_t *statistics = json_object_get(from, "statistics");
	int found = -1;

	for (int i = 0; name && i < PATH_COUNT; i++)
		if (!strcmp(path_name((enum zc_path)i), name))
			found = i;
	if (found < 0 || !json_is_array(runs))
		return false;
	for (size_t i = 0; i < out->paths; i++)
		if (out->path[i].path == (enum zc_path)found)
			return false;
	result->path = (enum zc_path)found;
	out->paths++;
	if (json_is_object(statistics))
		result->statistics = json_incref(statistics);
	for (size_t i = 0; i < json_array_size(runs); i++)
		if (!take_run(json_array_get(runs, i), result))
			return false;
	return take_text(from, "explanation", &result->explanation);
}

static bool take_environment(const json_t *from, struct comparison *out)
{
	json_t *environment = json_object_get(from, "environment");
	const char *key;
	json_t *value;

	if (!json_is_object(environment))
		return false;
	json_object_foreach(environment, key, value)
		if (!json_is_string(value))
			return false;
	out->environment = json_incref(environment);
	return true;
}

/* Returns whether all of the comparison was there. */
static bool take_comparison(const json_t *from, struct comparison *out)
{
	const json_t *paths = json_object_get(from, "paths"), *repeat = json_object_get(from, "repeat");

	*out = (struct comparison){ .winner = -1, .higher = json_is_true(json_object_get(from, "higher_is_better")) };
	if (!take_text(from, "name", &out->name) || !take_text(from, "server", &out->server) ||
	    !take_text(from, "client", &out->client) || !take_text(from, "unit", &out->unit) ||
	    !take_text(from, "metric", &out->metric) || !take_text(from, "bytes_source", &out->bytes_source) ||
	    !take_text(from, "cpu_source", &out->cpu_source) || !take_text(from, "preload", &out->preload))
		return false;
	if (json_integer_value(repeat) < 1 || json_integer_value(repeat) > COMPARE_REPEAT_MAX ||
	    !json_is_array(paths) || !json_array_size(paths) || json_array_size(paths) > PATH_COUNT ||
	    !take_environment(from, out))
		return false;
	out->repeat = (unsigned int)json_integer_value(repeat);
	for (size_t i = 0; i < json_array_size(paths); i++)
		if (!take_path(json_array_get(paths, i), out))
			return false;
	return !comparison_judge(out);
}

static int append(const json_t *all, struct comparison **list, size_t *count, const char *file, char *why, size_t bytes)
{
	for (size_t i = 0; i < json_array_size(all); i++) {
		struct comparison *more =
			*count < COMPARISONS_MAX ? realloc(*list, (*count + 1) * sizeof(*more)) : NULL;

		if (!more) {
			snprintf(why, bytes, "%s: more than %d comparisons, or no memory", file, COMPARISONS_MAX);
			return -ENOMEM;
		}
		*list = more;
		if (!take_comparison(json_array_get(all, i), &more[*count])) {
			comparison_free(&more[*count]);
			snprintf(why, bytes, "%s: comparison %zu is not complete, or holds what this zc does not know",
				 file, i + 1);
			return -EINVAL;
		}
		++*count;
	}
	return 0;
}

int json_read(const char *file, struct comparison **list, size_t *count, char *why, size_t bytes)
{
	FILE *stream = fopen(file, "re");
	const json_t *all;
	json_error_t error;
	json_t *root;
	int rc = -EINVAL;

	if (!stream) {
		rc = -errno;
		snprintf(why, bytes, "%s: %s", file, strerror(-rc));
		return rc;
	}
	root = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
	fclose(stream);
	all = json_object_get(root, "comparisons");
	if (!root)
		snprintf(why, bytes, "%s: line %d: %s", file, error.line, error.text);
	else if (!json_is_string(json_object_get(root, "format")) ||
		 strcmp(json_string_value(json_object_get(root, "format")), FORMAT) || !json_is_array(all) ||
		 !json_array_size(all))
		snprintf(why, bytes, "%s: is no result of zc compare --json (format %s)", file, FORMAT);
	else
		rc = append(all, list, count, file, why, bytes);
	json_decref(root);
	return rc;
}
