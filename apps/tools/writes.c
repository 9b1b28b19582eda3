/* SPDX-License-Identifier: MIT */
/* zc-writes: the command line, what both ends know, and the server's part. */
#define _GNU_SOURCE
#include "apps/tools/writes.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_FIELD(field) offsetof(struct writes_options, shared.field)
static const struct option_row rows[] = {
#include "apps/tools/option_rows.h"
#include "apps/tools/shared.def"
#undef OPTION_FIELD
#define OPTION_FIELD(field) offsetof(struct writes_options, field)
#include "apps/tools/option_rows.h"
#include "apps/tools/writes.def"
};

static const struct option_table table = {
	.tool = "zc-writes",
	.usage = "zc-writes server --port PORT [OPTION...]\n"
		 "       zc-writes client SERVER PORT REPETITIONS NBUFS BUFSIZE TYPE [OPTION...]",
	.about = "Measures what it costs to send buffers by a write each (TYPE 1), by one writev (2) or by one write "
		 "(3),\n"
		 "and how many reads the server needs for them.",
	.server = "server",
	.client = "client",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.bytes = sizeof(struct writes_options),
};

uint64_t writes_bytes(const void *values)
{
	const struct writes_options *options = values;

	return options->nbufs * options->bufsize;
}

static uint64_t connections(const void *values)
{
	return 1;
}

static const char *latency_of(const void *values, unsigned int role)
{
	return role == FOR_CLIENT ? "run" : NULL;
}

static int check(const void *values, struct fault *fault)
{
	const struct writes_options *options = values;

	if (options->type == TYPE_WRITEV && options->nbufs > IOV_MAX)
		return fault_set(fault, EINVAL, "NBUFS %llu: allowed with TYPE 2 (writev) is up to %d",
				 (unsigned long long)options->nbufs, IOV_MAX);
	return tool_check_memory("BUFSIZE", options->bufsize, 2 * options->nbufs, fault);
}

/* Returns 0, 1 at the client's end of file, or -errno with the fault set. */
static int take(struct connection *connection, char *buffer, uint64_t repetition)
{
	size_t all = writes_bytes(connection->values), done;
	struct pattern pattern = { connection->session_id, connection->index, PATTERN_TO_SERVER };
	struct mismatch wrong;
	int rc = stream_receive(&connection->stream, CALL_READ, buffer, all, &done);

	if (rc > 0 && !done)
		return 1;
	if (rc)
		return fault_in_message(&connection->outcome->fault, rc, "received", repetition, done, all);
	if (connection->shared->verify && !pattern_check(buffer, all, pattern_seed(&pattern, repetition, 0), &wrong))
		outcome_wrong(connection->outcome, connection->index, repetition, &wrong, 0);
	return 0;
}

static int serve(struct connection *connection)
{
	uint64_t warmup = connection->shared->warmup, repetition = 0;
	struct outcome *outcome = connection->outcome;
	char *buffer = malloc(writes_bytes(connection->values));
	int rc = 0;

	if (!buffer)
		return fault_errno(&outcome->fault, ENOMEM, "no memory for a repetition");
	for (; repetition < warmup && !rc; repetition++)
		rc = take(connection, buffer, repetition);
	if (!rc)
		rc = warm_send(&connection->stream);
	connection->stream.reads = 0;
	for (; !rc; repetition++)
		rc = take(connection, buffer, repetition);
	free(buffer);
	outcome->messages = repetition > warmup ? repetition - warmup - 1 : 0;
	outcome->bytes = outcome->messages * writes_bytes(connection->values);
	outcome->reads = connection->stream.reads;
	return rc < 0 ? rc : 0;
}

static const struct tool tool = {
	.options = &table,
	.kind = "type",
	.check = check,
	.message_bytes = writes_bytes,
	.connections = connections,
	.latency_of = latency_of,
	.applies = tool_all_apply,
	.serve = serve,
};

static int check_client(const void *values, uint64_t given, struct fault *fault)
{
	return check(values, fault);
}

int main(int argc, char **argv)
{
	struct writes_options options;
	int status;
	unsigned int role = tool_command_line(&table, check_client, argc, argv, &options, &status);

	if (!role)
		return status;
	return role == FOR_SERVER ? server_run(&tool, &options.shared, options.listen_port) :
				    writes_measure(&tool, &options);
}
