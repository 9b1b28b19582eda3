/* SPDX-License-Identifier: MIT */
/* Time. Units: nanoseconds. clock_now() is a vDSO call of some 20 ns; it makes no system call on usual machines. */
#ifndef ZC_COMMON_CLOCK_H
#define ZC_COMMON_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define NS_PER_US 1000ull
#define NS_PER_MS 1000000ull
#define NS_PER_SEC 1000000000ull

/* Returns CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_now(void);

/*
 * For the calling thread the clock stops, or runs again: seccomp's strict mode takes it away (PR_SET_TSC), and to look at it is a fault
 * then. While it stands, clock_now() tells a little more at each look, so that whoever waits by it comes to an end.
 */
void clock_stands(bool stands);

/* Returns the processor time of the calling thread so far. A system call. */
uint64_t clock_thread(void);

#endif
