/* SPDX-License-Identifier: MIT */
/* splice() from a connection into a pipe, and sendfile(): how much, what it waits for, what it refuses. The client sends. */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define BYTES 60000
#define SEED 3
#define ROUNDS 200

static void make(int ends[2], enum pipe_kind kind)
{
	char name[] = "/tmp/corpus-pipe-XXXXXX", path[64];

	if (kind == PIPE_FIFO) {
		if (!mkdtemp(name))
			die("mkdtemp: %s", errno_name(errno));
		snprintf(path, sizeof(path), "%s/fifo", name);
		MUST(mkfifo(path, 0600));
		ends[0] = (int)MUST(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
		ends[1] = (int)MUST(open(path, O_WRONLY | O_CLOEXEC));
		MUST(unlink(path));
		MUST(rmdir(name));
		set_nonblocking(ends[0], false);
	} else {
		MUST(pipe2(ends, O_CLOEXEC | (kind == PIPE_NONBLOCKING ? O_NONBLOCK : 0)));
	}
	MUST(fcntl(ends[1], F_SETPIPE_SZ, 16384));
}

static void unmake(const int ends[2])
{
	close(ends[0]);
	close(ends[1]);
}

/* Takes what the pipe has, of which splice() has said that it is `said`. */
static void drain(int pipe, int said, uint64_t *position)
{
	char data[16384];
	int there = 0;

	MUST(ioctl(pipe, FIONREAD, &there));
	if (there != said)
		note_wrong("splice said %d, the pipe has %d", said, there);
	while (there > 0) {
		int got = (int)MUST(read(pipe, data, sizeof(data)));

		pattern_check(data, (size_t)got, SEED, *position);
		*position += (uint64_t)got;
		there -= got;
	}
}

/* Nobody reads from the pipe while it is filled: a part of the bytes, and then EAGAIN. */
void pipe_full(struct end *end, long kind)
{
	unsigned int flags = kind == PIPE_NONBLOCKING ? 0 : SPLICE_F_NONBLOCK;
	uint64_t position = 0;
	int ends[2], round;

	meet_and_go(end);
	if (!end->server) {
		give_pattern(end->fd, BYTES, SEED, 0);
		await(end, "done");
		return;
	}
	make(ends, (enum pipe_kind)kind);
	await_bytes(end->fd, BYTES);
	for (round = 0; position < BYTES; round++) {
		ssize_t rc, sum = 0;

		/* The socket waits, so it is not asked for more than comes. */
		while (position + (uint64_t)sum < BYTES &&
		       (rc = splice(end->fd, NULL, ends[1], NULL, BYTES * 2, flags)) > 0)
			sum += rc;
		if (!round)
			note("in the end: %s", errno_name(errno));
		EXPECT(sum > 0);
		drain(ends[0], (int)sum, &position);
	}
	EXPECT(round > 1);
	note("%llu bytes", (unsigned long long)position);
	tell(end, "done");
	unmake(ends);
}

static void *read_pipe(void *pipe)
{
	uint64_t position = 0;
	char data[5000];
	ssize_t got;

	while ((got = read(*(int *)pipe, data, sizeof(data))) > 0) {
		pattern_check(data, (size_t)got, SEED, position);
		position += (uint64_t)got;
	}
	note("%llu bytes came through", (unsigned long long)position);
	return NULL;
}

/* Another thread reads from the pipe: whoever fills it waits for that one, and for the client. */
void pipe_drained(struct end *end, long kind)
{
	long sum = 0, rc;
	pthread_t reader;
	int ends[2];

	meet_and_go(end);
	if (!end->server) {
		for (int i = 0; i < 20; i++)
			give_pattern(end->fd, BYTES, SEED, (uint64_t)i * BYTES);
		MUST(shutdown(end->fd, SHUT_WR));
		await(end, "done");
		return;
	}
	make(ends, (enum pipe_kind)kind);
	EXPECT(!pthread_create(&reader, NULL, read_pipe, &ends[0]));
	while ((rc = MUST(splice(end->fd, NULL, ends[1], NULL, 1 << 20, 0))) > 0)
		sum += rc;
	close(ends[1]);
	pthread_join(reader, NULL);
	close(ends[0]);
	note("%ld bytes in all", sum);
	tell(end, "done");
}

/* SPLICE_F_NONBLOCK is about the pipe: a socket that waits is waited for. */
void pipe_waits(struct end *end, long unused)
{
	uint64_t position = 0;
	int ends[2];

	meet_and_go(end);
	make(ends, PIPE_PIPE);
	for (int i = 0; i < 30; i++) {
		if (!end->server) {
			await(end, "waits");
			give_pattern(end->fd, 10, SEED, (uint64_t)i * 10);
			continue;
		}
		tell(end, "waits");
		if (CALL(splice(end->fd, NULL, ends[1], NULL, 65536, SPLICE_F_NONBLOCK)) > 0)
			drain(ends[0], 10, &position);
	}
	meet_at(end, "end");
	if (end->server) {
		set_nonblocking(end->fd, true);
		CALL(splice(end->fd, NULL, ends[1], NULL, 65536, 0));
	}
	meet_at(end, "looked");
	unmake(ends);
}

static ssize_t receive_file(int pipe, int fd, size_t bytes, bool raw)
{
	return raw ? syscall(SYS_sendfile, pipe, fd, NULL, bytes) : sendfile(pipe, fd, NULL, bytes);
}

/* Headers by recv(), what is behind each of them by sendfile(), which takes a socket where it is given a pipe. */
void pipe_sendfile(struct end *end, long raw)
{
	uint64_t position = 0;
	char header[16];
	int ends[2];

	meet(end);
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	make(ends, PIPE_PIPE);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		uint64_t until = position + i % 40 * 250 + 1;

		if (!end->server) {
			give_pattern(end->fd, sizeof(header), SEED + 1, i * sizeof(header));
			give_pattern(end->fd, until - position, SEED, position);
			position = until;
			await(end, "taken");
			continue;
		}
		EXPECT(recv(end->fd, header, sizeof(header), MSG_WAITALL) == sizeof(header));
		pattern_check(header, sizeof(header), SEED + 1, i * sizeof(header));
		while (position < until)
			drain(ends[0], (int)MUST(receive_file(ends[1], end->fd, until - position, raw)), &position);
		tell(end, "taken");
	}
	note("%llu bytes", (unsigned long long)position);
	meet_at(end, "end");
	if (end->server) {
		set_nonblocking(end->fd, true);
		CALL(receive_file(ends[1], end->fd, 10, raw));
		CALL(receive_file(ends[1], end->fd, 0, raw));
	}
	meet_at(end, "looked");
	unmake(ends);
}

