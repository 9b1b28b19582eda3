/* SPDX-License-Identifier: MIT */
/* zc-msg's client: asks, receives, checks, and times each round trip. */
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/tools/msg.h"
#include "common/clock.h"

struct asker {
	struct stream stream;
	const struct msg_options *options;
	char *message;
	uint64_t next; /* number of the next request */
};

/* Receives an answer. Returns 0 or -errno with the fault set. */
static int receive(struct worker *worker, struct asker *asker)
{
	size_t field = asker->options->field_bytes, all = MSG_FIELDS * field;
	size_t each = asker->options->receive == RECEIVE_FIELDS ? field : all;
	size_t done = 0, part;
	int rc = 0;

	for (; done < all && !rc; done += part)
		rc = stream_receive(&asker->stream, CALL_RECV, asker->message + done, each, &part);
	return rc ? fault_in_message(&worker->outcome->fault, rc, "received", asker->next, done, all) : 0;
}

static void verify(struct worker *worker, struct asker *asker)
{
	struct pattern pattern = { worker->client->session_id, worker->index, PATTERN_TO_CLIENT };
	size_t field = asker->options->field_bytes;
	struct mismatch wrong;

	for (uint32_t i = 0; i < MSG_FIELDS; i++) {
		if (pattern_check(asker->message + i * field, field, pattern_seed(&pattern, asker->next, i), &wrong))
			continue;
		outcome_wrong(worker->outcome, worker->index, asker->next, &wrong, i * field);
		return;
	}
}

/* One request and its answer. */
static int ask(struct worker *worker, struct asker *asker)
{
	struct msg_request request = { .number = htobe64(asker->next) };
	size_t done;
	int rc = stream_send(&asker->stream, &request, sizeof(request), &done);

	if (rc)
		return fault_in_message(&worker->outcome->fault, rc, "sent (a request)", asker->next, done,
					sizeof(request));
	rc = receive(worker, asker);
	if (rc)
		return rc;
	if (asker->options->shared.verify)
		verify(worker, asker);
	asker->next++;
	worker_moved(worker);
	return 0;
}

static int prepare(struct worker *worker)
{
	struct asker *asker = calloc(1, sizeof(*asker));
	int rc;

	worker->state = asker;
	if (!asker)
		return fault_errno(&worker->outcome->fault, ENOMEM, "no memory for a connection");
	asker->stream.epoll = -1;
	asker->options = worker->client->values;
	asker->message = malloc(MSG_FIELDS * asker->options->field_bytes);
	if (!asker->message)
		return fault_errno(&worker->outcome->fault, ENOMEM, "no memory for a message of %llu bytes",
				   (unsigned long long)(MSG_FIELDS * asker->options->field_bytes));
	rc = worker_connect(worker, worker->index, &asker->stream);
	for (uint64_t i = 0; i < asker->options->shared.warmup && !rc; i++)
		rc = ask(worker, asker);
	asker->stream.reads = 0;
	return rc;
}

static int measure(struct worker *worker)
{
	struct asker *asker = worker->state;
	struct outcome *outcome = worker->outcome;
	uint64_t wanted = asker->options->messages;
	uint64_t until = worker->slot->began_ns + (uint64_t)(asker->options->seconds * (double)NS_PER_SEC);
	struct verdict verdict;
	uint64_t before, after = 0;
	int rc = 0;

	while (!rc && (wanted ? outcome->messages < wanted : after < until)) {
		before = clock_now();
		rc = ask(worker, asker);
		after = clock_now();
		if (rc)
			break;
		hist_record(&outcome->latency, after - before);
		outcome->messages++;
		outcome->bytes += MSG_FIELDS * asker->options->field_bytes;
	}
	outcome->reads = asker->stream.reads;
	return rc ? rc : worker_end(worker, &asker->stream, &verdict);
}

static void dispose(struct worker *worker)
{
	struct asker *asker = worker->state;

	if (!asker)
		return;
	stream_forget(&asker->stream);
	free(asker->message);
	free(asker);
}

static void print(const struct client *client, const struct results *results)
{
	const struct msg_options *options = client->values;

	printf("%s, %d fields of %llu bytes, %llu threads: %.3f Gbit/s, %llu messages in %.3f s\n",
	       option_choice(client->tool->options, "variant", options->variant), MSG_FIELDS,
	       (unsigned long long)options->field_bytes, (unsigned long long)options->threads,
	       (double)results->total.bytes * 8e-9 / results->seconds, (unsigned long long)results->total.messages,
	       results->seconds);
}

int msg_measure(const struct tool *tool, const struct msg_options *options)
{
	static const struct client_face face = { .print = print };
	struct client client = {
		.tool = tool,
		.values = options,
		.shared = &options->shared,
		.host = options->host,
		.port = options->port,
		.workers = (uint32_t)options->threads,
		.prepare = prepare,
		.measure = measure,
		.dispose = dispose,
	};

	return client_main(&client, &face);
}
