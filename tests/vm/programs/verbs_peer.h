/* SPDX-License-Identifier: MIT */
/* What the parts of verbs-peer share: one end of the connection, and how it moves bytes. */
#ifndef ZC_TESTS_VM_VERBS_PEER_H
#define ZC_TESTS_VM_VERBS_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdma/channel.h"
#include "rdma/verbs.h"

#define RING_BYTES (1u << 20)
#define PATTERN_BYTES 65521u /* prime: no alignment hides a wrong offset */
#define CHUNK_MAX (1u << 20)
#define EXPOSED_BYTES (8u << 20)
#define PATIENCE_MS 12000

struct end {
	const char *name, *mode, *command;
	uint64_t bytes, message_bytes;
	const struct verbs_table *verbs;
	struct verbs_conn *conn;
	struct channel channel;
	struct lane *out, *in;
	int other; /* the socket to the other end */
	bool accepting, broken;
	uint64_t sent, received;
};

extern struct end self;
extern uint8_t scratch[CHUNK_MAX];

/* Ends the program with a message. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* What belongs to a position of each stream. */
const uint8_t *pattern_at(uint64_t position);
void must_match(const uint8_t *bytes, size_t count, uint64_t position);

/* Returns why the connection is broken. */
const char *trouble(void);

/* Sleeps until one of `what` is found; in mode `break` also until the other end has told something. */
void sleep_for(unsigned int what);

/* By the socket between the ends. hear_other returns false if the other end is gone. */
void tell_other(const void *bytes, size_t count);
bool hear_other(void *bytes, size_t count);

/* Takes what is in the lane in. Returns how many. */
size_t take(bool compare);

/* Sends and receives so many until both are done or the connection breaks. */
void exchange(uint64_t out, uint64_t in);

void break_and_go_on(void);

#endif
