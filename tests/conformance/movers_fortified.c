/* SPDX-License-Identifier: MIT */
/*
 * Compiled with -O2 -D_FORTIFY_SOURCE: these calls become __recv_chk and its relatives, since the compiler knows the size of
 * the buffer and not how much is asked for. A test of what this object imports keeps that true.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "movers.h"

#define ROOM 16384

ssize_t take_by_recv_chk(int fd, void *data, size_t bytes)
{
	volatile size_t some = bytes < ROOM ? bytes : ROOM; /* not to be seen through */
	char room[ROOM];
	ssize_t got = recv(fd, room, some, 0);

	if (got > 0)
		memcpy(data, room, (size_t)got);
	return got;
}

ssize_t take_by_recvfrom_chk(int fd, void *data, size_t bytes)
{
	volatile size_t some = bytes < ROOM ? bytes : ROOM; /* not to be seen through */
	char room[ROOM];
	ssize_t got = recvfrom(fd, room, some, 0, NULL, NULL);

	if (got > 0)
		memcpy(data, room, (size_t)got);
	return got;
}

ssize_t take_by_read_chk(int fd, void *data, size_t bytes)
{
	volatile size_t some = bytes < ROOM ? bytes : ROOM; /* not to be seen through */
	char room[ROOM];
	ssize_t got = read(fd, room, some);

	if (got > 0)
		memcpy(data, room, (size_t)got);
	return got;
}

ssize_t send_by_dprintf_chk(int fd, const void *data, size_t bytes)
{
	return dprintf(fd, "%.*s", (int)bytes, (const char *)data);
}

/* The count comes from memory that the compiler can't see through. */
static volatile nfds_t one = 1;

int poll_chk(int fd, short events, int timeout)
{
	struct pollfd fds[2] = { { .fd = fd, .events = events } };

	return poll(fds, one, timeout) > 0 ? fds[0].revents : 0;
}

int ppoll_chk(int fd, short events, int timeout)
{
	struct timespec time = { timeout / 1000, timeout % 1000 * 1000000L };
	struct pollfd fds[2] = { { .fd = fd, .events = events } };

	return ppoll(fds, one, timeout < 0 ? NULL : &time, NULL) > 0 ? fds[0].revents : 0;
}