static volatile sig_atomic_t broken;

static void count_broken(int number)
{
	broken++;
}

/* What is refused takes nothing. */
void pipe_refused(struct end *end, long unused)
{
	off64_t offset = 0;
	int ends[2];

	meet_and_go(end);
	if (!end->server) {
		give_pattern(end->fd, 10, SEED, 0);
		await(end, "done");
		return;
	}
	signal(SIGPIPE, count_broken);
	make(ends, PIPE_PIPE);
	await_bytes(end->fd, 10);
	CALL(splice(end->fd, NULL, ends[1], NULL, 10, 0x4000));
	CALL(splice(end->fd, NULL, ends[1], NULL, 0, 0x4000));
	CALL(splice(end->fd, NULL, ends[0], NULL, 10, 0));
	CALL(splice(end->fd, &offset, ends[1], NULL, 10, 0));
	CALL(splice(end->fd, NULL, ends[1], &offset, 10, 0));
	CALL(splice(end->fd, NULL, end->fd, NULL, 10, 0));
	close(ends[0]);
	CALL(splice(end->fd, NULL, ends[1], NULL, 10, 0));
	note("SIGPIPE: %d", (int)broken);
	close(ends[1]);
	take_pattern(end->fd, 10, SEED, 0);
	tell(end, "done");
}
