/* SPDX-License-Identifier: MIT */
/* Runs a case in a mode and compares what the two ends wrote down with the native run. */
#ifndef ZC_CONFORMANCE_RUNNER_H
#define ZC_CONFORMANCE_RUNNER_H

#include <stdbool.h>

#include "end.h"

enum mode { MODE_NATIVE, MODE_BOTH, MODE_SERVER, MODE_CLIENT, MODE_COUNT };
extern const char *const mode_names[MODE_COUNT];
extern const unsigned int runner_patience;

/* What preloaded ends did, by their statistics. */
struct used {
	unsigned long long bytes;	  /* that the path under test carried */
	unsigned long long rdma_meetings; /* ends of connections that reached their peer by RDMA */
};

struct runner {
	const char *library;	/* preloaded; NULL: native runs only */
	bool modes[MODE_COUNT]; /* which are compared with the native one */
	bool verbose;		/* print the transcripts of everything */
	const char *uses;	/* path that has to have carried bytes somewhere; NULL: any */
	struct used used;
	unsigned int patience; /* seconds: a run that takes longer is stuck */
	unsigned long runs, failures, native_failures;
};

/* Runs one case in all modes asked for. Returns whether they agree; prints the difference otherwise. */
bool runner_case(struct runner *runner, const struct corpus_case *one);

/*
 * uses.c: the statistics that preloaded ends leave, to show that the path under test carried bytes at all; and how many ends
 * met by RDMA, where those count.
 */
void uses_begin(void);
void uses_collect(const char *path, struct used *used, bool meetings);
void uses_end(void);

/* Packets that this machine's soft-RoCE devices have sent since they are there. */
unsigned long long uses_rdma_packets(void);

/* An end's main, in its own process. Returns its exit status. */
int end_main(const char *role, const char *name);

#endif
