/* SPDX-License-Identifier: MIT */
/* verbs-peer, mode `break`: what both ends do when the connection breaks. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "rdma/verbs_replay.h"
#include "tests/vm/programs/verbs_peer.h"

static void settle(struct verbs_positions *at)
{
	uint64_t until = clock_now() + PATIENCE_MS * 1000000ull;

	for (self.verbs->positions(self.conn, at); !at->settled; self.verbs->positions(self.conn, at)) {
		if (clock_now() > until)
			die("broken, but nothing settles");
		self.verbs->woke(self.conn);
	}
	while (take(true))
		;
	self.verbs->positions(self.conn, at);
}

/* Behind the break: the rest by the socket, of what the ring has kept and then of what is new. */
static void send_rest(uint64_t from)
{
	while (from < self.bytes) {
		uint8_t bytes[4096];
		ssize_t got = from < self.sent ? verbs_replay(self.out, NULL, from, bytes, sizeof(bytes)) : 0;

		if (got < 0 || (!got && from < self.sent))
			die("replay from %llu: %zd", (unsigned long long)from, got);
		if (got) {
			must_match(bytes, (size_t)got, from);
		} else {
			got = (ssize_t)(self.bytes - from < sizeof(bytes) ? self.bytes - from : sizeof(bytes));
			memcpy(bytes, pattern_at(from), (size_t)got);
		}
		tell_other(bytes, (size_t)got);
		from += (uint64_t)got;
	}
}

static void receive_rest(void)
{
	while (self.received < self.bytes) {
		uint64_t left = self.bytes - self.received;
		size_t part = left < 4096 ? left : 4096;

		if (!hear_other(scratch, part))
			die("the other end is gone at %llu", (unsigned long long)self.received);
		must_match(scratch, part, self.received);
		self.received += part;
	}
}

void break_and_go_on(void)
{
	uint64_t theirs, from = clock_now();
	struct verbs_positions at;

	exchange(self.bytes, self.bytes);
	while (!self.broken) {
		sleep_for(VERBS_IN);
		self.broken = self.verbs->poll(self.conn) == -ENOTCONN;
	}
	settle(&at);
	if (at.confirmed > at.delivered || at.delivered > at.written || at.written > at.sent ||
	    at.received != self.received || at.sent != self.sent)
		die("positions: %llu %llu %llu %llu", (unsigned long long)at.confirmed,
		    (unsigned long long)at.delivered, (unsigned long long)at.written, (unsigned long long)at.sent);
	printf("{\"end\":\"%s\",\"trouble\":\"%s\",\"sent\":%llu,\"written\":%llu,\"delivered\":%llu,\"confirmed\":%llu,"
	       "\"received\":%llu,\"seconds\":%.2f",
	       self.name, trouble(), (unsigned long long)at.sent, (unsigned long long)at.written,
	       (unsigned long long)at.delivered, (unsigned long long)at.confirmed, (unsigned long long)at.received,
	       (double)(clock_now() - from) / 1e9);
	self.verbs->close(self.conn);
	self.conn = NULL;
	if (write(self.other, &at.received, sizeof(at.received)) < 0 || !hear_other(&theirs, sizeof(theirs))) {
		printf(",\"alone\":true}\n");
		return;
	}
	if (theirs < at.delivered || theirs > at.written)
		die("the other end has %llu", (unsigned long long)theirs);
	/* One after the other: a socket holds less than the rest. */
	if (self.accepting)
		receive_rest();
	send_rest(theirs);
	if (!self.accepting)
		receive_rest();
	printf(",\"theirs\":%llu,\"whole\":true}\n", (unsigned long long)theirs);
}
