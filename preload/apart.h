/* SPDX-License-Identifier: MIT */
/*
 * Work whose descriptors the program does not see come and go. Libraries that open a device hold some for long, with the lowest free
 * numbers: a program that counts on those (POSIX: an open returns the lowest one) would get others, and one that closes all that
 * it does not know, and opens its own, would have the libraries close those, by number. So the work is another thread's, with a table of descriptors of its own
 * (close_range(2), CLOSE_RANGE_UNSHARE; Linux 5.9), where the library's own descriptors are, by the same numbers, and no other.
 * What stays is handed over, which takes one of the program's numbers for a moment, two system calls long.
 */
#ifndef ZC_PRELOAD_APART_H
#define ZC_PRELOAD_APART_H

#include <stdbool.h>

/* Before the first work, in a thread of the program's; opens two descriptors. Without it, work is done in the caller's table. */
void apart_prepare(void);

/* In the child of a fork: it is as before apart_prepare(). */
void apart_after_fork(void);

/*
 * Does body(arg) and returns then; by one thread at a time, the agent. In the caller's table where a table of its own can't be
 * had (no room, an old kernel, a filter of system calls), or would be dear, as the library has many descriptors.
 */
void apart_run(void (*body)(void *arg), void *arg);

/*
 * For the body, and as well for who has none: what is opened, and to stay, becomes the library's own, out of the program's way.
 * Ownership: fd's number is the callee's. Returns the number from here on, the same in both tables; fd itself if it is kept already; -1: there is no room.
 */
int apart_keep(int fd);

/* What is kept is about to be closed: by its number, here or in the body. */
void apart_drop(int fd);

/* The kept number becomes another descriptor of what fd is. */
void apart_put(int fd, int number);

#endif
