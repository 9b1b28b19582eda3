/* SPDX-License-Identifier: MIT */
/*
 * What it costs to start a send: sends BYTES BURST ROUNDS sends bursts of BURST messages of BYTES each, waits after each burst for the
 * receiver's byte that says that all has arrived, and times nothing but the calls that send. So the socket's buffer is empty when a
 * burst begins, and no call waits for the receiver. The receiver is a process of its own, made before any connection exists.
 */
#define _GNU_SOURCE
#include <stdio.h>

#include "common/clock.h"
#include "common/hist.h"
#include "experiments/bench/bench.h"

#define WARM_UP 64

static void burst(int fd, const char *buffer, uint64_t bytes, uint64_t count, struct hist *hist)
{
	char ready;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t begun = clock_now();

		bench_send_all(fd, buffer, bytes);
		if (hist)
			hist_record(hist, clock_now() - begun);
	}
	if (!bench_receive_all(fd, &ready, 1))
		bench_fail("the receiver has gone");
}

int main(int argc, char **argv)
{
	static struct hist hist;
	uint64_t bytes, count, rounds;
	pid_t receiver;
	int fd;
	char *buffer;

	if (argc != 4) {
		fprintf(stderr, "usage: sends BYTES BURST ROUNDS\n");
		return 2;
	}
	bytes = bench_number("BYTES", argv[1], 1, 64 << 20);
	count = bench_number("BURST", argv[2], 1, 10000);
	rounds = bench_number("ROUNDS", argv[3], 1, 100000000);
	buffer = bench_memory(bytes);
	fd = bench_receiver_start(bytes * count, &receiver);
	hist_reset(&hist);
	for (uint64_t round = 0; round < WARM_UP + rounds; round++)
		burst(fd, buffer, bytes, count, round < WARM_UP ? NULL : &hist);
	bench_receiver_end(fd, receiver);
	printf("{\"bytes\": %llu, \"burst\": %llu, \"sends\": %llu, \"ns\": {\"mean\": %.1f, \"p50\": %llu, \"p99\": %llu}}\n",
	       (unsigned long long)bytes, (unsigned long long)count, (unsigned long long)hist.count, hist_mean(&hist),
	       (unsigned long long)hist_percentile(&hist, 50), (unsigned long long)hist_percentile(&hist, 99));
	return 0;
}
