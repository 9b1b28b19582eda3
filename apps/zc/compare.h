/* SPDX-License-Identifier: MIT */
/*
 * zc compare: a server and a client, run over every path in turn. What was asked for (compare_options), what came of it
 * (comparison: raw runs, from which everything that is shown is computed), and the functions that make one from the other.
 * The printers know only `comparison`, so that results read back from JSON are shown like fresh ones.
 */
#ifndef ZC_APPS_ZC_COMPARE_H
#define ZC_APPS_ZC_COMPARE_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "apps/zc/stat_view.h"
#include "common/settings.h"

#define COMPARE_REPEAT_MAX 1000
#define RUNS_FOR_VERDICT 5
#define LAB_SERVER_ADDRESS "10.9.0.2" /* docs/lab.md: who connects to it is on the other host */

/* What was asked for ------------------------------------------------------------------------------------------------ */

enum extract_kind { EXTRACT_NONE, EXTRACT_REGEX, EXTRACT_POINTER };

/* How a number is found in what the client printed. */
struct extract {
	enum extract_kind kind;
	const char *text; /* a regular expression with one group, or a JSON pointer */
	double scale;	  /* what is found is multiplied by this */
	bool has_units;	  /* K, M, G... behind the number stand for powers of 1024 */
	regex_t regex;
};

enum ready_kind { READY_PORT, READY_LINE };

struct compare_options {
	const char *name, *server, *client, *verify;
	enum ready_kind ready;
	const char *ready_text; /* the port, perhaps by a placeholder; or the expression */
	regex_t ready_regex;
	struct extract metric, bytes;
	const char *unit; /* NULL: wall seconds of the client */
	bool higher;
	enum zc_path path[PATH_COUNT];
	size_t paths;
	unsigned int repeat, warmup;
	bool preload_server, preload_client, isolate, lab, quiet;
	double timeout_s;
	const char *json, *csv, *html;
	json_t *notes; /* of the user, for the environment */
	bool merge;
	char **file; /* results to merge, NULL-terminated */
};

/* Reads the command line. Returns 0, an exit status, or -1 when help was printed. */
int compare_parse(int argc, char **argv, struct compare_options *out);

/* compare_lab.c: where the server is to listen, {address}. */
const char *server_address(const struct compare_options *options);

/* compare_lab.c: ZC_RDMA_WAIT_MS of a path's runs, NULL to leave it as it is. */
const char *lab_rdma_wait(const struct compare_options *options, enum zc_path path);

/* Fills in what a known tool prints. Returns 0 or -ENOENT; `names` then lists those that are known. */
int preset_apply(const char *name, struct compare_options *options, char *names, size_t bytes);

/* Finds the number in the text. Returns 0, or -EINVAL with the reason in `why`. */
int extract_number(const struct extract *extract, const char *text, double *out, char *why, size_t bytes);

/* What came of it --------------------------------------------------------------------------------------------------- */

struct run {
	unsigned int round, order; /* from 1; order: its place in the round */
	bool failed;
	double value;
	double wall_s; /* of the client */
	double cpu_server_s, cpu_client_s;
	double bytes; /* as bytes_source says; NAN: not known */
	double payload_min,
		payload_max; /* what the programs themselves have moved lies between these; NAN: not known */
	char *failure;	     /* owned; NULL if it went well */
};

/* Statistics of all runs of a path, summed over their processes. */
struct stats_sum {
	unsigned int processes;
	struct view_conn all;
	uint64_t process[STAT_PROCESS_COUNT];
	struct view_trial trial[STATS_TRIALS]; /* of whoever tried most often */
};

struct summary {
	size_t count;
	double median, q1, q3, min, max;
	double low, high; /* the spread by which paths are told apart */
};

/* What CPU seconds are divided by. */
enum divisor {
	DIVISOR_RUN,	 /* nothing is common to all paths: seconds of a run */
	DIVISOR_TOLD,	 /* each run's own bytes, as the client tells them */
	DIVISOR_PAYLOAD, /* one number of bytes, which all runs have moved */
};

enum verdict {
	VERDICT_NONE,
	VERDICT_BASELINE,
	VERDICT_BETTER,
	VERDICT_SAME,
	VERDICT_WORSE,
	VERDICT_FEW,
	VERDICT_FAILED
};

/* The rounds that a path and the baseline have both run. */
struct rounds {
	size_t all, better, worse;
};

