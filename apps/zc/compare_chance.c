/* SPDX-License-Identifier: MIT */
/*
 * How often chance alone would tell two paths apart as much as their runs do, were there no difference. By the ranks of all
 * runs (H. B. Mann and D. R. Whitney, "On a test of whether one of two random variables is stochastically larger than the
 * other", 1947), and by the rounds that both have run (the sign test): those share the machine's moment, and a drift from
 * round to round takes nothing from that. Both of two sides. Equal values count half by the ranks, and tell nothing by the
 * rounds.
 */
#include <math.h>

#include "apps/zc/compare.h"

#define EXACT_MAX 400 /* pairs of runs: 20 of each. Beyond, the normal distribution is close */

static int order(const struct comparison *comparison, const struct run *a, const struct run *b)
{
	int sign = (a->value > b->value) - (a->value < b->value);

	return comparison->higher ? sign : -sign;
}

static bool is_counted(const struct run *run)
{
	return !run->failed && isfinite(run->value);
}

/*
 * Returns in which share of all orders of n and m runs one side has no more than `fewer` of the n times m pairs. The orders
 * with u pairs on one side are the coefficients of q^u in the product of (1 - q^(m + i)) / (1 - q^i), i from 1 to n.
 */
static double exact_share(size_t n, size_t m, size_t fewer)
{
	double orders[EXACT_MAX + 1] = { 1.0 };
	size_t pairs = n * m;
	double all = 0.0, some = 0.0;

	for (size_t i = 1; i <= n; i++) {
		for (size_t u = pairs + 1; u-- > m + i;)
			orders[u] -= orders[u - m - i];
		for (size_t u = i; u <= pairs; u++)
			orders[u] += orders[u - i];
	}
	for (size_t u = 0; u <= pairs; u++) {
		all += orders[u];
		some += u <= fewer ? orders[u] : 0.0;
	}
	return some / all;
}

double chance_of_ranks(const struct comparison *comparison, const struct path_result *a, const struct path_result *b,
		       int *side)
{
	size_t n = 0, m = 0, better = 0, worse = 0;
	double pairs, fewer, chance;

	for (size_t i = 0; i < a->runs; i++) {
		if (!is_counted(&a->run[i]))
			continue;
		n++;
		for (size_t k = m = 0; k < b->runs; k++) {
			if (!is_counted(&b->run[k]))
				continue;
			m++;
			better += order(comparison, &a->run[i], &b->run[k]) > 0;
			worse += order(comparison, &a->run[i], &b->run[k]) < 0;
		}
	}
	*side = (better > worse) - (better < worse);
	if (!n || !m)
		return 1.0;
	pairs = (double)n * (double)m;
	fewer = (pairs - fabs((double)better - (double)worse)) / 2.0;
	if (n * m <= EXACT_MAX)
		chance = 2.0 * exact_share(n, m, (size_t)ceil(fewer));
	else
		chance = erfc((pairs / 2.0 - fewer - 0.5) / sqrt(pairs * (double)(n + m + 1) / 12.0) / sqrt(2.0));
	return chance < 1.0 ? chance : 1.0;
}

struct rounds count_rounds(const struct comparison *comparison, const struct path_result *a,
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
		out.better += order(comparison, one, other) > 0;
		out.worse += order(comparison, one, other) < 0;
	}
	return out;
}

double chance_of_rounds(const struct rounds *rounds)
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
	return chance < 0.5 ? 2.0 * chance : 1.0;
}
