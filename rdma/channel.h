/* SPDX-License-Identifier: MIT */
/*
 * A channel: the memory that the two ends of one connection share. A sealed memfd: a header, the shares of two lanes and of
 * their sources, their rings, and the areas for bytes of sources that were kept, which have no memory until they are used. The accepting end makes it and hands it over (meet.h); the connecting end looks at it as at any input before
 * it maps it: seals (nobody can shrink it under us: no SIGBUS), size, version, layout.
 *
 * Lane 0 carries what the connecting end sends, lane 1 what the accepting end sends.
 */
#ifndef ZC_RDMA_CHANNEL_H
#define ZC_RDMA_CHANNEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "rdma/lane.h"
#include "rdma/source.h"

#define CHANNEL_MAGIC 0x7a636368616e3031ull /* "zcchan01" */
#define CHANNEL_VERSION 8u
#define CHANNEL_NONCE_BYTES 16
#define CHANNEL_HEADER_BYTES 4096u

enum channel_end { CHANNEL_CONNECTING, CHANNEL_ACCEPTING };

struct channel_header {
	uint64_t magic;
	uint32_t version;
	uint32_t ring_bytes;
	uint8_t nonce[CHANNEL_NONCE_BYTES]; /* of this channel */
	struct lane_shared lane[2];
	struct source_shared sources[2];
};

struct channel {
	struct channel_header *header;
	struct lane out, in; /* as this end sees them */
	int fd;		     /* of the segment; -1 once both ends have it */
	pid_t peer;	     /* the process at the other end of the rendezvous, by the kernel's word; 0: not known */
	struct source_out sources_out;
	struct source_in sources_in;
};

/* What the process maps from now on is locked (mlockall with MCL_FUTURE): channels are not, as a kernel's buffers are none of its memory. */
extern _Atomic bool channel_is_locked;

/*
 * Whether another one may be mapped: all together take at most half of the mappings that a process may have (vm.max_map_count), as
 * one without any gets no memory and no threads. To be asked before a meeting; what carries unread bytes is mapped anyway.
 */
bool channel_has_room(void);

/* Makes a channel as the accepting end. Ownership: channel_close(). Returns 0 or -errno. */
int channel_make(struct channel *channel, uint32_t ring_bytes);

/*
 * Maps what a peer has handed over, as the connecting end. Ownership: fd stays the caller's. Returns 0, -EPROTONOSUPPORT
 * (another version), -EPROTO (unsealed, torn, impossible) or another -errno.
 */
int channel_take(struct channel *channel, int fd);

/*
 * Lets the lanes have sources, once both ends have met; `identity` is the connection's (meet_identity). The channel stays where
 * it is from here on. Without this, or if the peer does without, all bytes go by the rings.
 */
void channel_open_sources(struct channel *channel, const struct transport_ops *transport, const uint8_t *identity);

/*
 * Between hosts, where a channel is one end's alone and may serve one queue pair after the other, once nothing writes there any more:
 * both lanes begin on TCP, at a ring position that has not been used in it; and while it is not used it takes no memory.
 */
void channel_begin_at(struct channel *channel, uint64_t position);
void channel_empty(struct channel *channel);

/*
 * On one host, where the TCP stream has ended: whether the peer was killed with bytes of the ring unread, which the kernel would
 * have answered by a reset. Who closes or shuts his end by an intercepted call says so in the segment, and who leaves the ring does.
 */
bool channel_died_unread(const struct channel *channel);

/* Ends this process's use. Sources that it has announced are to be kept before: source_keep_all(). */
void channel_close(struct channel *channel);

#endif
