/* SPDX-License-Identifier: MIT */
/* Receives of an engine that may return before their bytes are there (rdma/later.h): when, and what comes before an end. */
#ifndef ZC_PRELOAD_ENGINE_LATER_H
#define ZC_PRELOAD_ENGINE_LATER_H

#include "preload/engine.h"

/* Whether a receive of so many bytes may, and makes that ready. Without locks. */
bool engine_may_be_later(struct conn *conn, size_t bytes, int flags);

/* What an earlier receive has lost there is overwritten. */
void engine_clean_lost(const struct iovec *iov, int count);

/*
 * Before an end is told, all that was promised has to be there: an end after bytes that can't be had any more is none. Returns
 * `rc`, or -ECONNRESET.
 */
ssize_t engine_end_of(struct engine *engine, int fd, ssize_t rc);

#endif
