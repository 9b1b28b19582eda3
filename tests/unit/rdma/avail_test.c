/* SPDX-License-Identifier: MIT */
/* The receiver of sources between hosts, and their sender once they have to be sent again (avail.h). */
#define _GNU_SOURCE
#include "avail_testing.h"

/* What is asked of them ---------------------------------------------------------------------------------------------- */

static void sources_in_a_row_are_fetched_together(void **state)
{
	uint64_t first, last;

	put(100);
	first = announce_at(program, 20000);
	announce_at(program + 20000, 1);
	last = announce_at(program + 30000, 20000);
	put(50);
	assert_int_equal(lane_unread(in), 40151);
	must_take(MOST, 40151);
	assert_int_equal(gets, 2); /* the bytes, and the words */
	assert_int_equal(direct, 40001);
	assert_int_equal(far.sources_in.fetched, 40001);
	assert_int_equal(source_taken(out, first), 0);
	tell();
	assert_true(source_is_passed(out, last));
	assert_int_equal(source_taken(out, first), SIZE_MAX);
	assert_int_equal(source_outstanding(out), 0);
}

static void part_of_a_source_is_fetched(void **state)
{
	uint64_t number = announce_at(program, 50000);

	must_take(20000, 20000);
	tell();
	assert_false(source_is_passed(out, number));
	assert_int_equal(lane_unread(in), 30000);
	put(5);
	must_take(20000, 20000);
	must_take(20000, 10005);
	assert_int_equal(direct, 50000);
}

static void little_is_taken_from_memory_of_the_receiver_s_own(void **state)
{
	size_t count;

	announce_at(program, 50000);
	assert_int_equal(take(50000, true, &count), LANE_DATA);
	assert_int_equal(count, 50000);
	assert_int_equal(lane_unread(in), 50000);
	for (int i = 0; i < 50; i++)
		must_take(1000, 1000);
	assert_int_equal(gets, 2);
	assert_int_equal(direct, 0);
	assert_int_equal(far.sources_in.fetched, 50000);
}

/* The program writes while a READ is under way: first what it was is copied. */
static void rewrite(int call)
{
	if (call != 1)
		return;
	assert_int_equal(source_keep_all(out), 0);
	memset(program, 0xdd, MOST);
}

static void bytes_that_were_kept_meanwhile_are_read_again(void **state)
{
	announce_at(program, 40000);
	announce_at(program + 40000, 20000);
	meanwhile = rewrite;
	must_take(MOST, 60000);
	assert_int_equal(gets, 3); /* whether they were right, and then those of the area: they stay */
}

/* By the receiver's area, where that is cheaper than registering the program's memory. */
static void sources_in_a_row_come_by_the_area_together(void **state)
{
	prefers_area = true;
	announce_at(program, 20000);
	announce_at(program + 20000, 15000);
	put(10);
	announce_at(program + 35000, 5000);
	must_take(MOST, 40010);
	assert_int_equal(gets, 4); /* bytes and words of two, and of one behind the data */
	assert_int_equal(direct, 0);
	assert_int_equal(far.sources_in.copied, 40000);
	assert_int_equal(far.sources_in.fetched, 40000);
}

static void no_more_comes_by_the_area_than_a_receive_begins_with(void **state)
{
	prefers_area = true;
	announce_at(program, 20000);
	announce_at(program + 20000, 20000);
	announce_at(program + 40000, 10000);
	must_take(30000, 30000);
	assert_int_equal(preferred_bytes, 20000);
	assert_int_equal(gets, 2);
	/* The rest of the second is here, whatever is cheaper now; the third is not. */
	prefers_area = false;
	must_take(10000, 10000);
	assert_int_equal(gets, 2);
	assert_int_equal(direct, 0);
	must_take(MOST, 10000);
	assert_int_equal(direct, 10000);
	assert_int_equal(far.sources_in.copied, 40000);
}

static void source_of_which_a_part_was_taken_comes_by_the_area(void **state)
{
	announce_at(program, 50000);
	must_take(20000, 20000);
	prefers_area = true;
	must_take(MOST, 30000);
	assert_int_equal(preferred_bytes, 30000);
	assert_int_equal(direct, 20000);
}

static void bytes_by_the_area_that_were_kept_meanwhile_are_read_again(void **state)
{
	prefers_area = true;
	announce_at(program, 40000);
	announce_at(program + 40000, 20000);
	meanwhile = rewrite;
	must_take(MOST, 60000);
	assert_int_equal(gets, 3);
}

