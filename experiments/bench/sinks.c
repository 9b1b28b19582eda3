/* SPDX-License-Identifier: MIT */
/*
 * What a sink on one host could win: sinks BYTES ROUNDS moves BYTES in different ways, ROUNDS times each by turns, and prints the
 * nanoseconds of one as JSON (median, and the best tenth, for a machine that has other things to do). `copies`: into a ring of
 * shared memory and out again, one after the other, by one core; two ends do it at the same time. `get`: process_vm_readv from
 * another process. `sink`: process_vm_writev into pages of another process that are there, as a receiver's buffer may be.
 * `fresh`: the same into pages that are not there yet, and `flip`: such pages put in the place of the program's, by dropping
 * those and UFFDIO_MOVE (null where there is none): the two steps of a sink that can be revoked (docs/decisions/0013).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "experiments/bench/bench.h"

#define RING (1u << 20)

/* Linux 6.8, for building with older headers. */
struct move_pages_of {
	uint64_t to, from, bytes, mode;
	int64_t moved;
};
#define MOVE_IOCTL _IOWR(UFFDIO, 0x05, struct move_pages_of)

enum way { COPIES, GET, SINK, FRESH, FLIP, WAYS };
static const char *const names[WAYS] = { "copies", "get", "sink", "fresh", "flip" };

static struct bench {
	uint64_t bytes;
	uint8_t *mine, *to, *spare, *ring; /* `to` is the other process's as well, at the same address */
	pid_t other;
	int ask[2], answer[2];
	int uffd;
} bench;

/* The other process: drops its pages when it is asked to. */
static void drop_when_asked(void)
{
	char byte;

	memset(bench.to, 2, bench.bytes);
	while (read(bench.ask[0], &byte, 1) == 1) {
		if (byte == 'd' && madvise(bench.to, bench.bytes, MADV_DONTNEED))
			_exit(1);
		if (write(bench.answer[1], &byte, 1) != 1)
			_exit(1);
	}
	_exit(0);
}

static void ask(char what)
{
	if (write(bench.ask[1], &what, 1) != 1 || read(bench.answer[0], &what, 1) != 1)
		bench_fail("the other process");
}

static void copy(void)
{
	for (uint64_t at = 0; at < bench.bytes; at += RING) {
		size_t part = bench.bytes - at < RING ? bench.bytes - at : RING;

		memcpy(bench.ring, bench.mine + at, part);
		memcpy(bench.to + at, bench.ring, part);
	}
}

static void cross(bool write)
{
	struct iovec local = { bench.mine, bench.bytes }, remote = { bench.to, bench.bytes };
	ssize_t got = write ? process_vm_writev(bench.other, &local, 1, &remote, 1, 0) :
			      process_vm_readv(bench.other, &local, 1, &remote, 1, 0);

	if (got != (ssize_t)bench.bytes)
		bench_fail("the other process's memory");
}

static bool flip(void)
{
	struct uffdio_register range = { .range = { (uintptr_t)bench.to, bench.bytes },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	bool can = !ioctl(bench.uffd, UFFDIO_REGISTER, &range) && !madvise(bench.to, bench.bytes, MADV_DONTNEED);

	for (uint64_t at = 0; can && at < bench.bytes;) {
		struct move_pages_of move = { (uintptr_t)bench.to + at, (uintptr_t)bench.spare + at, bench.bytes - at,
					      0, 0 };
		int rc = ioctl(bench.uffd, MOVE_IOCTL, &move);

		if (move.moved > 0)
			at += (uint64_t)move.moved;
		else
			can = rc && errno == EAGAIN;
	}
	ioctl(bench.uffd, UFFDIO_UNREGISTER, &range.range);
	return can;
}

/* Returns nanoseconds, 0 where it can't be had. */
static double time_one(enum way way)
{
	uint64_t begun;
	bool done = true;

	if (way == FRESH)
		ask('d');
	if (way == FLIP)
		memset(bench.spare, 3, bench.bytes);
	begun = clock_now();
	if (way == COPIES)
		copy();
	else if (way == FLIP)
		done = flip();
	else
		cross(way != GET);
	return done ? (double)(clock_now() - begun) : 0;
}

static void open_all(void)
{
	struct uffdio_api api = { .api = UFFD_API };

	bench.mine = bench_memory(bench.bytes);
	bench.to = bench_memory(bench.bytes);
	bench.spare = bench_memory(bench.bytes);
	bench.ring = mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (bench.ring == MAP_FAILED || pipe2(bench.ask, O_CLOEXEC) || pipe2(bench.answer, O_CLOEXEC))
		bench_fail("memory or pipes");
	/* Huge pages would be split by the first drop, and the ways compared no more. */
	madvise(bench.to, bench.bytes, MADV_NOHUGEPAGE);
	madvise(bench.spare, bench.bytes, MADV_NOHUGEPAGE);
	bench.other = fork();
	if (bench.other < 0)
		bench_fail("a process");
	if (!bench.other) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		drop_when_asked();
	}
	memset(bench.to, 1, bench.bytes);
	ask('n');
	bench.uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (bench.uffd >= 0)
		ioctl(bench.uffd, UFFDIO_API, &api);
}

static void tell(enum way way, double *ns, uint64_t rounds)
{
	double median = bench_median(ns, rounds), best = ns[rounds / 10];

	if (median > 0)
		printf(", \"%s\": {\"ns\": %.0f, \"best_ns\": %.0f, \"gbit_s\": %.1f}", names[way], median, best,
		       8.0 * (double)bench.bytes / median);
	else
		printf(", \"%s\": null", names[way]);
}

int main(int argc, char **argv)
{
	double *ns[WAYS];
	uint64_t rounds;

	if (argc != 3) {
		fprintf(stderr, "usage: sinks BYTES ROUNDS\n");
		return 2;
	}
	bench.bytes = bench_number("BYTES", argv[1], 4096, 1ull << 30) & ~4095ull;
	rounds = bench_number("ROUNDS", argv[2], 1, 1000000);
	open_all();
	for (int way = 0; way < WAYS; way++) {
		ns[way] = calloc(rounds, sizeof(double));
		if (!ns[way])
			bench_fail("memory");
	}
	for (uint64_t round = 0; round < rounds; round++) {
		for (int way = 0; way < WAYS; way++)
			ns[way][round] = time_one((enum way)way);
	}
	printf("{\"bytes\": %lu, \"rounds\": %lu", bench.bytes, rounds);
	for (int way = 0; way < WAYS; way++)
		tell((enum way)way, ns[way], rounds);
	puts("}");
	kill(bench.other, SIGKILL);
	waitpid(bench.other, NULL, 0);
	return 0;
}
