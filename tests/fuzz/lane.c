/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: a lane whose memory belongs to a hostile peer. The input is what is in it at first, then calls, and among them
 * and at every atomic operation within them (tests/stress/stepped.h) what the peer writes meanwhile. No call may touch memory
 * outside of the ring and the caller's own, or take or tell more than there can be.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/stress/stepped.h"

#include "rdma/lane.c"
#include "tests/unit/rdma/lane_testing.h"

#define RING LANE_RING_MIN
#define MOST 3000u
#define CALLS_MAX 100

static struct lane lane;
static struct lane_shared *shared;
static uint8_t *data;
static const uint8_t *input, *input_end;

static uint8_t next_byte(void)
{
	return input < input_end ? *input++ : 0xff;
}

static uint64_t next_number(void)
{
	uint64_t number = 0;
	uint8_t bytes = next_byte() % 9;

	for (uint8_t i = 0; i < bytes; i++)
		number |= (uint64_t)next_byte() << (8 * i);
	return number;
}

/* The peer writes a field (plus something, or anything at all), or a record at the consumer's position. */
static void peer_writes(void)
{
	uint8_t what = next_byte();
	uint8_t *at = (uint8_t *)shared + (what % (sizeof(*shared) / 4)) * 4;
	uint64_t now, value = next_number();

	if (what & 0x80) {
		at = lane.ring + (*(volatile uint64_t *)&shared->head & (RING - 8) & ~7ull);
		memcpy(at, &value, sizeof(value));
		return;
	}
	memcpy(&now, at, 4);
	now = what & 0x40 ? now + value : value;
	memcpy(at, &now, 4);
}

static void meanwhile(void)
{
	if (input < input_end && next_byte() < 24)
		peer_writes();
}

uint64_t stepped_load(const volatile void *at, size_t bytes)
{
	meanwhile();
	return bytes == 8 ? *(const volatile uint64_t *)at : *(const volatile uint32_t *)at;
}

void stepped_store(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
	(void)order;
	meanwhile();
	if (bytes == 8)
		*(volatile uint64_t *)at = value;
	else
		*(volatile uint32_t *)at = (uint32_t)value;
}

uint64_t stepped_exchange(volatile void *at, size_t bytes, uint64_t value)
{
	uint64_t before = stepped_load(at, bytes);

	stepped_store(at, bytes, value, memory_order_seq_cst);
	return before;
}

uint64_t stepped_add(volatile void *at, size_t bytes, uint64_t value)
{
	return stepped_exchange(at, bytes, stepped_load(at, bytes) + value);
}

static void must(bool holds)
{
	if (!holds)
		abort();
}

/* Three parts that end with the memory that there is. Returns how many bytes. */
static size_t some_parts(struct iovec *iov)
{
	size_t bytes = next_number() % (MOST + 1), first = bytes ? next_byte() % bytes : 0;
	uint8_t *at = data + MOST - bytes;

	iov[0] = (struct iovec){ at, first };
	iov[1] = (struct iovec){ at + first, 0 };
	iov[2] = (struct iovec){ at + first, bytes - first };
	return bytes;
}

static void receive(bool peek)
{
	struct iovec iov[3];
	size_t bytes = some_parts(iov), got = SIZE_MAX;
	int rc = lane_get(&lane, iov, 3, peek, &got);

	must(rc == LANE_DATA || rc == LANE_EMPTY || rc == LANE_RAW || rc == -EPROTO);
	must(got <= bytes);
}

static void send_some(void)
{
	struct iovec iov[3];
	size_t bytes = some_parts(iov), skip = bytes ? next_byte() % bytes : 0;
	ssize_t done = lane_put(&lane, iov, 3, skip);

	must(done == -EPROTO || (done >= 0 && (size_t)done <= bytes - skip));
}

static void look(void)
{
	ssize_t room_now = lane_room(&lane), backlog = lane_backlog(&lane);

	must(room_now == -EPROTO || (room_now >= 0 && room_now <= RING));
	must(backlog == -EPROTO || (backlog >= 0 && backlog <= RING));
	must(lane_unread(&lane) <= RING);
	must(lane_bells_due(&lane) <= LANE_BELLS_MAX);
	must(lane_bells_sure(&lane) <= LANE_BELLS_MAX);
}

static void call(uint8_t which)
{
	switch (which % 12) {
	case 0:
	case 1:
		receive(which % 12 == 1);
		return;
	case 2:
		send_some();
		return;
	case 3:
		lane_take_over(&lane);
		return;
	case 4:
		lane_switch(&lane);
		return;
	case 5:
		if (lane_must_ring(&lane))
			lane_rang(&lane, next_byte() & 1);
		return;
	case 6:
		lane_arm(&lane);
		return;
	case 7:
		if (lane_raw_begins(&lane))
			lane_raw_ends(&lane, next_byte());
		return;
	case 8:
		lane_saw_bells(&lane, next_byte());
		return;
	case 9:
		look();
		return;
	case 10:
		lane_sent_raw(&lane, next_byte());
		return;
	default:
		peer_writes();
	}
}

static void make_lane(void)
{
	long page = sysconf(_SC_PAGESIZE);
	int memory = memfd_create("lane", MFD_CLOEXEC);

	must(memory >= 0 && !ftruncate(memory, page + RING));
	shared = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	data = bytes_before_guard(MOST);
	must(shared != MAP_FAILED && data && !lane_map(&lane, shared, memory, page, RING) && lane_isolate(&lane));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	size_t part = count < sizeof(*shared) ? count : sizeof(*shared);

	if (!shared)
		make_lane();
	input = bytes;
	input_end = bytes + count;
	memset(shared, 0, sizeof(*shared));
	memset(lane.ring, 0, RING);
	memcpy(shared, input, part);
	input += part;
	part = next_number() % 600;
	part = part < (size_t)(input_end - input) ? part : (size_t)(input_end - input);
	memcpy(lane.ring + (*(volatile uint64_t *)&shared->head & (RING - 1)), input, part);
	input += part;
	for (int i = 0; i < CALLS_MAX && input < input_end; i++)
		call(next_byte());
	return 0;
}
