/* SPDX-License-Identifier: MIT */
/*
 * Sources: seeded schedules in which the sender acts at any point of the receiver's GET, two processes that race, hostile
 * slots, senders that die, fork or are refused. ZC_TEST_SEED repeats a schedule; a failure prints its seed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "rdma/channel.h"

#define RING 4096u
#define BUFFERS SOURCE_SLOTS
#define BUFFER_BYTES 40000u
#define SCHEDULES 400
#define STREAM 600000u /* bytes of one schedule */
#define RACE_BYTES (64u << 20)

static struct channel sending, receiving; /* two mappings of one segment */
static const uint8_t identity[TRANSPORT_IDENTITY_BYTES] = "the connection of this test";

/* The transport, with a hook around each GET, and an error instead of it. */
static struct transport_ops watched;
static void (*before_get)(void), (*after_get)(void);
static int get_error;

static ssize_t watched_get(struct transport_reach *reach, const struct transport_place *place,
			   const struct transport_token *token, const struct transport_get *get)
{
	ssize_t rc;

	if (get_error)
		return get_error;
	if (before_get)
		before_get();
	rc = transport_cma.get(reach, place, token, get);
	if (after_get)
		after_get();
	return rc;
}

static int make_channel(void **state)
{
	before_get = after_get = NULL;
	get_error = 0;
	watched = transport_cma;
	watched.get = watched_get;
	if (channel_make(&sending, RING) < 0 || channel_take(&receiving, sending.fd) < 0)
		return -1;
	channel_open_sources(&sending, &watched, identity);
	channel_open_sources(&receiving, &watched, identity);
	atomic_store(&receiving.in.shared->reader, 1);
	return 0;
}

static int drop_channel(void **state)
{
	channel_close(&receiving);
	channel_close(&sending);
	return 0;
}

/* Both ends in one process: it fetches from itself. */
static void shake_hands(void)
{
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN); /* nobody has asked */
	assert_int_equal(source_step_in(&receiving.in), 0);
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN); /* answers */
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN);
	assert_int_equal(source_step_in(&receiving.in), 1);
	assert_int_equal(source_step_out(&sending.out, NULL), 0);
	assert_true(lane_take_over(&sending.out));
}

static uint8_t byte_at(uint64_t position)
{
	return (uint8_t)((position * 0x9e3779b97f4a7c15ull) >> 56);
}

static void fill(uint8_t *to, uint64_t position, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = byte_at(position + i);
}

static size_t wrong_from(const uint8_t *got, uint64_t position, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != byte_at(position + i))
			return i;
	return bytes;
}

static int get(void *to, size_t bytes, bool peek, size_t *got)
{
	return lane_get(&receiving.in, &(struct iovec){ to, bytes }, 1, peek, got);
}

/* Seeded schedules -------------------------------------------------------------------------------------------------- */

/* A program's buffer under way: what guards it in the engine is here the test, which rewrites it as soon as it may. */
struct buffer {
	uint8_t *bytes;
	uint64_t number; /* 0: the program's */
	uint64_t position;
	size_t length;
};

static struct schedule {
	uint64_t first, seed;
	uint64_t sent, got;
	struct buffer buffer[BUFFERS];
	unsigned int announced, kept, withdrawn, raced, by_ring;
} s;

static uint64_t next_random(void)
{
	s.seed ^= s.seed << 13;
	s.seed ^= s.seed >> 7;
	s.seed ^= s.seed << 17;
	return s.seed;
}

static size_t below(size_t limit)
{
	return (size_t)(next_random() >> 20) % limit;
}

static void check_at(bool holds, const char *what, int line)
{
	if (holds)
		return;
	print_error("line %d: %s: ZC_TEST_SEED=%lu, at %lu of %lu bytes sent\n", line, what, s.first, s.got, s.sent);
	fail();
}
#define check(condition) check_at((condition), #condition, __LINE__)

/* The program has its memory again: it writes at once. */
static void give_back(struct buffer *buffer)
{
	memset(buffer->bytes, 0xee, BUFFER_BYTES);
	buffer->number = 0;
}

static void release_done(void)
{
	for (int i = 0; i < (int)BUFFERS; i++)
		if (s.buffer[i].number && source_taken(&sending.out, s.buffer[i].number) == SIZE_MAX)
			give_back(&s.buffer[i]);
}

