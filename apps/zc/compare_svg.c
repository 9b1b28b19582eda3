/* SPDX-License-Identifier: MIT */
/* The pictures of the report: a bar for each path to its median, a whisker over its spread, and a dot for each run. */
#include <math.h>

#include "apps/zc/compare.h"

#define LABEL_WIDTH 90
#define BAR_WIDTH 460
#define FIGURE_WIDTH 130
#define ROW_HEIGHT 30
#define TOP 26

static double run_value(const struct comparison *comparison, const struct run *run, bool cpu)
{
	return cpu ? run_cpu(comparison, run) : run->value;
}

static const struct summary *summary_in(const struct comparison *comparison, const struct path_result *result, bool cpu)
{
	return cpu ? path_cpu(comparison, result) : &result->value;
}

static double greatest(const struct comparison *comparison, bool cpu)
{
	double top = 0.0;

	for (size_t i = 0; i < comparison->paths; i++) {
		const struct summary *summary = summary_in(comparison, &comparison->path[i], cpu);

		if (summary->count && summary->max > top)
			top = summary->max;
	}
	return top;
}

static void draw_row(FILE *out, const struct comparison *comparison, const struct path_result *result, bool cpu,
		     double scale, int y, const char *kind)
{
	const struct summary *summary = summary_in(comparison, result, cpu);
	int middle = y + ROW_HEIGHT / 2 - 3;
	char text[40];

	fprintf(out, "<text x='%d' y='%d' class='name'>%s</text>\n", LABEL_WIDTH - 8, middle + 4,
		path_name(result->path));
	if (!summary->count) {
		fprintf(out, "<text x='%d' y='%d' class='bad'>failed</text>\n", LABEL_WIDTH + 6, middle + 4);
		return;
	}
	fprintf(out, "<rect x='%d' y='%d' width='%.1f' height='%d' class='%s'/>\n", LABEL_WIDTH, y,
		summary->median * scale, ROW_HEIGHT - 8, kind);
	for (size_t i = 0; i < result->runs; i++)
		if (!result->run[i].failed && isfinite(run_value(comparison, &result->run[i], cpu)))
			fprintf(out, "<circle cx='%.1f' cy='%d' r='2.2' class='run'/>\n",
				LABEL_WIDTH + run_value(comparison, &result->run[i], cpu) * scale, middle);
	fprintf(out, "<path d='M%.1f %dh%.1f m0 -5v10 M%.1f %dv10' class='spread'/>\n",
		LABEL_WIDTH + summary->low * scale, middle, (summary->high - summary->low) * scale,
		LABEL_WIDTH + summary->low * scale, middle - 5);
	fprintf(out, "<text x='%d' y='%d' class='figure'>%s%s</text>\n", LABEL_WIDTH + BAR_WIDTH + 12, middle + 4,
		figure_text(summary->median, text, sizeof(text)), result->failures ? " (some failed)" : "");
}

static const char *kind_of(const struct comparison *comparison, size_t i)
{
	if ((int)i == comparison->winner)
		return "bar winner";
	return i == comparison->baseline ? "bar baseline" : "bar";
}

void svg_bars(FILE *out, const struct comparison *comparison, bool cpu)
{
	double top = greatest(comparison, cpu);
	int width = LABEL_WIDTH + BAR_WIDTH + FIGURE_WIDTH, height = TOP + ROW_HEIGHT * (int)comparison->paths;

	if (!(top > 0.0))
		return;
	fprintf(out, "<svg viewBox='0 0 %d %d' width='%d' role='img'>\n<title>", width, height, width);
	html_text(out, comparison->name);
	fprintf(out, "</title>\n<text x='%d' y='14' class='title'>", LABEL_WIDTH);
	html_text(out, cpu ? divisor_name(comparison) : comparison->unit);
	fprintf(out, " (%s is better)</text>\n", cpu || !comparison->higher ? "lower" : "higher");
	for (size_t i = 0; i < comparison->paths; i++)
		draw_row(out, comparison, &comparison->path[i], cpu, BAR_WIDTH / top, TOP + ROW_HEIGHT * (int)i,
			 kind_of(comparison, i));
	fputs("</svg>\n", out);
}
