/* SPDX-License-Identifier: MIT */
/*
 * A fork by a system call instruction of the program's own: nobody has prepared it. The child notices, by a word in memory that the
 * kernel wipes in a copy of the process; where it is not wiped (vfork, CLONE_VM), the memory is the parent's, too, and nothing in it
 * may be touched. What a child of any fork does for itself is done then, before it takes a lock or uses an engine. What its parent would
 * have done for it was not: the engines that it has inherited don't know it, and may be another connection's by now, so those
 * connections are lost to it. Where they were, it finds sockets that are not connected: no byte of its own goes astray.
 */
#ifndef ZC_PRELOAD_UNSEEN_H
#define ZC_PRELOAD_UNSEEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uint32_t *unseen_word;

/* Forks of this thread that are under way and are seen: their children need nothing of this. */
extern __thread uint32_t unseen_announced __attribute__((tls_model("initial-exec")));

/* `child`: what is done in the child. Where the kernel wipes nothing, nothing is noticed. */
void unseen_start(void (*child)(void));

/* In a child: everything is as it has to be. */
void unseen_ends(void);

/* If this is such a child, and it may make system calls, it is an ordinary one from here on. */
void unseen_settle(void);

static inline bool unseen_fork(void)
{
	return __builtin_expect(!atomic_load_explicit(unseen_word, memory_order_relaxed), 0);
}

#endif
