/* SPDX-License-Identifier: MIT */
/*
 * What it costs to move bytes between two processes of one host: gets BYTES MESSAGES ROUNDS [RING] sends MESSAGES messages of
 * BYTES a round, and prints as JSON the nanoseconds of a message for each way: `ring` (copied by both ends), `get` (announced,
 * and fetched before the next one), `gets` (several announced at a time), `kept` (announced, and copied to the segment before
 * it is fetched). `announce_ns` is what one announcement takes by itself, the record of a SrcAvail, and `clock_ns` what looking at
 * the clock has added to it. Both ends spin, so two idle cores are needed; the ways take turns within a round.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "experiments/bench/bench.h"
#include "rdma/channel.h"

#define BUFFERS SOURCE_SLOTS

enum way { RING_COPY, GET_ONE, GET_MANY, GET_KEPT, WAYS };
static const char *const names[WAYS] = { "ring", "get", "gets", "kept" };

static struct bench {
	struct channel out, in;
	uint8_t *buffer[BUFFERS], *to;
	uint64_t bytes, messages, rounds;
	double *ns[WAYS], *start_ns[WAYS], *announce_ns;
} bench;

/* Counted by the receiver. */
static _Atomic uint64_t *received;

static void receive(void)
{
	struct iovec iov = { bench.to, bench.bytes };
	uint64_t total = 0;

	for (;;) {
		size_t got;

		source_step_in(&bench.in.in);
		if (lane_get(&bench.in.in, &iov, 1, false, &got) < 0)
			_exit(1);
		total += got;
		atomic_store_explicit(received, total, memory_order_release);
	}
}

static void await(uint64_t total)
{
	while (atomic_load_explicit(received, memory_order_acquire) < total)
		;
}

static void send_by_ring(const uint8_t *from)
{
	struct iovec iov = { (void *)from, bench.bytes };

	for (size_t done = 0; done < bench.bytes;) {
		ssize_t put = lane_put(&bench.out.out, &iov, 1, done);

		if (put < 0)
			exit(1);
		done += (size_t)put;
	}
}

static uint64_t announce(const uint8_t *from, double *ns)
{
	uint64_t number, begun;

	do
		begun = clock_now();
	while (source_announce(&bench.out.out, from, bench.bytes, &number) < 0);
	*ns = (double)(clock_now() - begun);
	return number;
}

static void send_one(enum way way, const uint8_t *from, double *ns)
{
	uint64_t number;

	if (way == RING_COPY) {
		send_by_ring(from);
		return;
	}
	number = announce(from, ns);
	if (way == GET_KEPT && source_keep(&bench.out.out, number) < 0)
		exit(1);
	while (way == GET_ONE && source_taken(&bench.out.out, number) != SIZE_MAX)
		;
}

static void time_way(enum way way, uint64_t round, uint64_t *total)
{
	uint64_t begun = clock_now(), sent;

	for (uint64_t i = 0; i < bench.messages; i++)
		send_one(way, bench.buffer[i % BUFFERS], &bench.announce_ns[i]);
	sent = clock_now();
	*total += bench.messages * bench.bytes;
	await(*total);
	bench.ns[way][round] = (double)(clock_now() - begun) / (double)bench.messages;
	bench.start_ns[way][round] = (double)(sent - begun) / (double)bench.messages;
}

static double clock_ns(void)
{
	double ns[1000];

	for (size_t i = 0; i < 1000; i++) {
		uint64_t begun = clock_now();

		ns[i] = (double)(clock_now() - begun);
	}
	return bench_median(ns, 1000);
}

static void open_ends(uint32_t ring)
{
	static const uint8_t identity[TRANSPORT_IDENTITY_BYTES] = "bench";

	if (channel_make(&bench.out, ring) < 0 || channel_take(&bench.in, bench.out.fd) < 0)
		bench_fail("a channel with such a ring");
	channel_open_sources(&bench.out, &transport_cma, identity);
	channel_open_sources(&bench.in, &transport_cma, identity);
	atomic_store(&bench.in.in.shared->reader, 1);
	received = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bench.to = bench_memory(bench.bytes);
}

static void shake_hands(void)
{
	uint64_t begun = clock_now();
	int rc = -EAGAIN;

	while (rc == -EAGAIN && clock_now() - begun < 5000 * NS_PER_MS)
		rc = source_step_out(&bench.out.out, NULL);
	if (rc < 0 || !lane_take_over(&bench.out.out)) {
		fprintf(stderr, "gets: process_vm_readv does not reach the other process here: error %d\n", -rc);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	uint64_t total = 0, ring;
	pid_t receiver;

	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: gets BYTES MESSAGES ROUNDS [RING]\n");
		return 2;
	}
	bench.bytes = bench_number("BYTES", argv[1], 1, SOURCE_AREA_BYTES);
	bench.messages = bench_number("MESSAGES", argv[2], 1, 1000000);
	bench.rounds = bench_number("ROUNDS", argv[3], 1, 1000000);
	ring = argc > 4 ? bench_number("RING", argv[4], LANE_RING_MIN, LANE_RING_MAX) : 1 << 20;
	open_ends((uint32_t)ring);
	receiver = fork();
	if (receiver < 0)
		bench_fail("a process");
	if (!receiver) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		receive();
	}
	for (int i = 0; i < (int)BUFFERS; i++)
		bench.buffer[i] = bench_memory(bench.bytes);
	for (int way = 0; way < WAYS; way++) {
		bench.ns[way] = calloc(bench.rounds, sizeof(double));
		bench.start_ns[way] = calloc(bench.rounds, sizeof(double));
	}
	bench.announce_ns = calloc(bench.messages, sizeof(double));
	if (!bench.announce_ns)
		bench_fail("memory");
	shake_hands();
	for (uint64_t round = 0; round < bench.rounds; round++)
		for (int way = 0; way < WAYS; way++)
			time_way((enum way)way, round, &total);
	kill(receiver, SIGKILL);
	waitpid(receiver, NULL, 0);
	printf("{\"bytes\": %lu, \"messages\": %lu, \"rounds\": %lu, \"ring_bytes\": %lu", bench.bytes, bench.messages,
	       bench.rounds, ring);
	for (int way = 0; way < WAYS; way++) {
		double ns = bench_median(bench.ns[way], bench.rounds);

		/* The median has sorted them: the first is the best, for a machine that has other things to do. */
		printf(", \"%s\": {\"message_ns\": %.0f, \"best_ns\": %.0f, \"sender_ns\": %.0f, \"gbit_s\": %.1f}",
		       names[way], ns, bench.ns[way][0], bench_median(bench.start_ns[way], bench.rounds),
		       8.0 * (double)bench.bytes / ns);
	}
	/* Of the last announcements of the last round, each in its own time. */
	printf(", \"announce_ns\": %.0f, \"clock_ns\": %.0f}\n", bench_median(bench.announce_ns, bench.messages),
	       clock_ns());
	return 0;
}
