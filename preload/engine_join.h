/* SPDX-License-Identifier: MIT */
/*
 * The usual small send on a ring: one piece, with room, nobody to wake and nothing to look after. It takes the lock and puts the bytes;
 * what the long way (engine_send.c) does besides is done by every eighth send, which goes that way.
 */
#ifndef ZC_PRELOAD_ENGINE_JOIN_H
#define ZC_PRELOAD_ENGINE_JOIN_H

#include "preload/engine.h"

#define JOIN_NOT (-4097) /* nothing was done: the long way */
#define JOIN_MAX 16384u	 /* bytes */
#define TELL_EVERY 8u	 /* sends, of which one tells where this end runs */
#define STALLED_LOOK 8u	 /* sends that a consumer has not moved for, after which the socket is asked how it is */

/* Returns JOIN_NOT, bytes, counted, or as engine_put_ends() does. Under no lock. */
ssize_t engine_join(struct conn *conn, int fd, const struct iovec *iov);

/* Counts a send by one path of a lane. Under the lock `out`, so that no locked instruction is needed but for slots that are shared. */
static inline void join_count(const struct conn *conn, enum zc_path path, uint64_t bytes)
{
	if (__builtin_expect(conn->slot != 0, 1))
		stats_sent_alone(conn->slot, path, bytes);
	else
		stats_sent(conn->slot, path, bytes, 0);
}

#endif
