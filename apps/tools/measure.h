/* SPDX-License-Identifier: MIT */
/*
 * What is measured: the outcome of a connection (or of many, added up), processor time, and both as JSON.
 * Units: ns inside, µs and s in JSON; a GB is 10^9 bytes.
 */
#ifndef ZC_TOOLS_MEASURE_H
#define ZC_TOOLS_MEASURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "apps/tools/fault.h"
#include "apps/tools/pattern.h"
#include "common/hist.h"

struct cpu {
	double user_s;
	double system_s;
	uint64_t voluntary;
	uint64_t involuntary;
};

struct outcome {
	uint64_t messages;
	uint64_t bytes;
	uint64_t reads; /* receiving calls that it took */
	uint64_t wrong_messages;
	char first_wrong[200];	 /* which byte of which message, in words */
	uint64_t zerocopy_sends; /* by the program itself, and how many of them the kernel copied after all */
	uint64_t zerocopy_copied;
	struct hist latency;
	struct fault fault;
};

/* Processor time of this process so far. */
void cpu_now(struct cpu *cpu);
void cpu_subtract(struct cpu *cpu, const struct cpu *earlier);
void cpu_add(struct cpu *cpu, const struct cpu *more);

void outcome_reset(struct outcome *outcome);

/* Adds `from`, except for the fault, of which the first stays. */
void outcome_add(struct outcome *into, const struct outcome *from);

/* Notes a message with a wrong byte. */
void outcome_wrong(struct outcome *outcome, uint32_t connection, uint64_t message, const struct mismatch *wrong,
		   size_t before);

json_t *cpu_json(const struct cpu *cpu, uint64_t bytes);

/* Returns {"mean", "p50", ...} in µs, or null if nothing was recorded. */
json_t *latency_json(const struct hist *hist);

/* Returns true, false, or null if nothing was to be verified. */
json_t *verified_json(bool asked, bool right);

/* Checks that json_write() will be able to. Returns 0 or -errno. */
int json_check(const char *file, struct fault *fault);

/* Writes JSON to a new file that takes the place of `file` when it is complete; "-" is standard output. 0 or -errno. */
int json_write(const char *file, const json_t *json, struct fault *fault);

#endif
