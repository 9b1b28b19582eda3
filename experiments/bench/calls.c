/* SPDX-License-Identifier: MIT */
/*
 * What a call costs: calls KIND CALLS ROUNDS makes CALLS calls ROUNDS times and prints the nanoseconds of one as JSON. Run with and
 * without the preload it shows what a wrapper adds; under callgrind, with two numbers of calls, it shows the same in instructions.
 * The calls are the cheapest of their family, so that the wrapper's share is not lost in the kernel's spread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "experiments/bench/bench.h"

struct ends {
	int a;
	int b;
};

static void open_zero(struct ends *ends)
{
	ends->a = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	if (ends->a < 0)
		bench_fail("/dev/zero");
}

static void open_null(struct ends *ends)
{
	ends->a = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (ends->a < 0)
		bench_fail("/dev/null");
}

static void open_tcp(struct ends *ends)
{
	bench_tcp_pair(&ends->a, &ends->b);
}

static void call_read(const struct ends *ends)
{
	char byte;

	if (read(ends->a, &byte, 1) != 1)
		bench_fail("read of /dev/zero");
}

static void call_write(const struct ends *ends)
{
	if (write(ends->a, "x", 1) != 1)
		bench_fail("write to /dev/null");
}

static void call_receive_nothing(const struct ends *ends)
{
	char byte;

	if (recv(ends->a, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN)
		bench_fail("recv on an empty connection");
}

static void call_there(const struct ends *ends)
{
	char bytes[64] = { 0 };

	if (send(ends->a, bytes, sizeof(bytes), 0) != sizeof(bytes) ||
	    recv(ends->b, bytes, sizeof(bytes), 0) != sizeof(bytes))
		bench_fail("64 bytes over a connection to oneself");
}

static const struct kind {
	const char *name;
	void (*open)(struct ends *ends);
	void (*call)(const struct ends *ends);
} kinds[] = {
	{ "read-zero", open_zero, call_read }, /* a descriptor that is not ours */
	{ "write-null", open_null, call_write },
	{ "tcp-receive-nothing", open_tcp, call_receive_nothing },
	{ "tcp-send-receive", open_tcp, call_there }, /* two calls: 64 bytes there, and taken up */
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const struct kind *find(const char *name)
{
	for (size_t i = 0; i < KINDS; i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	fprintf(stderr, "calls: there is no kind '%s'; there are:", name);
	for (size_t i = 0; i < KINDS; i++)
		fprintf(stderr, " %s", kinds[i].name);
	fputc('\n', stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	struct ends ends;
	const struct kind *kind;
	uint64_t calls, rounds;

	if (argc != 4) {
		fprintf(stderr, "usage: calls KIND CALLS ROUNDS\n");
		return 2;
	}
	kind = find(argv[1]);
	calls = bench_number("CALLS", argv[2], 1, 1000000000);
	rounds = bench_number("ROUNDS", argv[3], 1, 1000000);
	kind->open(&ends);
	printf("{\"kind\": \"%s\", \"calls\": %llu, \"ns\": [", kind->name, (unsigned long long)calls);
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t begun = clock_now();

		for (uint64_t i = 0; i < calls; i++)
			kind->call(&ends);
		printf("%s%.2f", round ? ", " : "", (double)(clock_now() - begun) / (double)calls);
	}
	printf("]}\n");
	return 0;
}
