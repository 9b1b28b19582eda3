/* SPDX-License-Identifier: MIT */
/* The receiving side of an engine, between its own files: doorbells and sleepers. */
#ifndef ZC_PRELOAD_ENGINE_IN_H
#define ZC_PRELOAD_ENGINE_IN_H

#include "preload/engine.h"

/*
 * Takes the doorbells that are due from the stream, after a look at the ring. While somebody sleeps in the kernel for this
 * lane, they stay there as long as there are bytes in the ring: to the kernel they are its readability. Under the lock.
 */
void engine_strip(struct conn *conn, struct engine *engine, int fd);

/* The program is to be told that there is nothing: a wait that we do not see must end when there is. Returns false: look again. */
bool engine_arm(struct conn *conn, struct engine *engine);

/* Nobody sleeps for the lane any more, as far as the caller goes: no doorbell until somebody does again. */
void engine_disarm(struct conn *conn, struct engine *engine);

/* Whether somebody may sleep in the kernel for this lane: a thread in a receive or a poll, or in an epoll set. */
bool engine_is_watched(const struct conn *conn, const struct engine *engine);

/* Whether spinning for the lane may pay now; some looks at it: whether there is something; and how the spinning has ended. */
bool engine_may_spin(struct engine *engine);
bool engine_spin_once(struct conn *conn, struct engine *engine);
void engine_has_spun(struct spin *spin, const struct engine *engine, bool paid);

/* A few looks of a receive that would wait, if its socket was one that waits. Returns whether there is something. */
bool engine_glance(struct conn *conn, struct engine *engine, int flags);

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield");
#endif
}

/* Before the next look at the clock or at a line that is another's. */
static inline void cpu_relax_some(void)
{
	for (int i = 0; i < 16; i++)
		cpu_relax();
}

#endif
