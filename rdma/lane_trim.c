/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "common/sys.h"
#include "rdma/lane.h"

/* Only the producer writes there, and the consumer reads nothing behind the tail: its loads of what it took came before `head`. */
bool lane_trim(struct lane *lane)
{
	uint64_t head = atomic_load_explicit(&lane->shared->head, memory_order_acquire);

	if (head != atomic_load_explicit(&lane->shared->tail, memory_order_relaxed))
		return false;
	return !sys_call(SYS_madvise, (long)lane->ring, lane->bytes, MADV_REMOVE, 0, 0, 0);
}
