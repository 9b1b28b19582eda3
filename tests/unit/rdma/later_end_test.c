/* SPDX-License-Identifier: MIT */
/* Bytes that were promised, and their ends: senders that die, lose their memory, refuse, or write nonsense. */
#define _GNU_SOURCE
#include "later_testing.h"

static void announce_and_pause(void)
{
	uint64_t number;

	munmap(from + 25 * PAGE, PAGE);
	answer_until_proved();
	if (source_announce(&sending.out, from, 10 * PAGE, &number) < 0 ||
	    source_announce(&sending.out, from + 10 * PAGE, 30 * PAGE, &number) < 0)
		_exit(1);
	for (;;)
		pause();
}

static sigjmp_buf back;

static void jump_back(int signal)
{
	siglongjmp(back, signal);
}

/* Whether a read of the byte ends in SIGBUS. */
static bool is_poisoned(const volatile uint8_t *at)
{
	struct sigaction jump = { .sa_handler = jump_back }, before;
	bool poisoned = true;

	sigaction(SIGBUS, &jump, &before);
	if (!sigsetjmp(back, 1)) {
		(void)*at;
		poisoned = false;
	}
	sigaction(SIGBUS, &before, NULL);
	return poisoned;
}

static int state_of_nonsense;

static pid_t start_sender(void)
{
	pid_t child;

	later_before_fork();
	child = start(announce_and_pause);
	later_after_fork(false);
	receive_until_proved();
	while (lane_unread(&receiving.in) < BYTES)
		sched_yield();
	return child;
}

/* Whose receives have returned. */
static void lose_ten_pages(void)
{
	pid_t child = start_sender();

	receive_gated(0, 10 * PAGE);
	kill_sender(child);
	open_the_gate();
	later_settle_lane(receiving.in.shared);
}

static void what_dies_with_its_sender_is_a_reset_and_no_wrong_byte(void **state)
{
	int ends[2];

	NEEDS_LATER();
	lose_ten_pages();
	assert_true(is_poisoned(to));
	assert_true(is_poisoned(to + 10 * PAGE - 1));
	assert_false(is_poisoned(to + 10 * PAGE));
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], to, 1), -1); /* the kernel does not wait either */
	close(ends[0]);
	close(ends[1]);
	assert_int_equal(get(to + 10 * PAGE, PAGE, false, &got), -ECONNRESET);
	assert_int_equal(get(to + 10 * PAGE, PAGE, true, &got), -ECONNRESET);
	/* The program gives the memory back, in two parts: it is ordinary again. */
	later_forget(to, 4 * PAGE);
	assert_false(is_poisoned(to));
	assert_true(is_poisoned(to + 4 * PAGE));
	assert_true(later_active());
	later_forget(to, BYTES);
	assert_false(is_poisoned(to + 4 * PAGE));
	assert_int_equal(later_count, 0);
}

/* What was put there since is not to be dropped with what is left of it on both sides. */
static void poison_in_the_middle_goes_for_itself(void **state)
{
	NEEDS_LATER();
	lose_ten_pages();
	later_forget(to + 4 * PAGE, 2 * PAGE);
	memset(to + 4 * PAGE, 'g', 2 * PAGE);
	later_forget(to + 5 * PAGE, 2 * PAGE);
	assert_int_equal(to[5 * PAGE], 'g');
	assert_true(is_poisoned(to + 4 * PAGE - 1));
	assert_false(is_poisoned(to + 6 * PAGE));
	assert_true(is_poisoned(to + 7 * PAGE));
	later_forget(to, BYTES);
	assert_int_equal(to[4 * PAGE], 'g');
	assert_false(is_poisoned(to + 10 * PAGE - 1));
	assert_int_equal(later_count, 0);
}