static void put_in_ring(const uint8_t *from, size_t bytes)
{
	ssize_t put = lane_put(&sending.out, &(struct iovec){ (void *)from, bytes }, 1, 0);

	check(put >= 0);
	s.sent += (uint64_t)put;
	s.by_ring++;
}

static void announce(void)
{
	struct buffer *buffer = &s.buffer[below(BUFFERS)];

	if (buffer->number)
		return;
	buffer->length = 1 + (below(4) ? below(BUFFER_BYTES) : below(64));
	buffer->position = s.sent;
	fill(buffer->bytes, s.sent, buffer->length);
	if (source_announce(&sending.out, buffer->bytes, buffer->length, &buffer->number) < 0) {
		give_back(buffer);
		return;
	}
	s.sent += buffer->length;
	s.announced++;
}

static void keep_one(void)
{
	struct buffer *buffer = &s.buffer[below(BUFFERS)];

	if (!buffer->number)
		return;
	check(source_keep(&sending.out, buffer->number) == 0);
	check(source_taken(&sending.out, buffer->number) == SIZE_MAX);
	give_back(buffer);
	s.kept++;
}

/* Takes back, and perhaps sends the rest as it is now, by the ring. */
static void withdraw_one(void)
{
	struct buffer *buffer = &s.buffer[below(BUFFERS)];
	uint8_t rest[BUFFER_BYTES];
	size_t taken = 0;

	if (!buffer->number || source_withdraw(&sending.out, buffer->number, &taken) < 0)
		return;
	if (taken != SIZE_MAX) {
		check(taken < buffer->length);
		check(s.sent == buffer->position + buffer->length);
		s.sent = buffer->position + taken;
		memcpy(rest, buffer->bytes + taken, buffer->length - taken);
		taken = buffer->length - taken;
		s.withdrawn++;
	} else {
		taken = 0;
	}
	give_back(buffer);
	if (taken)
		put_in_ring(rest, taken);
}

static void sender_acts(void)
{
	uint8_t small[600];

	release_done();
	switch (below(8)) {
	case 0:
	case 1:
	case 2:
		announce();
		break;
	case 3:
	case 4:
		fill(small, s.sent, sizeof(small));
		put_in_ring(small, 1 + below(sizeof(small)));
		break;
	case 5:
	case 6:
		keep_one();
		break;
	default:
		withdraw_one();
	}
}

/* In the middle of a GET: before the memory is read, or after, and before that is claimed. */
static void maybe_acts(void)
{
	if (below(3) == 0) {
		s.raced++;
		sender_acts();
	}
}

static void receiver_acts(void)
{
	static uint8_t to[2 * BUFFER_BYTES];
	struct iovec iov[3];
	size_t bytes = 1 + (below(3) ? below(sizeof(to)) : below(200)), got = 0, cut = below(bytes + 1);
	bool peek = below(5) == 0;
	int rc;

	iov[0] = (struct iovec){ to, cut };
	iov[1] = (struct iovec){ to + cut, 0 };
	iov[2] = (struct iovec){ to + cut, bytes - cut };
	memset(to, 0xdd, bytes);
	rc = lane_get(&receiving.in, iov, 3, peek, &got);
	check(rc == LANE_DATA || rc == LANE_EMPTY);
	check((rc == LANE_DATA) == (got > 0));
	check(wrong_from(to, s.got, got) == got);
	if (!peek)
		s.got += got;
	/* Of a source that the sender takes back meanwhile, more may have been looked at than is sent now. */
	check(peek || s.got <= s.sent);
}

static void run_schedule(uint64_t seed)
{
	s.first = s.seed = seed;
	s.sent = s.got = 0;
	while (s.got < STREAM) {
		check(lane_unread(&receiving.in) == s.sent - s.got);
		if (below(2))
			sender_acts();
		else
			receiver_acts();
	}
	for (int i = 0; i < (int)BUFFERS; i++)
		if (s.buffer[i].number) {
			check(source_keep(&sending.out, s.buffer[i].number) == 0);
			give_back(&s.buffer[i]);
		}
	while (s.got < s.sent)
		receiver_acts();
	check(source_outstanding(&sending.out) == 0);
}

