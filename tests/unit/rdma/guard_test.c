/* SPDX-License-Identifier: MIT */
/*
 * The guard against the program's own writes: who writes, when, what covers what. Each promise is tested with each
 * implementation; `the_test_sees_corruption_without_the_guard` shows that the tests would notice.
 */
#include "lent_testing.h"

static void overwriting_leaves_what_was_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	fill(sent.buffer, BYTES, 2);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	assert_true(atomic_load(&sent.owner.faults) > 0);
	/* In order, so in growing runs: far fewer faults than pages. */
	assert_true(atomic_load(&sent.owner.faults) < PAGES / 4);
	check_held(&sent);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	munmap(sent.buffer, BYTES);
}

static void overwriting_backwards_leaves_what_was_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	for (size_t i = BYTES; i-- > 0;)
		sent.buffer[i] = pattern(i, 2);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void a_small_write_keeps_its_neighbours(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	sent.buffer[5 * PAGE + 17] ^= 0xff;
	assert_int_equal(differing(sent.buffer, BYTES, 1), 1);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void *overwrite(void *arg)
{
	fill(arg, BYTES, 2);
	return NULL;
}

static void another_thread_leaves_what_was_sent(void **state)
{
	struct sent sent;
	pthread_t thread;

	send_buffer(&sent);
	assert_int_equal(pthread_create(&thread, NULL, overwrite, sent.buffer), 0);
	pthread_join(thread, NULL);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void release_frees_the_pages(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	check_held(&sent);
	fill(sent.buffer, BYTES, 3);
	assert_int_equal(differing(sent.buffer, BYTES, 3), 0);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	munmap(sent.buffer, BYTES);
}

static void settling_gives_fresh_pages_at_once(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	/* From the middle of one page to the middle of another: both count. */
	guard_settle(sent.buffer + PAGE + 100, 3 * PAGE);
	fill(sent.buffer + PAGE, 4 * PAGE, 9);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	sent.buffer[0] ^= 1;
	assert_int_equal(atomic_load(&sent.owner.faults), 1);
	guard_settle(NULL, SIZE_MAX);
	assert_false(guard_active());
	fill(sent.buffer, BYTES, 2);
	assert_int_equal(atomic_load(&sent.owner.faults), 1);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void shrinking_frees_what_was_not_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	guard_shrink(sent.record, 10 * PAGE + 1);
	fill(sent.buffer + 11 * PAGE, BYTES - 11 * PAGE, 2);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	sent.buffer[10 * PAGE] ^= 1;
	assert_int_equal(atomic_load(&sent.owner.faults), 1);
	guard_shrink(sent.record, 0);
	assert_false(guard_active());
	assert_true(let_go(&sent.holder, 1) > 0);
	guard_release(sent.record);
	munmap(sent.buffer, BYTES);
}

static void a_page_is_free_when_no_record_covers_it(void **state)
{
	struct sent sent;
	struct guard_record *front, *back;
	struct owner other = { 0 };

	send_buffer(&sent);
	assert_int_equal(guard_protect(sent.buffer, 8 * PAGE, &pinned_ops, &other, &front), 0);
	assert_int_equal(guard_protect(sent.buffer + 4 * PAGE, 8 * PAGE, &pinned_ops, &other, &back), 0);
	assert_int_equal(let_go(&sent.holder, 1), 0);
	guard_release(sent.record);
	fill(sent.buffer + 12 * PAGE, BYTES - 12 * PAGE, 2);
	assert_int_equal(atomic_load(&other.faults), 0);
	guard_release(front);
	fill(sent.buffer, 4 * PAGE, 2);
	assert_int_equal(atomic_load(&other.faults), 0);
	sent.buffer[4 * PAGE] ^= 1;
	assert_int_equal(atomic_load(&other.faults), 1);
	guard_release(back);
	assert_false(guard_active());
	fill(sent.buffer, BYTES, 2);
	assert_int_equal(atomic_load(&other.faults), 1);
	munmap(sent.buffer, BYTES);
}

static void a_buffer_sent_twice_arrives_as_it_was_each_time(void **state)
{
	struct sent sent;
	struct holder again;
	struct guard_record *record;

	send_buffer(&sent);
	fill(sent.buffer, BYTES, 2);
	assert_int_equal(guard_protect(sent.buffer, BYTES, &pinned_ops, &sent.owner, &record), 0);
	hold(&again, sent.buffer, BYTES);
	fill(sent.buffer, BYTES, 3);
	assert_int_equal(let_go(&again, 2), 0);
	guard_release(record);
	check_held(&sent);
	assert_int_equal(differing(sent.buffer, BYTES, 3), 0);
	munmap(sent.buffer, BYTES);
}

static void many_records_of_one_buffer_end_in_any_order(void **state)
{
	enum { MANY = 600 };
	static struct guard_record *records[MANY];
	struct sent sent;
	unsigned int random = 12345;

	send_buffer(&sent);
	for (int i = 0; i < MANY; i++) {
		size_t first = (random >> 8) % PAGES, count = 1 + (random >> 16) % (PAGES - first);

		random = random * 1103515245 + 12345;
		assert_int_equal(
			guard_protect(sent.buffer + first * PAGE, count * PAGE, &pinned_ops, &sent.owner, &records[i]),
			0);
		if (i % 3 == 0) {
			guard_settle(sent.buffer + (random >> 10) % BYTES, 2 * PAGE);
			guard_shrink(records[i], count * PAGE / 2);
		}
	}
	for (int i = 0; i < MANY; i++)
		guard_release(records[i * 7 % MANY]);
	check_held(&sent);
	fill(sent.buffer, BYTES, 2);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	munmap(sent.buffer, BYTES);
}

static void a_record_may_be_larger_than_a_region(void **state)
{
	size_t bytes = 12 << 20;
	unsigned char *buffer = map_buffer(bytes);
	struct owner owner = { 0 };
	struct guard_record *record;
	uint64_t waited;

	catch_segv();
	madvise(buffer, bytes, MADV_HUGEPAGE);
	fill(buffer, bytes, 1);
	assert_int_equal(guard_protect(buffer + PAGE, bytes - 3 * PAGE, &pinned_ops, &owner, &record), 0);
	waited = (uint64_t)atomic_load(&owner.faults);
	assert_int_equal(waited, 0);
	for (size_t at = PAGE; at < bytes - 2 * PAGE; at += 512 * PAGE)
		buffer[at] ^= 1;
	assert_int_equal(atomic_load(&owner.faults), 6);
	assert_int_equal(differing(buffer, bytes, 1), 6);
	guard_release(record);
	assert_false(guard_active());
	fill(buffer, bytes, 2);
	assert_int_equal(atomic_load(&owner.faults), 6);
	munmap(buffer, bytes);
}

static void pages_of_the_ends_stay_free(void **state)
{
	struct owner owner = { 0 };
	unsigned char *buffer = map_buffer(BYTES);
	struct guard_record *record;

	catch_segv();
	fill(buffer, BYTES, 1);
	assert_int_equal(guard_protect(buffer + PAGE, BYTES - 2 * PAGE, &pinned_ops, &owner, &record), 0);
	buffer[PAGE - 1] = 0;
	buffer[BYTES - PAGE] = 0;
	assert_int_equal(atomic_load(&owner.faults), 0);
	guard_release(record);
	munmap(buffer, BYTES);
}

/* Owners --------------------------------------------------------------------------------------------------------------- */

static void a_write_waits_for_work_that_ends_now(void **state)
{
	struct sent sent;
	uint64_t waits = atomic_load(&stats->process[STAT_PROCESS_FAULT_WAITS]);
	uint64_t copies = atomic_load(&stats->process[STAT_PROCESS_FAULT_COPIES]);

	send_buffer(&sent);
	assert_int_equal(let_go(&sent.holder, 1), 0);
	atomic_store(&sent.owner.finish, sent.record);
	fill(sent.buffer, BYTES, 2);
	assert_false(guard_active());
	assert_int_equal(atomic_load(&sent.owner.faults), 1);
	assert_int_equal(atomic_load(&stats->process[STAT_PROCESS_FAULT_WAITS]), waits + 1);
	assert_int_equal(atomic_load(&stats->process[STAT_PROCESS_FAULT_COPIES]), copies);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	munmap(sent.buffer, BYTES);
}

static void settling_an_owner_ends_its_records_alone(void **state)
{
	struct sent mine, other;
	struct guard_record *second;

	send_buffer(&mine);
	send_buffer(&other);
	assert_int_equal(guard_protect(mine.buffer, PAGE, &pinned_ops, &mine.owner, &second), 0);
	guard_settle_owner(&mine.owner);
	fill(mine.buffer, BYTES, 2);
	assert_int_equal(atomic_load(&mine.owner.faults), 0);
	assert_int_equal(let_go(&mine.holder, 1), 0);
	assert_true(guard_active());
	other.buffer[0] ^= 1;
	assert_int_equal(atomic_load(&other.owner.faults), 1);
	check_held(&other);
	munmap(mine.buffer, BYTES);
	munmap(other.buffer, BYTES);
}

static void an_owner_that_reads_by_address_gets_the_bytes(void **state)
{
	static struct reader reader;
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES, 1);
	lend(&reader, buffer, BYTES);
	fill(buffer, BYTES, 2);
	assert_int_equal(differing(buffer, BYTES, 2), 0);
	check_read(&reader);
	munmap(buffer, BYTES);
}

/* What is written between protecting and pinning is sent; what is written after the send is not. */
static void a_write_before_the_pinning_is_guarded_again(void **state)
{
	struct owner owner = { 0 };
	unsigned char *buffer = map_buffer(BYTES);
	struct guard_record *record;
	struct holder holder;

	catch_segv();
	fill(buffer, BYTES, 5);
	assert_int_equal(guard_protect(buffer, BYTES, &pinned_ops, &owner, &record), 0);
	fill(buffer, BYTES, 1);
	hold(&holder, buffer, BYTES);
	assert_int_equal(guard_pinned(record), 0);
	fill(buffer, BYTES, 2);
	assert_int_equal(let_go(&holder, 1), 0);
	guard_release(record);
	assert_false(guard_active());
	munmap(buffer, BYTES);
}

/* Costs and descriptors ------------------------------------------------------------------------------------------------ */

/* Its next write would end the process. */
static void who_has_the_signal_blocked_is_refused(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);
	struct owner owner = { 0 };
	struct guard_record *record;
	sigset_t one;
	int rc;

	fill(buffer, BYTES, 1);
	sigemptyset(&one);
	sigaddset(&one, SIGSEGV);
	assert_int_equal(sigprocmask(SIG_BLOCK, &one, NULL), 0);
	rc = guard_protect(buffer, BYTES, &pinned_ops, &owner, &record);
	assert_int_equal(sigprocmask(SIG_UNBLOCK, &one, NULL), 0);
	assert_int_equal(rc, guard_needs_settling() ? -EPERM : 0);
	if (!rc)
		guard_release(record);
	fill(buffer, BYTES, 2);
	munmap(buffer, BYTES);
}

