/* SPDX-License-Identifier: MIT */
/*
 * One sentence about a whole comparison, which says no more, and no less, than the verdicts of its rows: first which paths are
 * better than the baseline, then the best of those by its median, and what that one is not better than.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#include "apps/zc/compare.h"

#define NAMES_BYTES 128
#define BEYOND "beyond the spread of the runs"

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

static bool is_whole(const struct path_result *result)
{
	return !result->failures && result->value.count;
}

/* Returns the path with the best median among those without failures, -1 if there is none. */
static int find_leader(const struct comparison *comparison, bool better_alone)
{
	int best = -1;

	for (size_t i = 0; i < comparison->paths; i++) {
		const struct path_result *result = &comparison->path[i];

		if (!is_whole(result) || (better_alone && result->verdict != VERDICT_BETTER))
			continue;
		if (best < 0 || path_has_lead(comparison, result, &comparison->path[best]))
			best = (int)i;
	}
	return best;
}

/* Writes names one behind the other. */
struct names {
	char text[NAMES_BYTES];
	size_t used, count;
};

static void add_name(struct names *names, const struct path_result *result)
{
	if (names->used < sizeof(names->text))
		names->used += (size_t)snprintf(names->text + names->used, sizeof(names->text) - names->used, "%s%s",
						names->count ? ", " : "", path_name(result->path));
	names->count++;
}

/* The paths that one is not better than. */
static struct names list_unbeaten(const struct comparison *comparison, int best)
{
	struct names out = { .text = "" };

	for (size_t i = 0; i < comparison->paths; i++)
		if ((int)i != best && is_whole(&comparison->path[i]) &&
		    path_compare(comparison, &comparison->path[best], &comparison->path[i]) <= 0)
			add_name(&out, &comparison->path[i]);
	return out;
}

static struct names list_worse(const struct comparison *comparison)
{
	struct names out = { .text = "" };

	for (size_t i = 0; i < comparison->paths; i++)
		if (comparison->path[i].verdict == VERDICT_WORSE)
			add_name(&out, &comparison->path[i]);
	return out;
}

/* Of a baseline that has run, and that nothing is better than. */
static int conclude_baseline(struct comparison *comparison)
{
	const char *base = path_name(comparison->path[comparison->baseline].path);
	struct names equal = list_unbeaten(comparison, (int)comparison->baseline);
	struct names worse = list_worse(comparison);

	if (!equal.count) {
		comparison->winner = (int)comparison->baseline;
		return conclude(comparison, "Winner: %s.", base);
	}
	if (worse.count)
		return conclude(comparison, "No winner: nothing is better than %s " BEYOND "; worse: %s.", base,
				worse.text);
	return conclude(comparison, "No winner: nothing is better or worse than %s " BEYOND ".", base);
}

static int conclude_better(struct comparison *comparison, int best)
{
	const struct path_result *result = &comparison->path[best];
	const char *base = path_name(comparison->path[comparison->baseline].path), *name = path_name(result->path);
	struct names equal = list_unbeaten(comparison, best);

	if (equal.count)
		return conclude(comparison,
				"No single winner: %s is better than %s (%.2f times), but not than %s " BEYOND ".",
				name, base, 1.0 + result->change, equal.text);
	comparison->winner = best;
	return conclude(comparison, "Winner: %s, %.2f times %s.", name, 1.0 + result->change, base);
}

/* Where the baseline has failed, the others are compared with each other alone. */
static int conclude_without(struct comparison *comparison, int best)
{
	struct names equal = list_unbeaten(comparison, best);

	if (equal.count)
		return conclude(comparison,
				"No single winner: %s has the best median, but is not better than %s " BEYOND ".",
				path_name(comparison->path[best].path), equal.text);
	comparison->winner = best;
	return conclude(comparison, "Winner: %s.", path_name(comparison->path[best].path));
}

int comparison_conclude(struct comparison *comparison)
{
	int best = find_leader(comparison, false), better = find_leader(comparison, true);

	comparison->winner = -1;
	if (best < 0)
		return conclude(comparison, "No path ran without failures.");
	if (comparison->path[best].value.count < RUNS_FOR_VERDICT)
		return conclude(comparison, "No winner: %d runs at least are needed to tell.", RUNS_FOR_VERDICT);
	if (comparison->paths == 1)
		return conclude(comparison, "One path only: nothing to compare.");
	if (!is_whole(&comparison->path[comparison->baseline]))
		return conclude_without(comparison, best);
	return better < 0 ? conclude_baseline(comparison) : conclude_better(comparison, better);
}
