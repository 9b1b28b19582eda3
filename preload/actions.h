/* SPDX-License-Identifier: MIT */
/*
 * What posix_spawn's file actions duplicate: a number that they name is meant for the new program (exec.h). libc's own record of them
 * is its secret. Kept from one init or destroy of the actions to the next, by their address, for as many spawns as there are; what
 * a number is counts when it is spawned. One thread at a time uses the same actions, as libc has it; others may use others.
 */
#ifndef ZC_PRELOAD_ACTIONS_H
#define ZC_PRELOAD_ACTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct action {
	int fd, to;
};

/* If there is no memory for it, or there are too many, it is not known. */
void actions_add(const void *actions, int fd, int to);

void actions_forget(const void *actions);

/* Those of `actions`, in no order, from *at on (0 at first). Returns false at the end. */
bool actions_next(const void *actions, uint32_t *at, struct action *out);

#endif
