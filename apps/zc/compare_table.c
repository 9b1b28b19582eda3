/* SPDX-License-Identifier: MIT */
/* One comparison for a terminal: the table, the conclusion, and what each path did. */
#include <math.h>
#include <string.h>

#include "apps/zc/compare.h"

#define LINE_WIDTH 100

const char *figure_text(double value, char *out, size_t bytes)
{
	double size = fabs(value);
	char digits[64];
	size_t whole, used = 0;

	if (!isfinite(value)) {
		snprintf(out, bytes, "-");
		return out;
	}
	snprintf(digits, sizeof(digits), "%.*f", size >= 1000.0 ? 0 : size >= 100.0 ? 1 : size >= 1.0 ? 2 : 4, value);
	whole = strcspn(digits, ".");
	for (size_t i = 0; digits[i] && used + 2 < bytes; i++) {
		if (i && i < whole && (whole - i) % 3 == 0 && digits[i - 1] != '-')
			out[used++] = ',';
		out[used++] = digits[i];
	}
	out[used] = '\0';
	return out;
}

static void print_spread(FILE *out, const struct summary *summary, int width)
{
	char low[40], high[40], both[96];

	if (!summary->count)
		snprintf(both, sizeof(both), "-");
	else
		snprintf(both, sizeof(both), "%s - %s", figure_text(summary->low, low, sizeof(low)),
			 figure_text(summary->high, high, sizeof(high)));
	fprintf(out, "  %*s", width, both);
}

static void print_median(FILE *out, const struct summary *summary, int width)
{
	char text[40];

	fprintf(out, "  %*s", width, summary->count ? figure_text(summary->median, text, sizeof(text)) : "-");
}

static void print_row(FILE *out, const struct comparison *comparison, const struct path_result *result)
{
	char text[64];

	fprintf(out, "  %-9s", path_name(result->path));
	print_median(out, &result->value, 12);
	print_spread(out, &result->value, 23);
	fprintf(out, "  %-24s", verdict_text(comparison, result, text, sizeof(text)));
	print_median(out, path_cpu(comparison, result), 11);
	print_spread(out, path_cpu(comparison, result), 17);
	fputc('\n', out);
}

static void print_failures(FILE *out, const struct path_result *result)
{
	for (size_t i = 0; i < result->runs; i++) {
		const struct run *run = &result->run[i];
		const char *line = run->failure ? run->failure : "?";

		if (!run->failed)
			continue;
		fprintf(out, "  FAILED: %s, round %u: ", path_name(result->path), run->round);
		while (*line) {
			int length = (int)strcspn(line, "\n");

			fprintf(out, "%.*s\n", length, line);
			line += length + (line[length] == '\n');
			if (*line)
				fputs("    | ", out);
		}
	}
}

static void print_wrapped(FILE *out, const char *label, const char *text)
{
	const int indent = 12;
	int column = fprintf(out, "  %-9s ", label);

	while (*text) {
		int length = (int)strcspn(text, " ");

		if (column > indent && column + 1 + length > LINE_WIDTH)
			column = fprintf(out, "\n%*s", indent, "") - 1;
		column += fprintf(out, "%s%.*s", column > indent ? " " : "", length, text);
		text += length + (text[length] == ' ');
	}
	fputc('\n', out);
}

void table_print(FILE *out, const struct comparison *comparison)
{
	const char *base = path_name(comparison->path[comparison->baseline].path);
	char better[40]; /* whichever figure is: a sign alone would leave open what a percentage of less is */

	fprintf(out, "%s\n", comparison->name);
	fprintf(out, "  %s, %s is better; %u runs of each path, interleaved\n\n", comparison->unit,
		comparison->higher ? "higher" : "lower", comparison->repeat);
	snprintf(better, sizeof(better), "better than %s by", base);
	fprintf(out, "  %-9s  %12s  %23s  %-24s  %11s  %17s\n", "path", "median", spread_name(comparison), better,
		divisor_name(comparison), spread_name(comparison));
	for (size_t i = 0; i < comparison->paths; i++)
		print_row(out, comparison, &comparison->path[i]);
	fprintf(out, "\n  %s\n\n", comparison->conclusion);
	for (size_t i = 0; i < comparison->paths; i++)
		print_wrapped(out, path_name(comparison->path[i].path), comparison->path[i].explanation);
	print_wrapped(out, "CPU", comparison->cpu_source);
	print_wrapped(out, "GB", divisor_source(comparison));
	for (size_t i = 0; i < comparison->paths; i++)
		print_failures(out, &comparison->path[i]);
}
