/* SPDX-License-Identifier: MIT */
/* What changed on a path and why, in a few sentences, from the statistics that the processes of its runs left. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare.h"

static void add_view(struct stats_sum *sum, const struct view *view)
{
	for (int p = 0; p < PATH_COUNT; p++)
		for (int i = 0; i < STAT_PATH_COUNT; i++)
			sum->all.path[p].counter[i] += view->all.path[p].counter[i];
	for (int i = 0; i < STAT_CONN_COUNT; i++)
		sum->all.counter[i] += view->all.counter[i];
	for (int i = 0; i < REASON_COUNT; i++)
		sum->all.reason[i] += view->all.reason[i];
	for (int i = 0; i < STAT_PROCESS_COUNT; i++)
		sum->process[i] += view->process[i];
	for (int i = 0; i < STATS_TRIALS; i++)
		if (view->trial[i].tries > sum->trial[i].tries)
			sum->trial[i] = view->trial[i];
	sum->processes++;
}

unsigned int stats_sum_add(struct stats_sum *sum, const char *directory)
{
	DIR *dir = opendir(directory);
	unsigned int before = sum->processes;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		char file[PATH_MAX + 300], why[PATH_MAX];
		struct found found;
		struct view view;

		if (entry->d_name[0] == '.')
			continue;
		snprintf(file, sizeof(file), "%s/%s", directory, entry->d_name);
		if (found_of_file(file, &found, why, sizeof(why)))
			continue;
		if (!view_make(&found, &view)) {
			add_view(sum, &view);
			view_free(&view);
		}
		stats_unmap(found.segment);
	}
	if (dir)
		closedir(dir);
	return sum->processes - before;
}

/* Sentences ---------------------------------------------------------------------------------------------------------- */

static double share(uint64_t part, uint64_t whole)
{
	/* Cut, not rounded: 100 % are said of all alone. */
	return whole ? (double)(uint64_t)(1000.0 * (double)part / (double)whole) / 10.0 : 0.0;
}

static void say_bytes(FILE *out, uint64_t bytes)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB" };
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 999.5 && unit < 5; unit++)
		value /= 1000.0;
	fprintf(out, "%.*f %s", !unit || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[unit]);
}

static uint64_t bytes_sent(const struct stats_sum *sum)
{
	uint64_t bytes = 0;

	for (int p = 0; p < PATH_COUNT; p++)
		bytes += sum->all.path[p].counter[STAT_PATH_BYTES];
	return bytes;
}

/* Says which part of the bytes went which way, and what that saved. */
static void say_paths(FILE *out, const struct stats_sum *sum)
{
	uint64_t all = bytes_sent(sum);
	int said = 0;

	for (int p = 0; p < PATH_COUNT; p++) {
		const uint64_t *counter = sum->all.path[p].counter;

		if (!counter[STAT_PATH_CALLS])
			continue;
		fputs(said++ ? ", " : "Of ", out);
		if (said == 1) {
			say_bytes(out, all);
			fputs(" sent, ", out);
		}
		fprintf(out, "%.1f %% went by %s", share(counter[STAT_PATH_BYTES], all), path_name((enum zc_path)p));
		if (p != PATH_COPY && counter[STAT_PATH_SYSCALLS])
			fprintf(out, " (%llu %s in %llu system calls)", (unsigned long long)counter[STAT_PATH_CALLS],
				p == PATH_ZEROCOPY ? "sends, or parts of such," : "sends",
				(unsigned long long)counter[STAT_PATH_SYSCALLS]);
	}
	fputs(said ? "." : "Nothing was sent by processes under zc.", out);
}

static void say_zerocopy(FILE *out, const struct stats_sum *sum)
{
	unsigned long long done = sum->all.counter[STAT_CONN_COMPLETIONS], copied = sum->all.counter[STAT_CONN_COPIED];
	unsigned long long faults = sum->process[STAT_PROCESS_FAULTS];

	if (done)
		fprintf(out, " The kernel copied after all in %llu of %llu zero-copy sends.", copied, done);
	if (faults)
		fprintf(out,
			" Guarded pages were written to %llu times too early; %llu pages were copied aside for that.",
			faults, (unsigned long long)sum->process[STAT_PROCESS_FAULT_COPIES]);
}

/* What `auto` chooses by. */
static void say_trials(FILE *out, const struct stats_sum *sum)
{
	char sentence[VIEW_SENTENCE_BYTES];

	for (unsigned int class = 0; class < STATS_TRIALS; class ++)
		if (view_explain_trial(&sum->trial[class], class, sentence, sizeof(sentence)))
			fprintf(out, " By auto, %s.", sentence);
}

static void explain(FILE *out, const struct path_result *result)
{
	const struct stats_sum *sum = &result->sum;
	char why[VIEW_SENTENCE_BYTES];

	if (result->path == PATH_TCP) {
		fputs("The programs without libzc.so, over plain TCP.", out);
		return;
	}
	if (!sum->processes) {
		fputs(result->failures == result->runs ?
			      "No statistics: no run came to an end." :
			      "libzc.so saw no TCP connection: there was none, or the programs are out of its reach "
			      "(zc run says why), so these figures are those of plain TCP.",
		      out);
		return;
	}
	if (view_used_ring(&sum->all) && view_explain(&sum->all, why, sizeof(why))) {
		say_bytes(out, bytes_sent(sum));
		fprintf(out, " sent: %s.", why);
		say_trials(out, sum);
		return;
	}
	say_paths(out, sum);
	say_zerocopy(out, sum);
	/* On path copy nothing else was asked for. */
	if (result->path != PATH_COPY && view_explain(&sum->all, why, sizeof(why)))
		fprintf(out, " By number, %s.", why);
}

int comparison_explain(struct comparison *comparison)
{
	for (size_t i = 0; i < comparison->paths; i++) {
		struct path_result *result = &comparison->path[i];
		size_t bytes;
		FILE *out;

		/* With rules it may have been another one. */
		result->sum.all.policy = settings.rules ? NULL : path_name(result->path);
		free(result->explanation);
		result->explanation = NULL;
		out = open_memstream(&result->explanation, &bytes);
		if (!out)
			return -ENOMEM;
		explain(out, result);
		if (result->rdma_wait)
			fprintf(out, " Its connections begin by waiting for RDMA (ZC_RDMA_WAIT_MS=%s, set by --lab).",
				result->rdma_wait);
		if (fclose(out))
			return -ENOMEM;
	}
	return 0;
}
