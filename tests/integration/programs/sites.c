/* SPDX-License-Identifier: MIT */
/*
 * sites CALL ROUNDS: both ends of a connection in one thread. In each round one place in the program sends a buffer, rewrites it
 * at once and then receives; another one sends a buffer, receives it and only then writes to it. Both use many buffers in turn,
 * so that it is the place that tells. CALL is the call by which the first one sends: send, sendto, write, writev, sendmsg,
 * sendmmsg, syscall. Then comes a second connection on which the first place alone sends, ROUNDS / 4 times. Prints "right" and
 * the bytes received.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define BYTES (64 * 1024)
#define BUFFERS 128u
#define WARM_UPS 4 /* large sends of each connection before it begins */

static unsigned char *buffers;
static int ends[2];
static uint64_t received;

static void fail(const char *why)
{
	perror(why);
	exit(1);
}

static unsigned char *fill(unsigned int round)
{
	unsigned char *at = buffers + (size_t)(round % BUFFERS) * BYTES;

	for (size_t i = 0; i < BYTES; i++)
		at[i] = (unsigned char)(i * 13 + (i >> 12) + round * 101);
	return at;
}

static void receive(unsigned int round)
{
	static unsigned char got[BYTES];

	for (size_t done = 0; done < BYTES;) {
		ssize_t rc = recv(ends[1], got + done, BYTES - done, 0);

		if (rc <= 0)
			fail("recv");
		done += (size_t)rc;
	}
	for (size_t i = 0; i < BYTES; i++) {
		if (got[i] != (unsigned char)(i * 13 + (i >> 12) + round * 101)) {
			fprintf(stderr, "byte %zu of round %u is wrong\n", i, round);
			exit(1);
		}
	}
	received += BYTES;
}

static ssize_t by_many(struct msghdr *message)
{
	struct mmsghdr one = { .msg_hdr = *message };

	return sendmmsg(ends[0], &one, 1, 0) == 1 ? (ssize_t)one.msg_len : -1;
}

__attribute__((noinline)) static ssize_t send_by(const char *call, unsigned char *from)
{
	struct iovec iov = { from, BYTES };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (!strcmp(call, "send"))
		return send(ends[0], from, BYTES, 0);
	if (!strcmp(call, "sendto"))
		return sendto(ends[0], from, BYTES, 0, NULL, 0);
	if (!strcmp(call, "write"))
		return write(ends[0], from, BYTES);
	if (!strcmp(call, "writev"))
		return writev(ends[0], &iov, 1);
	if (!strcmp(call, "sendmsg"))
		return sendmsg(ends[0], &message, 0);
	if (!strcmp(call, "sendmmsg"))
		return by_many(&message);
	return syscall(SYS_write, ends[0], from, (size_t)BYTES);
}

__attribute__((noinline)) static void send_and_rewrite(const char *call, unsigned int round)
{
	unsigned char *from = fill(round);

	if (send_by(call, from) != BYTES)
		fail(call);
	memset(from, 0, BYTES);
	receive(round);
}

__attribute__((noinline)) static void send_and_keep(unsigned int round)
{
	if (send(ends[0], fill(round), BYTES, MSG_NOSIGNAL) != BYTES)
		fail("send");
	receive(round);
}

/* Both ends meet, and show each other what they can. */
static void connect_ends(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t bytes = sizeof(name);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char byte = 0;

	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&name, bytes) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&name, &bytes) ||
	    connect(ends[0], (struct sockaddr *)&name, bytes))
		fail("connect");
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	close(listener);
	for (int i = 0; i < 128; i++) {
		int from = i % 2;

		if (send(ends[from], &byte, 1, 0) != 1 || recv(ends[1 - from], &byte, 1, 0) != 1)
			fail("warm_up");
	}
	for (unsigned int i = 0; i < WARM_UPS; i++)
		send_and_keep(i);
}

static void close_ends(void)
{
	close(ends[0]);
	close(ends[1]);
}

int main(int argc, char **argv)
{
	unsigned int rounds = argc == 3 ? (unsigned int)strtoul(argv[2], NULL, 10) : 0;

	if (!rounds)
		return 2;
	buffers = mmap(NULL, (size_t)BUFFERS * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffers == MAP_FAILED)
		fail("mmap");
	connect_ends();
	for (unsigned int i = 0; i < rounds; i++) {
		send_and_rewrite(argv[1], 2 * i);
		send_and_keep(2 * i + 1);
	}
	close_ends();
	connect_ends();
	for (unsigned int i = 0; i < rounds / 4; i++)
		send_and_rewrite(argv[1], i);
	close_ends();
	printf("right %lu\n", (unsigned long)received);
	return 0;
}