static void loss_is_told_behind_what_comes_by_the_area(void **state)
{
	size_t count;

	prefers_area = true;
	announce_at(program, 20000);
	announce_at(program + 24576, 20000);
	munmap(program + 24576, 24576);
	assert_int_equal(source_keep(out, 2), -ENXIO);
	assert_int_equal(mmap(program + 24576, 24576, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 program + 24576);
	must_take(MOST, 20000);
	assert_int_equal(take(MOST, false, &count), -ECONNRESET);
}

static void kept_bytes_lie_around_the_end_of_the_area(void **state)
{
	announce_at(program, 50000);
	must_take(MOST, 50000);
	tell();
	announce_at(program, 40000);
	assert_int_equal(source_keep_all(out), 0);
	memset(program, 0xdd, MOST);
	must_take(20000, 20000);
	must_take(1000, 1000);
	must_take(MOST, 19000);
}

static void memory_that_can_t_be_read_into_costs_a_copy(void **state)
{
	announce_at(program, 30000);
	refuses_direct = true;
	must_take(MOST, 30000);
	assert_false(given_up);
}

static void receiver_that_can_t_fetch_at_all_gives_up(void **state)
{
	size_t count;

	put(10);
	announce_at(program, 30000);
	put(10);
	fail_with = -ENOMEM;
	must_take(MOST, 10);
	assert_true(given_up);
	assert_int_equal(take(MOST, false, &count), LANE_EMPTY);
	assert_int_equal(lane_unread_all(in), 0);
}

static void what_was_not_fetched_is_not_here(void **state)
{
	size_t count;

	put(10);
	announce_at(program, 30000);
	announce_at(program + 30000, 20000);
	put(10);
	must_take(20010, 20010);
	break_it();
	assert_int_equal(lane_unread_all(in), 0);
	assert_true(lane_is_empty(in));
	assert_true(lane_is_stuck(in));
	assert_int_equal(take(MOST, false, &count), LANE_EMPTY);
	/* The peer goes on elsewhere. */
	avail_cut(in);
	lane_leave(in);
	assert_int_equal(take(MOST, false, &count), LANE_RAW);
	assert_true(lane_is_over(in));
}

static void what_was_fetched_before_outlives_the_queue_pair(void **state)
{
	size_t count;

	put(10);
	announce_at(program, 30000);
	put(10);
	announce_at(program + 30000, 20000);
	assert_int_equal(avail_fetch_all(in), 0);
	put(10);
	announce_at(program + 50000, 5000);
	put(10);
	break_it();
	memset(program, 0xdd, 2 * MOST);
	assert_int_equal(lane_unread_all(in), 50030);
	avail_cut(in);
	lane_leave(in);
	must_take(1000, 1000);
	must_take(MOST, 49030);
	assert_int_equal(take(MOST, false, &count), LANE_RAW);
}

static void loss_of_a_source_is_told_behind_those_before_it(void **state)
{
	size_t count;

	announce_at(program, 20000);
	announce_at(program + 24576, 20000);
	munmap(program + 24576, 24576);
	assert_int_equal(source_keep(out, 2), -ENXIO);
	meanwhile = NULL;
	assert_int_equal(mmap(program + 24576, 24576, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 program + 24576);
	must_take(MOST, 20000);
	assert_int_equal(take(MOST, false, &count), -ECONNRESET);
}

static void slots_and_area_are_used_again(void **state)
{
	use_again(false);
	assert_int_equal(ahead.begun, 0);
}

/* Between hosts it goes on over TCP: with what its consumer has not confirmed. */
static void kept_sources_are_sent_again(void **state)
{
	uint8_t data[MOST];
	uint64_t sent;

	put(10);
	announce_at(program, 30000);
	put(10);
	announce_at(program + 30000, 2000);
	must_take(16394, 16394);
	assert_int_equal(verbs_replay(out, NULL, 16394, data, sizeof(data)), -ENXIO);
	tell();
	assert_int_equal(source_keep_all(out), 0);
	memset(program, 0xdd, MOST);
	sent = atomic_load(&out->shared->sent);
	for (uint64_t from = 16394; from < sent; from += 1111) {
		assert_int_equal(verbs_replay(out, NULL, from, data, sizeof(data)), sent - from);
		assert_int_equal(wrong_from(data, from, sent - from), sent - from);
	}
}

/* Two words in a row, by the addresses that a peer tells, where this end's slots have come to their end. */
static void words_beyond_the_last_slot_are_not_read_with_it(void **state)
{
	uint64_t *words = (uint64_t *)(program + MOST);
	uint64_t last = SOURCE_SLOTS - 1, at[2];

	for (uint64_t number = 1; number < last; number++) {
		announce_at(program, 10);
		must_take(10, 10);
		tell();
	}
	for (int i = 0; i < 2; i++) {
		at[i] = atomic_load(&out->shared->tail);
		announce_at(program + i * 4096, 10);
	}
	for (int i = 0; i < 2; i++) {
		struct avail *avail = (struct avail *)((struct record *)record_at(in, at[i]) + 1);

		assert_int_equal(avail->number, last + (uint64_t)i);
		avail->word = (uintptr_t)words + (size_t)i * sizeof(struct source_slot);
		avail->word_key = 7;
		words[(size_t)i * sizeof(struct source_slot) / sizeof(*words)] =
			SOURCE_WORD(last + (uint64_t)i, 0, SOURCE_ANNOUNCED);
	}
	must_take(20, 20);
}

/* A hostile peer. Returns what a receive says of a record that was written over. */
static int take_record_with(void (*change)(struct avail *avail, struct record *record))
{
	struct iovec iov = { got_bytes, MOST };
	uint64_t at = atomic_load(&out->shared->tail);
	struct record *record;
	size_t count, most = AREA + 100;

	announce_at(program, 100);
	record = record_at(in, at);
	change((struct avail *)(record + 1), record);
	assert_true(lane_unread_all(in) <= most);
	return lane_get(in, &iov, 1, false, &count);
}

static void of_no_bytes(struct avail *avail, struct record *record)
{
	avail->bytes = 0;
}

static void of_too_many(struct avail *avail, struct record *record)
{
	avail->bytes = AREA + 1;
}

static void beyond_the_end(struct avail *avail, struct record *record)
{
	avail->address = UINT64_MAX - 50;
}

static void out_of_turn(struct avail *avail, struct record *record)
{
	avail->number++;
}

static void too_short(struct avail *avail, struct record *record)
{
	record->bytes = sizeof(*avail) - 16;
}

static void too_long(struct avail *avail, struct record *record)
{
	record->bytes = RING;
}

static void of_another_kind(struct avail *avail, struct record *record)
{
	record->kind = RECORD_SOURCE;
	record->bytes = 1;
}

static void nonsense_ends_the_lane(void **state)
{
	void (*const changes[])(struct avail *, struct record *) = { of_no_bytes,    of_too_many, beyond_the_end,
								     out_of_turn,    too_short,	  too_long,
								     of_another_kind };

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		if (i)
			assert_int_equal(make_both(state), 0);
		assert_int_equal(take_record_with(changes[i]), -EPROTO);
		assert_int_equal(gets, 0);
		if (i + 1 < sizeof(changes) / sizeof(changes[0]))
			drop_both(state);
	}
}

static void more_than_a_sender_has_room_for_is_not_fetched(void **state)
{
	for (int i = 0; i < 4; i++) {
		near.sources_out.home = 0;
		near.sources_out.first = near.sources_out.next;
		announce_at(program, 20000);
	}
	assert_int_equal(avail_fetch_all(in), -EPROTO);
	assert_int_equal(gets, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, make_both, drop_both)
		CASE(sources_in_a_row_are_fetched_together),
		CASE(part_of_a_source_is_fetched),
		CASE(little_is_taken_from_memory_of_the_receiver_s_own),
		CASE(bytes_that_were_kept_meanwhile_are_read_again),
		CASE(sources_in_a_row_come_by_the_area_together),
		CASE(no_more_comes_by_the_area_than_a_receive_begins_with),
		CASE(source_of_which_a_part_was_taken_comes_by_the_area),
		CASE(bytes_by_the_area_that_were_kept_meanwhile_are_read_again),
		CASE(loss_is_told_behind_what_comes_by_the_area),
		CASE(kept_bytes_lie_around_the_end_of_the_area),
		CASE(memory_that_can_t_be_read_into_costs_a_copy),
		CASE(receiver_that_can_t_fetch_at_all_gives_up),
		CASE(what_was_not_fetched_is_not_here),
		CASE(what_was_fetched_before_outlives_the_queue_pair),
		CASE(loss_of_a_source_is_told_behind_those_before_it),
		CASE(slots_and_area_are_used_again),
		CASE(kept_sources_are_sent_again),
		CASE(words_beyond_the_last_slot_are_not_read_with_it),
		CASE(nonsense_ends_the_lane),
		CASE(more_than_a_sender_has_room_for_is_not_fetched),
#undef CASE
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
