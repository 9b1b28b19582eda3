/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: the receiver of a lane between hosts, whose ring a hostile peer writes at any time, with sources that it announces, and
 * whose device answers what it likes. The input is what the peer writes, what GETs bring, and the calls. Nothing outside of the ring,
 * the area and the caller's own memory may be touched, and no more told than there can be.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "rdma/avail.h"
#include "rdma/lane_record.h"
#include "rdma/spans.h"
#include "tests/unit/rdma/lane_testing.h"

#define RING LANE_RING_MIN
#define AREA 65536u
#define MOST 40000u
#define CALLS_MAX 100

static struct lonely_lane lonely;
static struct lane lane;
static struct source_in in;
static uint8_t *data;
static uint32_t announced;

/* A source as it should be, but for what the input says. */
static void announce(void)
{
	uint64_t tail = atomic_load(&lane.shared->tail);
	struct record *record = record_at(&lane, tail);
	struct avail *avail = (struct avail *)(record + 1);
	uint8_t what = next_byte();

	*record = (struct record){ .kind = RECORD_AVAIL, .bytes = sizeof(*avail) };
	*avail = (struct avail){ .bytes = 1 + (uint32_t)next_number() % MOST,
				 .number = announced + 1,
				 .word = 4096 + ((announced + 1) % SOURCE_SLOTS) * sizeof(struct source_slot),
				 .home = next_number() };
	announced++;
	if (what & 1)
		record->bytes = (uint32_t)next_number();
	if (what & 2)
		avail->bytes = (uint32_t)next_number();
	if (what & 4)
		announced = avail->number = (uint32_t)next_number();
	if (what & 8)
		avail->address = next_number();
	if (what & 16)
		avail->word = 4096 + announced * sizeof(struct source_slot);
	atomic_store(&lane.shared->tail, tail + sizeof(*record) + padded(sizeof(*avail)));
}

static void peer_writes(void)
{
	uint8_t what = next_byte();
	uint64_t value = next_number();

	if (what & 0x80)
		announce();
	else if (what & 0x40)
		atomic_fetch_add(&lane.shared->tail, (value % 64) * RECORD_ALIGN);
	else
		memcpy(lane.ring + (atomic_load(&lane.shared->head) + (what & 0x3f) * 4) % (RING - 8), &value,
		       sizeof(value));
}

static bool is_word(const struct avail_get *get)
{
	uint8_t *at = get->iov->iov_base;

	return at >= (uint8_t *)lane.sources && at < (uint8_t *)(lane.sources + 1);
}

/* Of sources in a row, which may be others than were asked for; and what lies between the words. */
static void bring_words(const struct avail_get *get, uint32_t first)
{
	uint8_t *at = get->iov->iov_base;

	must(is_word(get) && at + get->bytes <= (uint8_t *)(lane.sources + 1));
	must(get->bytes % sizeof(struct source_slot) == sizeof(uint64_t));
	memset(at, next_byte(), get->bytes);
	for (size_t done = 0; done < get->bytes; done += sizeof(struct source_slot)) {
		uint64_t word = SOURCE_WORD(lane.sources->passed + ++first, 0, 1 + next_byte() % 4);

		memcpy(at + done, &word, sizeof(word));
	}
}

/* Never more than was asked for, as the kernel sees to. */
static int get(void *context, const struct avail_get *gets, int count)
{
	static const int errors[] = { -ENOTCONN, -ENOMEM, -EFAULT, -EIO };
	static uint8_t bytes[AREA];
	uint8_t how = next_byte();

	must(count > 0 && count <= 2 * (int)SOURCE_SLOTS);
	if (how < 32)
		peer_writes();
	for (int i = 0; i < count; i++) {
		must(gets[i].bytes > 0 && gets[i].bytes <= AREA);
		if (gets[i].own) {
			bring_words(&gets[i], (uint32_t)i);
		} else {
			must(scatter(gets[i].iov, gets[i].count, gets[i].skip, bytes, gets[i].bytes) == gets[i].bytes);
		}
	}
	return how >= 240 && how < 244 ? errors[how - 240] : 0;
}

/* Ahead: what comes, and when, is the input's to say; the words may be of other sources. */
static bool under_way;

static int room(void *context, const struct iovec *area)
{
	must(area->iov_base == lane.area && area->iov_len == AREA);
	return next_byte() % 32;
}

static int begin(void *context, const struct avail_get *gets, int count)
{
	static uint8_t bytes[AREA];

	must(count > 0 && count <= 32 && !under_way);
	for (int i = 0; i < count; i++) {
		must(gets[i].own && gets[i].bytes > 0 && gets[i].bytes <= AREA);
		if (is_word(&gets[i]))
			bring_words(&gets[i], next_byte() % 4);
		else
			must(scatter(gets[i].iov, gets[i].count, gets[i].skip, bytes, gets[i].bytes) == gets[i].bytes);
	}
	under_way = next_byte() & 1;
	return next_byte() < 240 ? 0 : -ENOMEM;
}

static int begun(void *context, bool waits)
{
	under_way &= !waits && next_byte() & 1;
	return under_way ? 1 : next_byte() < 240 ? 0 : -ENOTCONN;
}

static void give_up(void *context)
{
	atomic_store(&in.gone, true);
}

static bool by_area(void *context, const struct iovec *area, size_t bytes, uint64_t copy_ns)
{
	must(area->iov_base == lane.area && area->iov_len == AREA && bytes > 0);
	return next_byte() & 1;
}

static const struct avail_ops made_up = { get, room, begin, begun, give_up, by_area };

static void receive(bool peek)
{
	size_t bytes = next_number() % (MOST + 1), first = bytes ? next_byte() % bytes : 0, got = SIZE_MAX;
	uint8_t *at = data + MOST - bytes;
	struct iovec iov[2] = { { at, first }, { at + first, bytes - first } };
	int rc = lane_get(&lane, iov, 2, peek, &got);

	must(rc == LANE_DATA || rc == LANE_EMPTY || rc == LANE_RAW || rc == -EPROTO || rc == -ECONNRESET);
	must(got <= bytes);
}

static void call(uint8_t which)
{
	int rc;

	switch (which % 10) {
	case 0:
	case 1:
		receive(which & 1);
		return;
	case 2:
		must(lane_unread_all(&lane) <= RING / 16 * (size_t)AREA);
		return;
	case 3:
		rc = avail_fetch_all(&lane);
		must(rc <= 0);
		return;
	case 4:
		if (next_byte() < 16) {
			give_up(NULL);
			avail_cut(&lane);
			lane_leave(&lane);
		}
		return;
	case 5:
		lane_is_stuck(&lane);
		lane_is_empty(&lane);
		return;
	case 6:
		lane_find_move(&lane, atomic_load(&lane.shared->head), atomic_load(&lane.shared->tail));
		return;
	case 7:
		peer_writes();
		return;
	default:
		announce();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	if (!data) {
		must(lonely_make(&lonely, RING, AREA));
		data = malloc(MOST); /* its end is where the sanitizer looks */
		must(data);
	}
	lane = lonely.lane;
	memset(lane.shared, 0, LONELY_SHARE_BYTES);
	memset(lane.ring, 0, RING);
	source_in_open_remote(&in, &made_up, NULL);
	in.ahead = count && bytes[0] & 1;
	under_way = false;
	lane.sources = (struct source_shared *)(lane.shared + 1);
	lane.in = &in;
	announced = 0;
	atomic_store(&lane.shared->from_ring, 1);
	input = bytes;
	input_end = bytes + count;
	for (int calls = 0; input < input_end && calls < CALLS_MAX; calls++)
		call(next_byte());
	return 0;
}
