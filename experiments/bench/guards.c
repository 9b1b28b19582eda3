/* SPDX-License-Identifier: MIT */
/*
 * What the guard costs, and each step of starting a zero-copy send: guards uffd|mprotect BYTES THREADS ROUNDS guards and sends a
 * buffer of BYTES, with THREADS - 1 other threads running, ROUNDS times, and prints the median nanoseconds of each step as JSON:
 *   protect, release    the guard on and off again
 *   send_copy           a plain send, the socket's buffer empty
 *   send_zerocopy       the same with MSG_ZEROCOPY
 *   notice              taking the kernel's notice of it from the error queue
 *   fault_done          a write to a guarded page whose owner is done by then (block-on-write at its shortest)
 *   fault_copy          a write to a guarded page whose owner is not done: the page is copied (copy-on-write)
 * Prints "available": false where this guard is not to be had. Exit status 1 when something fails.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/settings.h"
#include "experiments/bench/bench.h"
#include "rdma/guard.h"

#define SEND_BUFFER (16 << 20)

enum step { PROTECT, RELEASE, SEND_COPY, SEND_ZEROCOPY, NOTICE, FAULT_DONE, FAULT_COPY, STEPS };
static const char *const step_names[STEPS] = { "protect", "release",	"send_copy", "send_zerocopy",
					       "notice",  "fault_done", "fault_copy" };

struct bench {
	char *buffer;
	uint64_t bytes;
	uint64_t rounds;
	int fd;
	double *ns[STEPS];
	struct guard_record *record; /* of the write that faults; released by poll_done() */
};

static atomic_bool ended;

/* Another thread that runs: taking rights away from pages has to tell its processor. */
static void *run(void *arg)
{
	volatile unsigned long *word = arg;

	while (!atomic_load_explicit(&ended, memory_order_relaxed))
		(*word)++;
	return NULL;
}

static void poll_done(void *owner)
{
	struct bench *bench = owner;

	guard_release(bench->record);
	bench->record = NULL;
}

static const struct guard_owner_ops done_ops = { .poll = poll_done };
static const struct guard_owner_ops busy_ops = { 0 };

static struct guard_record *protect(struct bench *bench, const struct guard_owner_ops *ops)
{
	struct guard_record *record;

	errno = -guard_protect(bench->buffer, bench->bytes, ops, bench, &record);
	if (errno)
		bench_fail("guard_protect");
	return record;
}

static void time_guard(struct bench *bench, uint64_t round)
{
	uint64_t begun = clock_now(), guarded;
	struct guard_record *record = protect(bench, &busy_ops);

	guarded = clock_now();
	guard_release(record);
	bench->ns[RELEASE][round] = (double)(clock_now() - guarded);
	bench->ns[PROTECT][round] = (double)(guarded - begun);
}

static void time_faults(struct bench *bench, uint64_t round)
{
	volatile char *page = bench->buffer;
	struct guard_record *record;
	uint64_t begun;

	bench->record = protect(bench, &done_ops);
	begun = clock_now();
	*page = 1;
	bench->ns[FAULT_DONE][round] = (double)(clock_now() - begun);
	if (bench->record)
		guard_release(bench->record);
	record = protect(bench, &busy_ops);
	begun = clock_now();
	*page = 2;
	bench->ns[FAULT_COPY][round] = (double)(clock_now() - begun);
	guard_release(record);
}

static void take_notice(struct bench *bench, uint64_t round)
{
	char control[256];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	struct pollfd wait = { .fd = bench->fd };
	uint64_t begun;

	if (poll(&wait, 1, 10000) != 1)
		bench_fail("no notice of a MSG_ZEROCOPY send");
	begun = clock_now();
	if (recvmsg(bench->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		bench_fail("the notice of a MSG_ZEROCOPY send");
	bench->ns[NOTICE][round] = (double)(clock_now() - begun);
}

static void time_send(struct bench *bench, uint64_t round, int flags, enum step step)
{
	uint64_t begun = clock_now();
	char ready;

	if (send(bench->fd, bench->buffer, bench->bytes, flags) != (ssize_t)bench->bytes)
		bench_fail(step_names[step]);
	bench->ns[step][round] = (double)(clock_now() - begun);
	if (!bench_receive_all(bench->fd, &ready, 1))
		bench_fail("the receiver has gone");
	if (flags & MSG_ZEROCOPY)
		take_notice(bench, round);
}

static void open_connection(struct bench *bench, pid_t *receiver)
{
	int yes = 1, bytes = SEND_BUFFER;

	bench->fd = bench_receiver_start(bench->bytes, receiver);
	if (setsockopt(bench->fd, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof(yes)))
		bench_fail("SO_ZEROCOPY");
	/* So that a send of any size is taken at once; without the right for it the kernel's limit remains. */
	if (setsockopt(bench->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(bench->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static void measure(struct bench *bench)
{
	for (int step = 0; step < STEPS; step++) {
		bench->ns[step] = calloc(bench->rounds, sizeof(double));
		if (!bench->ns[step])
			bench_fail("memory");
	}
	for (uint64_t round = 0; round < bench->rounds; round++) {
		time_guard(bench, round);
		time_faults(bench, round);
		time_send(bench, round, MSG_NOSIGNAL, SEND_COPY);
		time_send(bench, round, MSG_NOSIGNAL | MSG_ZEROCOPY, SEND_ZEROCOPY);
	}
}

static enum guard_kind kind_of(const char *name)
{
	if (!strcmp(name, "uffd"))
		return GUARD_UFFD;
	if (!strcmp(name, "mprotect"))
		return GUARD_MPROTECT;
	fprintf(stderr, "guards: there is no guard '%s'; there are: uffd mprotect\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	struct bench bench = { 0 };
	pthread_t others[64];
	unsigned long words[64][16] = { 0 }; /* a cache line each, and more */
	enum guard_kind kind;
	uint64_t threads;
	pid_t receiver;

	if (argc != 5) {
		fprintf(stderr, "usage: guards uffd|mprotect BYTES THREADS ROUNDS\n");
		return 2;
	}
	kind = kind_of(argv[1]);
	bench.bytes = bench_number("BYTES", argv[2], 4096, 256 << 20) & ~4095ull;
	threads = bench_number("THREADS", argv[3], 1, 64);
	bench.rounds = bench_number("ROUNDS", argv[4], 1, 1000000);
	bench.buffer = bench_memory(bench.bytes);
	settings.block_us = 0;
	if (guard_start(kind) < 0) {
		printf("{\"guard\": \"%s\", \"available\": false}\n", argv[1]);
		return 0;
	}
	open_connection(&bench, &receiver);
	for (uint64_t i = 0; i + 1 < threads; i++)
		if (pthread_create(&others[i], NULL, run, words[i]))
			bench_fail("a thread");
	measure(&bench);
	atomic_store(&ended, true);
	for (uint64_t i = 0; i + 1 < threads; i++)
		pthread_join(others[i], NULL);
	bench_receiver_end(bench.fd, receiver);
	printf("{\"guard\": \"%s\", \"available\": true, \"bytes\": %llu, \"threads\": %llu, \"rounds\": %llu, \"ns\": {",
	       argv[1], (unsigned long long)bench.bytes, (unsigned long long)threads, (unsigned long long)bench.rounds);
	for (int step = 0; step < STEPS; step++)
		printf("%s\"%s\": %.0f", step ? ", " : "", step_names[step],
		       bench_median(bench.ns[step], bench.rounds));
	printf("}}\n");
	return 0;
}
