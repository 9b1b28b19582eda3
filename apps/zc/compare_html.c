/* SPDX-License-Identifier: MIT */
/* Results as one self-contained HTML file: no script, no reference to anything outside it. */
#include <math.h>
#include <string.h>

#include "apps/zc/compare.h"

static const char style[] =
	":root{--ink:#1c2430;--dim:#667;--line:#d8dde5;--paper:#fff;--bar:#8fb3d9;--base:#b4bac4;--win:#3f9c6d;--bad:#b3261e}"
	"@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--dim:#9aa4b2;--line:#39424e;--paper:#161b22;--bar:#4d78a8;"
	"--base:#5d6673;--win:#3f9c6d;--bad:#f2786f}}"
	"body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;"
	"padding:0 1rem}h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem;border-top:1px solid var(--line);"
	"padding-top:1.2rem}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
	"td,th{padding:.25rem .8rem;border-bottom:1px solid var(--line);text-align:right;font-variant-numeric:tabular-nums;"
	"white-space:nowrap}td:first-child,th:first-child,.left{text-align:left}.better{color:var(--win);font-weight:600}"
	".worse,.bad{color:var(--bad)}.dim,figcaption{color:var(--dim)}code,pre{font-size:.85rem;overflow-wrap:anywhere;"
	"white-space:pre-wrap}svg{max-width:100%;height:auto;display:block;margin:.8rem 0}"
	"svg text{font:13px system-ui,sans-serif;fill:var(--ink)}svg .name{text-anchor:end}svg .title{fill:var(--dim)}"
	"svg .bad{fill:var(--bad)}.bar{fill:var(--bar)}.baseline{fill:var(--base)}.winner{fill:var(--win)}"
	".run{fill:var(--ink);opacity:.45}.spread{stroke:var(--ink);stroke-width:1.5;fill:none}";

void html_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '&':
			fputs("&amp;", out);
			break;
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		case '"':
			fputs("&quot;", out);
			break;
		case '\'':
			fputs("&#39;", out);
			break;
		default:
			fputc(*text, out);
		}
	}
}

static void cell(FILE *out, const char *kind, const char *text)
{
	fprintf(out, "<td class='%s'>", kind);
	html_text(out, text);
	fputs("</td>", out);
}

static void summary_cells(FILE *out, const struct summary *summary)
{
	char text[40], low[40], high[40];

	if (!summary->count) {
		fputs("<td>-</td><td>-</td>", out);
		return;
	}
	fprintf(out, "<td>%s</td><td class='dim'>%s&thinsp;&ndash;&thinsp;%s</td>",
		figure_text(summary->median, text, sizeof(text)), figure_text(summary->low, low, sizeof(low)),
		figure_text(summary->high, high, sizeof(high)));
}

static const char *verdict_class(enum verdict verdict)
{
	switch (verdict) {
	case VERDICT_BETTER:
		return "better";
	case VERDICT_WORSE:
	case VERDICT_FAILED:
		return "worse";
	default:
		return "dim";
	}
}

static void table(FILE *out, const struct comparison *comparison)
{
	char text[64];

	fputs("<table><tr><th>path</th><th>median, ", out);
	html_text(out, comparison->unit);
	fprintf(out, "</th><th>%s</th><th>better than %s by</th><th>%s</th><th>%s</th>%s</tr>\n",
		spread_name(comparison), path_name(comparison->path[comparison->baseline].path),
		divisor_name(comparison), spread_name(comparison),
		comparison->divisor == DIVISOR_RUN ? "" : "<th>CPU s a run</th>");
	for (size_t i = 0; i < comparison->paths; i++) {
		const struct path_result *result = &comparison->path[i];

		fputs("<tr>", out);
		cell(out, "left", path_name(result->path));
		summary_cells(out, &result->value);
		cell(out, verdict_class(result->verdict), verdict_text(comparison, result, text, sizeof(text)));
		summary_cells(out, path_cpu(comparison, result));
		if (comparison->divisor != DIVISOR_RUN)
			cell(out, "", result->cpu.count ? figure_text(result->cpu.median, text, sizeof(text)) : "-");
		fputs("</tr>\n", out);
	}
	fputs("</table>\n", out);
}

