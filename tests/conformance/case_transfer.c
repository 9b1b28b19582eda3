/* SPDX-License-Identifier: MIT */
/*
 * Every way to send with every way to receive, blocking, non-blocking and with timeouts. The client sends a round of bytes, the
 * server takes and checks them and answers with one byte; so each round is also a request and a reply. On non-blocking
 * descriptors both wait in a way that changes from round to round.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/time.h>

#include "cases.h"
#include "end.h"
#include "movers.h"

#define LARGEST 200001

static const size_t sizes[] = { 1, 7, 1460, 4096, 8192, 65536, LARGEST };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct transfer {
	int fd;
	enum transfer_mode mode;
	const struct sender *sender;
	unsigned int turn; /* for the way of waiting */
	uint64_t sent, received;
};

static void wait_turn(struct transfer *transfer, short events)
{
	const struct waiter *waiter = &waiters[transfer->turn++ % WAITERS_IN_TURN];
	int told = waiter->wait(transfer->fd, events, -1);

	if (told & ~events)
		note_wrong("%s for %s told %s", waiter->name, event_names((uint32_t)events),
			   event_names((uint32_t)told));
}

static void send_round(struct transfer *transfer, char *data, size_t bytes)
{
	size_t done = 0;

	pattern_fill(data, bytes, 1, transfer->sent);
	while (done < bytes) {
		ssize_t rc = transfer->sender->move(transfer->fd, data + done, bytes - done);

		if (rc > 0)
			done += (size_t)rc;
		else if (!rc || errno != EAGAIN)
			die("%s after %zu of %zu: %s", transfer->sender->name, done, bytes, errno_name(errno));
		else if (transfer->mode == TRANSFER_NONBLOCKING)
			wait_turn(transfer, POLLOUT);
	}
	transfer->sent += bytes;
}

static void take_round(struct transfer *transfer, const struct receiver *receiver, char *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t rc = receiver->move(transfer->fd, data, bytes - done);

		if (rc > 0) {
			if (!pattern_check(data, (size_t)rc, 1, transfer->received))
				die("%s", receiver->name);
			done += (size_t)rc;
			transfer->received += (uint64_t)rc;
		} else if (!rc || errno != EAGAIN) {
			die("%s after %zu of %zu: %s", receiver->name, done, bytes, errno_name(errno));
		} else if (transfer->mode == TRANSFER_NONBLOCKING) {
			wait_turn(transfer, POLLIN);
		}
	}
}

static void prepare(struct transfer *transfer)
{
	struct timeval time = { .tv_usec = 5000 };

	/* Without it a round in pieces waits for delayed acknowledgements, 40 ms each. */
	MUST(setsockopt(transfer->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	if (transfer->mode == TRANSFER_NONBLOCKING)
		set_nonblocking(transfer->fd, true);
	if (transfer->mode != TRANSFER_TIMEOUTS)
		return;
	MUST(setsockopt(transfer->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	MUST(setsockopt(transfer->fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
}

/* The reply is one byte, taken in the mode of the connection. */
static void take_reply(struct transfer *transfer)
{
	char reply = 0;

	for (;;) {
		ssize_t rc = recv(transfer->fd, &reply, 1, 0);

		if (rc == 1)
			break;
		if (!rc || errno != EAGAIN)
			die("reply: %s", rc ? errno_name(errno) : "end of file");
		if (transfer->mode == TRANSFER_NONBLOCKING)
			wait_turn(transfer, POLLIN);
	}
	if (reply != '+')
		note_wrong("reply %#x", (unsigned char)reply);
}

static void rounds(struct transfer *transfer, struct end *end, const struct receiver *receiver)
{
	/* Whole pages for the larger rounds, off by some bytes for the smaller. */
	char *data = aligned_alloc(4096, (LARGEST + 8191) & ~4095ul);

	for (size_t i = 0; i < SIZES; i++) {
		if (end->server) {
			take_round(transfer, receiver, data + i % 3, sizes[i]);
			give(transfer->fd, "+", 1);
		} else {
			send_round(transfer, data + i % 3, sizes[i]);
			take_reply(transfer);
		}
	}
	free(data);
	note("%s: %llu so far", receiver->name,
	     (unsigned long long)(end->server ? transfer->received : transfer->sent));
}

void transfer(struct end *end, long argument)
{
	struct transfer transfer = { .mode = TRANSFER_MODE(argument), .sender = &senders[TRANSFER_SENDER(argument)] };

	meet(end);
	transfer.fd = end->fd;
	prepare(&transfer);
	for (int r = 0; r < RECEIVER_COUNT; r++) {
		if (!receivers[r].unseen && (!receivers[r].blocking_only || transfer.mode == TRANSFER_BLOCKING))
			rounds(&transfer, end, &receivers[r]);
	}
	MUST(shutdown(end->fd, SHUT_WR));
	take_to_end(end->fd, 0, 0);
}

/* A receiver of which no library sees anything, from the first byte on. */
void transfer_unseen(struct end *end, long argument)
{
	struct transfer transfer = { .mode = TRANSFER_BLOCKING, .sender = &senders[SENDER_send] };
	char more;

	meet(end);
	transfer.fd = end->fd;
	prepare(&transfer);
	for (int i = 0; i < 3; i++)
		rounds(&transfer, end, &receivers[argument]);
	MUST(shutdown(end->fd, SHUT_WR));
	if (end->server)
		note("then %zd", receivers[argument].move(end->fd, &more, 1));
	else
		take_to_end(end->fd, 0, 0);
}
