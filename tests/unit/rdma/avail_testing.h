/* SPDX-License-Identifier: MIT */
/*
 * Sources between hosts, both ends in memory of their own. What a device would do is done by hand: carry() writes the ring, tell() the
 * consumer's line, and a GET copies, after whatever else a test has happen at that moment; those ahead copy when a test says so.
 */
#ifndef ZC_TESTS_AVAIL_TESTING_H
#define ZC_TESTS_AVAIL_TESTING_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "rdma/avail.h"
#include "rdma/channel.h"
#include "rdma/lane_record.h"
#include "rdma/spans.h"
#include "rdma/verbs_replay.h"
#include "stream_testing.h"

#define RING 16384u
#define AREA 65536u
#define MOST 60000u

static struct channel near, far;
static struct lane *out, *in;
static uint8_t *program, got_bytes[2 * MOST];
static uint64_t arrived, received;

/* GETs --------------------------------------------------------------------------------------------------------------- */

static int gets;	    /* in a row, without a fence in between */
static uint64_t direct;	    /* bytes that went straight to the program's memory */
static int fail_with;	    /* every GET */
static bool refuses_direct; /* GETs to the program's memory */
static bool given_up;
static void (*meanwhile)(int call);

static inline bool is_direct(const struct avail_get *get)
{
	const uint8_t *to = get->iov[0].iov_base;

	return to >= got_bytes && to < got_bytes + sizeof(got_bytes);
}

static inline bool is_in(uint64_t address, const void *memory, size_t bytes)
{
	return address - (uintptr_t)memory < bytes;
}

static inline void must_be_its_key(const struct avail_get *get)
{
	/* Each of the sender's memories has its own. */
	assert_int_equal(get->key, is_in(get->address, out->sources, sizeof(*out->sources)) ? 8 :
				   is_in(get->address, out->area, AREA)			    ? 9 :
											      7);
}

static inline int get_by_hand(void *context, const struct avail_get *get, int count)
{
	int rc = fail_with;

	for (int i = 0; i < count && !rc; i++) {
		if (!i || get[i].behind) { /* between those anything may happen */
			gets++;
			if (meanwhile)
				meanwhile(gets);
		}
		if (is_direct(&get[i]) && refuses_direct)
			return -EFAULT;
		if (is_in((uintptr_t)get[i].iov->iov_base, in->sources, sizeof(*in->sources)))
			assert_true((uint8_t *)get[i].iov->iov_base + get[i].bytes <= (uint8_t *)(in->sources + 1));
		assert_true(get[i].bytes > 0);
		must_be_its_key(&get[i]);
		direct += is_direct(&get[i]) ? get[i].bytes : 0;
		assert_int_equal(
			scatter(get[i].iov, get[i].count, get[i].skip, (void *)(uintptr_t)get[i].address, get[i].bytes),
			get[i].bytes);
	}
	return rc;
}

/* Those ahead, which come when a test says so, or when they are waited for. */
static struct {
	struct avail_get get[32];
	struct iovec iov[32][2];
	int count, begun, waits, room, fail_at;
} ahead;

static inline int room_by_hand(void *context, const struct iovec *area)
{
	assert_ptr_equal(area->iov_base, in->area);
	assert_int_equal(area->iov_len, AREA);
	return ahead.room;
}

static inline int begin_by_hand(void *context, const struct avail_get *get, int count)
{
	assert_int_equal(ahead.count, 0);
	for (int i = 0; i < count; i++) {
		if (i == ahead.fail_at)
			return -ENOMEM;
		assert_true(get[i].own && get[i].count <= 2);
		must_be_its_key(&get[i]);
		ahead.get[i] = get[i];
		memcpy(ahead.iov[i], get[i].iov, (size_t)get[i].count * sizeof(*get[i].iov));
		ahead.get[i].iov = ahead.iov[i];
		ahead.count++;
	}
	assert_true(count <= ahead.room);
	ahead.begun++;
	return 0;
}

/* The words are behind the bytes. */
static inline void come(bool words)
{
	for (int i = 0; i < ahead.count; i++) {
		const struct avail_get *get = &ahead.get[i];

		if (is_in(get->address, out->sources, sizeof(*out->sources)) == words)
			scatter(get->iov, get->count, get->skip, (void *)(uintptr_t)get->address, get->bytes);
	}
	ahead.count = words ? 0 : ahead.count;
}

static inline int begun_by_hand(void *context, bool waits)
{
	if (atomic_load(&in->in->gone)) {
		ahead.count = 0;
		return -ENOTCONN;
	}
	if (ahead.count && waits) {
		ahead.waits++;
		come(false);
		come(true);
	}
	return ahead.count ? 1 : 0;
}

static inline void give_up(void *context)
{
	given_up = true;
	atomic_store(&in->in->gone, true);
}

/* Whether bytes come cheaper by the receiver's area, and of how many that was asked. */
static bool prefers_area;
static size_t preferred_bytes;

static inline bool by_area_by_hand(void *context, const struct iovec *area, size_t bytes, uint64_t copy_ns)
{
	assert_ptr_equal(area->iov_base, in->area);
	assert_int_equal(area->iov_len, AREA);
	preferred_bytes = bytes;
	return prefers_area;
}

