/* SPDX-License-Identifier: MIT */
/*
 * What a sender has to send in another way after its queue pair broke. Over verbs each end has a ring of its own, so that
 * the sender's keeps every byte that the peer has not confirmed; once the peer has told by which byte it goes on, they are read
 * from there.
 */
#ifndef ZC_RDMA_VERBS_REPLAY_H
#define ZC_RDMA_VERBS_REPLAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "rdma/lane.h"

/* Where the lane was in the ring when a TAKEOVER had been put: `ring` is behind its record, `stream` the position that it tells. */
struct verbs_entry {
	uint64_t ring, stream;
};

/*
 * Copies bytes of the stream from position `from` on, which is at least the one that was confirmed (`received` of the
 * consumer's line) and at most the one that was sent. With an entry, the consumer is known to have all before that TAKEOVER,
 * the last one, even where what it has told is older; NULL: only what it has told is known. Returns how many, fewer where the
 * lane went back to TCP or at the end; -ERANGE (no such position), -ENXIO (a source is there that was not kept: source_keep_all()
 * comes first), -EPROTO (nonsense in the consumer's line). The lane is not changed.
 */
ssize_t verbs_replay(const struct lane *out, const struct verbs_entry *entry, uint64_t from, void *to, size_t bytes);

#endif
