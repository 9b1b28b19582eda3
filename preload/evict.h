/* SPDX-License-Identifier: MIT */
/*
 * Leaving the rings. A connection that goes to somebody who knows nothing of lanes (a program that takes this one's place, a
 * process that gets the descriptor, a thread of libc's own) must be plain TCP first, and stay it. What is unread in a ring
 * can't be put into the kernel's buffers: it stays there for whoever is left in this process, and is of no use to others.
 */
#ifndef ZC_PRELOAD_EVICT_H
#define ZC_PRELOAD_EVICT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "preload/engine.h"
#include "preload/far_linger.h"

/* Whether there are bytes that only a user of the ring can receive in their place. Under the lock `in`. */
bool evict_has_rest(const struct engine *engine);

/*
 * Takes the lane of this end's receives back to TCP, for good. `fd` names the socket in this process. Returns whether the
 * stream is all that there is now: if bytes came in the last moment, the engine still serves them. Under the lock `in`.
 */
bool evict_in(struct conn *conn, struct engine *engine, int fd);

/*
 * Whether the peer has not ended its side of the TCP connection, so that bytes may come yet, where a receive tells an end: behind the
 * program's own shutdown(SHUT_RD) it tells one when it finds nothing.
 */
bool evict_may_come(int fd);

/* No TAKEOVER of this end's sends any more. What is owed to TCP is waited for, for a bounded time. Under no lock. */
void evict_out(struct conn *conn, struct engine *engine, int fd);

/* The same where the program's last bytes are behind it; what TCP has no room for, the agent goes on with, if it can. */
void evict_out_at_end(struct conn *conn, struct engine *engine, int fd, enum far_linger_how how);

/*
 * What is unread in the ring, and raw bytes that come before it: takes them into a new channel, whose lane `out` they are in as
 * the last that its sender has put. After evict_in, under the lock `in`. Ownership: channel_close(). Returns 0; -ENOMEM, with all as it
 * was; or -ECONNRESET: bytes are missed, so the connection is reset, for all who hold it, and nothing of it is received any more.
 */
int evict_rest(struct conn *conn, struct engine *engine, int fd, struct channel *out);

/*
 * Ends the connection as by a reset, with the descriptor still open: the peer and whoever holds it find ECONNRESET. What comes
 * next in the stream could not be delivered.
 */
void evict_reset(struct conn *conn, int fd);

/*
 * Before a seccomp filter, which may allow nothing but the calls that the program itself makes: what a ring takes beside them is
 * done here, and from here on the connection is TCP. Under no lock.
 */
void evict_all_of(struct conn *conn);

/*
 * Takes the doorbells that are, or are about to be, in front of everything else from the stream: the kernel shall not find them
 * when nobody can receive any more. Waits a moment for those that are on their way.
 */
void evict_bells(struct engine *engine, int fd);

/*
 * SO_RCVLOWAT: a kernel that wakes nobody for a few bytes does not for a doorbell. Whether a socket of this process may have
 * it; whether this one has; and: it has, so that its receives are TCP's from now on. Under no lock.
 */
extern _Atomic bool low_water_ever;
bool low_water_is_set(int fd);
void low_water_keeps(struct conn *conn, int fd);

/* SO_PEEK_OFF: a ring knows no position to look at. As low_water_ever, and low_water_is_set(). */
extern _Atomic bool peek_offset_ever;
bool peek_offset_is_set(int fd);

#endif
