/* SPDX-License-Identifier: MIT */
/* The kernel's zerocopy notices, and what is learnt from them: pauses of the path. All under the connection's lock. */
#ifndef ZC_PRELOAD_NOTICE_H
#define ZC_PRELOAD_NOTICE_H

#include <stdbool.h>
#include <sys/socket.h>

#include "preload/conn.h"
#include "rdma/guard.h"

/* One MSG_ZEROCOPY send that the kernel has not reported complete. */
struct zerocopy_send {
	struct guard_record *record; /* NULL: no longer guarded, the notice is still to come */
	size_t bytes;
	bool done;
};

/* A range of completed sends, both ends included. */
struct notice {
	uint32_t first, last;
	bool copied;
};

/* Reads a notice out of a message from the error queue. Returns false if it is something else. */
bool notice_parse(struct msghdr *message, struct notice *out);

/* Books a range of sends as complete: their pages are free. Numbers that are not outstanding are not ours. */
void notice_complete(struct conn *conn, const struct notice *notice);

/* Pauses the path for a number of sends that doubles with each pause. */
void notice_pause(struct conn *conn, enum stat_reason why);

/* Returns what to count for what guard_protect() has said. */
enum stat_reason notice_protect_reason(int error);

/* Returns whether too many buffers were rewritten while under guard, and starts a new count. */
bool notice_faulting(struct conn *conn);

/*
 * Filters what the program reads from the error queue itself after zc had used it: drops our notices, and numbers the
 * program's from 0. Returns false for a message to be dropped.
 */
bool notice_for_program(struct conn *conn, struct msghdr *message);

#endif
