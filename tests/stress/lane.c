/* SPDX-License-Identifier: MIT */
/*
 * lane [--seed N] [--schedules N] [--trace]: the real code of rdma/lane.c under seeded schedules. Both ends run in one thread, as
 * coroutines that may give way at every single atomic operation (stepped.h) and at every call on the TCP stream, which is a
 * queue of bounded length that knows what each byte is. Checked: every byte once and in order, no raw byte taken for a doorbell
 * or the other way round, no sleep while bytes are there, no end before the last byte. A failure prints its seed and is the
 * same every time. The ends behave as the preloaded library's do (preload/engine_send.c, engine_recv.c, engine_wait.c).
 *
 * LANE_SOURCE is the file that is tested: tests/stress/mutants gives it broken ones, which must fail.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "tests/stress/stepped.h"

#ifndef LANE_SOURCE
#define LANE_SOURCE "rdma/lane.c"
#endif
#include LANE_SOURCE
#include "tests/unit/rdma/lane_testing.h"

#include "tests/stress/machine.h"

/* The producer ------------------------------------------------------------------------------------------------------- */

static bool all_received(void)
{
	return s.got == s.sent;
}

static void ring_bell(void)
{
	static const uint8_t bell = 0;

	if (lane_must_ring(&s.lane))
		lane_rang(&s.lane, tcp_put(&bell, 1, KIND_BELL) == 1);
}

static bool on_ring(void)
{
	return atomic_load_explicit(&s.lane.shared->on_ring, memory_order_relaxed);
}

static void switch_back(void)
{
	trace("switches to TCP");
	check(lane_switch(&s.lane), "a SWITCH that finds no room");
}

static size_t send_raw(const uint8_t *data, size_t bytes)
{
	size_t done = tcp_put(data, bytes, KIND_RAW);

	s.sent += done; /* as the kernel has it: the count of the lane follows */
	lane_sent_raw(&s.lane, done);
	if (!done)
		wait_until(tcp_has_room, "room in the TCP stream");
	return done;
}

/* The consumer may have left: what it does not have of the last put is taken back. Returns the rest. */
static ssize_t look_at_presence(size_t done)
{
	ssize_t taken;

	if (!lane_leaves(&s.lane))
		return (ssize_t)done;
	taken = lane_left(&s.lane, done);
	check(taken >= 0 && (size_t)taken <= done, "lane_left of %zu bytes: %zd", done, taken);
	s.late += (size_t)taken < done;
	trace("finds the consumer gone, who has %zd of %zu bytes", taken, done);
	return taken;
}

static size_t send_by_ring(const uint8_t *data, size_t bytes)
{
	size_t half = below(bytes + 1);
	struct iovec iov[3] = { { (void *)data, half }, { (void *)data, 0 }, { (void *)(data + half), bytes - half } };
	size_t before = s.sent;
	ssize_t done;

	s.sent += bytes; /* before the consumer can have it */
	done = lane_put(&s.lane, iov, 3, 0);
	check(done >= 0 && (size_t)done <= bytes, "lane_put of %zu bytes: %zd", bytes, done);
	if ((size_t)done < bytes && !below(3)) { /* more, after a while */
		ssize_t more = lane_put(&s.lane, iov, 3, (size_t)done);

		check(more >= 0 && (size_t)(done + more) <= bytes, "lane_put of more: %zd", more);
		done += more;
	}
	trace("puts %zd of %zu bytes in the ring", done, bytes);
	done = look_at_presence((size_t)done);
	s.sent = before + (size_t)done;
	if (done)
		ring_bell();
	if (!on_ring())
		return (size_t)done;
	if ((size_t)done < bytes)
		switch_back();
	return (size_t)done;
}

static void produce(void)
{
	static uint8_t data[3000];

	while (s.sent < s.length) {
		size_t bytes = some_bytes(sizeof(data));

		bytes = bytes < s.length - s.sent ? bytes : s.length - s.sent;
		for (size_t i = 0; i < bytes; i++)
			data[i] = byte_at(s.sent + i);
		if (!below(10) && on_ring())
			switch_back();
		if (!on_ring() && below(4) && lane_take_over(&s.lane)) {
			s.moves++;
			trace("takes over");
			look_at_presence(0);
			if (on_ring())
				ring_bell();
		}
		if (on_ring())
			send_by_ring(data, bytes);
		else
			send_raw(data, bytes);
		if (!below(8))
			wait_until(all_received, "an answer"); /* a request that is answered when it is whole */
	}
	s.ended = true;
	wake(&s.consumer);
	trace("ends");
}

