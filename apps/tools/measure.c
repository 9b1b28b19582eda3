/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define JSON_STYLE (JSON_INDENT(2) | JSON_REAL_PRECISION(9))

static double seconds(const struct timeval *time)
{
	return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

void cpu_now(struct cpu *cpu)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	*cpu = (struct cpu){ seconds(&usage.ru_utime), seconds(&usage.ru_stime), (uint64_t)usage.ru_nvcsw,
			     (uint64_t)usage.ru_nivcsw };
}

void cpu_subtract(struct cpu *cpu, const struct cpu *earlier)
{
	cpu->user_s -= earlier->user_s;
	cpu->system_s -= earlier->system_s;
	cpu->voluntary -= earlier->voluntary;
	cpu->involuntary -= earlier->involuntary;
}

void cpu_add(struct cpu *cpu, const struct cpu *more)
{
	cpu->user_s += more->user_s;
	cpu->system_s += more->system_s;
	cpu->voluntary += more->voluntary;
	cpu->involuntary += more->involuntary;
}

void outcome_reset(struct outcome *outcome)
{
	memset(outcome, 0, sizeof(*outcome));
	hist_reset(&outcome->latency);
}

void outcome_add(struct outcome *into, const struct outcome *from)
{
	into->messages += from->messages;
	into->bytes += from->bytes;
	into->reads += from->reads;
	into->zerocopy_sends += from->zerocopy_sends;
	into->zerocopy_copied += from->zerocopy_copied;
	if (!into->wrong_messages && from->wrong_messages)
		memcpy(into->first_wrong, from->first_wrong, sizeof(into->first_wrong));
	into->wrong_messages += from->wrong_messages;
	hist_add(&into->latency, &from->latency);
	if (!into->fault.code)
		into->fault = from->fault;
}

void outcome_wrong(struct outcome *outcome, uint32_t connection, uint64_t message, const struct mismatch *wrong,
		   size_t before)
{
	if (!outcome->wrong_messages++)
		snprintf(outcome->first_wrong, sizeof(outcome->first_wrong),
			 "connection %u, message %llu, first wrong byte at offset %zu: 0x%02x instead of 0x%02x",
			 connection, (unsigned long long)message, before + wrong->offset, wrong->got, wrong->expected);
}

json_t *cpu_json(const struct cpu *cpu, uint64_t bytes)
{
	double total = cpu->user_s + cpu->system_s;

	return json_pack("{s:f, s:f, s:o, s:I, s:I}", "user_s", cpu->user_s, "system_s", cpu->system_s, "s_per_gb",
			 bytes ? json_real(total / ((double)bytes / 1e9)) : json_null(), "voluntary_switches",
			 (json_int_t)cpu->voluntary, "involuntary_switches", (json_int_t)cpu->involuntary);
}

static double us(uint64_t ns)
{
	return (double)ns / 1e3;
}

json_t *latency_json(const struct hist *hist)
{
	if (!hist->count)
		return json_null();
	return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "mean", hist_mean(hist) / 1e3, "p50",
			 us(hist_percentile(hist, 50)), "p90", us(hist_percentile(hist, 90)), "p99",
			 us(hist_percentile(hist, 99)), "p999", us(hist_percentile(hist, 99.9)), "max", us(hist->max));
}

json_t *verified_json(bool asked, bool right)
{
	return asked ? json_boolean(right) : json_null();
}

static int refused(const char *file, int code, struct fault *fault)
{
	return fault_errno(fault, code ? code : EIO, "--json %.200s can't be written", file);
}

/* Writes all of it and closes. Returns 0 or an errno. */
static int write_to(FILE *out, const json_t *json)
{
	int code = 0;

	errno = 0;
	if (json_dumpf(json, out, JSON_STYLE) || fputc('\n', out) == EOF || fflush(out))
		code = errno ? errno : EIO;
	if (out != stdout && fclose(out) && !code)
		code = errno;
	return code;
}

/* A device or a pipe is written to as it is: a rename would put a file in its place. */
static bool is_special(const char *file)
{
	struct stat info;

	return !stat(file, &info) && !S_ISREG(info.st_mode);
}

static int write_special(const char *file, const json_t *json, struct fault *fault)
{
	FILE *out = !strcmp(file, "-") ? stdout : fopen(file, "we");
	int code = out ? write_to(out, json) : errno;

	return code ? refused(file, code, fault) : 0;
}

/* Creates the file that is to become `file`. Returns a descriptor and its name, or -errno. */
static int create_beside(const char *file, char **temporary)
{
	int fd;

	if (asprintf(temporary, "%s.XXXXXX", file) < 0)
		return -ENOMEM;
	fd = mkostemp(*temporary, O_CLOEXEC);
	if (fd >= 0)
		return fd;
	fd = -errno;
	free(*temporary);
	return fd < 0 ? fd : -EIO;
}

int json_check(const char *file, struct fault *fault)
{
	char *temporary;
	int fd;

	if (!strcmp(file, "-"))
		return 0;
	if (is_special(file))
		return access(file, W_OK) ? refused(file, errno, fault) : 0;
	fd = create_beside(file, &temporary);
	if (fd < 0)
		return refused(file, -fd, fault);
	close(fd);
	unlink(temporary);
	free(temporary);
	return 0;
}

int json_write(const char *file, const json_t *json, struct fault *fault)
{
	mode_t mask = umask(0);
	char *temporary;
	int fd, code;

	umask(mask);
	if (!strcmp(file, "-") || is_special(file))
		return write_special(file, json, fault);
	fd = create_beside(file, &temporary);
	if (fd < 0)
		return refused(file, -fd, fault);
	fchmod(fd, 0666 & ~mask);
	code = write_to(fdopen(fd, "w"), json);
	if (!code && rename(temporary, file))
		code = errno;
	if (code)
		unlink(temporary);
	free(temporary);
	return code ? refused(file, code, fault) : 0;
}
