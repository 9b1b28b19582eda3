/* SPDX-License-Identifier: MIT */
/* Receives that return before their bytes are there: who waits, what is in flight, and what becomes of the memory. */
#define _GNU_SOURCE
#include "later_testing.h"

/* Waiting ------------------------------------------------------------------------------------------------------------- */

static void a_receive_returns_first_and_a_read_waits(void **state)
{
	uint64_t number;

	NEEDS_LATER();
	number = promise_all();
	assert_int_equal(receiving.sources_in.later, BYTES);
	assert_false(is_there(to));
	assert_false(is_there(to + BYTES - PAGE));
	assert_int_equal(source_taken(&sending.out, number), 0);
	assert_int_equal(source_outstanding(&sending.out), 1);
	assert_int_equal(lane_backlog(&receiving.in), 0);
	open_the_gate();
	all_is_right(BYTES);
	later_settle(to, BYTES);
	assert_int_equal(source_taken(&sending.out, number), SIZE_MAX);
	assert_int_equal(source_outstanding(&sending.out), 0);
	assert_int_equal(later_count, 0);
}

static void *write_out(void *socket)
{
	for (size_t done = 0; done < BYTES;) {
		ssize_t sent = send(*(int *)socket, to + done, BYTES - done, 0);

		if (sent <= 0)
			return socket;
		done += (size_t)sent;
	}
	return NULL;
}

static void the_kernel_waits_as_well(void **state)
{
	static uint8_t out[BYTES];
	pthread_t writer;
	void *result;
	int pair[2];

	NEEDS_LATER();
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	promise_all();
	assert_int_equal(pthread_create(&writer, NULL, write_out, &pair[0]), 0);
	for (int i = 0; i < 100; i++)
		sched_yield();
	open_the_gate();
	assert_int_equal(recv(pair[1], out, BYTES, MSG_WAITALL), BYTES);
	assert_int_equal(wrong_from(out, 0, BYTES), BYTES);
	pthread_join(writer, &result);
	assert_null(result);
	close(pair[0]);
	close(pair[1]);
}