static void every_schedule_delivers_every_byte(void **state)
{
	const char *given = getenv("ZC_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 1000;
	struct buffer *buffer = s.buffer;

	s = (struct schedule){ 0 };
	for (int i = 0; i < (int)BUFFERS; i++)
		buffer[i].bytes = malloc(BUFFER_BYTES);
	shake_hands();
	before_get = after_get = maybe_acts;
	for (int i = 0; i < (given ? 1 : SCHEDULES); i++)
		run_schedule(seed + (uint64_t)i);
	print_message("announced %u, kept %u, withdrawn %u, acted in a GET %u, by the ring %u\n", s.announced, s.kept,
		      s.withdrawn, s.raced, s.by_ring);
	if (!given)
		assert_true(s.announced > 1000 && s.kept > 100 && s.withdrawn > 100 && s.raced > 1000 && s.by_ring > 1000);
	for (int i = 0; i < (int)BUFFERS; i++)
		free(buffer[i].bytes);
}

/* Two processes ----------------------------------------------------------------------------------------------------- */

static pid_t start(void (*run)(void))
{
	pid_t child = fork();

	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	run();
	_exit(0);
}

/* As the sender of a child process: the handshake with a receiver that polls. */
static void answer_until_proved(void)
{
	while (source_step_out(&sending.out, NULL) < 0)
		sched_yield();
	while (!lane_take_over(&sending.out))
		sched_yield();
}

static void receive_until_proved(void)
{
	while (source_step_in(&receiving.in) != 1)
		sched_yield();
}

/* Announces, and rewrites its memory whenever it may: as soon as the source is taken, or kept. */
static void race(void)
{
	uint64_t sent = 0;
	int quiet = 0;

	for (int i = 0; i < (int)BUFFERS; i++)
		s.buffer[i].bytes = malloc(BUFFER_BYTES);
	answer_until_proved();
	while (sent < RACE_BYTES) {
		struct buffer *buffer = &s.buffer[below(BUFFERS)];
		uint8_t small[500];
		ssize_t put;

		if (buffer->number) {
			size_t taken = source_taken(&sending.out, buffer->number);

			if (taken != SIZE_MAX && below(4) == 0 && source_keep(&sending.out, buffer->number) < 0)
				_exit(2);
			if (source_taken(&sending.out, buffer->number) == SIZE_MAX)
				give_back(buffer);
			if (!buffer->number || ++quiet % 16)
				continue;
			if (source_withdraw(&sending.out, buffer->number, &taken) < 0)
				continue;
			if (taken != SIZE_MAX)
				sent = buffer->position + taken;
			give_back(buffer);
			continue;
		}
		buffer->length = 1 + below(BUFFER_BYTES);
		buffer->position = sent;
		fill(buffer->bytes, sent, buffer->length);
		if (source_announce(&sending.out, buffer->bytes, buffer->length, &buffer->number) == 0)
			sent += buffer->length;
		else
			buffer->number = 0;
		if (below(3))
			continue;
		fill(small, sent, sizeof(small));
		put = lane_put(&sending.out, &(struct iovec){ small, 1 + below(sizeof(small)) }, 1, 0);
		if (put < 0)
			_exit(3);
		sent += (uint64_t)put;
	}
	if (source_keep_all(&sending.out) < 0)
		_exit(4);
}

static void two_processes_deliver_every_byte(void **state)
{
	static uint8_t to[100000];
	const char *given = getenv("ZC_TEST_SEED");
	pid_t child;
	int status;
	bool ended = false;

	s = (struct schedule){ .first = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) };
	s.seed = s.first;
	s.sent = RACE_BYTES;
	child = start(race);
	receive_until_proved();
	for (;;) {
		size_t got;
		int rc = get(to, 1 + below(sizeof(to)), false, &got);

		check(rc >= 0);
		check(wrong_from(to, s.got, got) == got);
		s.got += got;
		if (rc == LANE_DATA)
			continue;
		if (ended)
			break;
		if (waitpid(child, &status, WNOHANG) == child) {
			check(status == 0);
			ended = true; /* what it has left is kept in the segment */
		}
	}
	check(s.got >= RACE_BYTES);
}

/* Ends -------------------------------------------------------------------------------------------------------------- */

static uint64_t announced;

static uint8_t *some_bytes(uint64_t position, size_t bytes)
{
	uint8_t *at = malloc(bytes);

	fill(at, position, bytes);
	return at;
}

