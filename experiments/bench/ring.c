/* SPDX-License-Identifier: MIT */
/*
 * What two copies through shared memory take at the least: ring MODE BYTES RING-BYTES MILLISECONDS. Two processes share a ring
 * of RING-BYTES, mapped twice in a row; the one copies messages of BYTES in, the other copies them out, both spin, and there is
 * nothing else: no socket, no records, no doorbells, no way back to TCP. Copies are published in parts as large as a lane's,
 * so that both ends copy at once. MODE stream tells the speed, MODE ping-pong (a ring each way) half a round trip. Before the
 * time begins, a message goes through that is looked at.
 */
#define _GNU_SOURCE
#include <sched.h>
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
#include "common/hist.h"
#include "experiments/bench/bench.h"
#include "rdma/lane.h"
#include "rdma/lane_copy.h"

#define SPINS_MAX 1000 /* then the other process may be waiting for this core */
#define NS_OF_A_SECOND 1e9

/* A position has a line of its own. */
struct shared {
	_Alignas(LANE_LINE) _Atomic uint64_t tail;
	_Alignas(LANE_LINE) _Atomic uint64_t head;
	_Alignas(LANE_LINE) _Atomic uint32_t stop; /* no message comes behind `tail` */
};

struct ring {
	struct shared *shared;
	uint8_t *bytes;
	uint64_t size;
};

static struct ring make_ring(uint64_t size)
{
	int fd = memfd_create("ring", MFD_CLOEXEC);
	struct ring ring = { .size = size };

	ring.shared = mmap(NULL, sizeof(*ring.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ring.bytes = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (fd < 0 || ftruncate(fd, (off_t)size) || ring.shared == MAP_FAILED || ring.bytes == MAP_FAILED)
		bench_fail("memory for a ring");
	for (int i = 0; i < 2; i++) {
		if (mmap(ring.bytes + (uint64_t)i * size, size, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == MAP_FAILED)
			bench_fail("memory for a ring");
	}
	close(fd);
	return ring;
}

static void relax(unsigned int *spins)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
	if (++*spins % SPINS_MAX == 0)
		sched_yield();
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void put(struct ring *ring, const uint8_t *from, uint64_t bytes)
{
	uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
	unsigned int spins = 0;

	while (bytes) {
		uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_acquire);
		uint64_t part = least(least(bytes, LANE_CHUNK), ring->size - (tail - head));

		if (!part) {
			relax(&spins);
			continue;
		}
		lane_copy(ring->bytes + (tail & (ring->size - 1)), from, part);
		tail += part;
		atomic_store_explicit(&ring->shared->tail, tail, memory_order_release);
		from += part;
		bytes -= part;
	}
}

/* Returns false when no message comes any more. */
static bool get(struct ring *ring, uint8_t *to, uint64_t bytes)
{
	uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_relaxed);
	unsigned int spins = 0;

	while (bytes) {
		bool stop = atomic_load_explicit(&ring->shared->stop, memory_order_acquire);
		uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_acquire);
		uint64_t part = least(least(bytes, LANE_CHUNK), tail - head);

		if (!part && stop)
			return false;
		if (!part) {
			relax(&spins);
			continue;
		}
		memcpy(to, ring->bytes + (head & (ring->size - 1)), part);
		head += part;
		atomic_store_explicit(&ring->shared->head, head, memory_order_release);
		to += part;
		bytes -= part;
	}
	return true;
}

static void fill(uint8_t *to, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)((i * 0x9e3779b97f4a7c15ull) >> 56);
}

/* The other process: takes what comes, and sends it back if there is a ring for that. Ends with status 3 for wrong bytes. */
static void receive(struct ring *in, struct ring *back, uint64_t bytes)
{
	uint8_t *got = bench_memory(bytes), *expected = bench_memory(bytes);

	fill(expected, bytes);
	if (!get(in, got, bytes) || memcmp(got, expected, bytes))
		_exit(3);
	do {
		if (back)
			put(back, got, bytes);
	} while (get(in, got, bytes));
	_exit(0);
}

static void wait_until_taken(struct ring *ring)
{
	unsigned int spins = 0;

	while (atomic_load_explicit(&ring->shared->head, memory_order_acquire) !=
	       atomic_load_explicit(&ring->shared->tail, memory_order_relaxed))
		relax(&spins);
}

