/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/counts.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"

#define NO_DATA 1	    /* a SYN or a FIN is a byte to some of the counts */
#define CLOCKS_DIFFER 1000u /* by one in so much, at most */

void counts_take(const void *info, size_t bytes, struct counts *out)
{
	struct tcp_info told = { 0 };

	memcpy(&told, info, bytes < sizeof(told) ? bytes : sizeof(told));
	*out = (struct counts){ .sent = told.tcpi_bytes_sent,
				.acked = told.tcpi_bytes_acked,
				.received = told.tcpi_bytes_received,
				.sent_ms = told.tcpi_last_data_sent,
				.received_ms = told.tcpi_last_data_recv };
	/* Before Linux 4.19 nobody tells what has been sent: it is taken for enough. */
	if (bytes < offsetof(struct tcp_info, tcpi_bytes_retrans))
		out->sent = UINT64_MAX - NO_DATA;
}

int counts_own(int fd, uint64_t opened, struct counts *out)
{
	struct tcp_info told;
	socklen_t bytes = sizeof(told);
	uint64_t now = clock_now();
	int rc = (int)sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&told, (long)&bytes, 0);

	if (rc < 0)
		return rc;
	counts_take(&told, bytes, out);
	out->at = now;
	out->open_ns = opened ? now - opened : 0;
	return 0;
}

/* Whether what one end has sent, and what has been acknowledged of it, goes with what the other has received. */
static bool go_together(const struct counts *from, const struct counts *from_later, const struct counts *to,
			const struct counts *to_later)
{
	return from->acked <= to_later->received + NO_DATA && to->received <= from_later->sent + NO_DATA;
}

/*
 * Whether the last bytes of one direction are the same at both ends: an own time, looked at twice, and the other's, looked at once
 * in the `took` ms between.
 */
static bool are_the_same(uint32_t before, uint32_t after, uint32_t other, uint64_t took, uint32_t slack)
{
	return other <= took + before + slack && after <= took + other + slack;
}

int counts_compare(const struct counts *before, const struct counts *after, const struct counts *other,
		   uint32_t slack_ms)
{
	uint64_t took = (after->at - before->at + NS_PER_MS - 1) / NS_PER_MS;

	if (!go_together(before, after, other, other) || !go_together(other, other, before, after))
		return -EXDEV;
	if (before->open_ns && other->open_ns &&
	    before->open_ns > other->open_ns + other->open_ns / CLOCKS_DIFFER + NS_PER_MS)
		return -EXDEV;
	return are_the_same(before->sent_ms, after->sent_ms, other->received_ms, took, slack_ms) &&
			       are_the_same(before->received_ms, after->received_ms, other->sent_ms, took, slack_ms) ?
		       0 :
		       -EAGAIN;
}
