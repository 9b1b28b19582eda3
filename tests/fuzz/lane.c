/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: a lane with its sources, whose memory belongs to a hostile peer. The input is what is in it at first, then
 * calls of both ends, and among them and at every atomic operation within them (tests/stress/stepped.h) what the peer writes
 * meanwhile. No call may touch memory outside of the ring, the area and the caller's own, or take or tell more than there can
 * be. The peer's memory, which a GET reads, is made up: what the kernel does there is cma_test.c's.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "tests/stress/stepped.h"

#include "rdma/lane.c"

#include "rdma/source.c"
#undef CHANGES_MAX
#include "rdma/source_in.c"
#include "tests/unit/rdma/lane_testing.h"

#define RING LANE_RING_MIN
#define AREA 8192u
#define MOST 3000u
#define CALLS_MAX 100

static struct lonely_lane lonely;
static struct lane lane;
static struct lane_shared *shared;
static struct source_out out;
static struct source_in in;
static uint8_t *data, *announced;

/* The peer writes a field (plus something, or anything at all), or a record at the consumer's position. */
static void peer_writes(void)
{
	uint8_t what = next_byte();
	size_t words = (sizeof(*shared) + (what & 1 ? sizeof(struct source_shared) : 0)) / 4;
	uint8_t *at = (uint8_t *)shared + (next_byte() | (what & 2) << 7) % words * 4;
	uint64_t now = 0, value = next_number();

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
	return stepped_read(at, bytes);
}

void stepped_store(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
	(void)order;
	meanwhile();
	stepped_write(at, bytes, value);
}

uint64_t stepped_exchange(volatile void *at, size_t bytes, uint64_t value)
{
	uint64_t before;

	meanwhile();
	before = stepped_read(at, bytes);
	stepped_write(at, bytes, value);
	return before;
}

uint64_t stepped_add(volatile void *at, size_t bytes, uint64_t value)
{
	uint64_t before;

	meanwhile();
	before = stepped_read(at, bytes);
	stepped_write(at, bytes, before + value);
	return before;
}

bool stepped_compare_exchange(volatile void *at, size_t bytes, void *expected, uint64_t value)
{
	meanwhile();
	return stepped_swap(at, bytes, expected, value);
}

/* The transport ------------------------------------------------------------------------------------------------------ */

static int token_keep(const struct transport_token *token, struct transport_place *place)
{
	*place = (struct transport_place){ .token = (uintptr_t)token, .number = 1 };
	return next_byte() ? 0 : -EAGAIN;
}

static int token_keeps(const struct transport_place *place, const struct transport_token *token)
{
	return next_byte() > 3;
}

static void token_drop(const struct transport_place *place)
{
}

static int token_prove(struct transport_reach *reach, const struct transport_place *place,
		       const struct transport_token *token)
{
	static const int errors[] = { 0, 0, 0, -EACCES, -EPERM, -ESRCH, -ENOSYS, -ESTALE };

	return errors[next_byte() % 8];
}

/* Writes as far as it was asked to, as the kernel would. */
static ssize_t token_get(struct transport_reach *reach, const struct transport_place *place,
			 const struct transport_token *token, const struct transport_get *get)
{
	static const int errors[] = { -EFAULT, -ENXIO, -EACCES, -EPERM, -ESRCH, -ENOSYS, -ESTALE };
	static uint8_t bytes[AREA];
	uint8_t how = next_byte();
	size_t most = get->bytes;

	must(most && most <= AREA && get->address + most >= get->address);
	meanwhile();
	if (how < 7)
		return errors[how];
	most = how & 8 ? 1 + next_number() % most : most;
	must(scatter(get->iov, get->count, get->skip, bytes, most) == most);
	return (ssize_t)most;
}

static const struct transport_ops made_up = { "made up",   token_keep, token_keeps, token_drop,
					      token_prove, token_get,  NULL };