static void explanations(FILE *out, const struct comparison *comparison)
{
	fputs("<ul>\n", out);
	for (size_t i = 0; i < comparison->paths; i++) {
		const struct path_result *result = &comparison->path[i];

		fprintf(out, "<li><b>%s</b>: ", path_name(result->path));
		html_text(out, result->explanation);
		for (size_t k = 0; k < result->runs; k++) {
			if (!result->run[k].failed)
				continue;
			fprintf(out, "<pre class='bad'>round %u failed: ", result->run[k].round);
			html_text(out, result->run[k].failure ? result->run[k].failure : "?");
			fputs("</pre>", out);
		}
		fputs("</li>\n", out);
	}
	fputs("</ul>\n", out);
}

static void environment(FILE *out, const struct comparison *comparison)
{
	const char *key;
	json_t *value;

	fputs("<details><summary>Commands and environment</summary>\n<table>\n", out);
	fputs("<tr><td>server</td><td class='left'><code>", out);
	html_text(out, comparison->server);
	fputs("</code></td></tr>\n<tr><td>client</td><td class='left'><code>", out);
	html_text(out, comparison->client);
	fputs("</code></td></tr>\n<tr><td>figure</td><td class='left'>", out);
	html_text(out, comparison->metric);
	fputs("</td></tr>\n<tr><td>preloaded</td><td class='left'>", out);
	html_text(out, comparison->preload);
	fputs("</td></tr>\n", out);
	json_object_foreach(comparison->environment, key, value) {
		fputs("<tr>", out);
		cell(out, "left", key);
		cell(out, "left", json_string_value(value) ? json_string_value(value) : "");
		fputs("</tr>\n", out);
	}
	fputs("</table></details>\n", out);
}

static void section(FILE *out, const struct comparison *comparison, size_t number)
{
	fprintf(out, "<section id='c%zu'>\n<h2>", number);
	html_text(out, comparison->name);
	fputs("</h2>\n<p><b>", out);
	html_text(out, comparison->conclusion);
	fprintf(out, "</b> %u runs of each path, interleaved.</p>\n", comparison->repeat);
	svg_bars(out, comparison, false);
	svg_bars(out, comparison, true);
	table(out, comparison);
	fputs("<p class='dim'>CPU: ", out);
	html_text(out, comparison->cpu_source);
	fputs(". GB: ", out);
	html_text(out, divisor_source(comparison));
	fputs(". Bars reach to the median, whiskers over the spread, dots are single runs.</p>\n", out);
	explanations(out, comparison);
	environment(out, comparison);
	fputs("</section>\n", out);
}

static void contents(FILE *out, const struct comparison *list, size_t count)
{
	fputs("<table><tr><th>what</th><th class='left'>result</th></tr>\n", out);
	for (size_t i = 0; i < count; i++) {
		fprintf(out, "<tr><td><a href='#c%zu'>", i);
		html_text(out, list[i].name);
		fputs("</a></td>", out);
		cell(out, "left", list[i].conclusion);
		fputs("</tr>\n", out);
	}
	fputs("</table>\n", out);
}

void html_print(FILE *out, const struct comparison *list, size_t count)
{
	fputs("<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
	      "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<title>",
	      out);
	html_text(out, count == 1 ? list[0].name : "With and without zc");
	fprintf(out, "</title>\n<style>%s</style>\n</head>\n<body>\n<h1>With and without zc</h1>\n", style);
	if (count > 1)
		contents(out, list, count);
	for (size_t i = 0; i < count; i++)
		section(out, &list[i], i);
	fputs("</body>\n</html>\n", out);
}
