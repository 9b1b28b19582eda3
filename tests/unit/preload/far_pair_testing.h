/* SPDX-License-Identifier: MIT */
/* Both ends of a connection between hosts, with a device by hand (cable_testing.h), and the agent's steps are the test's. */
#ifndef ZC_TESTS_FAR_PAIR_TESTING_H
#define ZC_TESTS_FAR_PAIR_TESTING_H

#include <stdlib.h>

#include "common/clock.h"
#include "met_testing.h"
#include "cable_testing.h"

#define SERVER 1
#define CLIENT 0
#define PART 3000
#define LARGE 20000
#define HANG_NS (100 * NS_PER_SEC) /* what takes longer hangs, on whatever machine */

static struct far fars[2];
static uint64_t sent[2], received[2]; /* by each end */

static inline struct engine *engine_of(int end)
{
	return atomic_load(&conns[end]->engine);
}

static inline struct plug *plug_at(int end)
{
	return plug_of(atomic_load(&fars[end].link));
}

/* What an agent does for a connection whose program makes no call. */
static inline void serve(int end)
{
	struct engine *engine = engine_of(end);
	struct far_both both;

	assert_true(far_take_both(engine, &both));
	far_look(conns[end], engine, ends[end]);
	far_step_out(conns[end], engine, ends[end]);
	far_give_both(engine, &both);
}

/* The other end's agent answers whoever sleeps. */
static inline void answer(struct plug *sleeper)
{
	static bool busy;
	int other = sleeper == plug_at(CLIENT) ? SERVER : CLIENT;

	if (busy)
		return;
	busy = true;
	serve(other);
	busy = false;
}

