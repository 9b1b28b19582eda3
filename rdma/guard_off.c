/* SPDX-License-Identifier: MIT */
/* Off: for showing that tests notice when there is no guard (debug builds). */
#include "rdma/guard_internal.h"

#include <errno.h>

static int off_start(void)
{
	return 0;
}

static bool off_ready(void)
{
	return true;
}

static int off_protect(uintptr_t start, uintptr_t end)
{
	return 0;
}

static void off_range(uintptr_t start, uintptr_t end)
{
}

static int off_join(uintptr_t start, uintptr_t end)
{
	return -EINVAL;
}

static bool off_stray(uintptr_t page)
{
	return false;
}

static void off_child(void)
{
}

static int off_descriptors(int *out, int count)
{
	return 0;
}

const struct guard_backend guard_backend_off = {
	.name = "off",
	.available = off_start,
	.start = off_start,
	.ready = off_ready,
	.protect = off_protect,
	.unprotect = off_range,
	.take = off_range,
	.join = off_join,
	.stray = off_stray,
	.child = off_child,
	.descriptors = off_descriptors,
};
