/* SPDX-License-Identifier: MIT */
/* zc-msg: the command line, and what both ends know. */
#include "apps/tools/msg.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_FIELD(field) offsetof(struct msg_options, shared.field)
static const struct option_row rows[] = {
#include "apps/tools/option_rows.h"
#include "apps/tools/shared.def"
#undef OPTION_FIELD
#define OPTION_FIELD(field) offsetof(struct msg_options, field)
#include "apps/tools/option_rows.h"
#include "apps/tools/msg.def"
};

static const struct option_table table = {
	.tool = "zc-msg",
	.usage = "zc-msg server --port PORT [OPTION...]\n"
		 "       zc-msg client --host HOST --port PORT --variant VARIANT --field-bytes BYTES [OPTION...]",
	.about = "Measures how a server that answers requests with messages of 8 separately allocated fields is best "
		 "to\n"
		 "send them. A server with one thread per connection serves any number of clients, each with variant "
		 "and\n"
		 "sizes of its own.",
	.server = "server",
	.client = "client",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.bytes = sizeof(struct msg_options),
};

static uint64_t message_bytes(const void *values)
{
	return MSG_FIELDS * ((const struct msg_options *)values)->field_bytes;
}

static uint64_t connections(const void *values)
{
	return ((const struct msg_options *)values)->threads;
}

static const char *latency_of(const void *values, unsigned int role)
{
	return role == FOR_CLIENT ? "round_trip" : "send_call";
}

static int check(const void *values, struct fault *fault)
{
	const struct msg_options *options = values;

	return tool_check_memory("--field-bytes", options->field_bytes, 2 * MSG_FIELDS * options->threads, fault);
}

static const struct tool tool = {
	.options = &table,
	.kind = "variant",
	.check = check,
	.message_bytes = message_bytes,
	.connections = connections,
	.latency_of = latency_of,
	.applies = tool_all_apply,
	.serve = msg_serve,
};

static int check_client(const void *values, uint64_t given, struct fault *fault)
{
	const struct msg_options *options = values;

	if (!options->port)
		return fault_set(fault, EINVAL, "--port 0: allowed for a client is a whole number from 1 to 65535");
	if (option_was_given(&table, given, "messages") && option_was_given(&table, given, "seconds"))
		return fault_set(fault, EINVAL, "--messages and --seconds: allowed is one of them");
	return check(options, fault);
}

int main(int argc, char **argv)
{
	struct msg_options options;
	int status;
	unsigned int role = tool_command_line(&table, check_client, argc, argv, &options, &status);

	if (!role)
		return status;
	return role == FOR_SERVER ? server_run(&tool, &options.shared, options.port) : msg_measure(&tool, &options);
}
