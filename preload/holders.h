/* SPDX-License-Identifier: MIT */
/*
 * The processes that hold a connection together, after forks: how many they are, and, as far as there is room, who. A process
 * that is killed does not count itself out; whoever has to know whether it is the last does that for it.
 *
 * A place is taken before the fork, without a number, and both processes enter the child's as soon as they know it: a child
 * counts from before it exists, and is known even if it is killed before it has done anything. What is in doubt counts as alive
 * (a child whose parent was killed in the middle of the fork; a number that another process has by now; holders that found no
 * place): then the end of the connection is what it would be if the process still held it.
 */
#ifndef ZC_PRELOAD_HOLDERS_H
#define ZC_PRELOAD_HOLDERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HOLDERS_KNOWN 16

/* In memory that all of them share. */
struct holders {
	_Atomic uint32_t count;	 /* processes; the only one: 1 */
	_Atomic uint32_t places; /* given out so far */
	_Atomic bool far;	 /* they are in several pid namespaces: a number means nobody, or another */
	_Atomic uint64_t known[HOLDERS_KNOWN]; /* number of the place, then of the process, 0: not known yet; 0: free */
};

/* What one process knows of its place, or of its child's. Zeroes: it has none. One that does not count any more may have it yet. */
struct holder {
	bool counts;
	uint8_t at; /* HOLDERS_KNOWN: no place was free */
	uint32_t place;
};

/* One process alone. */
struct holder holders_start(struct holders *holders, int process);

/* One more, who is to be named, or is not there after all. */
struct holder holders_expect(struct holders *holders);
void holders_name(struct holders *holders, const struct holder *holder, int process);

/* It holds the connection no longer. Returns whether it was the last one. It has its place yet, and may touch what they share; */
bool holders_leave(struct holders *holders, struct holder *holder);

/* so it may hold the connection after all. */
void holders_return(struct holders *holders, struct holder *holder, int process);

/* Behind holders_leave(): it gives up its place. Nothing of what they share may be touched then, which may be another connection's. */
void holders_forget(struct holders *holders, struct holder *holder);

/* Returns how many there are, without those that have died. A system call, or some, where there are others. */
uint32_t holders_alive(struct holders *holders, const struct holder *self);

/*
 * Whether nobody holds the connection, and nobody who did may touch what they share. `asks`: those that have died are told from the others,
 * by some system calls for the first that lives. Who has found no place is known as long as it counts.
 */
bool holders_are_none(struct holders *holders, bool asks);

#endif
