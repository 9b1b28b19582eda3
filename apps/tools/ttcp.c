/* SPDX-License-Identifier: MIT */
/* zc-ttcp: the command line, and what both ends know. */
#include "apps/tools/ttcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION_FIELD(field) offsetof(struct ttcp_options, shared.field)
static const struct option_row rows[] = {
#include "apps/tools/option_rows.h"
#include "apps/tools/shared.def"
#undef OPTION_FIELD
#define OPTION_FIELD(field) offsetof(struct ttcp_options, field)
#include "apps/tools/option_rows.h"
#include "apps/tools/ttcp.def"
};

static const struct option_table table = {
	.tool = "zc-ttcp",
	.usage = "zc-ttcp --receive --port PORT [OPTION...]\n"
		 "       zc-ttcp --transmit HOST --port PORT --mode MODE --bytes BYTES [OPTION...]",
	.about = "Measures throughput and latency of a TCP connection, or of many, under a choice of traffic patterns. "
		 "The\n"
		 "transmitting end tells the receiving one what to expect.",
	.server = "receiver",
	.client = "transmitter",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
	.bytes = sizeof(struct ttcp_options),
};

/* Options that mean something in some modes only. */
static const struct {
	const char *option;
	unsigned int modes; /* a bit each */
} only[] = {
	{ "compute-us", 1u << MODE_OVERLAP },
	{ "window", 1u << MODE_TOUCH },
	{ "touch", 1u << MODE_TOUCH },
	{ "threads", 1u << MODE_MULTI_STREAM },
	{ "clients", 1u << MODE_HOT_SPOT | 1u << MODE_MULTI_CLIENT },
};

bool ttcp_answers(const struct ttcp_options *options)
{
	return options->mode == MODE_PING_PONG || options->mode == MODE_HOT_SPOT;
}

static uint64_t message_bytes(const void *values)
{
	return ((const struct ttcp_options *)values)->bytes;
}

static uint64_t connections(const void *values)
{
	const struct ttcp_options *options = values;

	switch (options->mode) {
	case MODE_MULTI_STREAM:
		return options->threads;
	case MODE_HOT_SPOT:
	case MODE_MULTI_CLIENT:
		return options->clients;
	default:
		return 1;
	}
}

static const char *latency_of(const void *values, unsigned int role)
{
	if (ttcp_answers(values))
		return role == FOR_CLIENT ? "half_round_trip" : "send_call";
	return role == FOR_CLIENT ? "send_call" : NULL;
}

static int check(const void *values, struct fault *fault)
{
	const struct ttcp_options *options = values;

	return tool_check_memory("a buffer of --bytes and --offset-bytes, in whole pages,", buffers_stride(options),
				 2 * options->buffers * connections(options), fault);
}

static bool applies(const void *values, const char *option)
{
	const struct ttcp_options *options = values;

	for (size_t i = 0; i < sizeof(only) / sizeof(only[0]); i++)
		if (!strcmp(only[i].option, option))
			return only[i].modes >> options->mode & 1;
	return true;
}

static const struct tool tool = {
	.options = &table,
	.kind = "mode",
	.check = check,
	.message_bytes = message_bytes,
	.connections = connections,
	.latency_of = latency_of,
	.applies = applies,
	.serve = ttcp_receive,
};

static int check_client(const struct ttcp_options *options, uint64_t given, struct fault *fault)
{
	if (!options->port)
		return fault_set(fault, EINVAL,
				 "--port 0: allowed for the transmitter is a whole number from 1 to 65535");
	if (option_was_given(&table, given, "count") && option_was_given(&table, given, "seconds"))
		return fault_set(fault, EINVAL, "--count and --seconds: allowed is one of them");
	for (size_t i = 0; i < sizeof(only) / sizeof(only[0]); i++)
		if (option_was_given(&table, given, only[i].option) && !applies(options, only[i].option))
			return fault_set(fault, EINVAL, "--%s has no meaning in mode %s; see --help", only[i].option,
					 option_choice(&table, "mode", options->mode));
	return check(options, fault);
}

int main(int argc, char **argv)
{
	struct ttcp_options options;
	struct fault fault = { 0 };
	uint64_t given;
	int rc = options_parse(&table, argc - 1, argv + 1, &options, &given, &fault);
	bool is_server = options.receives;

	if (rc > 0) {
		options_help(&table);
		return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
	}
	if (!fault.code && !options.receives == !options.host)
		fault_set(&fault, EINVAL, "allowed is one of --receive (-r) and --transmit HOST (-t HOST); see --help");
	if (!fault.code)
		options_check_role(&table, is_server ? FOR_SERVER : FOR_CLIENT, given, &fault);
	if (!fault.code && !is_server)
		check_client(&options, given, &fault);
	if (fault.code) {
		tell(table.tool, "%s", fault.text);
		return EXIT_USAGE;
	}
	return is_server ? server_run(&tool, &options.shared, options.port) : ttcp_transmit(&tool, &options);
}
