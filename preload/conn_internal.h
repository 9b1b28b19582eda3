/* SPDX-License-Identifier: MIT */
/* What conn.c shares with conn_fork.c alone. */
#ifndef ZC_PRELOAD_CONN_INTERNAL_H
#define ZC_PRELOAD_CONN_INTERNAL_H

#include "preload/conn.h"
#include "preload/pool.h"

extern struct pool conn_pool;		/* its slabs are what conn_next() walks through */
extern _Atomic int conn_process_number; /* 0: not asked yet */

#endif
