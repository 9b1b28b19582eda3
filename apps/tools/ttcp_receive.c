/* SPDX-License-Identifier: MIT */
/* zc-ttcp's receiving end: one connection, in the modes that stream and in those that answer. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "apps/tools/ttcp.h"
#include "common/clock.h"

struct receiver {
	struct connection *connection;
	const struct ttcp_options *options;
	struct pattern from; /* the client's messages, and ours */
	struct pattern back;
	struct buffers in;
	struct buffers out;
	uint64_t seen; /* what reading the buffers in mode touch came to: nothing may leave it out */
};

static void pause_for(uint64_t us)
{
	struct timespec time = { (time_t)(us / 1000000), (long)(us % 1000000 * 1000) };

	while (us && nanosleep(&time, &time) && errno == EINTR)
		;
}

static int receiver_open(struct receiver *receiver, struct connection *connection)
{
	struct fault *fault = &connection->outcome->fault;
	int rc;

	*receiver = (struct receiver){
		.connection = connection,
		.options = connection->values,
		.from = { connection->session_id, connection->index, PATTERN_TO_SERVER },
		.back = { connection->session_id, connection->index, PATTERN_TO_CLIENT },
	};
	rc = buffers_open(&receiver->in, receiver->options, fault);
	if (!rc && ttcp_answers(receiver->options))
		rc = buffers_open(&receiver->out, receiver->options, fault);
	return rc;
}

static void receiver_close(struct receiver *receiver)
{
	buffers_close(&receiver->in);
	buffers_close(&receiver->out);
}

/* Reads what the window brought, as a program would that uses it. */
static void look(struct receiver *receiver, uint64_t message)
{
	uint64_t window = receiver->options->window;

	if (receiver->options->mode != MODE_TOUCH || (message + 1) % window)
		return;
	for (uint64_t i = 0; i < receiver->in.count && i < window; i++)
		receiver->seen += pattern_read(buffers_get(&receiver->in, message - i), receiver->in.bytes);
	__asm__ volatile("" : : "r"(receiver->seen));
}

/* Returns 0, 1 at the client's end of file, or -errno with the fault set. */
static int take(struct receiver *receiver, uint64_t message)
{
	struct connection *connection = receiver->connection;
	struct outcome *outcome = connection->outcome;
	struct mismatch wrong;
	size_t done;
	int rc;

	pause_for(receiver->options->receiver_delay_us);
	rc = stream_receive(&connection->stream, CALL_RECV, buffers_get(&receiver->in, message), receiver->in.bytes,
			    &done);
	if (rc > 0 && !done)
		return 1;
	if (rc)
		return fault_in_message(&outcome->fault, rc, "received", message, done, receiver->in.bytes);
	if (connection->shared->verify &&
	    !content_check(&receiver->in, receiver->options, &receiver->from, message, &wrong))
		outcome_wrong(outcome, connection->index, message, &wrong, 0);
	look(receiver, message);
	return 0;
}

static int answer(struct receiver *receiver, uint64_t message)
{
	struct connection *connection = receiver->connection;
	struct outcome *outcome = connection->outcome;
	uint64_t before;
	size_t done;
	int rc;

	content_fill(&receiver->out, receiver->options, &receiver->back, message);
	before = clock_now();
	rc = stream_send(&connection->stream, buffers_get(&receiver->out, message), receiver->out.bytes, &done);
	if (rc)
		return fault_in_message(&outcome->fault, rc, "sent", message, done, receiver->out.bytes);
	if (message >= connection->shared->warmup)
		hist_record(&outcome->latency, clock_now() - before);
	return 0;
}

int ttcp_receive(struct connection *connection)
{
	struct receiver receiver;
	struct outcome *outcome = connection->outcome;
	uint64_t warmup = connection->shared->warmup, message = 0;
	int rc = receiver_open(&receiver, connection);
	bool answers = ttcp_answers(receiver.options);

	while (!rc) {
		if (message == warmup) {
			connection->stream.reads = 0;
			rc = warm_send(&connection->stream);
			if (rc)
				break;
		}
		rc = take(&receiver, message);
		if (!rc && answers)
			rc = answer(&receiver, message);
		message += !rc;
	}
	receiver_close(&receiver);
	if (message > warmup)
		outcome->messages = (message - warmup) * (answers ? 2 : 1);
	outcome->bytes = outcome->messages * receiver.options->bytes;
	outcome->reads = connection->stream.reads;
	return rc < 0 ? rc : 0;
}
