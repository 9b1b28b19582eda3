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

#define RING LANE_RING_MIN
#define STREAM_MAX 12000u
#define PIPE_MAX 700u
#define STORES_MAX 8u
#define STACK_BYTES (256u << 10)
#define STEPS_MAX 3000000u

enum byte_kind { KIND_RAW, KIND_BELL };

struct store {
	volatile void *at;
	size_t bytes;
	uint64_t value;
};

/* One end: a coroutine with its store buffer. */
struct end {
	const char *name;
	ucontext_t context;
	char *stack;
	struct store stores[STORES_MAX];
	size_t stored;
	bool blocked, done;
};

static struct {
	uint64_t seed, random;
	unsigned int switch_odds; /* of 256, at each step */
	uint64_t steps;
	bool trace;
	ucontext_t main;
	struct end producer, consumer, *now;
	struct lane lane;
	/* The TCP stream. */
	uint8_t bytes[PIPE_MAX], kinds[PIPE_MAX];
	size_t used, room;
	bool ended;
	/* The program's own stream. */
	size_t length, sent, got;
	bool watched;	/* the consumer arms after every look, as for an epoll set */
	uint64_t moves; /* to the ring, in all schedules */
} s;

/* Chance ------------------------------------------------------------------------------------------------------------- */

static uint64_t next_random(void)
{
	s.random ^= s.random << 13;
	s.random ^= s.random >> 7;
	s.random ^= s.random << 17;
	return s.random * 0x2545f4914f6cdd1dull;
}

static size_t below(size_t limit)
{
	return (size_t)(next_random() >> 24) % limit;
}

static size_t some_bytes(size_t most)
{
	size_t limit = below(3) ? (most < 120 ? most : 120) : most;

	return 1 + below(limit);
}

static uint8_t byte_at(uint64_t position)
{
	return (uint8_t)((position * 0x9e3779b97f4a7c15ull) >> 56);
}

static void fail(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *what, ...)
{
	va_list list;

	va_start(list, what);
	vfprintf(stderr, what, list);
	va_end(list);
	fprintf(stderr,
		"\nseed %llu: step %llu, %zu of %zu bytes sent, %zu received; repeat with --seed %llu --trace\n",
		(unsigned long long)s.seed, (unsigned long long)s.steps, s.sent, s.length, s.got,
		(unsigned long long)s.seed);
	exit(1);
}

#define check(holds, ...)                                                                                              \
	do {                                                                                                           \
		if (!(holds))                                                                                          \
			fail(__VA_ARGS__);                                                                             \
	} while (0)

static void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void trace(const char *format, ...)
{
	va_list list;

	if (!s.trace)
		return;
	printf("%8llu %s ", (unsigned long long)s.steps, s.now->name);
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
}

/* Steps -------------------------------------------------------------------------------------------------------------- */

static struct end *other_end(void)
{
	return s.now == &s.producer ? &s.consumer : &s.producer;
}

static void write_to(volatile void *at, size_t bytes, uint64_t value)
{
	if (bytes == 8)
		*(volatile uint64_t *)at = value;
	else
		*(volatile uint32_t *)at = (uint32_t)value;
}

static uint64_t read_from(const volatile void *at, size_t bytes)
{
	return bytes == 8 ? *(const volatile uint64_t *)at : *(const volatile uint32_t *)at;
}

static void drain_one(struct end *end)
{
	write_to(end->stores[0].at, end->stores[0].bytes, end->stores[0].value);
	memmove(end->stores, end->stores + 1, --end->stored * sizeof(*end->stores));
}

static void drain(struct end *end)
{
	while (end->stored)
		drain_one(end);
}

static void give_way(void)
{
	struct end *from = s.now, *to = other_end();

	if (to->done || to->blocked)
		return;
	s.now = to;
	swapcontext(&from->context, &to->context);
}

static void step(void)
{
	check(++s.steps < STEPS_MAX, "the two ends make no progress");
	if (s.producer.stored && !below(6))
		drain_one(&s.producer);
	if (s.consumer.stored && !below(6))
		drain_one(&s.consumer);
	if (below(256) < s.switch_odds)
		give_way();
}

uint64_t stepped_load(const volatile void *at, size_t bytes)
{
	struct end *me = s.now;

	step();
	for (size_t i = me->stored; i--;) {
		if (me->stores[i].at == at)
			return me->stores[i].value;
	}
	return read_from(at, bytes);
}

