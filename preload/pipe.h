/* SPDX-License-Identifier: MIT */
/* Pipes of the program's, as splice() fills them: what is put there never waits, so that it can be done under a lock. */
#ifndef ZC_PRELOAD_PIPE_H
#define ZC_PRELOAD_PIPE_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the descriptor is a pipe's that can be written to. *waits: whether a write waits for room. */
bool pipe_takes(int fd, bool *waits);

/* Looks whether there is room, or waits for it. Returns 0 or -errno; EPIPE comes with its signal. A cancellation point. */
int pipe_await_room(int fd, bool waits);

/* Puts there what there is room for. Returns bytes or -errno. */
long pipe_put(int fd, const char *data, size_t bytes);

#endif
