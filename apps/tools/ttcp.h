/* SPDX-License-Identifier: MIT */
/*
 * zc-ttcp: a ttcp in the classic manner, transmit and receive ends, with the traffic patterns by which sockets over
 * zero-copy transports are told apart as modes.
 */
#ifndef ZC_TOOLS_TTCP_H
#define ZC_TOOLS_TTCP_H

#include "apps/tools/client.h"
#include "apps/tools/option.h"
#include "apps/tools/server.h"

enum { MODE_STREAM, MODE_PING_PONG, MODE_OVERLAP, MODE_TOUCH, MODE_HOT_SPOT, MODE_MULTI_STREAM, MODE_MULTI_CLIENT };
enum { TOUCH_ALL, TOUCH_PAGE };

struct ttcp_options {
	struct shared_options shared;
#include "apps/tools/option_fields.h"
#include "apps/tools/ttcp.def"
};

/* Returns whether messages come back. */
bool ttcp_answers(const struct ttcp_options *options);

/* The buffers of one end of a connection, used in turn; each begins --offset-bytes behind a page's beginning. */
struct buffers {
	char **at;
	uint64_t count;
	uint64_t bytes;
	char *memory;
};

/* Returns the memory that a buffer takes: whole pages. */
size_t buffers_stride(const struct ttcp_options *options);
int buffers_open(struct buffers *buffers, const struct ttcp_options *options, struct fault *fault);
void buffers_close(struct buffers *buffers);
static inline char *buffers_get(const struct buffers *buffers, uint64_t message)
{
	return buffers->at[message % buffers->count];
}

/*
 * What a message holds. With --verify: a pattern of its own, except in mode touch, where a buffer keeps what it holds until
 * it is touched: there messages of the same window that share a buffer are alike.
 */
void content_begin(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern);

/* Prepares `message` before it is sent. */
void content_fill(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern,
		  uint64_t message);

/* After `message` was sent: in mode touch, writes to all buffers if its window is over. */
void content_touch(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern,
		   uint64_t message);

/* Checks `message` in its buffer. */
bool content_check(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern,
		   uint64_t message, struct mismatch *wrong);

int ttcp_receive(struct connection *connection);
int ttcp_transmit(const struct tool *tool, const struct ttcp_options *options);

#endif
