/* SPDX-License-Identifier: MIT */
/*
 * A libzc-verbs.so for gate_test.c that is slow to be made: it tells when that has begun, and goes on when it is told to, or after a while. A
 * process that unmakes it half made ends with 99, as a real one would crash.
 */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define PATIENCE_MS 200

static int half_made;

__attribute__((constructor)) static void make(void)
{
	const char *fd = getenv("SLOW_PLUG_IN");
	struct pollfd told = { .fd = fd ? atoi(fd) : -1, .events = POLLIN };

	half_made = 1;
	if (fd && write(told.fd, "", 1) == 1)
		poll(&told, 1, PATIENCE_MS);
	half_made = 0;
}

__attribute__((destructor)) static void unmake(void)
{
	if (half_made)
		_exit(99);
}
