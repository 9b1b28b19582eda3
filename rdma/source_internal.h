/* SPDX-License-Identifier: MIT */
/* What the two sides of source.h have in common. */
#ifndef ZC_RDMA_SOURCE_INTERNAL_H
#define ZC_RDMA_SOURCE_INTERNAL_H

#define VERDICT_PROVED 0xffu /* where an errno would be; none is as high */

#endif
