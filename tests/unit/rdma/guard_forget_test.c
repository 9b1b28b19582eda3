/* SPDX-License-Identifier: MIT */
/* Memory that goes away, announced: owners that read by address have their copy before, pinned pages stay as they are. */
#include "lent_testing.h"

static struct reader reader, other;

static void what_was_lent_is_copied_before_it_goes(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES, 1);
	lend(&reader, buffer, BYTES);
	guard_forget(buffer, BYTES);
	assert_false(guard_active());
	munmap(buffer, BYTES);
	check_read(&reader);
}

static void a_call_that_fails_after_all_leaves_ordinary_memory(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);
	int fds[2];

	fill(buffer, BYTES, 1);
	lend(&reader, buffer, BYTES);
	guard_forget(buffer, BYTES);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(write(fds[1], "x", 1), 1);
	/* The kernel may write there at once, also under mprotect. */
	assert_int_equal(syscall(SYS_read, fds[0], buffer, 1), 1);
	fill(buffer, BYTES, 2);
	check_read(&reader);
	assert_int_equal(differing(buffer, BYTES, 2), 0);
	close(fds[0]);
	close(fds[1]);
	munmap(buffer, BYTES);
}

static void only_pages_that_the_range_touches_are_copied(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES, 1);
	lend(&reader, buffer, BYTES);
	guard_forget(buffer + 10 * PAGE + 100, PAGE); /* of two pages */
	assert_int_equal(reader.copied, 2 * PAGE);
	guard_forget(buffer + 10 * PAGE, 2 * PAGE);
	assert_int_equal(reader.copied, 2 * PAGE);
	guard_forget(buffer + BYTES, PAGE);
	guard_forget(buffer - PAGE, PAGE);
	guard_forget(buffer, 0);
	assert_int_equal(reader.copied, 2 * PAGE);
	fill(buffer, BYTES, 2); /* the others are guarded yet */
	check_read(&reader);
	munmap(buffer, BYTES);
}

static void pinned_pages_stay_guarded(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	assert_false(guard_lends());
	guard_forget(sent.buffer, BYTES);
	assert_true(guard_active());
	sent.buffer[0] ^= 1;
	assert_int_equal(atomic_load(&sent.owner.faults), 1);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void what_is_lent_and_pinned_stays_guarded_for_the_pin(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	lend(&reader, sent.buffer, BYTES);
	guard_forget(sent.buffer, BYTES);
	assert_false(guard_lends());
	assert_true(guard_active());
	assert_int_equal(differing(reader.copy, BYTES, 1), 0);
	fill(sent.buffer, BYTES, 2);
	assert_true(atomic_load(&sent.owner.faults) > 0);
	assert_int_equal(reader.copied, BYTES);
	guard_release(reader.record);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void two_loans_of_one_page_are_both_copied(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES, 1);
	lend(&reader, buffer, BYTES);
	lend(&other, buffer, BYTES);
	guard_forget(NULL, SIZE_MAX);
	assert_false(guard_active());
	check_read(&reader);
	check_read(&other);
	munmap(buffer, BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(what_was_lent_is_copied_before_it_goes),
		BOTH(a_call_that_fails_after_all_leaves_ordinary_memory),
		BOTH(only_pages_that_the_range_touches_are_copied),
		BOTH(pinned_pages_stay_guarded),
		BOTH(what_is_lent_and_pinned_stays_guarded_for_the_pin),
		BOTH(two_loans_of_one_page_are_both_copied),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
