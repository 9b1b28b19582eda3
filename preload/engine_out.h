/* SPDX-License-Identifier: MIT */
/* The sending side of an engine, between its own files: what is around every put. All under the lock `out`. */
#ifndef ZC_PRELOAD_ENGINE_OUT_H
#define ZC_PRELOAD_ENGINE_OUT_H

#include "preload/engine.h"

#define ROOM_STEP 16384 /* of room that is worth a record */

/*
 * ns that TCP itself would take for so many bytes at best, which is how long a send may wait for a peer that is at it; no more
 * than its buffers take at one time, for behind that a send that must not wait would end.
 */
static inline uint64_t engine_tcp_ns(size_t bytes)
{
	const size_t buffers = 4 << 20, bytes_ns = 4;

	return (bytes < buffers ? bytes : buffers) / bytes_ns;
}

/*
 * Puts a TAKEOVER if the rules allow one. Returns whether the lane is on the ring. With a peer on this host: the same, behind a moment
 * for a receiver that is not there yet. And: the socket has the program's options again.
 */
bool engine_enter_ring(struct conn *conn, struct engine *engine, int fd);
bool engine_takes_over(struct conn *conn, struct engine *engine, int fd, size_t bytes);
void engine_restore_options(struct engine *engine, int fd);

/*
 * Behind a raw send: with Nagle's algorithm it waits for the acknowledgement of what the library has sent in front of it, a doorbell or
 * what a broken queue pair owed, which the program knows nothing of. It need not. Under no lock of the engine's.
 */
void engine_push(struct conn *conn, int fd);

/* Rings if a peer on another host has gone to sleep without having seen all. */
void engine_ring_late(struct conn *conn, struct engine *engine, int fd);

/* Moves the lane to the ring if it may, for a send of so many bytes. Returns false if the bytes are the kernel's. */
bool engine_put_begins(struct conn *conn, struct engine *engine, int fd, size_t bytes);

/*
 * After `done` of `bytes` were put (-EPROTO: nonsense was found): sees to it that the peer takes them, and leaves a ring that is
 * full. Returns bytes that count as sent, -errno, or ENGINE_BY_KERNEL: the kernel's own send has the answer.
 */
ssize_t engine_put_ends(struct conn *conn, struct engine *engine, int fd, ssize_t done, size_t bytes);

/* Where the receiver is, by either way: that it moves is all that this tells. */
static inline uint64_t engine_receiver_at(const struct lane *out)
{
	return atomic_load_explicit(&out->shared->head, memory_order_relaxed) +
	       atomic_load_explicit(&out->shared->received, memory_order_relaxed);
}

/* Waiting for room, zeroes but for `bytes` (of the send) at first. */
struct patience {
	size_t bytes;
	struct conn *far; /* NULL: the peer is on this host */
	bool waits;	  /* a send to another host that may */
	uint64_t at, moved, until;
};

/* A moment for a consumer that is about to make room. Returns false if it is not, or has had its time. */
bool engine_has_patience(const struct lane *out, struct patience *patience);

#endif
