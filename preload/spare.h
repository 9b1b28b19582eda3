/* SPDX-License-Identifier: MIT */
/*
 * A program that has used up its descriptors gets those of the library: a call that would not have failed without it must not fail with
 * it. Given up are meetings that are under way (those connections stay on TCP) and the segment of statistics (which is counted
 * on, and not to be seen). What is opened later leaves the program room (common/room.h), so that it is not taken away again.
 */
#ifndef ZC_PRELOAD_SPARE_H
#define ZC_PRELOAD_SPARE_H

#include <stdbool.h>

#include "common/room.h"

/* Gives up what the library can do without. Returns whether there was anything. Under no lock; keeps errno. */
bool spare_all(void);

/*
 * After a call that makes a descriptor: whether it has failed for want of one and is to be made again. `tries`: how often that was
 * so. Once in any case: what a meeting of another thread had open for a moment is closed by now.
 */
bool spare_again(long result, int tries);

/* The program has been given a descriptor: calls that nobody sees, open() or pipe(), may take the rest of them. */
static inline void spare_before(int fd)
{
	if (room_ends_at(fd))
		spare_all();
}

/* Makes a call that makes a descriptor, and again. */
#define SPARE_CALL(call)                                                                                               \
	({                                                                                                             \
		int spare_tries = 0;                                                                                   \
		__typeof__(call) spare_result;                                                                         \
                                                                                                                       \
		do {                                                                                                   \
			spare_result = (call);                                                                         \
		} while (__builtin_expect(spare_result < 0, 0) && spare_again(spare_result, spare_tries++));           \
		spare_before((int)spare_result);                                                                       \
		spare_result;                                                                                          \
	})

#endif