static void announce_and_pause(void)
{
	uint8_t *bytes = some_bytes(0, 300000);

	answer_until_proved();
	lane_put(&sending.out, &(struct iovec){ bytes, 100 }, 1, 0);
	source_announce(&sending.out, bytes + 100, 200000, &announced);
	if (source_announce(&sending.out, bytes + 200100, 50000, &announced) < 0)
		_exit(1);
	for (;;)
		pause();
}

static void a_killed_sender_leaves_a_right_prefix_and_a_reset(void **state)
{
	static uint8_t to[300000];
	pid_t child = start(announce_and_pause);
	size_t got;

	receive_until_proved();
	while (lane_unread(&receiving.in) < 250100)
		sched_yield();
	assert_int_equal(get(to, 150000, false, &got), LANE_DATA);
	assert_int_equal(got, 150000);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(wrong_from(to, 0, got), got);
	assert_int_equal(get(to, 1000, false, &got), -ECONNRESET);
	assert_int_equal(get(to, 1000, true, &got), -ECONNRESET);
	assert_int_equal(got, 0);
}

static void bytes_in_front_of_what_died_are_delivered(void **state)
{
	static uint8_t to[300000];
	pid_t child = start(announce_and_pause);
	size_t got;

	receive_until_proved();
	while (lane_unread(&receiving.in) < 250100)
		sched_yield();
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(get(to, sizeof(to), false, &got), LANE_DATA);
	assert_int_equal(got, 100);
	assert_int_equal(get(to, sizeof(to), false, &got), -ECONNRESET);
}

static void announce_keep_and_exit(void)
{
	uint8_t *bytes = some_bytes(0, 300000);

	answer_until_proved();
	source_announce(&sending.out, bytes, 200000, &announced);
	source_announce(&sending.out, bytes + 200000, 50000, &announced);
	if (source_keep_all(&sending.out) < 0)
		_exit(1);
	memset(bytes, 0, 300000);
}

static void kept_bytes_outlive_the_sender(void **state)
{
	static uint8_t to[300000];
	pid_t child = start(announce_keep_and_exit);
	size_t got;
	int status;

	receive_until_proved();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(get(to, sizeof(to), true, &got), LANE_DATA);
	assert_int_equal(got, 250000);
	assert_int_equal(get(to, sizeof(to), false, &got), LANE_DATA);
	assert_int_equal(got, 250000);
	assert_int_equal(wrong_from(to, 0, got), got);
}

static void announce_and_unmap(void)
{
	uint8_t *bytes = mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	fill(bytes, 0, 16 * 4096);
	munmap(bytes + 10 * 4096, 4096);
	answer_until_proved();
	source_announce(&sending.out, bytes, 16 * 4096, &announced);
	for (;;)
		pause();
}

static void memory_that_is_gone_is_a_reset_at_the_right_byte(void **state)
{
	static uint8_t to[16 * 4096];
	pid_t child = start(announce_and_unmap);
	size_t got;

	receive_until_proved();
	while (!lane_unread(&receiving.in))
		sched_yield();
	assert_int_equal(get(to, sizeof(to), false, &got), LANE_DATA);
	assert_int_equal(got, 10 * 4096);
	assert_int_equal(wrong_from(to, 0, got), got);
	assert_int_equal(get(to, sizeof(to), false, &got), -ECONNRESET);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* One process ------------------------------------------------------------------------------------------------------- */

static void a_receivers_own_bad_buffer_costs_nothing(void **state)
{
	static uint8_t to[50000];
	uint8_t *bytes = some_bytes(0, 50000);
	uint64_t number;
	size_t got;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, bytes, 50000, &number), 0);
	assert_int_equal(get((void *)16, 50000, false, &got), -EFAULT);
	assert_int_equal(get(to, 50000, false, &got), LANE_DATA);
	assert_int_equal(got, 50000);
	assert_int_equal(wrong_from(to, 0, got), got);
	free(bytes);
}

