/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "far_stream.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void check(bool right, const char *what)
{
	if (right)
		return;
	fprintf(stderr, "%d: %s: %s\n", (int)getpid(), what, strerror(errno));
	_exit(1);
}

uint8_t byte_at(uint64_t at)
{
	return (uint8_t)(at * 7 + at / 251);
}

void tell(const int pipe[2])
{
	check(write(pipe[1], "", 1) == 1, "tell");
}

void await(const int pipe[2])
{
	char byte;

	check(read(pipe[0], &byte, 1) == 1, "await");
}

size_t put(struct stream *stream, size_t bytes, int flags)
{
	uint8_t data[PART];
	size_t done = 0;

	while (done < bytes) {
		size_t part = bytes - done < sizeof(data) ? bytes - done : sizeof(data);
		ssize_t rc;

		for (size_t i = 0; i < part; i++)
			data[i] = byte_at(stream->sent + i);
		stream->sends = true;
		rc = send(stream->fd, data, part, flags | MSG_NOSIGNAL);
		stream->sends = false;
		if (rc < 0 && errno == EAGAIN && flags & MSG_DONTWAIT)
			break;
		check(rc > 0, "send");
		stream->sent += (uint64_t)rc;
		done += (size_t)rc;
	}
	return done;
}

void take(struct stream *stream, size_t bytes)
{
	uint8_t data[PART];

	while (bytes) {
		ssize_t rc;

		stream->receives = true;
		rc = recv(stream->fd, data, bytes < sizeof(data) ? bytes : sizeof(data), 0);
		stream->receives = false;
		if (rc <= 0)
			fprintf(stderr, "after %llu bytes: ", (unsigned long long)stream->received);
		check(rc > 0, "recv");
		for (ssize_t i = 0; i < rc; i++)
			check(data[i] == byte_at(stream->received + (uint64_t)i), "wrong byte");
		stream->received += (uint64_t)rc;
		bytes -= (size_t)rc;
	}
}

void expect_end(struct stream *stream)
{
	char byte;

	check(recv(stream->fd, &byte, 1, 0) == 0, "end of the stream");
}