static void the_cost_is_measured_by_size(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	check_held(&sent);
	assert_true(guard_cost_ns(BYTES) > 0);
	assert_true(guard_cost_ns(BYTES) < 1000000000ull);
	assert_int_equal(guard_cost_ns(BYTES << 16), 0);
	munmap(sent.buffer, BYTES);
}

static void descriptors_are_high_and_close_on_exec(void **state)
{
	struct sent sent;
	int fds[8], count;

	send_buffer(&sent);
	count = guard_descriptors(fds, 8);
	assert_true(count >= 2);
	assert_int_equal(guard_descriptors(fds, 1), 1);
	guard_descriptors(fds, 8);
	for (int i = 0; i < count; i++) {
		assert_true(fds[i] >= 1000);
		assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
	}
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

/* Without -------------------------------------------------------------------------------------------------------------- */

static void the_test_sees_corruption_without_the_guard(void **state)
{
	struct sent sent;

	if (!settings_guard_can_be_off()) {
		assert_int_equal(guard_start(GUARD_OFF), -ENOTSUP);
		skip();
	}
	assert_int_equal(use(GUARD_OFF), 0);
	send_buffer(&sent);
	fill(sent.buffer, BYTES, 2);
	assert_true(let_go(&sent.holder, 1) > BYTES / 2);
	guard_release(sent.record);
	munmap(sent.buffer, BYTES);
}

static void automatic_takes_the_better_one(void **state)
{
	assert_int_equal(guard_start(GUARD_AUTO), GUARD_UFFD);
	assert_false(guard_needs_settling());
	assert_int_equal(guard_start(GUARD_MPROTECT), GUARD_MPROTECT);
	assert_true(guard_needs_settling());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(overwriting_leaves_what_was_sent),
		BOTH(overwriting_backwards_leaves_what_was_sent),
		BOTH(a_small_write_keeps_its_neighbours),
		BOTH(another_thread_leaves_what_was_sent),
		BOTH(release_frees_the_pages),
		BOTH(settling_gives_fresh_pages_at_once),
		BOTH(shrinking_frees_what_was_not_sent),
		BOTH(a_page_is_free_when_no_record_covers_it),
		BOTH(a_buffer_sent_twice_arrives_as_it_was_each_time),
		BOTH(many_records_of_one_buffer_end_in_any_order),
		BOTH(a_record_may_be_larger_than_a_region),
		BOTH(pages_of_the_ends_stay_free),
		BOTH(a_write_waits_for_work_that_ends_now),
		BOTH(settling_an_owner_ends_its_records_alone),
		BOTH(an_owner_that_reads_by_address_gets_the_bytes),
		BOTH(a_write_before_the_pinning_is_guarded_again),
		BOTH(who_has_the_signal_blocked_is_refused),
		BOTH(the_cost_is_measured_by_size),
		BOTH(descriptors_are_high_and_close_on_exec),
		cmocka_unit_test(the_test_sees_corruption_without_the_guard),
		cmocka_unit_test(automatic_takes_the_better_one),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
