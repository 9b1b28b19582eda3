/* SPDX-License-Identifier: MIT */
/* Whether a thread of the test's has come to where it waits. */
#ifndef ZC_TESTS_ASLEEP_TESTING_H
#define ZC_TESTS_ASLEEP_TESTING_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/real.h"

/* Whether the thread (gettid()) sleeps in that system call. */
static inline bool is_in(int thread, long number)
{
	char name[64], text[256] = { 0 };
	int fd;

	snprintf(name, sizeof(name), "/proc/self/task/%d/syscall", thread);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	(void)!real.read(fd, text, sizeof(text) - 1);
	close(fd);
	return atol(text) == number && text[0] >= '0' && text[0] <= '9';
}

#endif
