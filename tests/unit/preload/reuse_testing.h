/* SPDX-License-Identifier: MIT */
/* A number that becomes another connection's while a call on it waits for room. */
#ifndef ZC_TESTS_REUSE_TESTING_H
#define ZC_TESTS_REUSE_TESTING_H

#include <linux/sockios.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>

#include "pair_testing.h"
#include "preload/real.h"

static struct {
	int kept;	 /* the socket that it was: the kernel's call that waits has it, too */
	int peer;	 /* of the one that it is */
	bool same_place; /* the new one gets the memory of the old one */
	bool done;
} reuse;

/* What another thread does meanwhile. */
static inline void reuse_number(int fd)
{
	int others[2];

	reuse.done = true;
	reuse.kept = dup(fd);
	connect_pair(others);
	reuse.peer = others[1];
	conn_close(fd);
	if (!reuse.same_place)
		conn_open(reuse.peer, ROLE_SERVER, NULL); /* which is given that memory */
	assert_int_equal(dup2(others[0], fd), fd);
	close(others[0]);
	conn_open(fd, ROLE_CLIENT, NULL);
}

/* The old peer takes all that is under way. Returns how much that was, of which `got` has the first bytes. */
static inline size_t reuse_make_room(int peer, char *got, size_t bytes)
{
	static char rest[65536];
	size_t have = 0;
	int queued;

	do {
		bool fits = have < bytes;
		ssize_t more =
			real.recv(peer, fits ? got + have : rest, fits ? bytes - have : sizeof(rest), MSG_DONTWAIT);

		if (more > 0)
			have += (size_t)more;
		else
			sched_yield();
		assert_int_equal(ioctl(reuse.kept, SIOCOUTQ, &queued), 0);
	} while (queued);
	return have;
}

/* What the program sends next is the first that comes. */
static inline void assert_nothing_came(int fd)
{
	char got[4] = { 0 };

	assert_int_equal(real.send(fd, "new", 3, MSG_NOSIGNAL), 3);
	assert_int_equal(real.recv(reuse.peer, got, sizeof(got), 0), 3);
	assert_string_equal(got, "new");
}

static inline void reuse_ends(void)
{
	conn_close(reuse.peer);
	close(reuse.peer);
}

#endif
