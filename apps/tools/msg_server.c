/* SPDX-License-Identifier: MIT */
/* zc-msg's server: one connection, its message, and the four ways to send it. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "apps/tools/msg.h"
#include "apps/tools/zerocopy.h"
#include "common/clock.h"

struct sender {
	struct connection *connection;
	const struct msg_options *options;
	size_t field_bytes;
	char *field[MSG_FIELDS]; /* separate allocations: that is the point */
	char *flat;
	struct zerocopy zerocopy;
};

static int sender_open(struct sender *sender, struct connection *connection)
{
	struct fault *fault = &connection->outcome->fault;
	int rc;

	sender->connection = connection;
	sender->options = connection->values;
	sender->field_bytes = sender->options->field_bytes;
	for (int i = 0; i < MSG_FIELDS; i++) {
		sender->field[i] = malloc(sender->field_bytes);
		if (!sender->field[i])
			return fault_errno(fault, ENOMEM, "no memory for a field of %zu bytes", sender->field_bytes);
		memset(sender->field[i], 'a' + i, sender->field_bytes);
	}
	if (sender->options->variant == VARIANT_FLAT) {
		sender->flat = malloc(MSG_FIELDS * sender->field_bytes);
		if (!sender->flat)
			return fault_errno(fault, ENOMEM, "no memory for a message of %zu bytes",
					   MSG_FIELDS * sender->field_bytes);
	}
	if (sender->options->variant == VARIANT_ZEROCOPY) {
		rc = zerocopy_open(&connection->stream);
		if (rc)
			return fault_errno(fault, -rc, "--variant zerocopy: SO_ZEROCOPY is not to be had");
	}
	return 0;
}

static void sender_close(struct sender *sender)
{
	for (int i = 0; i < MSG_FIELDS; i++)
		free(sender->field[i]);
	free(sender->flat);
}

static void vector(const struct sender *sender, struct iovec iov[MSG_FIELDS])
{
	for (int i = 0; i < MSG_FIELDS; i++)
		iov[i] = (struct iovec){ sender->field[i], sender->field_bytes };
}

static int send_flat(struct sender *sender, size_t *done)
{
	for (size_t i = 0; i < MSG_FIELDS; i++)
		memcpy(sender->flat + i * sender->field_bytes, sender->field[i], sender->field_bytes);
	return stream_send(&sender->connection->stream, sender->flat, MSG_FIELDS * sender->field_bytes, done);
}

static int send_fields(struct sender *sender, size_t *done)
{
	size_t part;
	int rc = 0;

	*done = 0;
	for (int i = 0; i < MSG_FIELDS && !rc; i++, *done += part)
		rc = stream_send(&sender->connection->stream, sender->field[i], sender->field_bytes, &part);
	return rc;
}

static int send_iovec(struct sender *sender, size_t *done)
{
	struct iovec iov[MSG_FIELDS];

	vector(sender, iov);
	return stream_push(&sender->connection->stream, CALL_SENDMSG, iov, MSG_FIELDS, done);
}

/* The fields are the kernel's until the completions are in; the next message needs them. */
static int send_zerocopy(struct sender *sender, size_t *done)
{
	struct iovec iov[MSG_FIELDS];
	struct stream *stream = &sender->connection->stream;

	vector(sender, iov);
	return zerocopy_push(stream, &sender->zerocopy, iov, MSG_FIELDS, done);
}

static int (*const sends[])(struct sender *sender, size_t *done) = {
	[VARIANT_FLAT] = send_flat,
	[VARIANT_FIELDS] = send_fields,
	[VARIANT_IOVEC] = send_iovec,
	[VARIANT_ZEROCOPY] = send_zerocopy,
};

static void fill(struct sender *sender, uint64_t message)
{
	struct connection *connection = sender->connection;
	struct pattern pattern = { connection->session_id, connection->index, PATTERN_TO_CLIENT };

	for (uint32_t i = 0; i < MSG_FIELDS; i++)
		pattern_fill(sender->field[i], sender->field_bytes, pattern_seed(&pattern, message, i));
}

/* Answers request `message`. Returns 0 or -errno with the fault set. */
static int answer(struct sender *sender, uint64_t message)
{
	struct connection *connection = sender->connection;
	struct outcome *outcome = connection->outcome;
	bool is_measured = message >= connection->shared->warmup;
	size_t done = 0;
	uint64_t before;
	/* Before the fields are used again, not after they were sent: the client's next request is on its way meanwhile. */
	int rc = zerocopy_settle(&connection->stream, &sender->zerocopy);

	if (!rc && connection->shared->verify)
		fill(sender, message);
	before = clock_now();
	if (!rc)
		rc = sends[sender->options->variant](sender, &done);
	if (rc)
		return fault_in_message(&outcome->fault, rc, "sent", message, done, MSG_FIELDS * sender->field_bytes);
	if (is_measured) {
		hist_record(&outcome->latency, clock_now() - before);
		outcome->messages++;
		outcome->bytes += done;
	}
	return 0;
}

/* Returns 0, 1 at the client's end of file, or -errno with the fault set. */
static int take_request(struct sender *sender, uint64_t message)
{
	struct connection *connection = sender->connection;
	struct msg_request request;
	size_t done;
	int rc = stream_receive(&connection->stream, CALL_RECV, &request, sizeof(request), &done);

	if (rc > 0 && !done)
		return 1;
	if (rc)
		return fault_in_message(&connection->outcome->fault, rc, "received (a request)", message, done,
					sizeof(request));
	if (be64toh(request.number) == message)
		return 0;
	return fault_set(&connection->outcome->fault, EPROTO, "request %llu arrived where %llu was due",
			 (unsigned long long)be64toh(request.number), (unsigned long long)message);
}

int msg_serve(struct connection *connection)
{
	struct sender sender = { 0 };
	struct outcome *outcome = connection->outcome;
	int rc = sender_open(&sender, connection);

	for (uint64_t message = 0; !rc; message++) {
		if (message == connection->shared->warmup) {
			connection->stream.reads = 0;
			outcome->zerocopy_sends = sender.zerocopy.sends;
			outcome->zerocopy_copied = sender.zerocopy.copied;
		}
		rc = take_request(&sender, message);
		if (!rc)
			rc = answer(&sender, message);
	}
	if (rc > 0)
		rc = zerocopy_settle(&connection->stream, &sender.zerocopy);
	outcome->reads = connection->stream.reads;
	outcome->zerocopy_sends = sender.zerocopy.sends - outcome->zerocopy_sends;
	outcome->zerocopy_copied = sender.zerocopy.copied - outcome->zerocopy_copied;
	sender_close(&sender);
	return rc;
}
