/* SPDX-License-Identifier: MIT */
/*
 * zc-msg: a client asks for messages, the server answers each request with one of 8 fields, every field a heap
 * allocation of its own. What is compared is how the server puts such a message on the wire.
 */
#ifndef ZC_TOOLS_MSG_H
#define ZC_TOOLS_MSG_H

#include "apps/tools/client.h"
#include "apps/tools/option.h"
#include "apps/tools/server.h"

#define MSG_FIELDS 8
#define MSG_REQUEST_BYTES 64

enum { VARIANT_FLAT, VARIANT_FIELDS, VARIANT_IOVEC, VARIANT_ZEROCOPY };
enum { RECEIVE_MESSAGE, RECEIVE_FIELDS };

struct msg_options {
	struct shared_options shared;
#include "apps/tools/option_fields.h"
#include "apps/tools/msg.def"
};

/* What a client asks with; the rest is zero. Network byte order. */
struct msg_request {
	uint64_t number;
	uint8_t rest[MSG_REQUEST_BYTES - sizeof(uint64_t)];
};

int msg_serve(struct connection *connection);
int msg_measure(const struct tool *tool, const struct msg_options *options);

#endif
