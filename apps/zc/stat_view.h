/* SPDX-License-Identifier: MIT */
/*
 * What a segment says, in the form in which it is shown: sums, percentiles, rates, printable names. Everything in a segment
 * is taken for what a stranger may have written: numbers may be absurd, texts may hold anything.
 */
#ifndef ZC_APPS_ZC_STAT_VIEW_H
#define ZC_APPS_ZC_STAT_VIEW_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "apps/zc/stat_find.h"

struct view_path {
	uint64_t counter[STAT_PATH_COUNT];
	uint64_t latency[STATS_LATENCY_BUCKETS];
	double bytes_rate; /* a second, since the view before; 0 without one */
	double calls_rate;
};

struct view_conn {
	uint32_t slot;
	uint64_t opened_ns;
	int fd;
	const char *role;
	const char *policy;
	char local[64];
	char peer[64];
	struct view_path path[PATH_COUNT];
	uint64_t counter[STAT_CONN_COUNT];
	uint64_t reason[REASON_COUNT];
	double receive_rate;
};

struct view {
	pid_t pid;
	enum found_running running;
	uint64_t read_ns;
	uint64_t started_ns;
	char program[64];
	char version[16];
	uint64_t process[STAT_PROCESS_COUNT];
	struct view_conn all;	 /* the sum of those below */
	struct view_conn closed; /* the sum of connections that are no more */
	struct view_conn *open;
	size_t open_count;
};

/* Makes a view. Returns 0 or -ENOMEM. Ownership: view_free(). */
int view_make(const struct found *found, struct view *out);
void view_free(struct view *view);

/* Fills in the rates since an earlier view of the same process. */
void view_rates(struct view *view, const struct view *before);

/* Returns how many sends were counted on all paths. */
uint64_t view_sends(const struct view_conn *conn);

/* Returns how many sends were timed on a path. */
uint64_t view_samples(const struct view_path *path);

/* Returns a percentile of the timed sends in ns, interpolated within its power of two; 0 without any. */
double view_percentile(const struct view_path *path, double percent);

/*
 * Says in a sentence which share of the sends went by copy, and the most frequent reason. Returns 0 when none did.
 */
int view_explain(const struct view_conn *conn, char *out, size_t bytes);

/* Fills `order` with the reasons that were counted, the most frequent first. Returns how many there are. */
size_t view_reasons(const struct view_conn *conn, enum stat_reason order[REASON_COUNT]);

/* Prints a view for people; `rates` also shows the rates. */
void view_print(FILE *out, const struct view *view, int rates);

/* Returns a view as JSON, NULL without memory. */
json_t *view_json(const struct view *view, int rates);

#endif