static void a_source_is_over_when_it_is_taken_kept_or_withdrawn(void **state)
{
	static uint8_t to[3000];
	uint8_t *bytes = some_bytes(0, 3000);
	uint64_t number[3];
	size_t got, taken;

	shake_hands();
	for (int i = 0; i < 3; i++)
		assert_int_equal(source_announce(&sending.out, bytes + i * 1000, 1000, &number[i]), 0);
	assert_int_equal(source_outstanding(&sending.out), 3);
	assert_int_equal(get(to, 400, false, &got), LANE_DATA);
	assert_int_equal(source_taken(&sending.out, number[0]), 400);
	assert_int_equal(source_withdraw(&sending.out, number[0], &taken), -EBUSY);
	assert_int_equal(source_withdraw(&sending.out, number[1], &taken), -EBUSY);
	assert_int_equal(get(to + 400, 600, false, &got), LANE_DATA);
	assert_int_equal(source_taken(&sending.out, number[0]), SIZE_MAX);
	assert_int_equal(source_outstanding(&sending.out), 2);
	assert_int_equal(get(to + 1000, 10, false, &got), LANE_DATA);
	assert_int_equal(source_withdraw(&sending.out, number[2], &taken), 0);
	assert_int_equal(taken, 0);
	assert_int_equal(source_taken(&sending.out, number[2]), SIZE_MAX);
	assert_int_equal(source_withdraw(&sending.out, number[2], &taken), 0);
	assert_int_equal(taken, SIZE_MAX);
	/* Now it is the last but for withdrawn ones. */
	assert_int_equal(source_withdraw(&sending.out, number[1], &taken), 0);
	assert_int_equal(taken, 10);
	assert_int_equal(atomic_load(&sending.out.shared->sent), 1010);
	assert_int_equal(get(to, 1000, false, &got), LANE_EMPTY);
	assert_int_equal(source_outstanding(&sending.out), 0);
	assert_int_equal(source_keep(&sending.out, number[1]), 0); /* long over: nothing happens */
	assert_int_equal(lane_backlog(&sending.out), 0);
	/* What is behind in the ring keeps it from being withdrawn. */
	assert_int_equal(source_announce(&sending.out, bytes, 1000, &number[0]), 0);
	assert_int_equal(lane_put(&sending.out, &(struct iovec){ bytes, 1 }, 1, 0), 1);
	assert_int_equal(source_withdraw(&sending.out, number[0], &taken), -EBUSY);
	assert_int_equal(source_keep(&sending.out, number[0]), 0);
	/* A SWITCH as well. */
	assert_int_equal(source_announce(&sending.out, bytes, 1000, &number[1]), 0);
	assert_true(lane_switch(&sending.out));
	assert_int_equal(source_withdraw(&sending.out, number[1], &taken), -EBUSY);
	assert_int_equal(get(to, 3000, false, &got), LANE_DATA);
	assert_int_equal(got, 2001);
	assert_int_equal(get(to, 1, false, &got), LANE_RAW);
	free(bytes);
}

static void slots_area_and_ring_have_ends(void **state)
{
	uint8_t *bytes = some_bytes(0, SOURCE_AREA_BYTES);
	uint64_t number;
	uint8_t byte;
	size_t got;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, bytes, 0, &number), -EAGAIN);
	assert_int_equal(source_announce(&sending.out, bytes, SOURCE_AREA_BYTES + 1, &number), -EAGAIN);
	assert_int_equal(source_announce(&sending.out, bytes, SOURCE_AREA_BYTES, &number), 0);
	assert_int_equal(source_room(&sending.out), 0);
	assert_int_equal(source_announce(&sending.out, bytes, 1, &number), -EAGAIN);
	assert_int_equal(get(bytes, SOURCE_AREA_BYTES, false, &got), LANE_DATA);
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++)
		assert_int_equal(source_announce(&sending.out, bytes, 1, &number), 0);
	assert_int_equal(source_announce(&sending.out, bytes, 1, &number), -EAGAIN);
	while (get(&byte, 1, false, &got) == LANE_DATA)
		;
	while (lane_put(&sending.out, &(struct iovec){ bytes, 8 }, 1, 0) > 0)
		;
	assert_int_equal(source_announce(&sending.out, bytes, 1, &number), -EAGAIN);
	assert_true(lane_switch(&sending.out)); /* for that there is room always */
	free(bytes);
}

