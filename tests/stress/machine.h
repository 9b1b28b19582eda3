/* SPDX-License-Identifier: MIT */
/*
 * The machine that the stress test runs on: chance from a seed, two ends as coroutines with a store buffer each, and the TCP
 * stream between them. For lane.c alone, which includes it behind the code that it tests.
 */
#ifndef ZC_STRESS_MACHINE_H
#define ZC_STRESS_MACHINE_H

#include "tests/unit/rdma/stream_testing.h"

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
	bool watched;		 /* the consumer arms after every look, as for an epoll set */
	unsigned int leave_odds; /* 1 of so many looks, after which the consumer leaves the ring; 0: it stays */
	uint64_t moves;		 /* to the ring, in all schedules */
	uint64_t leavings, late; /* of consumers that were on the ring; from the middle of a put */
} s;

/* Chance ------------------------------------------------------------------------------------------------------------- */

static size_t below(size_t limit)
{
	return random_below(&s.random, limit);
}

static size_t some_bytes(size_t most)
{
	size_t limit = below(3) ? (most < 120 ? most : 120) : most;

	return 1 + below(limit);
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

static void drain_one(struct end *end)
{
	stepped_write(end->stores[0].at, end->stores[0].bytes, end->stores[0].value);
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
	return stepped_read(at, bytes);
}

void stepped_store(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
	struct end *me = s.now;

	step();
	if (order == memory_order_seq_cst) {
		drain(me);
		stepped_write(at, bytes, value);
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
	before = stepped_read(at, bytes);
	stepped_write(at, bytes, value);
	return before;
}

uint64_t stepped_add(volatile void *at, size_t bytes, uint64_t value)
{
	uint64_t before;

	step();
	drain(s.now);
	before = stepped_read(at, bytes);
	stepped_write(at, bytes, before + value);
	return before;
}

bool stepped_compare_exchange(volatile void *at, size_t bytes, void *expected, uint64_t value)
{
	step();
	drain(s.now);
	return stepped_swap(at, bytes, expected, value);
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

#endif
