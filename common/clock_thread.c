/* SPDX-License-Identifier: MIT */
#include <time.h>

#include "common/clock.h"

uint64_t clock_thread(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * NS_PER_SEC + (uint64_t)now.tv_nsec;
}
