/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/engine_later.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

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

/* It may have: of a doorbell that was unread. Then the kernel has told it, to this call, to a send, or by SO_ERROR. */
static bool kernel_has_reset(const struct engine *engine, int fd)
{
	struct tcp_info info = { 0 };
	socklen_t bytes = sizeof(info);

	return !(atomic_load(&engine->shut) & SHUT_OUT) &&
	       sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0) >= 0 &&
	       info.tcpi_state == TCP_CLOSE;
}

/*
 * Whether the end is that of a peer that was killed: between hosts before it had sent what it owed; on one host with bytes unread,
 * which the kernel would have answered by a reset, had it known of them.
 */
static bool peer_died(const struct engine *engine, int fd)
{
	return far_is(engine) ? far_is_cut(engine) :
				channel_died_unread(&engine->channel) && !kernel_has_reset(engine, fd);
}

ssize_t engine_end_of(struct engine *engine, int fd, ssize_t rc)
{
	if (later_active() && engine_met(engine))
		later_settle_lane(engine->channel.in.shared);
	if (rc == -ECONNRESET)
		atomic_store(&engine->told_death, true);
	if (!rc && engine_met(engine) && !(atomic_load(&engine->shut) & SHUT_IN) && !atomic_load(&engine->told_death) &&
	    peer_died(engine, fd) && !atomic_exchange(&engine->told_death, true))
		return -ECONNRESET;
	return atomic_load_explicit(&engine->channel.sources_in.lost, memory_order_relaxed) ? -ECONNRESET : rc;
}