static void poison_that_is_moved_is_not_where_it_was(void **state)
{
	uint8_t *moved = map_bytes(4 * PAGE, MAP_PRIVATE);

	NEEDS_LATER();
	lose_ten_pages();
	moved = mremap(to, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved);
	assert_ptr_not_equal(moved, MAP_FAILED);
	later_moved(to, 4 * PAGE, moved, 3 * PAGE);
	assert_ptr_equal(mmap(to, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 to);
	memset(to, 'g', 4 * PAGE);
	assert_true(is_poisoned(moved));
	later_forget(to, BYTES);
	assert_int_equal(to[0], 'g');
	assert_true(later_active());
	later_forget(moved, 4 * PAGE);
	assert_false(is_poisoned(moved + 3 * PAGE - 1));
	assert_true(is_poisoned(moved + 3 * PAGE)); /* not kept, it is said */
	assert_int_equal(later_count, 0);
	munmap(moved, 4 * PAGE);
}

static void what_is_gone_in_part_is_poison_from_there_on(void **state)
{
	pid_t child;

	NEEDS_LATER();
	child = start_sender();
	receive(0, 10 * PAGE);
	receive(10 * PAGE, 30 * PAGE);
	later_settle_lane(receiving.in.shared);
	all_is_right(25 * PAGE);
	assert_true(is_poisoned(to + 25 * PAGE));
	assert_true(is_poisoned(to + BYTES - 1));
	assert_int_equal(get(to, 1, false, &got), -ECONNRESET);
	kill_sender(child);
}

static void bytes_that_the_sender_lost_itself_are_poison(void **state)
{
	uint64_t number;

	NEEDS_LATER();
	number = promise_all();
	assert_int_equal(munmap(from + 7 * PAGE, PAGE), 0);
	assert_int_equal(source_keep(&sending.out, number), -ENXIO);
	memset(from, 0, 7 * PAGE);
	open_the_gate();
	later_settle_lane(receiving.in.shared);
	all_is_right(7 * PAGE);
	assert_true(is_poisoned(to + 7 * PAGE));
	assert_true(source_outstanding(&sending.out) == 1);
}

static void a_refusal_has_the_sender_keep(void **state)
{
	uint64_t number;

	NEEDS_LATER();
	shake_hands();
	number = announce(0, BYTES);
	get_error = -EPERM;
	receive_gated(0, BYTES);
	open_the_gate();
	while (source_step_out(&sending.out, NULL) != -EPERM)
		sched_yield();
	assert_int_equal(source_taken(&sending.out, number), SIZE_MAX);
	memset(from, 0, BYTES);
	all_is_right(BYTES);
}

/* What a hostile peer writes while the GET runs. */
static void nonsense_in_flight_is_a_reset(void **state)
{
	struct source_slot *slot;
	uint64_t number;

	NEEDS_LATER();
	number = promise_all();
	slot = &sending.out.sources->slot[number % SOURCE_SLOTS];
	if (state_of_nonsense == 0)
		atomic_store(&slot->word, SOURCE_WORD(number + 1, 0, SOURCE_PROMISED));
	else if (state_of_nonsense == 1)
		atomic_store(&slot->word, SOURCE_WORD(number, PAGE, SOURCE_PROMISED_KEPT));
	else if (state_of_nonsense == 2)
		atomic_store(&slot->word, SOURCE_WORD(number, 0, SOURCE_WITHDRAWN));
	else
		slot->bytes = 0xffffffff;
	open_the_gate();
	later_settle_lane(receiving.in.shared);
	/* The size is looked at once for each piece: the first may have begun. */
	assert_true(state_of_nonsense == 3 || is_poisoned(to));
	assert_true(is_poisoned(to + BYTES - 1));
	assert_int_equal(get(to, 1, false, &got), -ECONNRESET);
	state_of_nonsense++;
}

static void homes_that_can_not_be_stay_in_the_area(void **state)
{
	struct source_slot *slot;
	uint64_t number;

	NEEDS_LATER();
	number = promise_all();
	slot = &sending.out.sources->slot[number % SOURCE_SLOTS];
	slot->home = UINT64_MAX - 100;
	slot->address = 16;
	atomic_store(&slot->word, SOURCE_WORD(number, 0, SOURCE_PROMISED_KEPT));
	open_the_gate();
	later_settle_lane(receiving.in.shared); /* whatever these bytes are, they are the peer's */
	assert_false(is_poisoned(to));
	assert_false(is_poisoned(to + BYTES - 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_dies_with_its_sender_is_a_reset_and_no_wrong_byte),
		TEST(poison_in_the_middle_goes_for_itself),
		TEST(poison_that_is_moved_is_not_where_it_was),
		TEST(what_is_gone_in_part_is_poison_from_there_on),
		TEST(bytes_that_the_sender_lost_itself_are_poison),
		TEST(a_refusal_has_the_sender_keep),
		TEST(nonsense_in_flight_is_a_reset),
		TEST(nonsense_in_flight_is_a_reset),
		TEST(nonsense_in_flight_is_a_reset),
		TEST(nonsense_in_flight_is_a_reset),
		TEST(homes_that_can_not_be_stay_in_the_area),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
