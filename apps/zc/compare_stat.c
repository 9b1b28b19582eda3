/* SPDX-License-Identifier: MIT */
/*
 * Which path is better, and whether that can be said. Two paths differ when their spreads do not overlap: from the least to
 * the greatest below ten runs (with five of each, chance alone does that once in 126 times), between the quartiles from
 * ten on. Everything else is "no difference", whatever the medians look like.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare.h"

#define RUNS_FOR_QUARTILES 10
#define RUNS_FOR_VERDICT 3

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Interpolates linearly between the two neighbours (the usual definition, type 7). */
static double quantile(const double *sorted, size_t count, double share)
{
	double at = share * (double)(count - 1);
	size_t below = (size_t)at;

	if (below + 1 >= count)
		return sorted[count - 1];
	return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

struct summary summary_of(double *values, size_t count)
{
	struct summary out = { .count = count };

	if (!count)
		return out;
	qsort(values, count, sizeof(*values), ascending);
	out.min = values[0];
	out.max = values[count - 1];
	out.median = quantile(values, count, 0.5);
	out.q1 = quantile(values, count, 0.25);
	out.q3 = quantile(values, count, 0.75);
	out.low = count < RUNS_FOR_QUARTILES ? out.min : out.q1;
	out.high = count < RUNS_FOR_QUARTILES ? out.max : out.q3;
	return out;
}

const char *spread_name(const struct comparison *comparison)
{
	return comparison->repeat < RUNS_FOR_QUARTILES ? "min - max" : "quartiles";
}

static double value_of(const struct run *run)
{
	return run->value;
}

static double cpu_of(const struct run *run)
{
	return run->cpu_server_s + run->cpu_client_s;
}

static double cpu_gb_of(const struct run *run)
{
	return run->bytes > 0.0 ? cpu_of(run) / (run->bytes / 1e9) : NAN;
}

static int summarise(const struct path_result *result, double (*of)(const struct run *), struct summary *out)
{
	double *values = malloc((result->runs + 1) * sizeof(*values));
	size_t count = 0;

	if (!values)
		return -ENOMEM;
	for (size_t i = 0; i < result->runs; i++)
		if (!result->run[i].failed && isfinite(of(&result->run[i])))
			values[count++] = of(&result->run[i]);
	*out = summary_of(values, count);
	free(values);
	return 0;
}

/* Returns 1 if a is better than b beyond their spreads, -1 if it is worse, 0 if that can't be told. */
static int compare(const struct comparison *comparison, const struct path_result *a, const struct path_result *b)
{
	int sign = comparison->higher ? 1 : -1;

	if (a->value.count < RUNS_FOR_VERDICT || b->value.count < RUNS_FOR_VERDICT)
		return 0;
	if (a->value.low > b->value.high)
		return sign;
	return a->value.high < b->value.low ? -sign : 0;
}

static bool has_lead(const struct comparison *comparison, const struct path_result *a, const struct path_result *b)
{
	return comparison->higher ? a->value.median > b->value.median : a->value.median < b->value.median;
}

static void judge_path(const struct comparison *comparison, struct path_result *result)
{
	const struct path_result *base = &comparison->path[comparison->baseline];
	int better = compare(comparison, result, base);

	result->change = base->value.median > 0.0 && result->value.count ?
				 (comparison->higher ? result->value.median / base->value.median :
						       base->value.median / result->value.median) -
					 1.0 :
				 NAN;
	if (!result->value.count || result->failures)
		result->verdict = VERDICT_FAILED;
	else if (result == base)
		result->verdict = VERDICT_BASELINE;
	else if (!base->value.count)
		result->verdict = VERDICT_NONE;
	else if (result->value.count < RUNS_FOR_VERDICT || base->value.count < RUNS_FOR_VERDICT)
		result->verdict = VERDICT_FEW;
	else
		result->verdict = better > 0 ? VERDICT_BETTER : better < 0 ? VERDICT_WORSE : VERDICT_SAME;
}

const char *verdict_text(const struct comparison *comparison, const struct path_result *result, char *out, size_t bytes)
{
	switch (result->verdict) {
	case VERDICT_BASELINE:
		return "baseline";
	case VERDICT_FAILED:
		snprintf(out, bytes, "FAILED (%zu of %zu)", result->failures, result->runs);
		return out;
	case VERDICT_BETTER:
	case VERDICT_WORSE:
		snprintf(out, bytes, "%+.1f %%", 100.0 * result->change);
		return out;
	case VERDICT_SAME:
		return "no difference";
	case VERDICT_FEW:
		return "too few runs to tell";
	default:
		return "-";
	}
}

/* Returns the path with the best median among those without failures, -1 if there is none. */
static int leader(const struct comparison *comparison)
{
	int best = -1;

	for (size_t i = 0; i < comparison->paths; i++) {
		const struct path_result *result = &comparison->path[i];

		if (result->failures || !result->value.count)
			continue;
		if (best < 0 || has_lead(comparison, result, &comparison->path[best]))
			best = (int)i;
	}
	return best;
}

/* Writes the names of the paths that can't be told apart from the best one, the best one first. Returns how many. */
static int list_equals(const struct comparison *comparison, int best, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(out, bytes, "%s", path_name(comparison->path[best].path));
	int count = 1;

	for (size_t i = 0; i < comparison->paths; i++) {
		const struct path_result *result = &comparison->path[i];

		if ((int)i == best || result->failures || !result->value.count ||
		    compare(comparison, &comparison->path[best], result))
			continue;
		count++;
		if (used < bytes)
			used += (size_t)snprintf(out + used, bytes - used, ", %s", path_name(result->path));
	}
	return count;
}

static int conclude(struct comparison *comparison, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int conclude(struct comparison *comparison, const char *format, ...)
{
	va_list list;
	int rc;

	free(comparison->conclusion);
	va_start(list, format);
	rc = vasprintf(&comparison->conclusion, format, list);
	va_end(list);
	if (rc < 0)
		comparison->conclusion = NULL;
	return rc < 0 ? -ENOMEM : 0;
}

static int find_winner(struct comparison *comparison)
{
	const struct path_result *base = &comparison->path[comparison->baseline];
	const char *base_name = path_name(base->path);
	int best = leader(comparison), equals;
	char names[128];

	comparison->winner = -1;
	if (best < 0)
		return conclude(comparison, "No path ran without failures.");
	if (comparison->path[best].value.count < RUNS_FOR_VERDICT)
		return conclude(comparison, "No winner: %d runs at least are needed to tell.", RUNS_FOR_VERDICT);
	equals = list_equals(comparison, best, names, sizeof(names));
	if (equals == 1 && comparison->paths > 1) {
		comparison->winner = best;
		if (&comparison->path[best] == base || base->failures || !base->value.count)
			return conclude(comparison, "Winner: %s.", names);
		return conclude(comparison, "Winner: %s, %.2f times %s.", names, 1.0 + comparison->path[best].change,
				base_name);
	}
	if (comparison->paths == 1)
		return conclude(comparison, "One path only: nothing to compare.");
	if (!base->failures && base->value.count && !compare(comparison, &comparison->path[best], base))
		return conclude(comparison, "No difference: nothing is better than %s beyond the spread.", base_name);
	return conclude(comparison, "No single winner: no difference between the best, %s.", names);
}

int comparison_judge(struct comparison *comparison)
{
	int rc = 0;

	comparison->baseline = 0;
	for (size_t i = 0; i < comparison->paths; i++) {
		struct path_result *result = &comparison->path[i];

		if (result->path == PATH_TCP)
			comparison->baseline = i;
		result->failures = 0;
		for (size_t k = 0; k < result->runs; k++)
			result->failures += result->run[k].failed;
		rc = summarise(result, value_of, &result->value);
		if (!rc)
			rc = summarise(result, cpu_of, &result->cpu);
		if (!rc)
			rc = summarise(result, cpu_gb_of, &result->cpu_gb);
		if (rc)
			return rc;
	}
	for (size_t i = 0; i < comparison->paths; i++)
		judge_path(comparison, &comparison->path[i]);
	return find_winner(comparison);
}
