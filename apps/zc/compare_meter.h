/* SPDX-License-Identifier: MIT */
/*
 * CPU time of a whole tree of processes, to be read while it runs: from a cgroup (version 2) of its own where one can be
 * made, else from the CPU clocks of all processes below a root. Also the bytes that went through the network interfaces.
 */
#ifndef ZC_APPS_ZC_COMPARE_METER_H
#define ZC_APPS_ZC_COMPARE_METER_H

#include <limits.h>
#include <sys/types.h>

struct meter {
	char group[PATH_MAX]; /* directory of the cgroup, "" without one */
	int join;	      /* descriptor: a process that writes "0" to it enters the group; -1 without one */
};

/* Makes a meter; it always succeeds. `name` tells the groups of one process apart. */
void meter_open(struct meter *meter, const char *name);
void meter_close(struct meter *meter);

/* Returns the CPU seconds so far of the tree below `root`, which runs in the meter's group. */
double meter_cpu(const struct meter *meter, pid_t root);

/* Kills all that is in the group, at once. Returns 0, or -errno where that can't be done. */
int meter_kill(const struct meter *meter);

struct traffic {
	double bytes, packets;
};

/* Returns what was received by all interfaces and sent by all but the loopback; NAN if the kernel does not say. */
struct traffic interface_traffic(void);

#endif