static void memory_of_kept_bytes_is_given_back(void **state)
{
	uint8_t *bytes = some_bytes(0, SOURCE_AREA_BYTES);
	struct stat before, with, after;
	uint64_t number;
	size_t got;

	shake_hands();
	assert_false(source_trim(&sending.out));
	fstat(sending.fd, &before);
	assert_int_equal(source_announce(&sending.out, bytes, SOURCE_AREA_BYTES, &number), 0);
	assert_int_equal(source_keep(&sending.out, number), 0);
	fstat(sending.fd, &with);
	assert_true((with.st_blocks - before.st_blocks) * 512 >= SOURCE_AREA_BYTES);
	assert_false(source_trim(&sending.out));
	memset(bytes, 0, SOURCE_AREA_BYTES);
	assert_int_equal(get(bytes, SOURCE_AREA_BYTES, false, &got), LANE_DATA);
	assert_int_equal(wrong_from(bytes, 0, SOURCE_AREA_BYTES), SOURCE_AREA_BYTES);
	assert_true(source_trim(&sending.out));
	fstat(sending.fd, &after);
	assert_int_equal(after.st_blocks, before.st_blocks);
	free(bytes);
}

/* Refusals ---------------------------------------------------------------------------------------------------------- */

static int prove_never(struct transport_reach *reach, const struct transport_place *place, const struct transport_token *token)
{
	return -EPERM;
}

static void who_is_refused_at_the_handshake_does_not_announce(void **state)
{
	watched.prove = prove_never;
	assert_int_equal(source_step_in(&receiving.in), 0);
	assert_int_equal(source_step_out(&sending.out, NULL), -EAGAIN);
	assert_int_equal(source_step_in(&receiving.in), -EPERM);
	assert_int_equal(source_step_in(&receiving.in), -EPERM);
	assert_int_equal(source_step_out(&sending.out, NULL), -EPERM);
}

static void a_receiver_that_is_refused_later_gets_the_bytes_from_the_segment(void **state)
{
	static uint8_t to[9000];
	uint8_t *bytes = some_bytes(0, 9000);
	uint64_t number;
	size_t got;
	bool rescued;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, bytes, 5000, &number), 0);
	assert_int_equal(source_announce(&sending.out, bytes + 5000, 4000, &number), 0);
	assert_int_equal(get(to, 1000, false, &got), LANE_DATA);
	assert_false(lane_is_stuck(&receiving.in));
	get_error = -EPERM;
	assert_int_equal(get(to + 1000, 1000, false, &got), LANE_EMPTY);
	assert_true(lane_is_stuck(&receiving.in));
	assert_true(lane_is_empty(&receiving.in));
	assert_true(lane_arm(&receiving.in)); /* it may sleep */
	assert_int_equal(source_step_out(&sending.out, &rescued), -EPERM);
	assert_true(rescued);
	assert_true(lane_must_ring(&sending.out));
	assert_int_equal(source_taken(&sending.out, number), SIZE_MAX);
	memset(bytes, 0, 9000);
	assert_false(lane_is_empty(&receiving.in));
	assert_int_equal(get(to + 1000, 8000, false, &got), LANE_DATA);
	assert_int_equal(got, 8000);
	assert_int_equal(wrong_from(to, 0, 9000), 9000);
	assert_int_equal(source_step_out(&sending.out, &rescued), -EPERM);
	assert_false(rescued);
	free(bytes);
}

/* Forks ------------------------------------------------------------------------------------------------------------- */

/* As in the engine, where the two sides of a lane lie in memory that forks share. */
static struct channel *share_sending(void)
{
	struct channel *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	*shared = sending;
	shared->out.out = &shared->sources_out;
	return shared;
}

