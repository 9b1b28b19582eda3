/* SPDX-License-Identifier: MIT */
/*
 * What tells whether two ends are of one TCP connection, where a packet filter may have changed addresses and ports on the way, so that
 * another connection's end has the name of one's peer: what the kernel counts at both (TCP_INFO), and since when each has it.
 */
#ifndef ZC_RDMA_COUNTS_H
#define ZC_RDMA_COUNTS_H

#include <stddef.h>
#include <stdint.h>

struct counts {
	uint64_t at;			/* ns, CLOCK_MONOTONIC: when an own end was asked */
	uint64_t open_ns;		/* since before connect(), or since accept(); 0: not known */
	uint64_t sent, acked, received; /* bytes; sent: at least */
	uint32_t sent_ms, received_ms;	/* since the last bytes; before the first ones, since the handshake */
};

/* Asks the kernel about an own end, which is there since `opened` (ns, CLOCK_MONOTONIC; 0: not known). Returns 0 or -errno. */
int counts_own(int fd, uint64_t opened, struct counts *out);

/* Takes what the kernel has told, `bytes` of a struct tcp_info. */
void counts_take(const void *info, size_t bytes, struct counts *out);

/*
 * The accepting end: compares itself, before and after the other was asked, with that. Times of the last bytes may differ by slack_ms. Returns 0
 * if the two may be each other's, -EXDEV if they can't be (one has received more than the other has sent, or was accepted before the
 * other began to connect), -EAGAIN if the times differ.
 */
int counts_compare(const struct counts *before, const struct counts *after, const struct counts *other,
		   uint32_t slack_ms);

#endif