/* Calls -------------------------------------------------------------------------------------------------------------- */

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

	must(rc == LANE_DATA || rc == LANE_EMPTY || rc == LANE_RAW || rc == -EPROTO || rc == -ECONNRESET ||
	     rc == -EFAULT);
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
	must(lane_unread(&lane) <= RING / 8 * (size_t)AREA);
	must(lane_bells_due(&lane) <= LANE_BELLS_MAX);
	must(lane_bells_sure(&lane) <= LANE_BELLS_MAX);
}

static uint64_t some_source(void)
{
	return out.first + next_byte() % SOURCE_SLOTS;
}

static void announce(void)
{
	size_t bytes = next_number() % (AREA + 2);
	uint64_t number;
	int rc;

	must(source_room(&lane) <= AREA);
	rc = source_announce(&lane, announced + AREA - (bytes < AREA ? bytes : AREA), bytes, &number);
	must(!rc || rc == -ENOBUFS);
	must(rc || (bytes && bytes <= AREA));
}

static void keep(uint64_t number)
{
	int rc = source_keep(&lane, number);

	must(!rc || rc == -EPROTO || rc == -EPERM);
}

static void withdraw(uint64_t number)
{
	size_t taken = 0;
	int rc = source_withdraw(&lane, number, &taken);

	must(!rc || rc == -EBUSY);
	must(rc || taken == SIZE_MAX || taken <= AREA);
}

static void call_of_sources(uint8_t which)
{
	size_t taken;

	switch (which % 10) {
	case 0:
		source_step_in(&lane);
		return;
	case 1:
		source_step_out(&lane, NULL);
		return;
	case 2:
	case 3:
		announce();
		return;
	case 4:
		keep(some_source());
		return;
	case 5:
		source_keep_all(&lane);
		return;
	case 6:
		withdraw(some_source());
		return;
	case 7:
		taken = source_taken(&lane, some_source());
		must(taken == SIZE_MAX || taken <= AREA);
		return;
	case 8:
		must(source_outstanding(&lane) <= SOURCE_SLOTS);
		source_trim(&lane);
		return;
	default:
		lane_is_stuck(&lane);
		lane_is_empty(&lane);
		source_refuse(&lane, -EPERM);
	}
}

/* The consumer leaves, or the producer finds that it has. */
static void leave(size_t put)
{
	ssize_t taken;

	lane_is_over(&lane);
	if (put % 4 == 0)
		lane_leave(&lane);
	if (!lane_leaves(&lane))
		return;
	taken = lane_left(&lane, put);
	must(taken == -EPROTO || (taken >= 0 && (size_t)taken <= put));
}

static void call(uint8_t which)
{
	switch (which % 16) {
	case 0:
	case 1:
		receive(which & 1);
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
	case 11:
		peer_writes();
		return;
	case 12:
		leave(next_byte());
		return;
	default:
		call_of_sources(which / 16);
	}
}

static void make_lane(void)
{
	data = bytes_before_gap(MOST);
	announced = bytes_before_gap(AREA);
	must(lonely_make(&lonely, RING, AREA) && data && announced);
	lonely_with_sources(&lonely, &out, &in);
	lane = lonely.lane;
	shared = lane.shared;
}

static void begin(const uint8_t *bytes, size_t count)
{
	static const uint8_t identity[TRANSPORT_IDENTITY_BYTES];
	size_t part = count < sizeof(*shared) ? count : sizeof(*shared);

	memset(shared, 0, LONELY_SHARE_BYTES);
	lane.head_known = lane.tail_known = 0;
	memset(lane.ring, 0, RING);
	source_out_open(&out, &made_up, identity);
	source_in_open(&in, &made_up, identity, 0);
	memcpy(shared, bytes, part);
	input = bytes + part;
	input_end = bytes + count;
	part = next_number() % 600;
	part = part < (size_t)(input_end - input) ? part : (size_t)(input_end - input);
	memcpy(lane.ring + (*(volatile uint64_t *)&shared->head & (RING - 1)), input, part);
	input += part;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	if (!shared)
		make_lane();
	begin(bytes, count);
	for (int i = 0; i < CALLS_MAX && input < input_end; i++)
		call(next_byte());
	return 0;
}
