/* SPDX-License-Identifier: MIT */
#include "apps/tools/tool.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tool_check_memory(const char *option, uint64_t bytes, uint64_t copies, struct fault *fault)
{
	uint64_t there = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (bytes <= there / copies)
		return 0;
	return fault_set(fault, EINVAL,
			 "%s %llu: is needed %llu times, beyond the memory of this machine; allowed is up to "
			 "%llu bytes",
			 option, (unsigned long long)bytes, (unsigned long long)copies,
			 (unsigned long long)(there / copies));
}

unsigned int tool_command_line(const struct option_table *table,
			       int (*check)(const void *values, uint64_t given, struct fault *fault), int argc,
			       char **argv, void *values, int *status)
{
	unsigned int role = argc < 2		       ? 0 :
			    !strcmp(argv[1], "server") ? FOR_SERVER :
			    !strcmp(argv[1], "client") ? FOR_CLIENT :
							 0;
	struct fault fault = { 0 };
	uint64_t given = 0;
	int skip = role ? 2 : 1;

	if (options_parse(table, argc - skip, argv + skip, values, &given, &fault) > 0) {
		options_help(table);
		*status = fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
		return 0;
	}
	if (!role)
		fault = (struct fault){ EINVAL,
					"the first argument is missing or unknown; allowed is server or client" };
	if (!fault.code)
		options_check_role(table, role, given, &fault);
	if (!fault.code && role == FOR_CLIENT)
		check(values, given, &fault);
	if (!fault.code)
		return role;
	tell(table->tool, "%s", fault.text);
	*status = EXIT_USAGE;
	return 0;
}

bool tool_all_apply(const void *values, const char *option)
{
	return true;
}

int verdict_send(struct stream *stream, struct verdict verdict)
{
	size_t done;

	verdict.messages = htobe64(verdict.messages);
	verdict.reads = htobe64(verdict.reads);
	return stream_send(stream, &verdict, sizeof(verdict), &done);
}

int verdict_receive(struct stream *stream, struct verdict *verdict)
{
	size_t done;
	int rc = stream_receive(stream, CALL_RECV, verdict, sizeof(*verdict), &done);

	verdict->messages = be64toh(verdict->messages);
	verdict->reads = be64toh(verdict->reads);
	return rc > 0 ? -EPIPE : rc;
}

int warm_send(struct stream *stream)
{
	size_t done;

	return stream_send(stream, "w", 1, &done);
}

int warm_receive(struct stream *stream)
{
	size_t done;
	char byte;
	int rc = stream_receive(stream, CALL_RECV, &byte, 1, &done);

	return rc > 0 ? -EPIPE : rc;
}

static json_t *parameters(const struct report *report)
{
	const struct option_table *table = report->tool->options;
	json_t *object = options_json(table, report->values, report->role == FOR_SERVER ? TOLD : FOR_CLIENT);

	for (size_t i = 0; i < table->count; i++)
		if (!report->tool->applies(report->values, table->rows[i].name))
			json_object_del(object, table->rows[i].name);
	return object;
}

json_t *report_json(const struct report *report)
{
	const struct shared_options *shared = report->values;
	const struct outcome *outcome = report->outcome;
	const struct option_table *table = report->tool->options;
	const char *latency_of = report->tool->latency_of(report->values, report->role);
	json_t *json = json_object();

	json_object_set_new(json, "tool", json_string(table->tool));
	json_object_set_new(json, "role", json_string(report->role == FOR_SERVER ? table->server : table->client));
	json_object_set_new(json, report->tool->kind, option_json(table, report->values, report->tool->kind));
	json_object_set_new(json, "bytes_per_message",
			    json_integer((json_int_t)report->tool->message_bytes(report->values)));
	json_object_set_new(json, "threads", json_integer((json_int_t)report->tool->connections(report->values)));
	json_object_set_new(json, "seconds", json_real(report->seconds));
	json_object_set_new(json, "messages", json_integer((json_int_t)outcome->messages));
	json_object_set_new(json, "bytes", json_integer((json_int_t)outcome->bytes));
	json_object_set_new(json, "reads", json_integer((json_int_t)outcome->reads));
	json_object_set_new(json, "gbit_s",
			    report->seconds > 0 ? json_real((double)outcome->bytes * 8e-9 / report->seconds) :
						  json_null());
	json_object_set_new(json, "latency_of",
			    latency_of && outcome->latency.count ? json_string(latency_of) : json_null());
	json_object_set_new(json, "latency_us", latency_json(&outcome->latency));
	json_object_set_new(json, "cpu", cpu_json(report->cpu, outcome->bytes));
	json_object_set_new(json, "peer_cpu", report->peer_cpu ? json_deep_copy(report->peer_cpu) : json_null());
	json_object_set_new(json, "verified", verified_json(shared->verify, report->verified));
	json_object_set_new(json, "parameters", parameters(report));
	return json;
}