/* As both agents do, from a data call of each end on. Returns whether there is a queue pair. */
static inline bool meet(void)
{
	for (int end = CLIENT; end <= SERVER; end++) {
		if (!fars[end].opening && !fars[end].listener)
			far_seek(conns[end], engine_of(end), &fars[end]);
	}
	if (fars[CLIENT].listener)
		far_take_visitor(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	for (int end = SERVER; end >= CLIENT; end--) {
		if (fars[end].opening)
			far_meet_step(conns[end], engine_of(end), &fars[end]);
	}
	return atomic_load(&engine_of(CLIENT)->far.state) == FAR_UP &&
	       atomic_load(&engine_of(SERVER)->far.state) == FAR_UP;
}

/* It is time. Returns whether the end is at rest, and nothing is left of the last queue pair. */
static inline bool rests(int end)
{
	atomic_store(&engine_of(end)->far.again_at, 0);
	far_try_again(conns[end], engine_of(end), &fars[end]);
	return !atomic_load(&fars[end].link) && !fars[end].former;
}

static inline bool meet_again(void)
{
	serve(CLIENT);
	serve(SERVER);
	return rests(CLIENT) && rests(SERVER) && meet();
}

static inline int begin(void **state)
{
	if ((!stats && stats_start()) || (!table && table_start()))
		return -1;
	memset(&cable, 0, sizeof(cable));
	memset(sent, 0, sizeof(sent));
	memset(received, 0, sizeof(received));
	cable.agent = answer;
	far_verbs = &cable_device;
	connect_pair(ends);
	for (int end = 0; end < 2; end++) {
		conn_open(ends[end], end == CLIENT ? ROLE_CLIENT : ROLE_SERVER, false);
		conns[end] = table_conn(ends[end]);
		fars[end] = (struct far){ .conn = conns[end], .channel.fd = -1, .ended.fd = -1 };
		conns[end]->far = &fars[end];
		atomic_store(&engine_of(end)->far.state, FAR_APART);
	}
	return meet() ? 0 : -1;
}

static inline int finish(void **state)
{
	for (int end = 0; end < 2; end++) {
		struct engine *engine = engine_of(end);

		/* As far_bury() and the agent do. */
		far_drop_all(&fars[end]);
		channel_close(&fars[end].channel);
		conns[end]->far = NULL;
		atomic_store(&engine->far.state, FAR_NONE);
		engine->far.out = FAR_OUT_FREE;
		conn_close(ends[end]);
		close(ends[end]);
	}
	return 0;
}

static inline uint8_t byte_at(int end, uint64_t at)
{
	return (uint8_t)(at * 7 + at / 251 + (uint64_t)end);
}

/* What comes next, from that room. Returns how much was taken without waiting, or -errno. */
static inline ssize_t send_next(int end, char *data, size_t bytes)
{
	struct iovec iov = { data, bytes };
	ssize_t rc;

	for (size_t i = 0; i < bytes; i++)
		data[i] = (char)byte_at(end, sent[end] + i);
	rc = engine_send(conns[end], ends[end], &iov, 1, MSG_DONTWAIT, &(enum zc_path){ PATH_BSDP });
	if (rc == ENGINE_BY_KERNEL) {
		__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw =
			engine_raw_begins(conns[end], ends[end], MSG_DONTWAIT);

		rc = raw.error ? raw.error : real.send(ends[end], data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		raw.done = rc;
	}
	sent[end] += rc > 0 ? (uint64_t)rc : 0;
	return rc;
}

static inline void put(int end, size_t bytes)
{
	char data[bytes];

	assert_int_equal(send_next(end, data, bytes), bytes);
}

/* All that the other end has sent. */
static inline void take_all(int end)
{
	uint64_t until = clock_now() + HANG_NS;
	char data[2 * PART];

	while (received[end] != sent[1 - end]) {
		ssize_t rc = receive_some(end, data, sizeof(data), MSG_DONTWAIT);

		serve(1 - end);
		if (rc == -EAGAIN && clock_now() < until)
			continue;
		assert_true(rc > 0);
		for (ssize_t i = 0; i < rc; i++)
			assert_int_equal((uint8_t)data[i], byte_at(1 - end, received[end] + (uint64_t)i));
		received[end] += (uint64_t)rc;
	}
}

static inline bool on_ring(int end)
{
	return atomic_load(&lane_from(end)->shared->on_ring);
}

static inline void exchange(void)
{
	for (int i = 0; i < 4; i++) {
		for (int end = 0; end < 2; end++) {
			put(end, PART);
			take_all(1 - end);
		}
	}
}

/* Both ends notice. What was put since is nowhere but in its sender's ring. */
static inline void break_both(void)
{
	for (int end = 0; end < 2; end++)
		plug_give_up(atomic_load(&fars[end].link));
}

static inline void cut(void)
{
	for (int end = 0; end < 2; end++)
		plug_at(end)->cut = true;
}

/* What the client says by TCP behind a break: it goes on at `from`, with all up to `to` at least. */
static inline void make_resume(uint8_t frame[FAR_FRAME_BYTES], uint64_t from, uint64_t to)
{
	frame[0] = FAR_CODE_RESUME(engine_of(CLIENT)->channel.out.codes);
	for (int i = 0; i < 8; i++) {
		frame[1 + i] = (uint8_t)(from >> 8 * i);
		frame[9 + i] = (uint8_t)(to >> 8 * i);
	}
}

static inline uint64_t counted(int end, enum stat_conn what)
{
	return atomic_load(&stats->slot[conns[end]->slot].conn[what]);
}

static uint32_t seed;

static inline uint32_t any(uint32_t below)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % below;
}

/* As much as is taken without waiting. */
static inline void put_some(int end, size_t bytes)
{
	static char *rooms[2];
	char *data = rooms[end] ? rooms[end] : sys_map(LARGE, MAP_PRIVATE); /* as programs use theirs again */
	ssize_t rc;

	rooms[end] = data;
	if (sent[end] - received[1 - end] > 200000)
		return;
	rc = send_next(end, data, bytes);
	assert_true(rc > 0 || rc == -EAGAIN);
}

static inline void take_some(int end, size_t bytes, int flags)
{
	char data[bytes];
	ssize_t rc = receive_some(end, data, bytes, flags | MSG_DONTWAIT);

	assert_true(rc > 0 || rc == -EAGAIN || (rc == -1 && errno == EAGAIN));
	for (ssize_t i = 0; i < rc; i++)
		assert_int_equal((uint8_t)data[i], byte_at(1 - end, received[end] + (uint64_t)i));
	received[end] += rc > 0 && !(flags & MSG_PEEK) ? (uint64_t)rc : 0;
}

#endif
