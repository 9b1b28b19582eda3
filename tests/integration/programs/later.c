/* SPDX-License-Identifier: MIT */
/*
 * later WHAT ROUNDS: a child sends messages from one buffer that it rewrites each time; the receiver does something with the
 * memory as soon as a message is there, as far as receives have told, and then checks every byte. Over the last one it ends at
 * once (`end`) or becomes `true` (`exec`). Prints "right" and the bytes received.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#define BYTES (256 * 1024)
#define ASKED 32

static const char *what;
static unsigned char *buffer;

static void fail(const char *why)
{
	perror(why);
	exit(1);
}

static unsigned char byte_of(uint64_t round, size_t at)
{
	return (unsigned char)(at * 13 + (at >> 12) + round * 101);
}

static void fill(unsigned char *to, uint64_t round)
{
	for (size_t i = 0; i < BYTES; i++)
		to[i] = byte_of(round, i);
}

static int is_right(const unsigned char *from, uint64_t round)
{
	for (size_t i = 0; i < BYTES; i++) {
		if (from[i] != byte_of(round, i)) {
			fprintf(stderr, "%s: byte %zu of message %lu is wrong\n", what, i, (unsigned long)round);
			return 0;
		}
	}
	return 1;
}

static void must_be_right(const unsigned char *from, uint64_t round)
{
	if (!is_right(from, round))
		exit(1);
}

static unsigned char *map(void)
{
	unsigned char *at =
		mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap");
	return at;
}

static uint64_t thread_round;

static void *check_in_thread(void *unused)
{
	return is_right(buffer, thread_round) ? &thread_round : NULL;
}

static void by_thread(uint64_t round)
{
	pthread_t thread;
	void *right;

	thread_round = round;
	if (pthread_create(&thread, NULL, check_in_thread, NULL) || pthread_join(thread, &right) || !right)
		exit(1);
}

static void by_child(uint64_t round)
{
	pid_t child = fork();
	int status;

	if (!child)
		_exit(is_right(buffer, round) ? 0 : 1);
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		exit(1);
	must_be_right(buffer, round);
}

static void by_file(uint64_t round)
{
	static int fd = -1;
	unsigned char *seen;

	if (fd < 0)
		fd = memfd_create("later", MFD_CLOEXEC);
	if (pwrite(fd, buffer, BYTES, 0) != BYTES)
		fail("pwrite");
	seen = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
	must_be_right(seen, round);
	munmap(seen, BYTES);
}

static void by_moving(uint64_t round)
{
	unsigned char *to = map(), *moved = mremap(buffer, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	if (moved != to)
		fail("mremap");
	buffer = moved;
	must_be_right(buffer, round);
}

static void by_unmapping(uint64_t round)
{
	unsigned char *at = buffer;

	munmap(buffer, BYTES);
	buffer = mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	for (size_t i = 0; i < BYTES; i++) {
		if (buffer[i])
			fail("new memory has old bytes");
	}
	memset(buffer, 1, BYTES);
}

/* Of malloc's: what was received moves, and is freed. */
static void by_growing(uint64_t round)
{
	unsigned char *block = buffer = realloc(buffer, 3 * BYTES);

	must_be_right(block, round);
	free(block);
	buffer = malloc(BYTES);
	memset(buffer, 1, BYTES);
}

static void by_protecting(uint64_t round)
{
	if (mprotect(buffer, BYTES, PROT_READ))
		fail("mprotect");
	must_be_right(buffer, round);
	mprotect(buffer, BYTES, PROT_READ | PROT_WRITE);
}

static void by_dropping(uint64_t round)
{
	madvise(buffer, BYTES / 2, MADV_DONTNEED);
	for (size_t i = 0; i < BYTES / 2; i++) {
		if (buffer[i])
			fail("what was dropped is there");
	}
	for (size_t i = BYTES / 2; i < BYTES; i++) {
		if (buffer[i] != byte_of(round, i))
			fail("what was not dropped is wrong");
	}
}

static void (*use)(uint64_t) = NULL;
static const struct {
	const char *name;
	void (*use)(uint64_t);
} uses[] = { { "thread", by_thread },
	     { "fork", by_child },
	     { "file", by_file },
	     { "mremap", by_moving },
	     { "munmap", by_unmapping },
	     { "realloc", by_growing },
	     { "mprotect", by_protecting },
	     { "madvise", by_dropping },
	     { "close", NULL },
	     { "exec", NULL },
	     { "end", NULL } };

/* Both ends meet in calls like these; a connection that is forked before that may stay on TCP. */
static void warm_up(int fd)
{
	char byte = 0;

	for (int i = 0; i < 64; i++) {
		if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1 || recv(fd, &byte, 1, 0) != 1)
			fail("warm_up");
	}
}

static void send_all(uint16_t port, uint64_t rounds)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	unsigned char *from = map();
	char byte;

	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
		fail("connect");
	warm_up(fd);
	for (uint64_t round = 0; round < rounds; round++) {
		fill(from, round);
		if (round < ASKED && recv(fd, &byte, 1, 0) != 1)
			fail("recv");
		for (size_t done = 0; done < BYTES;) {
			ssize_t sent = send(fd, from + done, BYTES - done, MSG_NOSIGNAL);

			if (sent <= 0)
				fail("send");
			done += (size_t)sent;
		}
	}
	memset(from, 0, BYTES);
	recv(fd, &byte, 1, 0);
	exit(0);
}

/* The first ones are asked for: so the receiver is there when they are announced, and both ends show what they can. */
static void receive(int fd, uint64_t round)
{
	if (round < ASKED && send(fd, "", 1, MSG_NOSIGNAL) != 1)
		fail("send");
	for (size_t done = 0; done < BYTES;) {
		ssize_t got = recv(fd, buffer + done, BYTES - done, 0);

		if (got <= 0)
			fail("recv");
		done += (size_t)got;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t bytes = sizeof(name);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
	uint64_t rounds = argc == 3 ? strtoull(argv[2], NULL, 10) : 0, round = 0;

	if (!rounds)
		return 2;
	what = argv[1];
	for (size_t i = 0; i < sizeof(uses) / sizeof(*uses); i++) {
		if (!strcmp(uses[i].name, what))
			use = uses[i].use;
	}
	if (bind(listener, (struct sockaddr *)&name, bytes) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&name, &bytes))
		fail("listen");
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		send_all(name.sin_port, rounds);
	}
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		fail("accept");
	warm_up(fd);
	buffer = use == by_growing ? malloc(BYTES) : map();
	memset(buffer, 1, BYTES);
	for (; round < rounds; round++) {
		receive(fd, round);
		if (use)
			use(round);
		else if (round + 1 < rounds)
			must_be_right(buffer, round);
	}
	printf("right %lu\n", (unsigned long)(rounds * BYTES));
	fflush(stdout);
	if (!strcmp(what, "exec"))
		execlp("true", "true", NULL);
	if (!strcmp(what, "end"))
		_exit(0);
	close(fd);
	if (!use)
		must_be_right(buffer, rounds - 1);
	return 0;
}