static void parent_and_child_send_from_their_own_memory(void **state)
{
	static uint8_t to[3000];
	static uint8_t bytes[3000];
	struct channel *shared;
	uint64_t first, second;
	size_t got;
	pid_t child;
	int status;

	shake_hands();
	fill(bytes, 0, 1000);
	shared = share_sending();
	assert_int_equal(source_announce(&shared->out, bytes, 1000, &first), 0);
	child = fork();
	if (!child) {
		memset(bytes, 0, sizeof(bytes));
		fill(bytes, 1000, 1000); /* other bytes at the same address */
		if (source_keep(&shared->out, first) != -EPERM)
			_exit(1);
		if (source_step_out(&shared->out, NULL) != -EAGAIN) /* answers for itself */
			_exit(2);
		while (source_step_out(&shared->out, NULL) < 0)
			sched_yield();
		if (source_announce(&shared->out, bytes, 1000, &second))
			_exit(3);
		while (source_taken(&shared->out, second) != SIZE_MAX)
			sched_yield();
		_exit(0);
	}
	while (source_step_in(&receiving.in) != 1 || receiving.sources_in.seen != 2)
		sched_yield();
	while (lane_unread(&receiving.in) < 2000)
		sched_yield();
	assert_int_equal(get(to, 500, false, &got), LANE_DATA);
	/* The parent's memory is its own to keep, whoever has answered since. */
	assert_int_equal(source_keep(&shared->out, first), 0);
	memset(bytes, 0, 1000);
	assert_int_equal(get(to + 500, 1500, false, &got), LANE_DATA);
	assert_int_equal(got, 1500);
	assert_int_equal(wrong_from(to, 0, 2000), 2000);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* And the parent again: it has to answer anew. */
	assert_int_equal(source_step_out(&shared->out, NULL), -EAGAIN);
	assert_int_equal(source_step_in(&receiving.in), 1);
	assert_int_equal(source_step_out(&shared->out, NULL), 0);
	munmap(shared, sizeof(*shared));
}

/* Hostile slots ----------------------------------------------------------------------------------------------------- */

static struct source_slot *slot;
static uint8_t target[5000];

static void expect_protocol_error(void)
{
	uint8_t to[100];
	size_t got;

	assert_int_equal(get(to, sizeof(to), false, &got), -EPROTO);
	assert_int_equal(get(to, sizeof(to), true, &got), -EPROTO);
	assert_int_equal(got, 0);
	assert_int_equal(lane_unread(&receiving.in), 0);
	assert_false(lane_is_stuck(&receiving.in));
}

static void scribble(void)
{
	uint64_t state = next_random() % 5;

	atomic_store(&slot->word, SOURCE_WORD(1, next_random() % 5000, state));
}

static void nonsense_in_a_slot_is_refused(void **state)
{
	uint8_t to[100];
	uint64_t number, word;
	size_t got;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
	slot = &sending.out.sources->slot[number % SOURCE_SLOTS];
	word = atomic_load(&slot->word);
	for (uint32_t wrong = 5; wrong < 8; wrong++) {
		atomic_store(&slot->word, SOURCE_WORD(number, 0, wrong));
		expect_protocol_error();
	}
	atomic_store(&slot->word, SOURCE_WORD(number, 0, SOURCE_FREE));
	expect_protocol_error();
	atomic_store(&slot->word, SOURCE_WORD(number + 1, 0, SOURCE_ANNOUNCED));
	expect_protocol_error();
	atomic_store(&slot->word, SOURCE_WORD(number, 5001, SOURCE_ANNOUNCED));
	expect_protocol_error();
	atomic_store(&slot->word, SOURCE_WORD(number, 0x1fffffff, SOURCE_KEPT));
	expect_protocol_error();
	atomic_store(&slot->word, word);
	slot->bytes = 0;
	expect_protocol_error();
	slot->bytes = SOURCE_AREA_BYTES + 1;
	expect_protocol_error();
	slot->bytes = 0xffffffff;
	expect_protocol_error();
	slot->bytes = 5000;
	slot->address = UINT64_MAX - 4998;
	expect_protocol_error();
	/* An address that is nobody's, or a place that holds no token: the sender's own loss. */
	slot->address = 4096;
	assert_int_equal(get(to, sizeof(to), false, &got), -ECONNRESET);
	slot->address = (uintptr_t)target;
	slot->place.token += 64;
	assert_int_equal(get(to, sizeof(to), false, &got), -ECONNRESET);
	slot->place.token = (uintptr_t)target;
	slot->place.number = 1;
	assert_true(get(to, sizeof(to), false, &got) != LANE_DATA);
	assert_int_equal(got, 0);
}

static void nonsense_in_the_ring_is_refused(void **state)
{
	uint32_t *record = (uint32_t *)sending.out.ring;
	uint64_t number;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
	assert_int_equal(record[2], 4);
	record[3] = 2; /* a source out of turn */
	slot = &sending.out.sources->slot[2];
	expect_protocol_error();
	record[3] = 0xffffffff;
	expect_protocol_error();
}

