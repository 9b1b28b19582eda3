/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/verbs_replay.h"

#include <errno.h>

#define SCRAP_BYTES 4096u

/* The lane as its consumer had it when it last told, with books of its own. */
static struct lane as_consumer(const struct lane *out, struct lane_shared *books)
{
	struct lane_shared *shared = out->shared;
	struct lane lane = { .shared = books,
			     .ring = out->ring,
			     .bytes = out->bytes,
			     .area = out->area,
			     .area_bytes = out->area_bytes,
			     .sources = out->sources };

	*books = (struct lane_shared){ 0 };
	atomic_store(&books->tail, atomic_load(&shared->tail));
	atomic_store(&books->head, atomic_load(&shared->head));
	atomic_store(&books->received, atomic_load(&shared->received));
	atomic_store(&books->taken, atomic_load(&shared->taken));
	atomic_store(&books->from_ring, atomic_load(&shared->from_ring));
	return lane;
}

/* lane_get, until there is no more. */
static ssize_t take(struct lane *lane, uint8_t *to, size_t bytes)
{
	size_t done = 0, got;

	while (done < bytes) {
		struct iovec iov = { to + done, bytes - done };
		int rc = lane_get(lane, &iov, 1, false, &got);

		if (rc < 0)
			return done ? (ssize_t)done : rc;
		if (rc != LANE_DATA)
			break;
		done += got;
	}
	return (ssize_t)done;
}

static ssize_t replay(struct lane *lane, uint64_t sent, uint64_t from, void *to, size_t bytes)
{
	uint64_t at = atomic_load(&lane->shared->received);

	if (from < at || from > sent)
		return -ERANGE;
	if (lane_backlog(lane) < 0)
		return -EPROTO;
	while (at < from) {
		uint8_t scrap[SCRAP_BYTES];
		size_t part = from - at < sizeof(scrap) ? (size_t)(from - at) : sizeof(scrap);
		ssize_t rc = take(lane, scrap, part);

		if (rc <= 0)
			return rc;
		at += (uint64_t)rc;
	}
	return take(lane, to, bytes);
}

ssize_t verbs_replay(const struct lane *out, const struct verbs_entry *entry, uint64_t from, void *to, size_t bytes)
{
	struct lane_shared books;
	struct lane lane = as_consumer(out, &books);

	if (entry && (int64_t)(atomic_load(&books.head) - entry->ring) < 0) {
		atomic_store(&books.head, entry->ring);
		atomic_store(&books.received, entry->stream);
		atomic_store(&books.taken, 0);
		atomic_store(&books.from_ring, 1);
	}
	return replay(&lane, atomic_load(&out->shared->sent), from, to, bytes);
}
