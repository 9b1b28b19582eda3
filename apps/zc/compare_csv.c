/* SPDX-License-Identifier: MIT */
/* Results as CSV (RFC 4180): one row a run, with the environment in each, so that rows of several machines can be joined. */
#include <math.h>
#include <string.h>

#include "apps/zc/compare.h"

static void print_text(FILE *out, const char *text)
{
	if (!strpbrk(text, ",\"\r\n")) {
		fputs(text, out);
		return;
	}
	fputc('"', out);
	for (; *text; text++) {
		if (*text == '"')
			fputc('"', out);
		fputc(*text, out);
	}
	fputc('"', out);
}

static void print_number(FILE *out, double value)
{
	fputc(',', out);
	if (isfinite(value))
		fprintf(out, "%.9g", value);
}

static void print_run(FILE *out, const struct comparison *comparison, const struct path_result *result,
		      const struct run *run)
{
	print_text(out, comparison->name);
	fprintf(out, ",%s,%u,%u,%s", path_name(result->path), run->round, run->order, run->failed ? "failed" : "ok");
	print_number(out, run->failed ? NAN : run->value);
	fputc(',', out);
	print_text(out, comparison->unit);
	fprintf(out, ",%s", comparison->higher ? "higher" : "lower");
	print_number(out, run->failed ? NAN : run->wall_s);
	print_number(out, run->failed ? NAN : run->cpu_server_s);
	print_number(out, run->failed ? NAN : run->cpu_client_s);
	print_number(out, run->failed ? NAN : run->bytes);
	fputc(',', out);
	print_text(out, comparison->bytes_source);
	print_number(out, run->failed ? NAN : run->payload_min);
	print_number(out, run->failed ? NAN : run->payload_max);
	fputc(',', out);
	print_text(out, run->failure ? run->failure : "");
}

static void print_environment(FILE *out, const json_t *keys, const struct comparison *comparison)
{
	const char *key;
	json_t *ignored;

	json_object_foreach((json_t *)keys, key, ignored) {
		const char *value = comparison ? json_string_value(json_object_get(comparison->environment, key)) : key;

		fputc(',', out);
		print_text(out, value ? value : "");
	}
}

void csv_print(FILE *out, const struct comparison *list, size_t count)
{
	json_t *keys = json_object();

	for (size_t i = 0; i < count; i++)
		json_object_update_missing(keys, list[i].environment);
	fputs("name,path,round,order,status,value,unit,better,wall_s,cpu_server_s,cpu_client_s,bytes,bytes_source,payload_min,"
	      "payload_max,failure",
	      out);
	print_environment(out, keys, NULL);
	fputs("\r\n", out);
	for (size_t i = 0; i < count; i++)
		for (size_t p = 0; p < list[i].paths; p++)
			for (size_t r = 0; r < list[i].path[p].runs; r++) {
				print_run(out, &list[i], &list[i].path[p], &list[i].path[p].run[r]);
				print_environment(out, keys, &list[i]);
				fputs("\r\n", out);
			}
	json_decref(keys);
}
