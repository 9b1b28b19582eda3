/* SPDX-License-Identifier: MIT */
/* Children of a test, forked as the wrappers do it. */
#ifndef ZC_TESTS_FORK_TESTING_H
#define ZC_TESTS_FORK_TESTING_H

#include <unistd.h>

#include "pair_testing.h"

#define HANG_SECONDS 120 /* what hangs fails by itself */

static inline pid_t fork_child(void)
{
	uint64_t number;
	pid_t child;

	number = conn_before_fork();
	child = fork();
	conn_after_fork(child, number);
	assert_true(child >= 0);
	if (!child)
		alarm(HANG_SECONDS);
	return child;
}

#endif