struct path_result {
	enum zc_path path;
	struct run *run; /* owned */
	size_t runs, failures;
	struct summary value, cpu_gb, cpu; /* cpu_gb: none where the divisor is a run */
	enum verdict verdict;
	double change; /* of the median against the baseline's, 0.1 is 10 % better */
	struct rounds rounds;
	bool by_rounds; /* the verdict: the ranks of the runs would not have told */
	struct stats_sum sum;
	const char *rdma_wait; /* ZC_RDMA_WAIT_MS as --lab has set it; NULL: it has not */
	json_t *statistics;    /* owned; read back from JSON, in place of the sum */
	char *explanation;     /* owned */
};

struct comparison {
	char *name, *server, *client, *unit, *metric, *bytes_source, *cpu_source, *preload; /* owned */
	bool higher;
	unsigned int repeat;
	enum divisor divisor;
	double payload;	     /* of a run, where it is the divisor */
	json_t *environment; /* an object of strings */
	struct path_result path[PATH_COUNT];
	size_t paths, baseline;
	char *conclusion; /* owned */
	int winner;	  /* index of the path, -1 if there is none */
};

void comparison_free(struct comparison *comparison);

/* Returns a room for one more run of a path, NULL without memory. */
struct run *comparison_add(struct path_result *result);

/* compare_stat.c: sorts values in place. */
struct summary summary_of(double *values, size_t count);
/* Computes summaries, verdicts, winner and conclusion from the runs. Returns 0 or -ENOMEM. */
int comparison_judge(struct comparison *comparison);
/* Returns 1 if a is better than b, by the ranks of the runs or by the rounds, -1 if it is worse, 0 if that can't be told. */
int path_compare(const struct comparison *comparison, const struct path_result *a, const struct path_result *b);
/* Returns whether the median is the better one. */
bool path_has_lead(const struct comparison *comparison, const struct path_result *a, const struct path_result *b);
/* compare_chance.c: how often chance alone would tell a from b as much as their runs do, and to which side that is (1: a is better). */
double chance_of_ranks(const struct comparison *comparison, const struct path_result *a, const struct path_result *b,
		       int *side);
double chance_of_rounds(const struct rounds *rounds);
/* Counts the rounds that both have run; runs are in the order of the rounds. */
struct rounds count_rounds(const struct comparison *comparison, const struct path_result *a,
			   const struct path_result *b);
/* compare_divisor.c: finds what CPU seconds are divided by, the same for all paths. Returns 0 or -ENOMEM. */
#define BYTES_TOLD "as told by the client"
int comparison_divide(struct comparison *comparison);
/* Returns a run's CPU seconds, of both ends, by that divisor; NAN: not known. */
double run_cpu(const struct comparison *comparison, const struct run *run);
const struct summary *path_cpu(const struct comparison *comparison, const struct path_result *result);
const char *divisor_name(const struct comparison *comparison);
const char *divisor_source(const struct comparison *comparison);
/* compare_conclude.c: sets winner and conclusion from the verdicts. Returns 0 or -ENOMEM. */
int comparison_conclude(struct comparison *comparison);
const char *verdict_text(const struct comparison *comparison, const struct path_result *result, char *out,
			 size_t bytes);
/* How paths are told apart, in words. */
extern const char verdict_rule[];
/* Says what the spread is. */
const char *spread_name(const struct comparison *comparison);

/* compare_explain.c: adds what the processes of a run left in a directory. Returns how many were read. */
unsigned int stats_sum_add(struct stats_sum *sum, const char *directory);
/* Sets the explanation of each path. Returns 0 or -ENOMEM. */
int comparison_explain(struct comparison *comparison);

/* compare_environment.c */
json_t *environment_read(const json_t *notes);

/* compare_table.c and the other printers */
const char *figure_text(double value, char *out, size_t bytes);
void table_print(FILE *out, const struct comparison *comparison);
void table_summary(FILE *out, const struct comparison *list, size_t count);
void csv_print(FILE *out, const struct comparison *list, size_t count);
void html_print(FILE *out, const struct comparison *list, size_t count);
void html_text(FILE *out, const char *text);
void svg_bars(FILE *out, const struct comparison *comparison, bool cpu);
int json_print(FILE *out, const struct comparison *list, size_t count);
/* Appends the comparisons of a file. Returns 0, or -errno with the reason in `why`. */
int json_read(const char *file, struct comparison **list, size_t *count, char *why, size_t bytes);

#endif