static void homes_that_can_not_be_stay_in_the_area(void **state)
{
	static uint8_t to[5000];
	const uint64_t homes[] = { 0, UINT64_MAX, UINT64_MAX - 4000, SOURCE_AREA_BYTES - 1, 1ull << 63 };
	uint64_t number;
	size_t got;

	shake_hands();
	for (size_t i = 0; i < sizeof(homes) / sizeof(*homes); i++) {
		assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
		assert_int_equal(source_keep(&sending.out, number), 0);
		sending.out.sources->slot[number % SOURCE_SLOTS].home = homes[i];
		assert_int_equal(get(to, sizeof(to), false, &got), LANE_DATA);
		assert_int_equal(got, sizeof(to));
	}
}

static void a_slot_that_changes_while_it_is_read_ends(void **state)
{
	uint64_t number;
	int ends[2] = { 0 };

	shake_hands();
	s = (struct schedule){ .seed = 88172645463325252ull };
	before_get = after_get = scribble;
	assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
	slot = &sending.out.sources->slot[number % SOURCE_SLOTS];
	for (int i = 0; i < 10000; i++) {
		uint8_t to[6000];
		size_t got;
		int rc;

		scribble();
		rc = get(to, sizeof(to), true, &got);
		assert_true(rc == LANE_EMPTY || rc == LANE_DATA || rc == -EPROTO);
		assert_true(got <= sizeof(target));
		ends[rc == -EPROTO]++;
	}
	assert_true(ends[0] && ends[1]);
}

/* A receiver that writes nonsense makes the sender's sources end, and has it touch nothing of its own but them. */
static void nonsense_by_the_receiver_ends_the_source(void **state)
{
	uint64_t number;
	size_t taken;
	struct source_slot *shared;

	shake_hands();
	for (uint64_t i = 0; i < 4; i++) {
		assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
		shared = &receiving.in.sources->slot[number % SOURCE_SLOTS];
		shared->address = 0;
		shared->bytes = 0xffffffff;
		shared->home = i << 40;
		atomic_store(&shared->word, i == 0 ? SOURCE_WORD(number, 5001, SOURCE_ANNOUNCED) :
					    i == 1 ? SOURCE_WORD(number, 0, 7) :
					    i == 2 ? SOURCE_WORD(number - 1, 0, SOURCE_ANNOUNCED) :
						     SOURCE_WORD(number, 10, SOURCE_ANNOUNCED));
		assert_int_equal(source_taken(&sending.out, number), i == 3 ? 10 : SIZE_MAX);
		assert_int_equal(source_keep(&sending.out, number), 0);
		assert_int_equal(source_withdraw(&sending.out, number, &taken), 0);
		assert_int_equal(taken, SIZE_MAX);
	}
	atomic_store(&receiving.in.shared->head, atomic_load(&receiving.in.shared->tail) + 8);
	assert_int_equal(source_room(&sending.out), 0);
	assert_int_equal(source_announce(&sending.out, target, 1, &number), -EAGAIN);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_channel, drop_channel)
	const struct CMUnitTest tests[] = {
		TEST(every_schedule_delivers_every_byte),
		TEST(two_processes_deliver_every_byte),
		TEST(a_killed_sender_leaves_a_right_prefix_and_a_reset),
		TEST(bytes_in_front_of_what_died_are_delivered),
		TEST(kept_bytes_outlive_the_sender),
		TEST(memory_that_is_gone_is_a_reset_at_the_right_byte),
		TEST(a_receivers_own_bad_buffer_costs_nothing),
		TEST(a_source_is_over_when_it_is_taken_kept_or_withdrawn),
		TEST(slots_area_and_ring_have_ends),
		TEST(memory_of_kept_bytes_is_given_back),
		TEST(who_is_refused_at_the_handshake_does_not_announce),
		TEST(a_receiver_that_is_refused_later_gets_the_bytes_from_the_segment),
		TEST(parent_and_child_send_from_their_own_memory),
		TEST(nonsense_in_a_slot_is_refused),
		TEST(nonsense_in_the_ring_is_refused),
		TEST(homes_that_can_not_be_stay_in_the_area),
		TEST(a_slot_that_changes_while_it_is_read_ends),
		TEST(nonsense_by_the_receiver_ends_the_source),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
