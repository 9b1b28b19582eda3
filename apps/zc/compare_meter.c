/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/zc/compare_meter.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "apps/zc/compare_keeper.h"

/* Finds the directory of the version 2 cgroup that this process is in. Returns 0 or -ENOENT. */
static int own_group(char *out, size_t bytes)
{
	char line[2 * PATH_MAX], mount[PATH_MAX] = "", group[PATH_MAX] = "";
	FILE *file = fopen("/proc/self/mountinfo", "re");

	while (file && !*mount && fgets(line, sizeof(line), file))
		if (strstr(line, " - cgroup2 ") && sscanf(line, "%*s %*s %*s %*s %4095s", mount) != 1)
			*mount = '\0';
	if (file)
		fclose(file);
	file = fopen("/proc/self/cgroup", "re");
	while (file && !*group && fgets(line, sizeof(line), file))
		if (sscanf(line, "0::%4095[^\n]", group) != 1)
			*group = '\0';
	if (file)
		fclose(file);
	if (!*mount || !*group || (size_t)snprintf(out, bytes, "%s%s", mount, group) >= bytes)
		return -ENOENT;
	return 0;
}

/* Reads the group's CPU seconds. Returns a negative number where it does not say. */
static double group_cpu(const char *group)
{
	char name[PATH_MAX + 16], line[128];
	unsigned long long us;
	double seconds = -1.0;
	FILE *file;

	snprintf(name, sizeof(name), "%s/cpu.stat", group);
	file = fopen(name, "re");
	while (file && seconds < 0.0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "usage_usec %llu", &us) == 1)
			seconds = (double)us / 1e6;
	if (file)
		fclose(file);
	return seconds;
}

void meter_open(struct meter *meter, const char *name)
{
	char own[PATH_MAX], file[PATH_MAX + 16];

	*meter = (struct meter){ .join = -1 };
	if (own_group(own, sizeof(own)) || (size_t)snprintf(meter->group, sizeof(meter->group), "%s/zc-compare-%d-%s",
							    own, (int)getpid(), name) >= sizeof(meter->group))
		goto without;
	if (mkdir(meter->group, 0755) && errno != EEXIST)
		goto without;
	snprintf(file, sizeof(file), "%s/cgroup.procs", meter->group);
	meter->join = open(file, O_WRONLY | O_CLOEXEC);
	if (meter->join >= 0 && group_cpu(meter->group) >= 0.0)
		return;
	meter_close(meter);
without:
	*meter->group = '\0';
}

void meter_close(struct meter *meter)
{
	if (meter->join >= 0)
		close(meter->join);
	if (*meter->group)
		rmdir(meter->group);
	*meter->group = '\0';
	meter->join = -1;
}

int meter_kill(const struct meter *meter)
{
	char file[PATH_MAX + 16];
	int fd, rc = 0;

	if (!*meter->group)
		return -ENOENT;
	snprintf(file, sizeof(file), "%s/cgroup.kill", meter->group);
	fd = open(file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, "1", 1) != 1)
		rc = -errno;
	close(fd);
	return rc;
}

/* Returns the seconds that a process has used by its own clock, and its ended children's by the kernel's ticks. */
static double process_cpu(pid_t pid)
{
	unsigned long long user = 0, system = 0;
	char name[64], text[1024];
	struct timespec used;
	double seconds = 0.0;
	clockid_t clock;
	char *at;
	FILE *file;

	if (!clock_getcpuclockid(pid, &clock) && !clock_gettime(clock, &used))
		seconds = (double)used.tv_sec + (double)used.tv_nsec / 1e9;
	snprintf(name, sizeof(name), "/proc/%d/stat", (int)pid);
	file = fopen(name, "re");
	if (!file)
		return seconds;
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	at = strrchr(text, ')'); /* a name may hold anything */
	if (at && sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %llu %llu", &user, &system) == 2)
		seconds += (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
	return seconds;
}

double meter_cpu(const struct meter *meter, pid_t root)
{
	double seconds = *meter->group ? group_cpu(meter->group) : -1.0;
	pid_t *list = NULL;
	size_t count;

	if (seconds >= 0.0)
		return seconds;
	count = tree_list(root, &list);
	seconds = process_cpu(root);
	for (size_t i = 0; i < count; i++)
		seconds += process_cpu(list[i]);
	free(list);
	return seconds;
}

struct traffic interface_traffic(void)
{
	FILE *file = fopen("/proc/self/net/dev", "re");
	char line[512], name[64];
	unsigned long long in, in_packets, out, out_packets;
	struct traffic sum = { 0 };

	if (!file)
		return (struct traffic){ NAN, NAN };
	while (fgets(line, sizeof(line), file)) {
		bool once;

		if (sscanf(line, " %63[^:]: %llu %llu %*u %*u %*u %*u %*u %*u %llu %llu", name, &in, &in_packets, &out,
			   &out_packets) != 5)
			continue;
		once = !strcmp(name, "lo");
		sum.bytes += (double)in + (once ? 0.0 : (double)out);
		sum.packets += (double)in_packets + (once ? 0.0 : (double)out_packets);
	}
	fclose(file);
	return sum;
}
