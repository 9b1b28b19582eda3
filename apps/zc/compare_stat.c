/* SPDX-License-Identifier: MIT */
/*
 * Which path is better, and whether that can be said. Two paths differ when chance alone would tell them apart as much less
 * than once in a hundred times, and the medians say the same: by the ranks of all runs, or, where there are enough rounds for
 * them to tell it, by the ranks or by the rounds, either in half of that. The least that can tell by the ranks are five runs of
 * each, all of one above all of the other (one in 126), and by the rounds nine of nine (one in 256). Of everything
 * else is said that it is within the spread, whatever the medians look like: that there is no difference is not shown by it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare.h"

#define RUNS_FOR_QUARTILES 10
#define CHANCE_MAX 0.01

const char verdict_rule[] =
	"A path is better or worse than another if the medians say so, and chance alone would tell them apart as much less than once in "
	"a hundred times: by the ranks of all runs (Mann and Whitney's test: all five of one above all five of the other, for one), or, from nine rounds on, "
	"by the rounds that both have run (sign test: nine of nine, 42 of 60), then either in half of that; both of two sides. "
	"Within the spread means that neither can be told, not that there is no difference.";

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

static double value_of(const struct comparison *comparison, const struct run *run)
{
	return run->value;
}

static double cpu_of(const struct comparison *comparison, const struct run *run)
{
	return run->cpu_server_s + run->cpu_client_s;
}

static double cpu_gb_of(const struct comparison *comparison, const struct run *run)
{
	return comparison->divisor == DIVISOR_RUN ? NAN : run_cpu(comparison, run);
}

static int summarise(const struct comparison *comparison, const struct path_result *result,
		     double (*of)(const struct comparison *, const struct run *), struct summary *out)
{
	double *values = malloc((result->runs + 1) * sizeof(*values));
	size_t count = 0;

	if (!values)
		return -ENOMEM;
	for (size_t i = 0; i < result->runs; i++)
		if (!result->run[i].failed && isfinite(of(comparison, &result->run[i])))
			values[count++] = of(comparison, &result->run[i]);
	*out = summary_of(values, count);
	free(values);
	return 0;
}

bool path_has_lead(const struct comparison *comparison, const struct path_result *a, const struct path_result *b)
{
	return comparison->higher ? a->value.median > b->value.median : a->value.median < b->value.median;
}

/* Returns 1 if a is better than b, -1 if it is worse, 0 if that can't be told. */
static int compare_by(const struct comparison *comparison, const struct path_result *a, const struct path_result *b,
		      bool *by_rounds)
{
	struct rounds rounds = count_rounds(comparison, a, b);
	const struct rounds whole = { rounds.all, rounds.all, 0 };
	double chance_max = chance_of_rounds(&whole) < CHANCE_MAX / 2.0 ? CHANCE_MAX / 2.0 : CHANCE_MAX;
	int side, lead = path_has_lead(comparison, a, b) ? 1 : path_has_lead(comparison, b, a) ? -1 : 0;

	*by_rounds = false;
	if (chance_of_ranks(comparison, a, b, &side) < chance_max && side == lead)
		return side;
	*by_rounds = true;
	side = rounds.better > rounds.worse ? 1 : -1;
	return chance_of_rounds(&rounds) < CHANCE_MAX / 2.0 && side == lead ? side : 0;
}

int path_compare(const struct comparison *comparison, const struct path_result *a, const struct path_result *b)
{
	bool by_rounds;

	return compare_by(comparison, a, b, &by_rounds);
}

static void judge_path(const struct comparison *comparison, struct path_result *result)
{
	const struct path_result *base = &comparison->path[comparison->baseline];
	int better = compare_by(comparison, result, base, &result->by_rounds);

	result->rounds = count_rounds(comparison, result, base);
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
		if (result->by_rounds)
			snprintf(out, bytes, "%+.1f %%, %zu/%zu rounds", 100.0 * result->change,
				 result->verdict == VERDICT_BETTER ? result->rounds.better : result->rounds.worse,
				 result->rounds.all);
		else
			snprintf(out, bytes, "%+.1f %%", 100.0 * result->change);
		return out;
	case VERDICT_SAME:
		return "within the spread";
	case VERDICT_FEW:
		return "too few runs to tell";
	default:
		return "-";
	}
}

int comparison_judge(struct comparison *comparison)
{
	int rc = comparison_divide(comparison);

	comparison->baseline = 0;
	if (rc)
		return rc;
	for (size_t i = 0; i < comparison->paths; i++) {
		struct path_result *result = &comparison->path[i];

		if (result->path == PATH_TCP)
			comparison->baseline = i;
		result->failures = 0;
		for (size_t k = 0; k < result->runs; k++)
			result->failures += result->run[k].failed;
		rc = summarise(comparison, result, value_of, &result->value);
		if (!rc)
			rc = summarise(comparison, result, cpu_of, &result->cpu);
		if (!rc)
			rc = summarise(comparison, result, cpu_gb_of, &result->cpu_gb);
		if (rc)
			return rc;
	}
	for (size_t i = 0; i < comparison->paths; i++)
		judge_path(comparison, &comparison->path[i]);
	return comparison_conclude(comparison);
}