/* The consumer ------------------------------------------------------------------------------------------------------- */

static void accept_bytes(const uint8_t *data, size_t bytes, bool peek)
{
	for (size_t i = 0; i < bytes; i++)
		check(data[i] == byte_at(s.got + i), "byte %zu is not what was sent", s.got + i);
	check(s.got + bytes <= s.length, "more bytes than were sent");
	if (peek)
		return;
	s.got += bytes;
	wake(&s.producer);
}

static uint64_t bells_to_take(void)
{
	uint64_t due = lane_bells_sure(&s.lane);

	if (due || !lane_bells_due(&s.lane))
		return due;
	return tcp_has_bytes() && lane_bells_due(&s.lane) ? 1 : 0;
}

/* engine_strip: doorbells that are due are taken from the stream when the ring is empty, or when nobody watches. */
static void strip(void)
{
	uint8_t bells[16];
	uint64_t due = bells_to_take();

	if (s.watched && !lane_arm(&s.lane))
		return;
	while (due) {
		size_t got = tcp_get(bells, due < sizeof(bells) ? due : sizeof(bells), KIND_BELL, false);

		if (!got)
			return;
		lane_saw_bells(&s.lane, got);
		due -= got;
	}
}

/* A doorbell that nobody knows of would be told to the program as something to read. */
static void look_at_doorbell(void)
{
	bool there = tcp_has_bytes() && s.kinds[0] == KIND_BELL;
	bool by_ring = atomic_load_explicit(&s.lane.shared->from_ring, memory_order_relaxed);

	check(!there || !by_ring || lane_bells_due(&s.lane), "a doorbell that is not known");
}

/* Returns whether to go on at once. */
static bool receive_raw(bool peek)
{
	uint8_t data[900];
	size_t bytes, most;

	if (lane_bells_due(&s.lane))
		return false;
	most = lane_raw_begins(&s.lane);
	if (!most)
		return !lane_is_empty(&s.lane);
	bytes = some_bytes(sizeof(data));
	if (most < bytes)
		bytes = most;
	bytes = tcp_get(data, bytes, KIND_RAW, peek);
	accept_bytes(data, bytes, peek);
	lane_raw_ends(&s.lane, peek ? 0 : bytes);
	return bytes > 0;
}

/* One receive without waiting. Returns whether something came, or may have come. */
static bool receive(void)
{
	static uint8_t data[5000];
	size_t most = some_bytes(sizeof(data)), first = below(most + 1), got;
	struct iovec iov[2] = { { data, first }, { data + first, most - first } };
	bool peek = !below(6);
	int rc = lane_get(&s.lane, iov, 2, peek, &got);

	check(rc >= 0, "lane_get: error %d", rc);
	check(got <= most, "lane_get: %zu bytes into %zu", got, most);
	trace("lane_get: %d, %zu bytes%s", rc, got, peek ? " at a peek" : "");
	accept_bytes(data, got, peek);
	strip();
	return rc == LANE_DATA || (rc == LANE_RAW && receive_raw(peek));
}

static void look_at_counts(void)
{
	size_t unread = lane_unread(&s.lane);
	ssize_t backlog = lane_backlog(&s.lane);

	check(backlog >= 0 && backlog <= RING, "lane_backlog: %zd", backlog);
	check(s.got + unread <= s.length && unread <= RING, "lane_unread: %zu", unread);
}

static void leave(void)
{
	bool by_ring = atomic_load_explicit(&s.lane.shared->from_ring, memory_order_relaxed);

	trace("leaves");
	lane_leave(&s.lane);
	s.leavings += by_ring;
	trace("has left, with %zu bytes unread", lane_unread(&s.lane));
}

/* One who knows nothing of lanes has the stream now: there are raw bytes alone. */
static void consume_as_foreigner(void)
{
	uint8_t data[900];

	while (!s.ended || s.used) {
		accept_bytes(data, tcp_get(data, some_bytes(sizeof(data)), KIND_RAW, false), false);
		wait_until(tcp_is_readable, "the TCP stream");
	}
}