void stepped_store(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
	struct end *me = s.now;

	step();
	if (order == memory_order_seq_cst) {
		drain(me);
		write_to(at, bytes, value);
		return;
	}
	if (me->stored == STORES_MAX)
		drain_one(me);
	me->stores[me->stored++] = (struct store){ at, bytes, value };
}

uint64_t stepped_exchange(volatile void *at, size_t bytes, uint64_t value)
{
	uint64_t before;

	step();
	drain(s.now);
	before = read_from(at, bytes);
	write_to(at, bytes, value);
	return before;
}

uint64_t stepped_add(volatile void *at, size_t bytes, uint64_t value)
{
	uint64_t before;

	step();
	drain(s.now);
	before = read_from(at, bytes);
	write_to(at, bytes, before + value);
	return before;
}

/* Sleeps until `awake` holds. If both sleep for good, a wake-up was lost. */
static void wait_until(bool (*awake)(void), const char *what)
{
	step();
	drain(s.now);
	while (!awake()) {
		struct end *me = s.now, *to = other_end();

		trace("waits for %s", what);
		me->blocked = true;
		check(!to->done && !to->blocked, "both ends sleep: %s waits for %s", me->name, what);
		s.now = to;
		swapcontext(&me->context, &to->context);
		me->blocked = false;
	}
}

/* Whoever sleeps may go on: what he waits for is looked at by himself. */
static void wake(struct end *end)
{
	end->blocked = false;
}

/* The TCP stream ----------------------------------------------------------------------------------------------------- */

static size_t tcp_put(const uint8_t *from, size_t bytes, enum byte_kind kind)
{
	size_t free;

	step();
	drain(s.now); /* the kernel takes a lock */
	free = s.room - s.used;
	bytes = bytes < free ? bytes : free;
	memcpy(s.bytes + s.used, from, bytes);
	memset(s.kinds + s.used, kind, bytes);
	s.used += bytes;
	if (bytes)
		wake(&s.consumer);
	trace("puts %zu %s", bytes, kind == KIND_BELL ? "doorbell" : "raw bytes");
	return bytes;
}

/* Takes bytes, all of which must be of this kind. */
static size_t tcp_get(uint8_t *to, size_t bytes, enum byte_kind kind, bool peek)
{
	step();
	drain(s.now);
	bytes = bytes < s.used ? bytes : s.used;
	trace("%s %zu as %s", peek ? "peeks at" : "takes", bytes, kind == KIND_BELL ? "doorbells" : "raw bytes");
	for (size_t i = 0; i < bytes; i++)
		check(s.kinds[i] == kind, "%s taken for %s", s.kinds[i] == KIND_RAW ? "a raw byte" : "a doorbell",
		      kind == KIND_RAW ? "a raw byte" : "a doorbell");
	memcpy(to, s.bytes, bytes);
	if (!peek && bytes) {
		s.used -= bytes;
		memmove(s.bytes, s.bytes + bytes, s.used);
		memmove(s.kinds, s.kinds + bytes, s.used);
		wake(&s.producer);
	}
	return bytes;
}

static bool tcp_has_bytes(void)
{
	step();
	drain(s.now);
	return s.used > 0;
}

static bool tcp_has_room(void)
{
	return s.used < s.room;
}

static bool tcp_is_readable(void)
{
	return s.used || s.ended;
}

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
	s.sent = before + (size_t)done;
	trace("puts %zd of %zu bytes in the ring", done, bytes);
	ring_bell();
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
	size_t bytes;

	if (lane_bells_due(&s.lane))
		return false;
	if (!lane_raw_begins(&s.lane))
		return true;
	bytes = some_bytes(sizeof(data));
	if (lane_raw_max(&s.lane) < bytes)
		bytes = lane_raw_max(&s.lane);
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

static void consume(void)
{
	atomic_store_explicit(&s.lane.shared->reader, 1, memory_order_relaxed);
	for (;;) {
		if (!below(8))
			look_at_counts();
		if (!below(40))
			s.watched = !s.watched;
		if (receive())
			continue;
		if (!lane_arm(&s.lane))
			continue;
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
	s.steps = s.used = s.sent = s.got = 0;
	s.ended = false;
	memset(s.lane.shared, 0, sizeof(*s.lane.shared));
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
		check((seed + 1 - first) % 100 || s.moves >= 2 * (seed + 1 - first), "the lane stays on TCP");
	}
	printf("%llu schedules from seed %llu, %llu steps: every byte arrived\n", (unsigned long long)count,
	       (unsigned long long)first, (unsigned long long)steps);
	return 0;
}
