/* SPDX-License-Identifier: MIT */
/* What a connection is called across an exec (exec.h): in the program before it, and in the one behind it. */
#ifndef ZC_PRELOAD_EXEC_NAMES_H
#define ZC_PRELOAD_EXEC_NAMES_H

#include <stdbool.h>

#define EXEC_NAMES_MAX 64 /* descriptors of one connection that are told to the new program */
#define EXEC_SCAN 256	  /* numbers that are looked at whether they are known or not */

/* The numbers of a connection that the new program gets. */
struct exec_names {
	int fds[EXEC_NAMES_MAX];
	int count;
	bool more;   /* than there is room for */
	bool handed; /* one of them was made for it */
};

static inline void exec_names_add(struct exec_names *names, int fd)
{
	for (int i = 0; i < names->count; i++) {
		if (names->fds[i] == fd)
			return;
	}
	if (names->count < EXEC_NAMES_MAX)
		names->fds[names->count++] = fd;
	else
		names->more = true;
}

#endif
