/* SPDX-License-Identifier: MIT */
/*
 * A libzc-verbs.so for gate_test.c that is slow: to be made, or, if it says so, to be told its owner, who uses it from there on. It tells when
 * that has begun, and goes on when it is told to, or after a while. A process that unmakes it in the middle ends with 99, as a real one would
 * crash.
 */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "rdma/verbs.h"

#define PATIENCE_MS 200

static int in_the_middle;

static void be_slow(const char *fd)
{
	struct pollfd told = { .fd = fd ? atoi(fd) : -1, .events = POLLIN };

	in_the_middle = 1;
	if (fd && write(told.fd, "", 1) == 1)
		poll(&told, 1, PATIENCE_MS);
	in_the_middle = 0;
}

static void take_owner(const struct verbs_owner *unused)
{
	be_slow(getenv("SLOW_OWNER"));
}

extern struct verbs_table zc_verbs;

/* Of no version that anybody knows, unless it is to be slow with that. */
__attribute__((visibility("default"))) struct verbs_table zc_verbs = { .bytes = sizeof(struct verbs_table),
								       .set_owner = take_owner };

__attribute__((constructor)) static void make(void)
{
	if (getenv("SLOW_OWNER"))
		zc_verbs.version = VERBS_TABLE_VERSION;
	be_slow(getenv("SLOW_PLUG_IN"));
}

__attribute__((destructor)) static void unmake(void)
{
	if (in_the_middle)
		_exit(99);
}
