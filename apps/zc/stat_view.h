/* SPDX-License-Identifier: MIT */
/*
 * What a segment says, in the form in which it is shown: sums, percentiles, rates, printable names. Everything in a segment
 * is taken for what a stranger may have written: numbers may be absurd, texts may hold anything.
 */
#ifndef ZC_APPS_ZC_STAT_VIEW_H
#define ZC_APPS_ZC_STAT_VIEW_H

#include <stdbool.h>
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
	const char *policy; /* NULL: of a sum, not known */
	char local[64];
	char peer[64];
	struct view_path path[PATH_COUNT];
	uint64_t counter[STAT_CONN_COUNT];
	uint64_t reason[REASON_COUNT];
	double receive_rate;
};

/* What `auto` found for buffers of a class of sizes: struct stats_trial as plain numbers. */
struct view_trial {
	uint64_t tries;
	uint64_t taken;
	uint64_t cost[STATS_TRIAL_WAYS];
};

/* The same for another host, where RDMA was compared with TCP: struct stats_host. */
struct view_host {
	char address[64]; /* empty: none */
	struct {
		uint64_t tries;
		uint64_t taken;
		uint64_t cost[STATS_HOST_WAYS];
	} trial[STATS_HOST_CLASSES];
};

struct view {
	pid_t pid;
	enum found_running running;
	uint64_t read_ns;
	uint64_t started_ns;
	char program[64];
	char version[16];
	uint64_t process[STAT_PROCESS_COUNT];
	struct view_trial trial[STATS_TRIALS];
	struct view_host host[STATS_HOSTS];
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

#define VIEW_SENTENCE_BYTES 768

/*
 * Says in a sentence which share took which path, and why not a faster one: of the bytes where rings were used, else of the sends
 * that went by copy. Returns 0 where there is nothing to explain.
 */
int view_explain(const struct view_conn *conn, char *out, size_t bytes);

/* Returns the path behind a way of a trial. */
enum zc_path view_trial_path(unsigned int way);

/* Returns the cost of a way that was tried, in µs for 10^6 bytes; 0 where it is not known. */
double view_trial_cost(const struct view_trial *trial, unsigned int way);

/* Says what path `auto` found for a class of sizes when it tried. Returns 0 where it did not. */
int view_explain_trial(const struct view_trial *trial, unsigned int class, char *out, size_t bytes);

/* The same between hosts: what a way is called, and its cost in µs, for 10^6 bytes, or of a turn where sends are answered. */
const char *view_host_way(unsigned int way);
bool view_host_is_answered(unsigned int class);
double view_host_cost(uint64_t cost, unsigned int class);
int view_explain_host(const struct view_host *host, unsigned int class, char *out, size_t bytes);

/* Returns whether anything was sent through a ring. */
bool view_used_ring(const struct view_conn *conn);

/* Fills `order` with the reasons that were counted, the most frequent first. Returns how many there are. */
size_t view_reasons(const struct view_conn *conn, enum stat_reason order[REASON_COUNT]);

/* Prints a view for people; `rates` also shows the rates. */
void view_print(FILE *out, const struct view *view, int rates);

/* Returns a view as JSON, NULL without memory. */
json_t *view_json(const struct view *view, int rates);

#endif
