/* SPDX-License-Identifier: MIT */
/* Many comparisons in one table for a terminal: on the left what was compared and who won, on the right a row for each path. */
#include <math.h>
#include <string.h>

#include "apps/zc/compare.h"

#define LEFT_WIDTH 34
#define LEFT_LINES 16

/* The text to the left of the rows, broken between words. */
struct left {
	char line[LEFT_LINES][LEFT_WIDTH + 1];
	size_t lines;
};

static void left_add(struct left *left, const char *text)
{
	while (*text && left->lines < LEFT_LINES) {
		size_t room = left->lines ? LEFT_WIDTH - 2 : LEFT_WIDTH, length = strlen(text), taken;

		taken = length;
		if (length > room) {
			for (taken = room; taken && text[taken] != ' '; taken--)
				;
			taken = taken ? taken : room;
		}
		snprintf(left->line[left->lines], sizeof(left->line[0]), "%s%.*s", left->lines ? "  " : "", (int)taken,
			 text);
		left->lines++;
		text += taken;
		text += strspn(text, " ");
	}
}

static void left_fill(struct left *left, const struct comparison *comparison)
{
	char unit[128];

	snprintf(unit, sizeof(unit), "%s%s%s is better", comparison->unit, *comparison->unit ? ", " : "",
		 comparison->higher ? "higher" : "lower");
	left->lines = 0;
	left_add(left, comparison->name);
	left_add(left, unit);
	left_add(left, comparison->conclusion);
}

static const char *ratio_text(const struct path_result *result, char *out, size_t bytes)
{
	const char *mark = "";

	switch (result->verdict) {
	case VERDICT_BASELINE:
		return "baseline";
	case VERDICT_FAILED:
		snprintf(out, bytes, "%zu FAILED", result->failures);
		return out;
	case VERDICT_NONE:
		return "-";
	case VERDICT_SAME:
		mark = " =";
		break;
	case VERDICT_FEW:
		mark = " ?";
		break;
	case VERDICT_BETTER:
		mark = result->by_rounds ? " +r" : " +";
		break;
	case VERDICT_WORSE:
		mark = result->by_rounds ? " -r" : " -";
		break;
	}
	snprintf(out, bytes, "%.2f%s", 1.0 + result->change, mark);
	return out;
}

static void print_row(FILE *out, const struct comparison *comparison, const struct path_result *result)
{
	const struct summary *value = &result->value;
	char median[40] = "-", low[40], high[40], spread[96] = "-", cpu[40] = "-", ratio[40];

	if (value->count) {
		figure_text(value->median, median, sizeof(median));
		snprintf(spread, sizeof(spread), "%s - %s", figure_text(value->low, low, sizeof(low)),
			 figure_text(value->high, high, sizeof(high)));
	}
	if (path_cpu(comparison, result)->count)
		figure_text(path_cpu(comparison, result)->median, cpu, sizeof(cpu) - sizeof(" a run"));
	if (path_cpu(comparison, result)->count && comparison->divisor == DIVISOR_RUN)
		strcat(cpu, " a run");
	fprintf(out, "  %-8s  %10s  %19s  %8s  %9s%s", path_name(result->path), median, spread,
		ratio_text(result, ratio, sizeof(ratio)), cpu,
		comparison->winner >= 0 && result == &comparison->path[comparison->winner] ? "  winner" : "");
}

static void print_comparison(FILE *out, const struct comparison *comparison)
{
	struct left left;

	left_fill(&left, comparison);
	for (size_t i = 0; i < left.lines || i < comparison->paths; i++) {
		fprintf(out, "%-*s", i < comparison->paths ? LEFT_WIDTH : 0, i < left.lines ? left.line[i] : "");
		if (i < comparison->paths)
			print_row(out, comparison, &comparison->path[i]);
		fputc('\n', out);
	}
	fputc('\n', out);
}

void table_summary(FILE *out, const struct comparison *list, size_t count)
{
	fprintf(out, "%-*s  %-8s  %10s  %19s  %8s  %9s\n\n", LEFT_WIDTH, "what", "path", "median", "spread", "ratio",
		"CPU s/GB");
	for (size_t i = 0; i < count; i++)
		print_comparison(out, &list[i]);
	fputs("ratio: to the baseline's median, above 1 is better: + better, - worse (r: by the rounds, one by one), = within the\n"
	      "spread of the runs, ? too few runs to tell. spread: least and greatest run; quartiles from ten runs on. CPU s/GB: seconds\n"
	      "of CPU of both ends, `a run` where no number of bytes is known to be the same for all paths.\n",
	      out);
}
