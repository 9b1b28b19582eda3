/* SPDX-License-Identifier: MIT */
/*
 * Memory of idle connections. What was written to a ring, or kept in its area for sources, stays in memory until somebody gives
 * it back: the producer, for only it writes there, once the ring is empty and nothing was sent for a while (ZC_IDLE_MS).
 *
 * There is no thread for it. Connections that have sent stand in a list of the process; threads that are about to sleep in the
 * kernel look through it, all together once in that time. Whoever sleeps first while there is something to look at later
 * does so no longer than until then. So an active connection costs one load for a send, and an idle process wakes twice
 * after the last of its sends, and then no more.
 */
#ifndef ZC_PRELOAD_TRIM_H
#define ZC_PRELOAD_TRIM_H

#include "preload/conn.h"

/* Something was put in the ring of the connection's own lane. Under the engine's lock `out`. */
void trim_list(struct conn *conn);

static inline void trim_note(struct conn *conn)
{
	if (__builtin_expect(!atomic_load_explicit(&conn->moved, memory_order_relaxed), 0))
		trim_list(conn);
}

/*
 * Before a sleep in the kernel that ends at `until` (UINT64_MAX: never). Returns when it has to end at the latest: then the
 * wait comes here again and goes on. Threads: no lock is held.
 */
uint64_t trim_before_sleep(uint64_t until);

/*
 * The same before a receive that waits, which can't end in time as a poll can: sleeps here instead, while that has to end. Returns 1
 * if there is something to look at, 0 if the receive may sleep, or has to say what there is, or -EINTR. A cancellation point.
 */
int trim_in_sleep(int fd);

/* In the child of a fork: the list is the parent's. */
void trim_after_fork(void);

#endif