static void end(struct ring *ring, pid_t receiver)
{
	int status;

	atomic_store_explicit(&ring->shared->stop, 1, memory_order_release);
	if (waitpid(receiver, &status, 0) != receiver)
		bench_fail("the receiver");
	if (status) {
		fprintf(stderr, "ring: the receiver has failed, status %d\n", status);
		exit(1);
	}
}

static pid_t start_receiver(struct ring *in, struct ring *back, uint64_t bytes)
{
	pid_t receiver = fork();

	if (receiver < 0)
		bench_fail("fork");
	if (!receiver) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		receive(in, back, bytes);
	}
	return receiver;
}

static void stream(uint64_t bytes, uint64_t size, uint64_t ns)
{
	struct ring ring = make_ring(size);
	uint8_t *buffer = bench_memory(bytes);
	pid_t receiver = start_receiver(&ring, NULL, bytes);
	uint64_t begun, passed = 0, messages = 0;

	fill(buffer, bytes);
	put(&ring, buffer, bytes);
	wait_until_taken(&ring);
	begun = clock_now();
	while (passed < ns) {
		/* The clock is looked at once in a while. */
		for (uint64_t done = 0; done < size; done += bytes, messages++)
			put(&ring, buffer, bytes);
		passed = clock_now() - begun;
	}
	wait_until_taken(&ring);
	passed = clock_now() - begun;
	end(&ring, receiver);
	printf("{\"mode\": \"stream\", \"bytes\": %llu, \"ring_bytes\": %llu, \"messages\": %llu, \"seconds\": %.6f, "
	       "\"gbit_s\": %.4f}\n",
	       (unsigned long long)bytes, (unsigned long long)size, (unsigned long long)messages,
	       (double)passed / NS_OF_A_SECOND, (double)(messages * bytes) * 8 / (double)passed);
}

static void ping_pong(uint64_t bytes, uint64_t size, uint64_t ns)
{
	static struct hist hist;
	struct ring out = make_ring(size), in = make_ring(size);
	uint8_t *buffer = bench_memory(bytes);
	pid_t receiver = start_receiver(&out, &in, bytes);
	uint64_t begun, now;

	fill(buffer, bytes);
	put(&out, buffer, bytes);
	get(&in, buffer, bytes);
	hist_reset(&hist);
	begun = now = clock_now();
	while (now - begun < ns) {
		uint64_t sent = now;

		put(&out, buffer, bytes);
		get(&in, buffer, bytes);
		now = clock_now();
		hist_record(&hist, now - sent);
	}
	end(&out, receiver);
	printf("{\"mode\": \"ping-pong\", \"bytes\": %llu, \"ring_bytes\": %llu, \"messages\": %llu, \"seconds\": %.6f, "
	       "\"half_round_trip_ns\": {\"mean\": %.1f, \"p50\": %.1f, \"p99\": %.1f}}\n",
	       (unsigned long long)bytes, (unsigned long long)size, (unsigned long long)hist.count,
	       (double)(now - begun) / NS_OF_A_SECOND, hist_mean(&hist) / 2, (double)hist_percentile(&hist, 50) / 2,
	       (double)hist_percentile(&hist, 99) / 2);
}

int main(int argc, char **argv)
{
	uint64_t bytes, size, ns;

	if (argc != 5 || (strcmp(argv[1], "stream") && strcmp(argv[1], "ping-pong"))) {
		fprintf(stderr, "usage: ring stream|ping-pong BYTES RING-BYTES MILLISECONDS\n");
		return 2;
	}
	bytes = bench_number("BYTES", argv[2], 1, 64 << 20);
	size = bench_number("RING-BYTES", argv[3], LANE_RING_MIN, LANE_RING_MAX);
	ns = bench_number("MILLISECONDS", argv[4], 1, 3600000) * 1000000;
	if (size & (size - 1)) {
		fprintf(stderr, "ring: RING-BYTES '%s' is not a power of two\n", argv[3]);
		return 2;
	}
	(argv[1][0] == 's' ? stream : ping_pong)(bytes, size, ns);
	return 0;
}
