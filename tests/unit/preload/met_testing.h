/* SPDX-License-Identifier: MIT */
/* A connection whose both ends are here, each with an engine, which have met by the real rendezvous and are on their rings. */
#ifndef ZC_TESTS_MET_TESTING_H
#define ZC_TESTS_MET_TESTING_H

#include <errno.h>
#include <string.h>

#include "pair_testing.h"
#include "preload/engine_in.h"
#include "preload/real.h"
#include "preload/send.h"

static int ends[2]; /* the connecting end, the accepting end */
static struct conn *conns[2];

/* For all tests of a file: rings of that size, and nothing else. */
static inline void use_rings(uint32_t bytes)
{
	settings.path = PATH_BSDP;
	settings.ring_bytes = bytes;
}

static ssize_t send_bytes(int end, const void *data, size_t bytes)
{
	struct iovec iov = { (void *)data, bytes };

	return send_by_path(conns[end], ends[end], &iov, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t send_whole(int end, const char *text)
{
	ssize_t rc = send_bytes(end, text, strlen(text));
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = { .conn = NULL };

	if (rc != SEND_BY_KERNEL)
		return rc;
	raw = engine_raw_begins(conns[end], ends[end], MSG_DONTWAIT | MSG_NOSIGNAL);
	raw.done = send(ends[end], text, strlen(text), MSG_NOSIGNAL);
	return raw.done < 0 ? -errno : raw.done;
}

static ssize_t receive_some(int end, char *out, size_t bytes, int flags)
{
	__attribute__((cleanup(engine_raw_recv_ends))) struct engine_raw raw =
		engine_raw_recv_begins(conns[end], ends[end]);
	struct iovec iov = { out, bytes };
	ssize_t rc = raw.conn ? ENGINE_BY_KERNEL : engine_recv(conns[end], ends[end], &iov, 1, flags);

	if (rc != ENGINE_BY_KERNEL)
		return rc;
	raw.done = real.recv(ends[end], out, bytes, flags);
	return raw.done < 0 ? -errno : raw.done;
}

static struct lane *lane_from(int end)
{
	return &atomic_load(&conns[end]->engine)->channel.out;
}

/* There and back, until both know each other and both lanes are on their rings. */
static int meet_ends(void)
{
	char byte;

	for (int i = 0; i < 200; i++) {
		for (int end = 0; end < 2; end++) {
			if (send_whole(end, "x") != 1 || receive_some(1 - end, &byte, 1, 0) != 1)
				return -1;
		}
		if (engine_has_met(conns[0]) && engine_has_met(conns[1]) &&
		    atomic_load(&lane_from(0)->shared->on_ring) && atomic_load(&lane_from(1)->shared->on_ring))
			return 0;
	}
	return -1;
}

/* A connection whose ends know nothing of each other yet. */
static inline int open_apart(void **state)
{
	if ((!stats && stats_start()) || (!table && table_start()))
		return -1;
	connect_pair(ends);
	conn_open(ends[0], ROLE_CLIENT, false);
	conn_open(ends[1], ROLE_SERVER, false);
	for (int end = 0; end < 2; end++) {
		conns[end] = table_conn(ends[end]);
		if (!conns[end])
			return -1;
	}
	return 0;
}

static inline int connect_ends(void **state)
{
	return open_apart(state) ? -1 : meet_ends();
}

static inline int close_ends(void **state)
{
	for (int end = 0; end < 2; end++) {
		conn_close(ends[end]);
		close(ends[end]);
	}
	return 0;
}

#endif
