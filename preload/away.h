/* SPDX-License-Identifier: MIT */
/*
 * When a lane is better left on TCP for a while. A ring pays when both ends use it: a receiver whose bytes come by the ring finds
 * them without a call, and its own sends acknowledge nothing that TCP would have to. Two kinds of connection never get there:
 *
 * - What this end sends goes by turns by the ring and by the kernel, since the kernel alone serves some of the program's sends
 *   (its own MSG_ZEROCOPY, MSG_OOB): each turn is a SWITCH and a TAKEOVER.
 * - The peer answers by TCP, always: it sleeps for each request, so that the ring needs a doorbell for each, and each answer an
 *   acknowledgement of its own.
 *
 * Such a lane sends some by TCP, then tries the ring again, ever more seldom. Pure bookkeeping, under the lock `out` but for
 * away_came().
 */
#ifndef ZC_PRELOAD_AWAY_H
#define ZC_PRELOAD_AWAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define AWAY_CAME_RAW 1u
#define AWAY_CAME_BY_RING 2u

/* Zeroes are a beginning. */
struct away {
	uint32_t left;	/* sends that TCP has yet */
	uint32_t spell; /* how many it had the last time */
	uint32_t puts;	/* since the lane is on the ring */
	uint32_t answered, interrupted;
	_Atomic uint32_t came; /* since the last put */
};

/* The program has received. Under the lock `in`. */
static inline void away_came(struct away *away, uint32_t what)
{
	if (!(atomic_load_explicit(&away->came, memory_order_relaxed) & what))
		atomic_fetch_or_explicit(&away->came, what, memory_order_relaxed);
}

/* A send, with the lane on TCP. Returns whether it stays there for this one. */
static inline bool away_stays(struct away *away)
{
	return away->left && away->left--;
}

/* Against 1 for a send without an answer: requests in two pieces are requests, streams are none. */
#define AWAY_ANSWERED_RAW 2u
#define AWAY_ANSWERED_MAX 32u /* sends that were answered by TCP, less the others, with which it goes */

/* Whether the next put can't be the one with which it goes. */
static inline bool away_is_far(const struct away *away)
{
	return away->answered + AWAY_ANSWERED_RAW < AWAY_ANSWERED_MAX;
}

/* The lane moves to the ring. */
void away_ends(struct away *away);

/* A send, with the lane on the ring. Returns whether it is to leave that for a while. */
bool away_at_put(struct away *away);

/* The lane leaves the ring for a send that only the kernel serves. */
void away_interrupted(struct away *away);

#endif
