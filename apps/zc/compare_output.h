/* SPDX-License-Identifier: MIT */
/* Files that are there whole or not at all: written beside the name that they get in the end. */
#ifndef ZC_APPS_ZC_COMPARE_OUTPUT_H
#define ZC_APPS_ZC_COMPARE_OUTPUT_H

#include <limits.h>
#include <stdio.h>

struct output {
	const char *name;	  /* NULL: not asked for */
	char temporary[PATH_MAX]; /* "" where the file is written as it is: standard output, a device */
	FILE *stream;
};

/* Opens a file to be; name NULL opens nothing, "-" standard output. Returns 0 or -errno. */
int output_open(struct output *output, const char *name);

/* Gives the file its name. Returns 0 or -errno; then nothing is left of it. */
int output_commit(struct output *output);

/* Leaves nothing behind; harmless when the output was committed or never opened. */
void output_abort(struct output *output);

#endif
