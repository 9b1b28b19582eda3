/* SPDX-License-Identifier: MIT */
/* System calls that a program makes by syscall(), beside those of data (calls_process.c). */
#ifndef ZC_PRELOAD_RAW_H
#define ZC_PRELOAD_RAW_H

#include <stdbool.h>

/*
 * Does what the wrapper of the call does where that is more than the kernel's part: waits, registrations, duplicates, and what moves
 * bytes in rarer ways. Returns false if the kernel is to be asked as the program did; else *answer is what syscall() returns.
 */
bool raw_does(long number, const long *a, long *answer);

#endif
