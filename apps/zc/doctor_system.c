/* SPDX-License-Identifier: MIT */
/* Checks of the machine: kernel, cores, counters, and what fences a process in. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "apps/zc/doctor.h"

#define RELEASE(major, minor) ((major)*1000 + (minor))

void doctor_kernel(struct finding *out)
{
	struct utsname system;
	int major = 0, minor = 0, release;

	uname(&system);
	sscanf(system.release, "%d.%d", &major, &minor);
	release = RELEASE(major, minor);
	finding_is(out, release >= RELEASE(5, 13) ? HEALTH_OK : HEALTH_LIMITED, "%s %s, %s", system.sysname,
		   system.release, system.machine);
	if (release < RELEASE(4, 14))
		finding_means(out, "it has no MSG_ZEROCOPY: sends take copy or sg");
	else if (release < RELEASE(5, 13))
		finding_means(out, "sent pages are guarded by mprotect alone");
}

static int open_counter(uint32_t type, uint64_t which)
{
	struct perf_event_attr counter = {
		.type = type,
		.size = sizeof(counter),
		.config = which,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};

	return (int)syscall(SYS_perf_event_open, &counter, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

/* Returns whether the counter counts: a virtual machine may open one that stands still. */
static bool counts(int fd)
{
	uint64_t value = 0;
	volatile unsigned int work = 0;

	for (int i = 0; i < 100000; i++)
		work += (unsigned int)i;
	return read(fd, &value, sizeof(value)) == sizeof(value) && value;
}

void doctor_perf(struct finding *out)
{
	int hardware = open_counter(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES);
	int error = hardware < 0 ? errno : 0;
	int software = open_counter(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK);
	char paranoid[16];

	doctor_read_line("/proc/sys/kernel/perf_event_paranoid", paranoid, sizeof(paranoid));
	if (hardware >= 0 && counts(hardware)) {
		finding_is(out, HEALTH_OK, "hardware counters");
	} else if (software >= 0) {
		finding_is(out, HEALTH_LIMITED, "software counters only (%s)",
			   error ? strerror(error) : "cycles stand still");
		finding_means(out, "the machine offers no hardware counters, as most virtual machines");
		finding_remedy(out, "run the experiments on real hardware, or give the virtual machine a PMU");
	} else {
		finding_is(out, HEALTH_MISSING, "%s (perf_event_paranoid %s)", strerror(errno),
			   *paranoid ? paranoid : "not shown");
		finding_means(out, "no counters for this account");
	}
	if (hardware >= 0)
		close(hardware);
	if (software >= 0)
		close(software);
}

void doctor_cores(struct finding *out)
{
	long machine = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;
	int allowed;

	CPU_ZERO(&set);
	/* More cores than a cpu_set_t holds: the call fails, and all are taken for allowed. */
	allowed = sched_getaffinity(0, sizeof(set), &set) ? (int)machine : CPU_COUNT(&set);
	finding_is(out, allowed > 1 ? HEALTH_OK : HEALTH_LIMITED, "%d of %ld allowed", allowed, machine);
	if (allowed < 2)
		finding_means(out, "sender and receiver take turns: measured gains will be small");
}

void doctor_seccomp(struct finding *out)
{
	static const char *const modes[] = { "none", "strict", "a filter" };
	FILE *status = fopen("/proc/self/status", "re");
	char line[256];
	int mode = -1;

	while (status && mode < 0 && fgets(line, sizeof(line), status))
		sscanf(line, "Seccomp: %d", &mode);
	if (status)
		fclose(status);
	if (mode < 0 || mode > 2)
		finding_is(out, HEALTH_OK, "not shown: the kernel has none");
	else
		finding_is(out, mode ? HEALTH_LIMITED : HEALTH_OK, "%s", modes[mode]);
	if (out->health == HEALTH_LIMITED)
		finding_means(out, "what the filter forbids shows in the rows above");
}

void doctor_container(struct finding *out)
{
	static const char *const words[] = { "docker", "kubepods", "containerd", "lxc", "libpod" };
	const char *named = getenv("container"), *hint = NULL;
	char line[512];
	FILE *groups = fopen("/proc/1/cgroup", "re");

	while (groups && !hint && fgets(line, sizeof(line), groups))
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			hint = strstr(line, words[i]) ? words[i] : hint;
	if (groups)
		fclose(groups);
	if (!hint && !access("/.dockerenv", F_OK))
		hint = "/.dockerenv is there";
	if (!hint && !access("/run/.containerenv", F_OK))
		hint = "/run/.containerenv is there";
	if (!hint && named && *named)
		hint = named;
	finding_is(out, HEALTH_OK, "%s%s", hint ? "yes: " : "no sign of one", hint ? hint : "");
}