static void consume(void)
{
	atomic_store_explicit(&s.lane.shared->reader, 1, memory_order_relaxed);
	for (;;) {
		if (!below(8))
			look_at_counts();
		if (!below(40))
			s.watched = !s.watched;
		if (s.leave_odds && !below(s.leave_odds))
			leave();
		if (lane_is_over(&s.lane) && below(3)) {
			consume_as_foreigner();
			break;
		}
		if (receive())
			continue;
		if (!lane_arm(&s.lane))
			continue;
		if (s.leave_odds && !below(s.leave_odds)) {
			leave(); /* with its bell at the producer's hand */
			if (below(2))
				continue;
			/* It was another process that left: this one sleeps. */
		}
		wait_until(tcp_is_readable, "the TCP stream");
		look_at_doorbell();
		if (s.ended && !s.used && lane_backlog(&s.lane) == 0)
			break;
	}
	check(s.got == s.length, "the end came before the last byte");
}

/* Schedules ---------------------------------------------------------------------------------------------------------- */

static void run_end(void)
{
	struct end *me = s.now;

	if (me == &s.producer)
		produce();
	else
		consume();
	drain(me);
	me->done = true;
	/* The other one goes on alone; if it sleeps, what it waits for is there or never comes: it looks by itself. */
	if (!other_end()->done) {
		s.now = other_end();
		s.now->blocked = false;
		setcontext(&s.now->context);
	}
	setcontext(&s.main);
}

static void prepare(struct end *end, const char *name)
{
	char *stack = end->stack ? end->stack : malloc(STACK_BYTES);

	*end = (struct end){ .name = name, .stack = stack };
	if (!stack || getcontext(&end->context))
		fail("a stack for the %s", name);
	end->context.uc_stack.ss_sp = stack;
	end->context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&end->context, run_end, 0);
}

static void run_schedule(uint64_t seed)
{
	static const unsigned int odds[] = { 2, 10, 40, 100, 160 };

	s.seed = seed;
	s.random = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
	s.switch_odds = odds[below(sizeof(odds) / sizeof(*odds))];
	s.room = below(2) ? 1 + below(20) : 1 + below(PIPE_MAX);
	s.length = 1 + below(STREAM_MAX);
	s.watched = below(2);
	s.leave_odds = below(2) ? 2 + (unsigned int)below(below(2) ? 30 : 300) : 0;
	s.steps = s.used = s.sent = s.got = 0;
	s.ended = false;
	memset(s.lane.shared, 0, sizeof(*s.lane.shared));
	s.lane.head_known = s.lane.tail_known = 0;
	prepare(&s.producer, "producer");
	prepare(&s.consumer, "consumer");
	s.now = below(2) ? &s.producer : &s.consumer;
	swapcontext(&s.main, &s.now->context);
}

static void make_lane(void)
{
	static struct lonely_lane lonely;

	if (!lonely_make(&lonely, RING, RING))
		fail("memory for the lane");
	s.lane = lonely.lane;
}

static uint64_t number(const char *option, const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (end == text || *end) {
		fprintf(stderr, "lane: --%s needs a number, not '%s'\n", option, text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "seed", required_argument, NULL, 's' },
						 { "schedules", required_argument, NULL, 'n' },
						 { "trace", no_argument, NULL, 't' },
						 { 0 } };
	uint64_t first = 1, count = 3000, steps = 0;
	bool chosen = false;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's':
			first = number("seed", optarg);
			count = chosen ? count : 1;
			break;
		case 'n':
			count = number("schedules", optarg);
			chosen = true;
			break;
		case 't':
			s.trace = true;
			break;
		default:
			fprintf(stderr, "usage: lane [--seed N] [--schedules N] [--trace]\n");
			return 2;
		}
	}
	make_lane();
	for (uint64_t seed = first; seed < first + count; seed++) {
		run_schedule(seed);
		steps += s.steps;
		check((seed + 1 - first) % 100 || s.moves >= seed + 1 - first, "the lane stays on TCP");
		check((seed + 1 - first) % 1000 || (s.leavings > (seed + 1 - first) / 20 && s.late > s.leavings / 500),
		      "%llu leavings, %llu of them from a put", (unsigned long long)s.leavings,
		      (unsigned long long)s.late);
	}
	printf("%llu schedules from seed %llu, %llu steps: every byte arrived\n", (unsigned long long)count,
	       (unsigned long long)first, (unsigned long long)steps);
	return 0;
}
