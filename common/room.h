/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that the library opens are of the program's own number, which RLIMIT_NOFILE bounds. So it opens none where the
 * program has few left, and gives up what it can do without before the program comes to its limit (preload/spare.h).
 */
#ifndef ZC_COMMON_ROOM_H
#define ZC_COMMON_ROOM_H

#include <stdatomic.h>
#include <stdbool.h>

#define ROOM_KEPT 16 /* numbers that are left free for the program, at least */

/*
 * Whether the library may open some descriptors: ROOM_KEPT numbers below the limit are free. The limit is asked for each time, as
 * another process may change it; no number is used for finding out, as it may be the last.
 */
bool room_for_own(void);

/* A program that is given this number, or a higher one, has little room left. INT_MAX: the library has taken nothing that matters. */
extern _Atomic int room_edge;

/* So many descriptors of the library's may wait for others to come, of all that the limit allows. */
#define ROOM_SHARE 8 /* one in */
extern _Atomic int room_for_meetings;

/* Whether a number that the program was just given is the first one that tells of little room. */
static inline bool room_ends_at(int fd)
{
	return __builtin_expect(fd >= atomic_load_explicit(&room_edge, memory_order_relaxed), 0);
}

#endif
