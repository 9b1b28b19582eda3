/* SPDX-License-Identifier: MIT */
/*
 * Sources, every byte: seeded schedules in which the sender acts at any point of the receiver's GET, and two processes that
 * race. ZC_TEST_SEED repeats a schedule; a failure prints its seed.
 */
#define _GNU_SOURCE
#include <time.h>

#include "source_testing.h"

#define BUFFERS SOURCE_SLOTS
#define BUFFER_BYTES 40000u
#define SCHEDULES 400
#define STREAM 600000u /* bytes of one schedule */
#define RACE_BYTES (64u << 20)

/* Seeded schedules -------------------------------------------------------------------------------------------------- */

/* A program's buffer under way: what guards it in the engine is here the test, which rewrites it as soon as it may. */
struct buffer {
	uint8_t *bytes;
	uint64_t number; /* 0: the program's */
	uint64_t position;
	size_t length;
};

static struct schedule {
	uint64_t first;
	uint64_t sent, got;
	struct buffer buffer[BUFFERS];
	unsigned int announced, kept, withdrawn, raced, by_ring;
} s;

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
	s.first = random_state = seed;
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
		assert_true(s.announced > 1000 && s.kept > 100 && s.withdrawn > 100 && s.raced > 1000 &&
			    s.by_ring > 1000);
	for (int i = 0; i < (int)BUFFERS; i++)
		free(buffer[i].bytes);
}

/* Two processes ----------------------------------------------------------------------------------------------------- */

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
	random_state = s.first;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_schedule_delivers_every_byte),
		TEST(two_processes_deliver_every_byte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
