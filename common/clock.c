/* SPDX-License-Identifier: MIT */
#include "common/clock.h"

#include <time.h>

#define LOOK_NS 100 /* as long as a look may take */

static __thread uint64_t stands_at __attribute__((tls_model("initial-exec")));

void clock_stands(bool stands)
{
	stands_at = stands ? clock_now() : 0;
}

uint64_t clock_now(void)
{
	struct timespec now;

	if (__builtin_expect(stands_at != 0, 0))
		return stands_at += LOOK_NS;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_SEC + (uint64_t)now.tv_nsec;
}
