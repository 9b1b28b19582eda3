/* SPDX-License-Identifier: MIT */
/* Time. Units: nanoseconds. clock_now() is a vDSO call of some 20 ns; it makes no system call on usual machines. */
#ifndef ZC_COMMON_CLOCK_H
#define ZC_COMMON_CLOCK_H

#include <stdint.h>

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_SEC 1000000000ull

/* Returns CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_now(void);

/* Returns the processor time of the calling thread so far. A system call. */
uint64_t clock_thread(void);

#endif
