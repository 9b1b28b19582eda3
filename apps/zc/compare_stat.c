/* SPDX-License-Identifier: MIT */
/*
 * Which path is better, and whether that can be said. Two paths differ when their spreads do not overlap: from the least to
 * the greatest below ten runs (with five of each, chance alone does that once in 126 times), between the quartiles from
 * ten on. They differ also when one was better in so many rounds that chance alone would do that less than once in a
 * hundred times (the sign test, of both sides), and the medians say the same: the paths of a round share the machine's moment,
 * a drift from round to round widens the spreads and takes nothing from that. It takes eight rounds at least. Of everything
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
	"A path is better or worse than another if their spreads (least and greatest run; quartiles from ten runs on) do not "
	"overlap, or if it was so in that many of the rounds that both have run that chance does it less than once in a hundred "
	"times (sign test, both sides: eight of eight, 41 of 60) and the medians agree. Within the spread means that neither can "
	"be told, not that there is no difference.";

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

/* Counts the rounds that both have run; runs are in the order of the rounds. */
static struct rounds count_rounds(const struct comparison *comparison, const struct path_result *a,
				  const struct path_result *b)
{
	struct rounds out = { 0 };

	for (size_t i = 0, k = 0; i < a->runs && k < b->runs;) {
		const struct run *one = &a->run[i], *other = &b->run[k];

		i += one->round <= other->round;
		k += other->round <= one->round;
		if (one->round != other->round || one->failed || other->failed)
			continue;
		out.all++;
		out.better += comparison->higher ? one->value > other->value : one->value < other->value;
		out.worse += comparison->higher ? one->value < other->value : one->value > other->value;
	}
	return out;
}

/* Returns how often chance alone makes the rounds at least as one-sided, to either side. Equal ones tell nothing. */
static double chance_of(const struct rounds *rounds)
{
	size_t count = rounds->better + rounds->worse;
	size_t fewer = rounds->better < rounds->worse ? rounds->better : rounds->worse;
	double term = 1.0, chance = 0.0;

	for (size_t i = 0; i < count; i++)
		term /= 2.0; /* of a thousand rounds: still a number */
	for (size_t k = 0; k <= fewer; k++) {
		chance += term;
		term *= (double)(count - k) / (double)(k + 1);
	}
	return 2.0 * chance;
}

/* Returns 1 if a is better than b by the rounds, -1 if it is worse, 0 if that can't be told. */
static int compare_rounds(const struct comparison *comparison, const struct path_result *a, const struct path_result *b)
{
	struct rounds rounds = count_rounds(comparison, a, b);

	if (chance_of(&rounds) >= CHANCE_MAX)
		return 0;
	if (rounds.better > rounds.worse)
		return path_has_lead(comparison, a, b);
	return path_has_lead(comparison, b, a) ? -1 : 0;
}

/* The same by the spreads. */
static int compare_spreads(const struct comparison *comparison, const struct path_result *a,
			   const struct path_result *b)
{
	int sign = comparison->higher ? 1 : -1;

	if (a->value.low > b->value.high)
		return sign;
	return a->value.high < b->value.low ? -sign : 0;
}

int path_compare(const struct comparison *comparison, const struct path_result *a, const struct path_result *b)
{
	int better;

	if (a->value.count < RUNS_FOR_VERDICT || b->value.count < RUNS_FOR_VERDICT)
		return 0;
	better = compare_spreads(comparison, a, b);
	return better ? better : compare_rounds(comparison, a, b);
}

static void judge_path(const struct comparison *comparison, struct path_result *result)
{
	const struct path_result *base = &comparison->path[comparison->baseline];
	int better = path_compare(comparison, result, base);

	result->rounds = count_rounds(comparison, result, base);
	result->by_rounds = better && !compare_spreads(comparison, result, base);
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
