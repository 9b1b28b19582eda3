/* SPDX-License-Identifier: MIT */
/* Sources, their ends: senders that die or fork, receivers that are refused, memory and slots that run out. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "source_testing.h"

/* Ends -------------------------------------------------------------------------------------------------------------- */

static uint64_t announced;

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

/* Returns when all that it announces is there. */
static pid_t start_announcing(void)
{
	pid_t child = start(announce_and_pause);

	receive_until_proved();
	while (lane_unread(&receiving.in) < 250100)
		sched_yield();
	return child;
}

static void a_killed_sender_leaves_a_right_prefix_and_a_reset(void **state)
{
	static uint8_t to[300000];
	pid_t child = start_announcing();
	size_t got;

	assert_int_equal(get(to, 150000, false, &got), LANE_DATA);
	assert_int_equal(got, 150000);
	kill_sender(child);
	assert_int_equal(wrong_from(to, 0, got), got);
	assert_int_equal(get(to, 1000, false, &got), -ECONNRESET);
	assert_int_equal(get(to, 1000, true, &got), -ECONNRESET);
	assert_int_equal(got, 0);
}

static void bytes_in_front_of_what_died_are_delivered(void **state)
{
	static uint8_t to[300000];
	pid_t child = start_announcing();
	size_t got;

	kill_sender(child);
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
	kill_sender(child);
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
	assert_int_equal(source_announce(&sending.out, bytes, 0, &number), -ENOBUFS);
	assert_int_equal(source_announce(&sending.out, bytes, SOURCE_AREA_BYTES + 1, &number), -ENOBUFS);
	assert_int_equal(source_announce(&sending.out, bytes, SOURCE_AREA_BYTES, &number), 0);
	assert_int_equal(source_room(&sending.out), 0);
	assert_int_equal(source_announce(&sending.out, bytes, 1, &number), -ENOBUFS);
	assert_int_equal(get(bytes, SOURCE_AREA_BYTES, false, &got), LANE_DATA);
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++)
		assert_int_equal(source_announce(&sending.out, bytes, 1, &number), 0);
	assert_int_equal(source_announce(&sending.out, bytes, 1, &number), -ENOBUFS);
	while (get(&byte, 1, false, &got) == LANE_DATA)
		;
	while (lane_put(&sending.out, &(struct iovec){ bytes, 8 }, 1, 0) > 0)
		;
	assert_int_equal(source_announce(&sending.out, bytes, 1, &number), -ENOBUFS);
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

/* Memory that nobody has said goes away ----------------------------------------------------------------------------- */

#define GONE_BYTES (16 * 4096)

static void *map_gone(void)
{
	uint8_t *bytes = mmap(NULL, GONE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(bytes, MAP_FAILED);
	fill(bytes, 0, GONE_BYTES);
	return bytes;
}

static void keeping_what_is_gone_is_a_reset(void **state)
{
	static uint8_t to[GONE_BYTES];
	uint8_t *bytes = map_gone();
	uint64_t number, behind;
	size_t got;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, bytes, GONE_BYTES, &number), 0);
	assert_int_equal(source_announce(&sending.out, to, 1, &behind), 0);
	assert_int_equal(get(to, 100, false, &got), LANE_DATA);
	assert_int_equal(got, 100);
	assert_int_equal(munmap(bytes, GONE_BYTES), 0);
	assert_int_equal(source_keep(&sending.out, number), -ENXIO);
	assert_int_equal(source_taken(&sending.out, number), SIZE_MAX);
	assert_int_equal(source_keep(&sending.out, number), 0); /* it is over */
	assert_false(lane_is_empty(&receiving.in));		/* or nobody would come and see */
	assert_int_equal(get(to, GONE_BYTES, true, &got), -ECONNRESET);
	assert_int_equal(get(to, GONE_BYTES, false, &got), -ECONNRESET);
	assert_int_equal(got, 0);
	assert_int_equal(get(to, 1, false, &got), -ECONNRESET);
}

