/* SPDX-License-Identifier: MIT */
/* zc-ttcp's transmitting end: workers that stream, or that exchange messages. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/tools/compute.h"
#include "apps/tools/ttcp.h"
#include "common/clock.h"

#define TIMED_ALL 16384u /* bytes */
#define TIMED_EVERY 8u

struct transmitter {
	struct stream stream;
	const struct ttcp_options *options;
	struct pattern out_pattern;
	struct pattern in_pattern;
	struct buffers out;
	struct buffers in;
	uint64_t next; /* number of the next message */
};

/* Calibrated once, before any worker starts. */
static uint64_t compute_steps;

/*
 * Whether message `i` is timed: reading the clock three times takes as long as sending a small one. What is timed is looked at for the
 * end, too.
 */
static bool is_timed(const struct ttcp_options *options, uint64_t i)
{
	return ttcp_answers(options) || options->bytes >= TIMED_ALL || i % TIMED_EVERY == 0;
}

/* Sends the next message. Returns 0 or -errno with the fault set; *took_ns, unless NULL, is the time of the sending call. */
static int send_next(struct worker *worker, struct transmitter *me, uint64_t *took_ns)
{
	uint64_t before = 0;
	size_t done;
	int rc;

	content_fill(&me->out, me->options, &me->out_pattern, me->next);
	if (took_ns)
		before = clock_now();
	rc = stream_send(&me->stream, buffers_get(&me->out, me->next), me->out.bytes, &done);
	if (took_ns)
		*took_ns = clock_now() - before;
	if (rc)
		return fault_in_message(&worker->outcome->fault, rc, "sent", me->next, done, me->out.bytes);
	compute(compute_steps);
	content_touch(&me->out, me->options, &me->out_pattern, me->next);
	return 0;
}

static int receive_answer(struct worker *worker, struct transmitter *me)
{
	size_t done;
	int rc = stream_receive(&me->stream, CALL_RECV, buffers_get(&me->in, me->next), me->in.bytes, &done);

	return rc ? fault_in_message(&worker->outcome->fault, rc, "received", me->next, done, me->in.bytes) : 0;
}

/* One message out and one back. The time includes neither filling nor checking. */
static int exchange(struct worker *worker, struct transmitter *me, uint64_t *half_ns)
{
	struct mismatch wrong;
	uint64_t sending_ns, before;
	int rc = send_next(worker, me, &sending_ns);

	before = clock_now();
	if (!rc)
		rc = receive_answer(worker, me);
	*half_ns = (sending_ns + clock_now() - before) / 2;
	if (!rc && me->options->shared.verify &&
	    !content_check(&me->in, me->options, &me->in_pattern, me->next, &wrong))
		outcome_wrong(worker->outcome, worker->index, me->next, &wrong, 0);
	return rc;
}

/* One message, or one exchange; what it took goes to *ns (NULL: nobody wants to know; not of an exchange). */
static int step(struct worker *worker, struct transmitter *me, uint64_t *ns)
{
	int rc = ttcp_answers(me->options) ? exchange(worker, me, ns) : send_next(worker, me, ns);

	me->next += !rc;
	worker_moved(worker);
	return rc;
}

static int prepare(struct worker *worker)
{
	const struct ttcp_options *options = worker->client->values;
	struct transmitter *me = calloc(1, sizeof(*me));
	struct fault *fault = &worker->outcome->fault;
	uint64_t ignored;
	int rc;

	worker->state = me;
	if (!me)
		return fault_errno(fault, ENOMEM, "no memory for a connection");
	me->stream.epoll = -1;
	me->options = options;
	me->out_pattern = (struct pattern){ worker->client->session_id, worker->index, PATTERN_TO_SERVER };
	me->in_pattern = (struct pattern){ worker->client->session_id, worker->index, PATTERN_TO_CLIENT };
	rc = buffers_open(&me->out, options, fault);
	if (!rc && ttcp_answers(options))
		rc = buffers_open(&me->in, options, fault);
	if (rc)
		return rc;
	content_begin(&me->out, options, &me->out_pattern);
	rc = worker_connect(worker, worker->index, &me->stream);
	for (uint64_t i = 0; i < options->shared.warmup && !rc; i++)
		rc = step(worker, me, &ignored);
	if (rc)
		return rc;
	rc = warm_receive(&me->stream);
	me->stream.reads = 0;
	return rc ? fault_errno(fault, -rc, "the receiving end is gone") : 0;
}

static int measure(struct worker *worker)
{
	struct transmitter *me = worker->state;
	struct outcome *outcome = worker->outcome;
	const struct ttcp_options *options = me->options;
	uint64_t until = worker->slot->began_ns + (uint64_t)(options->seconds * (double)NS_PER_SEC);
	struct verdict verdict;
	int rc = 0;

	for (uint64_t i = 0; options->count ? i < options->count : !i || !is_timed(options, i) || clock_now() < until;
	     i++) {
		bool timed = is_timed(options, i);
		uint64_t ns;

		rc = step(worker, me, timed ? &ns : NULL);
		if (rc)
			return rc;
		if (timed)
			hist_record(&outcome->latency, ns);
		outcome->messages += ttcp_answers(options) ? 2 : 1;
	}
	outcome->bytes = outcome->messages * options->bytes;
	outcome->reads = me->stream.reads;
	rc = worker_end(worker, &me->stream, &verdict);
	if (!rc && verdict.messages != outcome->messages)
		rc = fault_set(&outcome->fault, EPROTO, "the receiving end saw %llu of %llu messages",
			       (unsigned long long)verdict.messages, (unsigned long long)outcome->messages);
	return rc;
}

static void dispose(struct worker *worker)
{
	struct transmitter *me = worker->state;

	if (!me)
		return;
	stream_forget(&me->stream);
	buffers_close(&me->out);
	buffers_close(&me->in);
	free(me);
}

static void print(const struct client *client, const struct results *results)
{
	const struct ttcp_options *options = client->values;

	printf("%s, %llu bytes, %u connections: %.3f Gbit/s, %llu messages in %.3f s\n",
	       option_choice(client->tool->options, "mode", options->mode), (unsigned long long)options->bytes,
	       client->workers, (double)results->total.bytes * 8e-9 / results->seconds,
	       (unsigned long long)results->total.messages, results->seconds);
}

int ttcp_transmit(const struct tool *tool, const struct ttcp_options *options)
{
	static const struct client_face face = { .print = print };
	struct client client = {
		.tool = tool,
		.values = options,
		.shared = &options->shared,
		.host = options->host,
		.port = options->port,
		.workers = (uint32_t)tool->connections(options),
		.as_processes = options->mode == MODE_HOT_SPOT || options->mode == MODE_MULTI_CLIENT,
		.prepare = prepare,
		.measure = measure,
		.dispose = dispose,
	};

	if (options->compute_us)
		compute_steps = (uint64_t)((double)options->compute_us * compute_calibrate());
	return client_main(&client, &face);
}
