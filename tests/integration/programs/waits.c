/* SPDX-License-Identifier: MIT */
/*
 * One end of TCP connections that does what it is told on standard input, line by line, and tells on standard output when it
 * has: so that a test can have one end wait for the other, and know what has not happened yet.
 *
 * waits listen | waits connect PORT | waits proxy PORT
 *
 * listen and proxy print their port first; a proxy is connected to PORT, and accepts the one whose bytes it passes on there.
 *
 * send BYTES SEED	fills its buffer, sends all of it by blocking sends, rewrites the buffer. Answers "sent"
 * receive BYTES SEED	receives so much, and checks each byte. Answers "received"
 * relay BYTES		receives from the one side and sends to the other, by one buffer. Answers "relayed"
 * fit			sends by non-blocking sends until nothing more fits. Answers "fit BYTES"
 *
 * It knows nothing of zc.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "listening.h"

#define BUFFER_BYTES (16u << 20)
#define RELAY_BYTES (256u << 10)
#define REWRITES 3

static int from = -1, to = -1; /* the same connection, but for a proxy */
static unsigned char *buffer;

static unsigned char pattern(size_t at, unsigned int seed)
{
	return (unsigned char)((at * 2654435761u + seed * 40503u) >> 11);
}

static void send_all(const unsigned char *data, size_t bytes)
{
	while (bytes) {
		ssize_t n = send(to, data, bytes, MSG_NOSIGNAL);

		if (n < 0)
			err(1, "send");
		data += n;
		bytes -= (size_t)n;
	}
}

static void do_send(size_t bytes, unsigned int seed)
{
	for (size_t i = 0; i < bytes; i++)
		buffer[i] = pattern(i, seed);
	send_all(buffer, bytes);
	for (int i = 1; i <= REWRITES; i++)
		memset(buffer, i, bytes);
	puts("sent");
}

static size_t receive_some(size_t bytes)
{
	ssize_t n = recv(from, buffer, bytes, 0);

	if (n < 0)
		err(1, "receive");
	if (!n)
		errx(1, "end of file, %zu bytes too early", bytes);
	return (size_t)n;
}

static void do_receive(size_t bytes, unsigned int seed)
{
	size_t at = 0;

	while (at < bytes) {
		size_t got = receive_some(bytes - at);

		for (size_t i = 0; i < got; i++) {
			if (buffer[i] != pattern(at + i, seed))
				errx(1, "byte %zu of %zu is wrong", at + i, bytes);
		}
		at += got;
	}
	puts("received");
}

static void do_relay(size_t bytes)
{
	while (bytes) {
		size_t got = receive_some(bytes < RELAY_BYTES ? bytes : RELAY_BYTES);

		send_all(buffer, got);
		bytes -= got;
	}
	puts("relayed");
}

static void do_fit(void)
{
	struct pollfd room = { .fd = to, .events = POLLOUT };
	size_t fit = 0;

	/* What is on its way to the peer makes room a little later: until there is none for a while. */
	while (poll(&room, 1, 200) == 1) {
		ssize_t n = send(to, buffer, BUFFER_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno != EAGAIN)
			err(1, "send");
		fit += n > 0 ? (size_t)n : 0;
	}
	printf("fit %zu\n", fit);
}

static struct sockaddr_in loopback(unsigned int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((uint16_t)port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int reach(const char *port)
{
	struct sockaddr_in name = loopback((unsigned int)atoi(port));
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&name, sizeof(name)))
		err(1, "connect to port %s", port);
	return fd;
}

static void obey(const char *line)
{
	size_t bytes = 0;
	unsigned int seed = 0;

	if (sscanf(line, "send %zu %u", &bytes, &seed) == 2 && bytes <= BUFFER_BYTES)
		do_send(bytes, seed);
	else if (sscanf(line, "receive %zu %u", &bytes, &seed) == 2 && bytes <= BUFFER_BYTES)
		do_receive(bytes, seed);
	else if (sscanf(line, "relay %zu", &bytes) == 1)
		do_relay(bytes);
	else if (!strcmp(line, "fit\n"))
		do_fit();
	else
		errx(2, "what is '%s'?", line);
}

int main(int argc, char **argv)
{
	char line[100];

	setvbuf(stdout, NULL, _IOLBF, 0);
	buffer = malloc(BUFFER_BYTES);
	if (!buffer)
		err(1, "memory");
	memset(buffer, 0xee, BUFFER_BYTES);
	if (argc == 2 && !strcmp(argv[1], "listen"))
		from = to = accept_one(listen_and_tell(INADDR_LOOPBACK, 1));
	else if (argc == 3 && !strcmp(argv[1], "connect"))
		from = to = reach(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "proxy"))
		to = reach(argv[2]), from = accept_one(listen_and_tell(INADDR_LOOPBACK, 1));
	else
		errx(2, "usage: waits listen | waits connect PORT | waits proxy PORT");
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
