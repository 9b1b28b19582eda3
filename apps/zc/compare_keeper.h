/* SPDX-License-Identifier: MIT */
/*
 * A keeper is a process of ours between zc and a command: everything that the command starts, daemons too, stays below it
 * (it is their subreaper) and ends with it, even if zc itself is killed. It tells when the command ended; asked to stop, it
 * sends SIGTERM to all below, and SIGKILL to those that are still there after a grace.
 */
#ifndef ZC_APPS_ZC_COMPARE_KEEPER_H
#define ZC_APPS_ZC_COMPARE_KEEPER_H

#include <stdint.h>
#include <sys/types.h>

#include "apps/zc/compare_meter.h"

struct keeper_plan {
	const char *command; /* for sh -c */
	const char *output;  /* file that standard output goes to */
	const char *error;
	const char *library; /* to preload, or NULL */
	const char *path;    /* ZC_PATH and ZC_STATS_DIR, where there is a library */
	const char *stats_dir;
	const char *rdma_wait; /* ZC_RDMA_WAIT_MS, or NULL: as it is */
	const struct meter *meter;
};

/* What a keeper tells: once, when the command itself has ended. */
struct keeper_note {
	uint64_t started_ns, ended_ns;
	int status; /* as of waitpid */
};

struct keeper {
	pid_t pid;  /* 0: none */
	int report; /* readable when there is a note, and at the keeper's end */
};

/* Starts a command. Returns 0 or -errno. */
int keeper_start(const struct keeper_plan *plan, struct keeper *out);

/* Ends all that the command started and waits for it. Returns the CPU seconds that all of it took; 0 if there is none. */
double keeper_stop(struct keeper *keeper);

/* Lists the descendants of a process. Returns how many, 0 on any failure. Ownership: the caller frees *out. */
size_t tree_list(pid_t root, pid_t **out);

#endif
