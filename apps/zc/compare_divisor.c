/* SPDX-License-Identifier: MIT */
/*
 * What the CPU seconds of all paths are divided by: the same for each, or they can't be compared. The bytes that the client tells
 * of, where it does. Else the bytes that the programs have sent, as the library counts them, if all runs of all paths agree in
 * them: without the library, on tcp, there are the interfaces' counters, and what they leave when the least and the most that
 * headers can be is taken off has to agree too (a program that runs for a time moves another amount on each path, and other
 * programs' traffic counts there). Else nothing: seconds of a run.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare.h"

#define AGREED 1.05

double run_cpu(const struct comparison *comparison, const struct run *run)
{
	double seconds = run->cpu_server_s + run->cpu_client_s;

	switch (comparison->divisor) {
	case DIVISOR_TOLD:
		return run->bytes > 0.0 ? seconds / (run->bytes / 1e9) : NAN;
	case DIVISOR_PAYLOAD:
		return seconds / (comparison->payload / 1e9);
	default:
		return seconds;
	}
}

const struct summary *path_cpu(const struct comparison *comparison, const struct path_result *result)
{
	return comparison->divisor == DIVISOR_RUN ? &result->cpu : &result->cpu_gb;
}

const char *divisor_name(const struct comparison *comparison)
{
	return comparison->divisor == DIVISOR_RUN ? "CPU s a run" : "CPU s/GB";
}

const char *divisor_source(const struct comparison *comparison)
{
	switch (comparison->divisor) {
	case DIVISOR_TOLD:
		return BYTES_TOLD;
	case DIVISOR_PAYLOAD:
		return "what the programs themselves send in a run, by the library's statistics: one number for all paths, which "
		       "agree in it within 5 %, tcp by the interfaces' counters without headers";
	default:
		return "not known to be the same on all paths, so CPU seconds are those of a run; --bytes tells how to find the "
		       "bytes in the client's output";
	}
}

/* Puts what is known exactly in `out`, which has room for all runs. Returns how many there are. */
static size_t list_payloads(const struct comparison *comparison, double *out)
{
	size_t count = 0;

	for (size_t i = 0; i < comparison->paths; i++)
		for (size_t k = 0; k < comparison->path[i].runs; k++) {
			const struct run *run = &comparison->path[i].run[k];

			if (!run->failed && run->payload_min > 0.0 && run->payload_min >= run->payload_max)
				out[count++] = run->payload_min;
		}
	return count;
}

static bool all_agree(const struct comparison *comparison, double payload)
{
	for (size_t i = 0; i < comparison->paths; i++)
		for (size_t k = 0; k < comparison->path[i].runs; k++) {
			const struct run *run = &comparison->path[i].run[k];

			/* Written so that what is not known does not agree. */
			if (!run->failed &&
			    !(run->payload_min <= AGREED * payload && AGREED * run->payload_max >= payload))
				return false;
		}
	return true;
}

int comparison_divide(struct comparison *comparison)
{
	size_t runs = 1, count;
	double *payloads;

	comparison->divisor = DIVISOR_RUN;
	if (!strcmp(comparison->bytes_source, BYTES_TOLD)) {
		comparison->divisor = DIVISOR_TOLD;
		return 0;
	}
	for (size_t i = 0; i < comparison->paths; i++)
		runs += comparison->path[i].runs;
	payloads = calloc(runs, sizeof(*payloads));
	if (!payloads)
		return -ENOMEM;
	count = list_payloads(comparison, payloads);
	comparison->payload = summary_of(payloads, count).median;
	if (count && all_agree(comparison, comparison->payload))
		comparison->divisor = DIVISOR_PAYLOAD;
	free(payloads);
	return 0;
}
