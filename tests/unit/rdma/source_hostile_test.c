/* SPDX-License-Identifier: MIT */
/* Sources, from hostile pens: whatever a peer writes in the segment ends the lane at most. */
#define _GNU_SOURCE
#include "source_testing.h"

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
	uint64_t state = below(6);

	slot->kept = (uint32_t)below(6000);
	atomic_store(&slot->word, SOURCE_WORD(1, below(5000), state));
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
	for (uint32_t wrong = 6; wrong < 8; wrong++) {
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

static void more_than_all_of_what_is_lost_is_not_there(void **state)
{
	static uint8_t to[6000];
	uint64_t number;
	size_t got;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
	slot = &sending.out.sources->slot[number % SOURCE_SLOTS];
	atomic_store(&slot->word, SOURCE_WORD(number, 100, SOURCE_LOST));
	slot->kept = 99;
	assert_int_equal(get(to, sizeof(to), false, &got), -ECONNRESET);
	slot->kept = UINT32_MAX;
	assert_int_equal(get(to, sizeof(to), false, &got), LANE_DATA);
	assert_int_equal(got, sizeof(target) - 100);
}

static void nonsense_in_the_ring_is_refused(void **state)
{
	uint32_t *record = (uint32_t *)sending.out.ring;
	uint64_t number;

	shake_hands();
	assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
	assert_int_equal(record[4], 4);
	record[5] = 2; /* a source out of turn */
	slot = &sending.out.sources->slot[2];
	expect_protocol_error();
	record[5] = 0xffffffff;
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
	random_state = 88172645463325252ull;
	before_get = after_get = scribble;
	assert_int_equal(source_announce(&sending.out, target, sizeof(target), &number), 0);
	slot = &sending.out.sources->slot[number % SOURCE_SLOTS];
	for (int i = 0; i < 10000; i++) {
		uint8_t to[6000];
		size_t got;
		int rc;

		scribble();
		rc = get(to, sizeof(to), true, &got);
		assert_true(rc == LANE_EMPTY || rc == LANE_DATA || rc == -EPROTO || rc == -ECONNRESET);
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
	assert_int_equal(source_announce(&sending.out, target, 1, &number), -ENOBUFS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nonsense_in_a_slot_is_refused),
		TEST(more_than_all_of_what_is_lost_is_not_there),
		TEST(nonsense_in_the_ring_is_refused),
		TEST(homes_that_can_not_be_stay_in_the_area),
		TEST(a_slot_that_changes_while_it_is_read_ends),
		TEST(nonsense_by_the_receiver_ends_the_source),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
