/* SPDX-License-Identifier: MIT */
/* What the sides of source.h have in common, and the receiver's side with later_get.c. */
#ifndef ZC_RDMA_SOURCE_INTERNAL_H
#define ZC_RDMA_SOURCE_INTERNAL_H

#include "rdma/source.h"

#define VERDICT_PROVED 0xffu /* where an errno would be; none is as high */

/* A slot as it was at one moment, in bounds. */
struct source_look {
	uint64_t word;
	uint64_t address, home;
	uint32_t bytes, taken, state;
	uint32_t there; /* bytes that there are; of a source that is lost, fewer than `bytes` */
	struct transport_place place;
};

/* Returns 0, or -EPROTO for nonsense. */
int source_look(const struct lane *lane, uint32_t number, struct source_look *out);

/* Copies kept bytes, which lie around the end of the area. */
void source_copy_kept(const struct lane *lane, uint64_t home, size_t bytes, const struct transport_get *to);

/* Before the kernel writes there: where the guard is mprotect it would be refused. */
void source_settle_local(const void *at, size_t bytes);

#endif
