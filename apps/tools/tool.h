/* SPDX-License-Identifier: MIT */
/*
 * What makes a tool: its options and what each end does with a connection. server.c and client.c do the rest: sessions,
 * threads or processes, the start and end of the measured part, results.
 */
#ifndef ZC_TOOLS_TOOL_H
#define ZC_TOOLS_TOOL_H

#include <stddef.h>
#include <stdint.h>

#include "apps/tools/measure.h"
#include "apps/tools/option.h"
#include "apps/tools/stream.h"

struct connection;

struct tool {
	const struct option_table *options;
	const char *kind; /* the option that tells the kind of run: "mode", "variant" or "type" */

	/* Checks what no single row can: returns 0 or -EINVAL with a message that says what is allowed. */
	int (*check)(const void *values, struct fault *fault);

	/* Returns the bytes of a message (a repetition), as told. */
	uint64_t (*message_bytes)(const void *values);

	/* Returns the number of connections at one time, as told. */
	uint64_t (*connections)(const void *values);

	/* Names what the latencies at either end are latencies of; NULL if there are none. */
	const char *(*latency_of)(const void *values, unsigned int role);

	/* Returns whether an option has a meaning in this run: the others are left out of the report. */
	bool (*applies)(const void *values, const char *option);

	/* The server's part of a connection, up to the client's end of file. Returns 0 or -errno with the fault set. */
	int (*serve)(struct connection *connection);
};

/*
 * Reads the command line of a tool whose first word is the role, for its main(); `check` looks at a client's. Returns the
 * role, or 0 when that was all: help was given, or a fault told. Then *status is what to exit with.
 */
unsigned int tool_command_line(const struct option_table *table,
			       int (*check)(const void *values, uint64_t given, struct fault *fault), int argc,
			       char **argv, void *values, int *status);

/* For tools whose options always apply. */
bool tool_all_apply(const void *values, const char *option);

/* What a message needs, in bytes, must be less than the machine has. Returns 0 or -EINVAL. */
int tool_check_memory(const char *option, uint64_t bytes, uint64_t copies, struct fault *fault);

/*
 * The verdict: what the server says at the end of each data connection, once the client has shut its side down: how many
 * measured messages it saw, and how many reads they took. Network byte order on the wire.
 */
struct verdict {
	uint64_t messages;
	uint64_t reads;
};
int verdict_send(struct stream *stream, struct verdict verdict);
int verdict_receive(struct stream *stream, struct verdict *verdict);

/* One byte from the server that says that the messages of the warm-up are all there. */
int warm_send(struct stream *stream);
int warm_receive(struct stream *stream);

/* The object that an end of a session reports. */
struct report {
	const struct tool *tool;
	const void *values;
	unsigned int role; /* FOR_SERVER or FOR_CLIENT */
	const struct outcome *outcome;
	double seconds;
	const struct cpu *cpu;
	const json_t *peer_cpu; /* as the peer sent it; NULL: unknown */
	bool verified;		/* only looked at with --verify */
};
json_t *report_json(const struct report *report);

#endif
