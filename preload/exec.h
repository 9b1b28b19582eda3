/* SPDX-License-Identifier: MIT */
/*
 * Connections over exec. A new program knows nothing of lanes: what it inherits is plain TCP first (evict.h). Bytes that are
 * unread in a ring then go along, if the new program has this library in it (target.h): in a sealed memfd each, a channel of which
 * only one lane is used and which its sender has left; the variable EXEC_VARIABLE names them. Its start-up takes them in, and the
 * receives of the inherited descriptors begin with them. If it has not, the connection is reset: never a byte too few.
 *
 * Where other processes hold the connection too (fork and exec, vfork, posix_spawn), bytes that are unread are theirs, unless
 * the descriptor was prepared for the new program (duplicated, or cleared of close-on-exec): what has merely leaked to it is
 * replaced by a socket without a connection, and nobody else is disturbed.
 */
#ifndef ZC_PRELOAD_EXEC_H
#define ZC_PRELOAD_EXEC_H

#include "preload/target.h"

struct exec_memory;

/* One exec under way, on the caller's stack; `memory` is there if something has to be put back when it fails. */
struct exec {
	const struct target_name *name;
	char *const *envp;
	enum target target;
	bool looked;	     /* at the target */
	bool spawns;	     /* this process goes on */
	const void *actions; /* of posix_spawn */
	struct exec_memory *memory;
};

/* Before an exec. Returns the environment that it is to have. */
char *const *exec_begins(struct exec *exec, const struct target_name *name, char *const envp[]);

/* The same before posix_spawn, which leaves this process as it is; ends in either case with exec_spawned. */
char *const *exec_spawns(struct exec *exec, const struct target_name *name, char *const envp[], const void *actions);
void exec_spawned(struct exec *exec, bool done);

/* It has failed, and this program goes on as if nothing had been. errno is kept. */
void exec_failed(struct exec *exec);

/*
 * At start-up: takes in what the program before has left to this one, before descriptors are looked at; and forgets of it what
 * must not be inherited.
 */
#define EXEC_VARIABLE "LIBZC_CARRY"
void exec_take_in(void);
void exec_forget(void);

#endif
