/* SPDX-License-Identifier: MIT */
/* Between later.c, which knows pages and the thread, and later_get.c, which knows sources. */
#ifndef ZC_RDMA_LATER_INTERNAL_H
#define ZC_RDMA_LATER_INTERNAL_H

#include "rdma/later.h"
#include "rdma/source.h"

/* A GET that ends later. Its memory is this process's own. */
struct later_get {
	_Atomic uint32_t state;
	uint64_t ticket; /* in order of the receives */
	/* the program's pages, and how far they are filled */
	uintptr_t start, end, at;
	/* the source, as it was when it was promised */
	struct lane lane;
	uint32_t number, bytes, taken;
	uint32_t tail; /* bytes behind the pages: there already, claimed with the last page */
	uint32_t seen; /* which answer of the sender */
	uint64_t address;
	struct transport_place place;
	struct transport_reach reach;
	struct transport_token token;
	const struct transport_ops *transport;
};

/* Makes sure that [start, end) is ordinary memory that can be dropped, and claims it. Returns NULL if it is not, or can't be. */
struct later_get *later_claim(uintptr_t start, uintptr_t end);

/* Leaves it as it was: nothing was promised. */
void later_unclaim(struct later_get *get);

/* Drops the pages and has them filled. */
void later_go(struct later_get *get);

/* Brings and claims the next `bytes` of the source; `last`: with them all. Returns 0 or -errno: they can't be had. */
int later_bring(struct later_get *get, void *to, size_t bytes, bool last);

#endif
