/* SPDX-License-Identifier: MIT */
/*
 * What is done around a fork, whatever makes it: what is held leaves first, the connections are still, and nothing is under guard;
 * then parent and child both hold them. The calls are in calls_fork.c and, by the system call's number, in calls_process.c.
 */
#ifndef ZC_PRELOAD_FORK_H
#define ZC_PRELOAD_FORK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Once, as early as can be. */
void fork_start(void);

/* Returns the number of the fork. */
uint64_t fork_begins(void);

/* In the parent and in the child, with what the fork has returned, which it returns; errno is kept. */
pid_t fork_ends(pid_t child, uint64_t fork);

#define FORK(call)                                                                                                     \
	({                                                                                                             \
		uint64_t fork_ = fork_begins();                                                                        \
		fork_ends((pid_t)(call), fork_);                                                                       \
	})

/* In the child of a fork that was not seen (unseen.h). */
void fork_was_unseen(void);

/* In a child: what it takes to create threads (calls_thread.c). */
void threads_after_fork(void);

/* Whether a system call makes a child with a copy of all memory, which goes on where the parent does. */
bool fork_by_syscall(long number, const long *arguments);

#endif