static void several_in_flight_keep_order_and_place(void **state)
{
	uint64_t number[4];

	NEEDS_LATER();
	shake_hands();
	for (int i = 0; i < 4; i++)
		number[i] = announce((size_t)i * 10 * PAGE, 10 * PAGE);
	receive_gated(0, 10 * PAGE);
	receive(10 * PAGE, 20 * PAGE); /* two sources at once */
	receive(30 * PAGE, 10 * PAGE);
	/* The head has passed all, but none may be used again. */
	assert_int_equal(lane_backlog(&receiving.in), 0);
	assert_int_equal(source_outstanding(&sending.out), 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(source_taken(&sending.out, number[i]), 0);
	open_the_gate();
	all_is_right(BYTES);
	later_settle_lane(receiving.in.shared);
	assert_int_equal(source_outstanding(&sending.out), 0);
}

/* What fills no pages ------------------------------------------------------------------------------------------------- */

static void what_fills_no_page_is_there_at_once(void **state)
{
	size_t bytes = 10 * PAGE;
	uint64_t number;

	NEEDS_LATER();
	shake_hands();
	number = announce(0, bytes);
	receive_gated(100, bytes);
	assert_int_equal(receiving.sources_in.later, 9 * PAGE);
	assert_int_equal(wrong_from(to + 100, 0, PAGE - 100), PAGE - 100);
	assert_int_equal(wrong_from(to + bytes, bytes - 100, 100), 100);
	assert_false(is_there(to + PAGE));
	assert_int_equal(source_taken(&sending.out, number), PAGE - 100);
	open_the_gate();
	assert_int_equal(wrong_from(to + 100, 0, bytes), bytes);
	assert_int_equal(to[99], 0xee);
	assert_int_equal(to[bytes + 100], 0xee);
	later_settle(to, BYTES);
	assert_int_equal(source_taken(&sending.out, number), SIZE_MAX);
}

static void a_part_of_a_source_is_fetched_at_once_and_the_rest_later(void **state)
{
	NEEDS_LATER();
	shake_hands();
	announce(0, BYTES);
	receive(0, 10 * PAGE);
	assert_int_equal(receiving.sources_in.later, 0);
	all_is_right(10 * PAGE);
	receive_gated(10 * PAGE, BYTES - 10 * PAGE);
	assert_int_equal(receiving.sources_in.later, BYTES - 10 * PAGE);
	open_the_gate();
	all_is_right(BYTES);
}

static void memory_of_another_kind_is_filled_at_once(void **state)
{
	uint8_t *shared = map_bytes(BYTES, MAP_SHARED);

	NEEDS_LATER();
	shake_hands();
	announce(0, BYTES);
	assert_int_equal(get(shared, 10 * PAGE, true, &got), LANE_DATA); /* to look is no receive */
	assert_int_equal(get(shared, BYTES, false, &got), LANE_DATA);
	assert_int_equal(wrong_from(shared, 0, BYTES), BYTES);
	munmap(shared, BYTES);
	announce(0, BYTES);
	madvise(to + 3 * PAGE, PAGE, MADV_DONTNEED); /* not there */
	receive(0, BYTES);
	announce(0, BYTES);
	later_hold();
	receive(0, BYTES);
	later_release();
	assert_int_equal(receiving.sources_in.later, 0);
	assert_int_equal(later_count, 0);
	all_is_right(BYTES);
}

/* The sender ---------------------------------------------------------------------------------------------------------- */

static void a_sender_that_rewrites_its_buffer_keeps_what_was_promised(void **state)
{
	uint64_t number, behind, taken;

	NEEDS_LATER();
	shake_hands();
	number = announce(0, 20 * PAGE);
	behind = announce(20 * PAGE, 20 * PAGE);
	receive_gated(0, 20 * PAGE);
	assert_int_equal(source_withdraw(&sending.out, behind, &taken), 0);
	assert_int_equal(taken, 0);
	/* Nothing is behind it now, but its bytes are the receiver's. */
	assert_int_equal(source_withdraw(&sending.out, number, &taken), -EBUSY);
	assert_int_equal(source_keep(&sending.out, number), 0);
	assert_int_equal(source_taken(&sending.out, number), SIZE_MAX);
	assert_int_equal(source_outstanding(&sending.out), 2);
	assert_false(source_trim(&sending.out));
	memset(from, 0, BYTES);
	open_the_gate();
	all_is_right(20 * PAGE);
	later_settle(to, BYTES);
	assert_int_equal(get(to, 1, false, &got), LANE_EMPTY);
	assert_int_equal(source_outstanding(&sending.out), 0);
}

static _Atomic uint64_t kept_between;

static void keep_and_write(void)
{
	uint64_t number = kept_between;

	if (pthread_equal(pthread_self(), self) || !number)
		return;
	kept_between = 0;
	if (!source_keep(&sending.out, number))
		memset(from, 0, BYTES);
}

static void bytes_that_were_read_while_the_sender_let_go_are_read_again(void **state)
{
	NEEDS_LATER();
	shake_hands();
	kept_between = announce(0, BYTES);
	before_get = keep_and_write;
	receive(0, BYTES);
	while (kept_between) /* by the thread */
		sched_yield();
	all_is_right(BYTES);
}

/* The program's memory and processes ---------------------------------------------------------------------------------- */

static void memory_that_was_replaced_unseen_stays_as_it_is(void **state)
{
	NEEDS_LATER();
	promise_all();
	/* As by system call instructions of the program's own: nobody has settled. */
	assert_int_equal(munmap(to + 10 * PAGE, 10 * PAGE), 0);
	assert_ptr_equal(
		mmap(to + 20 * PAGE, 5 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
		to + 20 * PAGE);
	memset(to + 20 * PAGE, 0x77, 5 * PAGE);
	open_the_gate();
	later_settle_lane(receiving.in.shared);
	all_is_right(10 * PAGE);
	for (size_t i = 20 * PAGE; i < 25 * PAGE; i++)
		assert_int_equal(to[i], 0x77);
	assert_int_equal(wrong_from(to + 25 * PAGE, 25 * PAGE, 15 * PAGE), 15 * PAGE);
	assert_int_equal(later_count, 0);
}

static void *open_soon(void *unused)
{
	for (int i = 0; i < 100; i++)
		sched_yield();
	open_the_gate();
	return NULL;
}

static void memory_that_moves_has_its_bytes(void **state)
{
	pthread_t opener;
	uint8_t *moved;

	NEEDS_LATER();
	promise_all();
	assert_int_equal(pthread_create(&opener, NULL, open_soon, NULL), 0);
	later_settle(to + 5 * PAGE, 1); /* as mremap() is announced */
	moved = mremap(to, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
	assert_ptr_not_equal(moved, MAP_FAILED);
	to = moved;
	all_is_right(BYTES);
	pthread_join(opener, NULL);
	assert_int_equal(munmap(to + BYTES, BYTES), 0);
}

static void a_child_has_the_bytes_too(void **state)
{
	pthread_t opener;
	pid_t child;
	int status;

	NEEDS_LATER();
	promise_all();
	assert_int_equal(pthread_create(&opener, NULL, open_soon, NULL), 0);
	later_before_fork();
	child = fork();
	later_after_fork(!child);
	if (!child)
		_exit(wrong_from(to, 0, BYTES) == BYTES && !later_active() && later_descriptor() < 0 ? 0 : 1);
	all_is_right(BYTES);
	pthread_join(opener, NULL);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void who_settles_does_what_nobody_has_begun(void **state)
{
	NEEDS_LATER();
	shake_hands();
	announce(0, 20 * PAGE);
	announce(20 * PAGE, 20 * PAGE);
	receive_gated(0, 20 * PAGE); /* the thread stands before the first, at most */
	receive(20 * PAGE, 20 * PAGE);
	later_settle(to + 20 * PAGE, PAGE);
	assert_true(is_there(to + 20 * PAGE));
	assert_true(atomic_load(&closed));
	assert_int_equal(wrong_from(to + 20 * PAGE, 20 * PAGE, 20 * PAGE), 20 * PAGE);
	open_the_gate();
	all_is_right(BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_receive_returns_first_and_a_read_waits),
		TEST(the_kernel_waits_as_well),
		TEST(several_in_flight_keep_order_and_place),
		TEST(what_fills_no_page_is_there_at_once),
		TEST(a_part_of_a_source_is_fetched_at_once_and_the_rest_later),
		TEST(memory_of_another_kind_is_filled_at_once),
		TEST(a_sender_that_rewrites_its_buffer_keeps_what_was_promised),
		TEST(bytes_that_were_read_while_the_sender_let_go_are_read_again),
		TEST(memory_that_was_replaced_unseen_stays_as_it_is),
		TEST(memory_that_moves_has_its_bytes),
		TEST(a_child_has_the_bytes_too),
		TEST(who_settles_does_what_nobody_has_begun),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