static void what_is_gone_in_part_is_a_reset_at_that_byte(void **state)
{
	static uint8_t to[2 * GONE_BYTES];
	uint8_t *bytes = map_gone(), *wraps = some_bytes(GONE_BYTES, SOURCE_AREA_BYTES - GONE_BYTES / 2);
	uint64_t number;
	size_t got;

	shake_hands();
	/* So that its home lies around the end of the area. */
	assert_int_equal(source_announce(&sending.out, wraps, SOURCE_AREA_BYTES - GONE_BYTES / 2, &number), 0);
	assert_int_equal(get(wraps, SOURCE_AREA_BYTES - GONE_BYTES / 2, false, &got), LANE_DATA);
	assert_int_equal(got, SOURCE_AREA_BYTES - GONE_BYTES / 2);
	assert_int_equal(source_announce(&sending.out, bytes, GONE_BYTES, &number), 0);
	assert_int_equal(munmap(bytes + 11 * 4096, 4096), 0);
	assert_int_equal(source_keep(&sending.out, number), -ENXIO);
	memset(bytes, 0, 11 * 4096);
	assert_int_equal(get(to, 10 * 4096 + 100, false, &got), LANE_DATA);
	assert_int_equal(got, 10 * 4096 + 100);
	assert_int_equal(get(to + got, GONE_BYTES, true, &got), LANE_DATA);
	assert_int_equal(got, 4096 - 100);
	assert_int_equal(get(to + 10 * 4096 + 100, GONE_BYTES, false, &got), LANE_DATA);
	assert_int_equal(got, 4096 - 100);
	assert_int_equal(wrong_from(to, 0, 11 * 4096), 11 * 4096);
	assert_int_equal(get(to, GONE_BYTES, false, &got), -ECONNRESET);
	free(wraps);
	munmap(bytes, GONE_BYTES);
}

static void whoever_waits_for_what_is_gone_is_woken(void **state)
{
	static uint8_t to[GONE_BYTES];
	uint8_t *bytes = map_gone();
	uint64_t number;
	size_t got;
	bool rescued;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, bytes, GONE_BYTES, &number), 0);
	get_error = -EPERM;
	assert_int_equal(get(to, 1000, false, &got), LANE_EMPTY);
	assert_true(lane_arm(&receiving.in));
	munmap(bytes, GONE_BYTES);
	assert_int_equal(source_step_out(&sending.out, &rescued), -EPERM);
	assert_true(rescued);
	assert_true(lane_must_ring(&sending.out));
	assert_int_equal(get(to, 1000, false, &got), -ECONNRESET);
}

/* Refusals ---------------------------------------------------------------------------------------------------------- */

static int prove_never(struct transport_reach *reach, const struct transport_place *place,
		       const struct transport_token *token)
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

static void every_refusal_has_its_reason(void **state)
{
	assert_int_equal(source_reason(-EAGAIN), REASON_GET_UNPROVED);
	assert_int_equal(source_reason(-EPERM), REASON_GET_REFUSED);
	assert_int_equal(source_reason(-ENOSYS), REASON_GET_REFUSED);
	assert_int_equal(source_reason(-EACCES), REASON_GET_OTHER_USER);
	assert_int_equal(source_reason(-ESRCH), REASON_GET_UNSEEN);
	assert_int_equal(source_reason(-ESTALE), REASON_GET_UNSEEN);
	assert_int_equal(source_reason(-ENOBUFS), REASON_SOURCES_FULL);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_killed_sender_leaves_a_right_prefix_and_a_reset),
		TEST(bytes_in_front_of_what_died_are_delivered),
		TEST(kept_bytes_outlive_the_sender),
		TEST(memory_that_is_gone_is_a_reset_at_the_right_byte),
		TEST(a_receivers_own_bad_buffer_costs_nothing),
		TEST(a_source_is_over_when_it_is_taken_kept_or_withdrawn),
		TEST(slots_area_and_ring_have_ends),
		TEST(memory_of_kept_bytes_is_given_back),
		TEST(keeping_what_is_gone_is_a_reset),
		TEST(what_is_gone_in_part_is_a_reset_at_that_byte),
		TEST(whoever_waits_for_what_is_gone_is_woken),
		TEST(who_is_refused_at_the_handshake_does_not_announce),
		TEST(every_refusal_has_its_reason),
		TEST(a_receiver_that_is_refused_later_gets_the_bytes_from_the_segment),
		TEST(parent_and_child_send_from_their_own_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
