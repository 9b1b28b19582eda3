/* SPDX-License-Identifier: MIT */
/*
 * Sends that are announced instead of copied (rdma/source.h), on a connection that has met its peer: zsdp waits a bounded time
 * until the peer has fetched, azsdp puts the pages under guard and returns at once. What the peer has not fetched when the
 * program wants its memory back (a write to a guarded page, free(), munmap(), the end of the process) is copied to the segment.
 *
 * What is under guard is this process's own: its books are in the connection, not in the engine that forks share. Records are
 * released by whoever finds them over: the next send, a fault, the end.
 */
#ifndef ZC_PRELOAD_ENGINE_SOURCE_H
#define ZC_PRELOAD_ENGINE_SOURCE_H

#include "preload/engine.h"
#include "preload/history.h"

/* What one send has announced. */
struct announced {
	int fd, flags; /* of the send, before it announces */
	uint64_t number[SOURCE_SLOTS];
	unsigned int count;
	size_t bytes;
	enum zc_path path; /* PATH_ZSDP or PATH_AZSDP */
	uint64_t begun;	   /* ns: its first wait, before it announces anything */
	uint64_t until;	   /* so long it may wait for the peer: TCP itself would take as long for these bytes */
	bool waits;	   /* between hosts: it may sleep meanwhile */
	bool sunk;	   /* and some of it is being written to memory that the peer has offered */
};

/* Who in this process rewrites what azsdp has announced. Private: a child of a fork goes on with a copy. */
extern struct history sources_history;

/*
 * Puts as much of a send as its path, the peer and the room allow: sources, and what lies before and behind their whole pages
 * as data. Returns bytes, 0 if it is a send for the ring, or -EPROTO. Under the lock `out`, on the ring.
 */
ssize_t sources_put(struct conn *conn, struct engine *engine, const struct iovec *iov, int count, size_t bytes,
		    struct announced *out);

/* Whether sources_put() may have something to do: what was under guard may be released, or the send is large. */
static inline bool sources_possible(const struct conn *conn, size_t bytes)
{
	return conn->books || bytes >= settings.source_min;
}

/* The waits of a send for its peer (engine_source_wait.c): before it announces the first; for room, before each; */
void sources_wait_begins(const struct engine *engine, size_t bytes, struct announced *announced);
bool sources_have_room(struct conn *conn, struct engine *engine, size_t bytes, const struct announced *announced);

/* and zsdp's until the peer has what was announced, no longer than TCP would take; then it copies the rest. Without a lock. */
void sources_wait(struct conn *conn, struct engine *engine, const struct announced *announced);

/* All that this process has announced on the connection is copied now: its memory goes, or may not be read any more. */
void sources_keep(struct conn *conn, struct engine *engine);

/* The same, and the guard's records end: before the lanes are unmapped. */
void sources_end(struct conn *conn);

/* In the child of a fork: the parent's records are the parent's. */
void sources_after_fork(struct conn *conn);

/* This process announces nothing any more; or does so again, when an exec has failed. Before sources_keep(). */
void sources_stop(bool stop);

/* The receiving end: a step of the proof, for a receive of so many bytes. Under the lock `in`. */
void sources_step_in(struct engine *engine, size_t bytes);

#endif
