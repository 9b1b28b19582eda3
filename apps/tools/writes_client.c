/* SPDX-License-Identifier: MIT */
/* zc-writes's client: the runs, one after the other; every connection is open and warm before the first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/tools/writes.h"
#include "common/clock.h"

struct run {
	struct stream stream;
	uint64_t sending_ns;
	uint64_t ns;
	uint64_t reads;
};

struct writer {
	const struct writes_options *options;
	char *buffers; /* NBUFS of BUFSIZE bytes, one behind the other */
	struct iovec *iov;
};

/* The runs outlive their worker: they are the result. */
static struct run *runs;

static void verifiable(struct worker *worker, const struct writer *writer, uint32_t run, uint64_t repetition)
{
	struct pattern pattern = { worker->client->session_id, run, PATTERN_TO_SERVER };

	pattern_fill(writer->buffers, writes_bytes(writer->options), pattern_seed(&pattern, repetition, 0));
}

static int write_buffers(const struct writer *writer, struct stream *stream, size_t *done)
{
	struct iovec one;
	size_t part;
	int rc = 0;

	*done = 0;
	for (uint64_t i = 0; i < writer->options->nbufs && !rc; i++, *done += part) {
		one = (struct iovec){ writer->buffers + i * writer->options->bufsize, writer->options->bufsize };
		rc = stream_push(stream, CALL_WRITE, &one, 1, &part);
	}
	return rc;
}

static int writev_buffers(const struct writer *writer, struct stream *stream, size_t *done)
{
	/* Set up each time: the vector is used up on the way, and the classic client does so as well. */
	for (uint64_t i = 0; i < writer->options->nbufs; i++)
		writer->iov[i] =
			(struct iovec){ writer->buffers + i * writer->options->bufsize, writer->options->bufsize };
	return stream_push(stream, CALL_WRITEV, writer->iov, (int)writer->options->nbufs, done);
}

static int write_all(const struct writer *writer, struct stream *stream, size_t *done)
{
	struct iovec one = { writer->buffers, writes_bytes(writer->options) };

	return stream_push(stream, CALL_WRITE, &one, 1, done);
}

/* Sends repetitions `from` to `to` - 1 on the connection of a run. */
static int repeat(struct worker *worker, uint32_t run, uint64_t from, uint64_t to)
{
	static int (*const types[])(const struct writer *writer, struct stream *stream, size_t *done) = {
		[TYPE_WRITES] = write_buffers,
		[TYPE_WRITEV] = writev_buffers,
		[TYPE_WRITE] = write_all,
	};
	const struct writer *writer = worker->state;
	size_t done;

	for (uint64_t i = from; i < to; i++) {
		int rc;

		if (writer->options->shared.verify)
			verifiable(worker, writer, run, i);
		rc = types[writer->options->type](writer, &runs[run].stream, &done);
		if (rc)
			return fault_in_message(&worker->outcome->fault, rc, "sent", i, done,
						writes_bytes(writer->options));
		worker_moved(worker);
	}
	return 0;
}

static int allocate(struct worker *worker)
{
	const struct writes_options *options = worker->client->values;
	struct writer *writer = calloc(1, sizeof(*writer));

	worker->state = writer;
	if (writer) {
		writer->options = options;
		writer->buffers = calloc(options->nbufs, options->bufsize);
		writer->iov = calloc(options->nbufs, sizeof(*writer->iov));
	}
	if (!writer || !writer->buffers || !writer->iov)
		return fault_errno(&worker->outcome->fault, ENOMEM, "no memory for %llu buffers of %llu bytes",
				   (unsigned long long)options->nbufs, (unsigned long long)options->bufsize);
	return 0;
}

