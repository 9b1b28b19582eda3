/* SPDX-License-Identifier: MIT */
/*
 * What a broken queue pair owes to TCP when the program closes the connection, or shuts it down for sending. Of its own bytes the kernel
 * goes on sending behind that what it has accepted; of these it has not accepted all, as the socket is full. So the agent goes on with them
 * through a descriptor of its own. The connection's lanes have ended by then: what is left are bytes.
 *
 * Should the process end before the kernel has them all, the peer knows by FAR_RESUME that bytes are missing. One that is closed stays open until the
 * peer has acknowledged all: what the peer's library says by TCP meanwhile would be answered by a reset, which throws away what is under way.
 */
#ifndef ZC_PRELOAD_FAR_LINGER_H
#define ZC_PRELOAD_FAR_LINGER_H

#include "preload/engine.h"

enum far_linger_how {
	FAR_LINGER_CLOSE, /* the caller closes the descriptor, and has taken it out of all sets */
	FAR_LINGER_SHUT,  /* the caller does not shut the socket down for sending: the agent does */
	FAR_LINGER_EXIT,  /* far_linger_end() follows, for all of them together */
};

/* Whether the lane owes something to TCP, or is about to. Under no lock of the engine's. */
bool far_may_linger(struct engine *engine);

/*
 * Sends what is owed, or has the agent go on with it; or leaves it where the kernel would throw it away: a close with unread bytes, or with SO_LINGER and
 * no time. Waits for the peer's word about a move, at most 50 ms, and not for room. Under no lock of the engine's. Returns false if none of
 * that can be: no agent, memory or descriptor, SO_LINGER says how long to wait, or others may have the socket; then nothing has changed.
 */
bool far_linger(struct conn *conn, struct engine *engine, int fd, enum far_linger_how how);

/* Whether somebody's bytes go on without it. */
bool far_lingers(void);

/* How long what is owed is waited for. */
struct far_hope {
	uint64_t begun, since; /* ns; 0: now */
	uint64_t progress;     /* any number that changes with it */
};

/*
 * Returns whether to go on: bytes have gone within a second, or the network does not answer (`silent`), which may pass; and ten seconds are not over.
 */
bool far_hopes(struct far_hope *hope, uint64_t progress, bool silent);

/* Bytes that TCP has, and that the peer has not acknowledged. */
uint64_t far_under_way(int fd);

/* Whether the peer's host does not acknowledge what TCP sends. */
bool far_is_silent(int fd);

/* Before the process ends, or becomes another: waits while there is hope. What the program sends behind that, it may. */
void far_linger_end(void);

/* The agent: its set of descriptors, in which an event whose data is the marker is for far_linger_step(). */
void far_linger_begin(int set, void *marker);

/* The agent, inside the gate. Returns in how many ms it is to come again with no event, or -1. */
int far_linger_step(void);

/* In the child of a fork. */
void far_linger_after_fork(void);

#endif
