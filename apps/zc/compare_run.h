/* SPDX-License-Identifier: MIT */
/* One run of the server and the client over one path. */
#ifndef ZC_APPS_ZC_COMPARE_RUN_H
#define ZC_APPS_ZC_COMPARE_RUN_H

#include <limits.h>

#include "apps/zc/compare.h"
#include "apps/zc/compare_meter.h"

/* What all runs of a comparison share. */
struct bench {
	const struct compare_options *options;
	char library[4 * PATH_MAX];
	char directory[PATH_MAX]; /* temporary; everything of a run is below it */
	int signals;		  /* readable when somebody wants an end */
	int stopped;		  /* by this signal, 0 if not */
	unsigned int runs;	  /* so far: names their directories */
};

/* Does one run and fills in all but round and order. Adds the statistics that it left to `sum`. */
void run_once(struct bench *bench, enum zc_path path, struct run *out, struct stats_sum *sum);

/* compare_lab.c: whether this process is in the lab's guest already. */
bool lab_is_here(void);
/* Runs this command line there. Returns 0 with what came of it, or an exit status. Ownership: the caller's. */
int lab_measure(struct bench *bench, int argc, char **argv, struct comparison **list, size_t *count);

/* Notes the signal that asks for an end. */
void take_signal(struct bench *bench);

/* Removes a directory and all that is in it. */
void remove_tree(const char *directory);

/* How a commands' placeholders are replaced. compare_text.c. */
struct placeholder {
	const char *name, *value; /* ends with a name that is NULL */
};
/* Returns the text with all placeholders replaced, NULL without memory. Ownership: the caller's. */
char *text_substitute(const char *text, const struct placeholder *list);
/* Returns a file's text, at most its first `bytes`, NUL-terminated; "" if it can't be read, NULL without memory. */
char *text_read(const char *file, size_t bytes);
/* Returns the last lines of a file in printable characters, "" if there are none, NULL without memory. */
char *text_tail(const char *file);

/* compare_ready.c: picks a port that nobody has. Returns 0 or -errno. */
int port_pick(char out[8]);
/* Returns whether a TCP socket of this network namespace listens on the port. */
bool port_is_listened_to(unsigned int port);
/* Returns whether a line of the file matches. */
bool line_has_come(const char *file, const regex_t *regex);

#endif
