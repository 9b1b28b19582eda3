/* SPDX-License-Identifier: MIT */
/*
 * While a process doubles, connections neither begin nor end in it. A fork prepares one after the other: one that began behind
 * its back would be held by two processes that know nothing of each other, and one that ended would have an heir that never comes,
 * for whom its doorbells are left in the stream. Whoever opens or closes a connection meanwhile waits for the fork, which waits
 * for those that are at it.
 *
 * The same holds for the loader's work in the background (far_agent.c), for which the end of a process waits, too (far_open.c).
 *
 * Nobody waits who has a lock of the library's already. Who forks has one: what a program does in handlers of pthread_atfork() is
 * part of the fork.
 */
#ifndef ZC_PRELOAD_GATE_H
#define ZC_PRELOAD_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* Around what begins or ends a connection. Never waits for more than a fork. */
void gate_enter(void);
void gate_leave(void);

/* Around a fork, by one thread at a time. In the child nobody is inside but the caller. */
void gate_close(void);
void gate_open(bool child);

/* Until those that are inside have left, or for that many ns. Others may come meanwhile. */
void gate_await(uint64_t ns);

/* In the child of a fork that nobody has seen, before gate_open(): whether another thread of the parent's was inside. */
bool gate_has_others(void);

#endif