static int prepare(struct worker *worker)
{
	const struct writes_options *options = worker->client->values;
	int rc = allocate(worker);

	for (uint32_t i = 0; i < options->runs && !rc; i++) {
		rc = worker_connect(worker, i, &runs[i].stream);
		if (!rc)
			rc = repeat(worker, i, 0, options->shared.warmup);
		if (rc)
			break;
		rc = warm_receive(&runs[i].stream);
		if (rc)
			fault_errno(&worker->outcome->fault, -rc, "the server is gone");
	}
	return rc;
}

static int measure(struct worker *worker)
{
	const struct writes_options *options = worker->client->values;
	uint64_t warmup = options->shared.warmup;
	struct outcome *outcome = worker->outcome;
	int rc = 0;

	for (uint32_t i = 0; i < options->runs && !rc; i++) {
		struct verdict verdict = { 0 };
		uint64_t before = clock_now();

		rc = repeat(worker, i, warmup, warmup + options->repetitions);
		runs[i].sending_ns = clock_now() - before;
		if (!rc)
			rc = worker_end(worker, &runs[i].stream, &verdict);
		runs[i].ns = clock_now() - before;
		if (!rc && verdict.messages != options->repetitions)
			rc = fault_set(&outcome->fault, EPROTO, "the server received %llu of %llu repetitions",
				       (unsigned long long)verdict.messages, (unsigned long long)options->repetitions);
		runs[i].reads = verdict.reads;
		hist_record(&outcome->latency, runs[i].ns);
		outcome->messages += options->repetitions;
	}
	outcome->bytes = outcome->messages * writes_bytes(options);
	return rc;
}

static void dispose(struct worker *worker)
{
	struct writer *writer = worker->state;
	const struct writes_options *options = worker->client->values;

	for (uint32_t i = 0; i < options->runs; i++)
		stream_forget(&runs[i].stream);
	if (!writer)
		return;
	free(writer->iov);
	free(writer->buffers);
	free(writer);
}

static double run_gbit_s(const struct client *client, const struct run *run)
{
	const struct writes_options *options = client->values;

	return run->ns ? (double)(writes_bytes(options) * options->repetitions) * 8.0 / (double)run->ns : 0.0;
}

static void extend(const struct client *client, json_t *json)
{
	const struct writes_options *options = client->values;
	json_t *array = json_array();

	for (uint32_t i = 0; i < options->runs; i++)
		json_array_append_new(array,
				      json_pack("{s:f, s:f, s:I, s:f}", "sending_us", (double)runs[i].sending_ns / 1e3,
						"us", (double)runs[i].ns / 1e3, "reads", (json_int_t)runs[i].reads,
						"gbit_s", run_gbit_s(client, &runs[i])));
	json_object_set_new(json, "runs", array);
}

static void print(const struct client *client, const struct results *results)
{
	const struct writes_options *options = client->values;

	for (uint32_t i = 0; i < options->runs; i++)
		printf("type %llu, %llu x %llu bytes: sending %.0f us, until the answer %.0f us, %llu reads, %.3f "
		       "Gbit/s\n",
		       (unsigned long long)options->type, (unsigned long long)options->nbufs,
		       (unsigned long long)options->bufsize, (double)runs[i].sending_ns / 1e3, (double)runs[i].ns / 1e3,
		       (unsigned long long)runs[i].reads, run_gbit_s(client, &runs[i]));
}

int writes_measure(const struct tool *tool, const struct writes_options *options)
{
	static const struct client_face face = { extend, print };
	struct client client = {
		.tool = tool,
		.values = options,
		.shared = &options->shared,
		.host = options->host,
		.port = options->port,
		.workers = 1,
		.prepare = prepare,
		.measure = measure,
		.dispose = dispose,
	};
	int status;

	runs = calloc(options->runs, sizeof(*runs));
	if (!runs) {
		tell(tool->options->tool, "no memory for %llu runs", (unsigned long long)options->runs);
		return EXIT_FAILURE;
	}
	for (uint32_t i = 0; i < options->runs; i++)
		runs[i].stream.epoll = -1;
	status = client_main(&client, &face);
	free(runs);
	return status;
}
