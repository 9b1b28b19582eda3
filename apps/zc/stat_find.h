/* SPDX-License-Identifier: MIT */
/*
 * Finds the statistics segments of running processes and of files. Neither is trusted: what is read is a checked copy
 * (stats_read), and a name in it is only shown after view_make() has made it printable.
 */
#ifndef ZC_APPS_ZC_STAT_FIND_H
#define ZC_APPS_ZC_STAT_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/stats.h"

enum found_running { FOUND_ENDED, FOUND_RUNNING, FOUND_UNKNOWN };

struct found {
	pid_t pid;
	enum found_running running;
	dev_t device;
	ino_t inode;
	const struct stats_segment *segment; /* ownership: stats_unmap() */
};

/* Finds the segment of a process. Returns 0 or -errno; then `why` says in a sentence what is wrong and what helps. */
int found_of_process(pid_t pid, struct found *out, char *why, size_t bytes);

/* Reads a segment that a process left, or is still writing, in a file. Returns as found_of_process(). */
int found_of_file(const char *file, struct found *out, char *why, size_t bytes);

/* Returns whether the process has libzc.so loaded. */
bool found_has_library(pid_t pid);

struct found_list {
	struct found *row;
	size_t count;
	size_t refused;	   /* processes that could not be looked into */
	size_t unreadable; /* segments of another version, or torn */
};

/* Finds the segments of all running processes, each once. Returns 0 or -errno. Ownership: found_list_free(). */
int found_all(struct found_list *out);
void found_list_free(struct found_list *list);

#endif
