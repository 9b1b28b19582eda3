/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/engine_later.h"

#include <errno.h>

#include "preload/far.h"
#include "preload/guest.h"
#include "rdma/later.h"

bool engine_may_be_later(struct conn *conn, size_t bytes, int flags)
{
	int rc;

	if (!settings.recv_async || bytes < settings.source_min || flags & (MSG_PEEK | MSG_WAITALL | MSG_TRUNC) ||
	    guest_sandboxed())
		return false;
	rc = later_start();
	if (rc == -ENOTSUP)
		stats_reason(conn->slot, REASON_NO_RECV_ASYNC);
	if (!rc && !table_is_own(later_descriptor()))
		table_own_refresh();
	return !rc;
}

void engine_clean_lost(const struct iovec *iov, int count)
{
	for (int i = 0; i < count; i++)
		later_forget(iov[i].iov_base, iov[i].iov_len);
}

ssize_t engine_end_of(struct engine *engine, ssize_t rc)
{
	if (later_active() && engine_met(engine))
		later_settle_lane(engine->channel.in.shared);
	if (!rc && engine_met(engine) && far_is_cut(engine) && !(atomic_load(&engine->shut) & SHUT_IN))
		return -ECONNRESET; /* the peer was killed before it had sent what it owed */
	return atomic_load_explicit(&engine->channel.sources_in.lost, memory_order_relaxed) ? -ECONNRESET : rc;
}
