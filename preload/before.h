/* SPDX-License-Identifier: MIT */
/*
 * What a program does with a TCP socket before it is connected, and what holds for the connection then: it registers the socket in epoll
 * sets, duplicates it, asks for signals (O_ASYNC), or sets options whose notices are its own, on a listening socket, too. A number with
 * registrations or duplicates is TABLE_EARLY; what is kept of them is handed over when the connection begins.
 */
#ifndef ZC_PRELOAD_BEFORE_H
#define ZC_PRELOAD_BEFORE_H

#include <sys/epoll.h>

#include "preload/conn.h"

#define BEFORE_WATCHED 1u
#define BEFORE_TWINS 2u
#define BEFORE_SIGNALS 4u
#define BEFORE_OPTIONS 8u

/* Which of these have ever been done in this process. */
extern _Atomic unsigned int before_seen;

static inline void before_notes(unsigned int what)
{
	if (!(atomic_load_explicit(&before_seen, memory_order_relaxed) & what))
		atomic_fetch_or(&before_seen, what);
}

/* After a successful epoll_ctl(set, op, fd, event) on a number that is no connection. */
void before_ctl(int set, int op, int fd, const struct epoll_event *event);

/* After `to` has become a duplicate of `from`, which is no connection. */
void before_dup(int from, int to);

/* A socket that was there before this library, and may listen: learns of its options. */
void before_inherits(int fd);

/* A connection has just begun; NULL: it is to be left alone. */
void before_opened(struct conn *conn, int fd);

/* The number is about to be closed, or the set. */
void before_closes(int fd);
void before_set_closes(const struct set *set);

/* The program wants SIGIO of a connection: a notice would raise it, and a byte in a ring has to. */
void before_raises(struct conn *conn, int fd);

/* In the child of a fork: locks of threads that are not there are free. */
void before_after_fork(void);

#endif