static const struct avail_ops by_hand = { get_by_hand,	 room_by_hand, begin_by_hand,
					  begun_by_hand, give_up,      by_area_by_hand };

/* The sender's place is this process. */
static inline int keeps(const struct transport_place *place, const struct transport_token *token)
{
	return place->number == 1;
}

static inline void drop(const struct transport_place *place)
{
}

static const struct transport_ops remote = { .name = "by hand", .keeps = keeps, .drop = drop };

/* Both ends ---------------------------------------------------------------------------------------------------------- */

static inline int make_both(void **state)
{
	arrived = received = direct = 0;
	gets = fail_with = 0;
	refuses_direct = given_up = prefers_area = false;
	meanwhile = NULL;
	memset(&ahead, 0, sizeof(ahead));
	ahead.room = 16;
	ahead.fail_at = -1;
	if (channel_make(&near, RING) < 0 || channel_make(&far, RING) < 0)
		return -1;
	program = mmap(NULL, 2 * MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	out = &near.out;
	in = &far.out;
	out->area_bytes = in->area_bytes = AREA;
	source_out_open_remote(&near.sources_out, &remote, (struct transport_place){ .number = 1 });
	near.sources_out.remote = (struct source_remote){ (uintptr_t)out->sources->slot, (uintptr_t)out->area, 8, 9 };
	out->out = &near.sources_out;
	source_in_open_remote(&far.sources_in, &by_hand, NULL);
	in->in = &far.sources_in;
	atomic_store(&out->shared->reader, 1);
	return lane_take_over(out) ? 0 : -1;
}

static inline int drop_both(void **state)
{
	munmap(program, 2 * MOST);
	channel_close(&near);
	channel_close(&far);
	return 0;
}

static inline void carry(void)
{
	uint64_t tail = atomic_load(&out->shared->tail);

	for (; arrived < tail; arrived++)
		in->ring[arrived % RING] = out->ring[arrived % RING];
	atomic_store(&in->shared->tail, tail);
}

static inline void tell(void)
{
	struct lane_shared *from = in->shared, *to = out->shared;

	atomic_store(&to->received, atomic_load(&from->received));
	atomic_store(&to->taken, atomic_load(&from->taken));
	atomic_store(&to->from_ring, atomic_load(&from->from_ring));
	atomic_store(&to->head, atomic_load(&from->head));
}

static inline void put(size_t bytes)
{
	uint8_t data[RING];
	struct iovec iov = { data, bytes };

	fill(data, atomic_load(&out->shared->sent), bytes);
	assert_int_equal(lane_put(out, &iov, 1, 0), bytes);
	carry();
}

/* Returns its number. */
static inline uint64_t announce_at(uint8_t *at, size_t bytes)
{
	uint64_t number;

	fill(at, atomic_load(&out->shared->sent), bytes);
	assert_int_equal(source_announce_remote(out, at, bytes, 7, 0, &number), 0);
	carry();
	return number;
}

static inline int take(size_t bytes, bool peek, size_t *count)
{
	struct iovec iov[2] = { { got_bytes, bytes / 3 }, { got_bytes + bytes / 3, bytes - bytes / 3 } };
	int rc;

	memset(got_bytes, 0xee, bytes);
	rc = lane_get(in, iov, 2, peek, count);
	assert_int_equal(wrong_from(got_bytes, received, *count), *count);
	received += peek ? 0 : *count;
	return rc;
}

static inline void must_take(size_t bytes, size_t expected)
{
	size_t count;

	assert_int_equal(take(bytes, false, &count), LANE_DATA);
	assert_int_equal(count, expected);
}

static inline void use_again(bool is_ahead)
{
	uint64_t seed = 4711;

	far.sources_in.ahead = is_ahead;

	for (int i = 0; i < 500; i++) {
		size_t bytes = 1 + random_below(&seed, MOST / 4);

		if (bytes <= source_room(out))
			announce_at(program + (i % 4) * (MOST / 4), bytes);
		if (!random_below(&seed, 3))
			put(1 + random_below(&seed, 300));
		if (!random_below(&seed, 4)) {
			assert_int_equal(source_keep_all(out), 0);
			memset(program, 0xdd, MOST);
		}
		if (!random_below(&seed, 4))
			assert_int_equal(avail_fetch_all(in), 0);
		for (int k = 0; k < 2 && lane_unread(in); k++) {
			size_t wanted = 1 + random_below(&seed, is_ahead ? MOST / 8 : MOST), count;

			assert_int_equal(take(wanted, false, &count), LANE_DATA);
			assert_int_equal(count <= wanted, 1);
		}
		while (source_room(out) < MOST / 4) {
			size_t count;

			take(MOST, false, &count);
			tell();
		}
		tell();
		if (!random_below(&seed, 3))
			come(false);
		if (!random_below(&seed, 3)) {
			come(false);
			come(true);
		}
	}
	assert_true(direct > 0);
}

/* The queue pair. */
static inline void break_it(void)
{
	fail_with = -ENOTCONN;
	atomic_store(&in->in->gone, true);
}

#endif
