/* SPDX-License-Identifier: MIT */
/* A TCP connection whose both ends are here. */
#ifndef ZC_TESTS_PAIR_TESTING_H
#define ZC_TESTS_PAIR_TESTING_H

#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "preload/conn.h"

static inline void connect_pair(int fds[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int listening = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listening, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listening, 1), 0);
	assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &bytes), 0);
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(fds[0], (struct sockaddr *)&address, sizeof(address)), 0);
	fds[1] = accept(listening, NULL, NULL);
	assert_true(fds[1] >= 0);
	close(listening);
}

/* From here on each send leaves a notice in the socket's error queue, where that of MSG_ZEROCOPY is, too. */
static inline void notice_sends(int fd)
{
	const int which = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &which, sizeof(which)), 0);
}

static inline bool has_notices(int fd)
{
	struct pollfd look = { .fd = fd };

	return poll(&look, 1, 10000) == 1 && look.revents == POLLERR;
}

/* From here on it acknowledges what comes after 40 ms, unless it receives or sends. */
static inline void acknowledge_late(int fd)
{
	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &(int){ 0 }, sizeof(int)), 0);
}

/* Bytes that wait for an acknowledgement before they are sent at all. */
static inline int held_back(int fd)
{
	int bytes = -1;

	assert_int_equal(ioctl(fd, SIOCOUTQNSD, &bytes), 0);
	return bytes;
}

static inline int nodelay_of(int fd)
{
	int value = -1;

	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &(socklen_t){ sizeof(value) }), 0);
	return value;
}

/* The first one may be known to the library. */
static inline void close_pair(int fds[2])
{
	conn_close(fds[0]);
	close(fds[0]);
	close(fds[1]);
}

#endif
