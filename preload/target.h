/* SPDX-License-Identifier: MIT */
/*
 * What a program will be that is about to be executed: whether this library will be in it. A guess that has to be made before
 * the exec, since afterwards nobody is left to act on it; in doubt the program is a foreign one.
 */
#ifndef ZC_PRELOAD_TARGET_H
#define ZC_PRELOAD_TARGET_H

#include <stdbool.h>

enum target {
	TARGET_NONE, /* there is no such program: the exec will fail */
	TARGET_OURS,
	TARGET_FOREIGN, /* static, setuid, for another machine, without us in LD_PRELOAD, or not to be seen through */
};

struct target_name {
	int dir;	  /* as execveat has it */
	const char *path; /* NULL: `dir` is the program itself */
	bool search;	  /* along PATH */
};

/* Remembers which file this library is. At start-up. */
void target_start(void);

enum target target_of(const struct target_name *name, char *const envp[]);

#endif
