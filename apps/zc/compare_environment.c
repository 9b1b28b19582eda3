/* SPDX-License-Identifier: MIT */
/* The machine and the moment that figures belong to. Without them they can't be compared with any others. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "apps/zc/compare.h"
#include "common/version.h"

static void set(json_t *out, const char *key, const char *value)
{
	json_object_set_new(out, key, json_string(value));
}

/* Reads the first line of a file. Returns false when there is none. */
static bool first_line(const char *file, char *out, size_t bytes)
{
	FILE *stream = fopen(file, "re");
	bool got = stream && fgets(out, (int)bytes, stream);

	if (stream)
		fclose(stream);
	if (got)
		out[strcspn(out, "\n")] = '\0';
	return got;
}

static void set_processor(json_t *out)
{
	FILE *stream = fopen("/proc/cpuinfo", "re");
	char line[256], *colon;
	bool found = false;

	while (stream && !found && fgets(line, sizeof(line), stream)) {
		colon = strchr(line, ':');
		/* x86 has a model name; on arm64 the part number is the best there is. */
		if (!colon || (strncmp(line, "model name", 10) && strncmp(line, "CPU part", 8)))
			continue;
		colon[strcspn(colon, "\n")] = '\0';
		set(out, "processor", colon + 1 + strspn(colon + 1, " \t"));
		found = true;
	}
	if (stream)
		fclose(stream);
	if (!found)
		set(out, "processor", "unknown");
}

static void set_cores(json_t *out)
{
	char text[64];

	snprintf(text, sizeof(text), "%ld", sysconf(_SC_NPROCESSORS_ONLN));
	set(out, "cores", text);
	snprintf(text, sizeof(text), "%.1f GB", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9);
	set(out, "memory", text);
	if (!first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", text, sizeof(text)))
		snprintf(text, sizeof(text), "not known (no cpufreq)");
	set(out, "governor", text);
}

static void set_moment(json_t *out)
{
	time_t now = time(NULL);
	double load[3] = { 0 };
	struct tm utc;
	char text[64];

	gmtime_r(&now, &utc);
	strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &utc);
	set(out, "date", text);
	getloadavg(load, 3);
	snprintf(text, sizeof(text), "%.2f %.2f %.2f", load[0], load[1], load[2]);
	set(out, "load at the start", text);
}

json_t *environment_read(const json_t *notes)
{
	json_t *out = json_object();
	struct utsname system;
	char text[300];

	if (!out)
		return NULL;
	set(out, "zc", ZC_VERSION);
	if (!uname(&system)) {
		snprintf(text, sizeof(text), "%s %s %s", system.sysname, system.release, system.machine);
		set(out, "kernel", text);
	}
	set_processor(out);
	set_cores(out);
	set_moment(out);
	if (notes)
		json_object_update(out, (json_t *)notes);
	return out;
}
