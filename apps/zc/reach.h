/* SPDX-License-Identifier: MIT */
/*
 * Whether LD_PRELOAD reaches a program: it does where glibc's dynamic loader starts it with ordinary rights. Follows the
 * search in PATH, #! lines and env(1) as execvp would, and says in a sentence what stands in the way.
 */
#ifndef ZC_APPS_ZC_REACH_H
#define ZC_APPS_ZC_REACH_H

#include <limits.h>

enum reach {
	REACH_YES,
	REACH_NO,	      /* it can run, but without libzc.so */
	REACH_NOT_FOUND,      /* exit status 127, as in a shell */
	REACH_NOT_EXECUTABLE, /* exit status 126 */
};

#define REACH_WHY_BYTES (4 * PATH_MAX)

/* Judges a command as it would be found by execvp. `why` (REACH_WHY_BYTES) names the file and the reason if not REACH_YES. */
enum reach reach_judge(const char *command, char *why);

#endif
