/* SPDX-License-Identifier: MIT */
/* Who rewrites what was sent: found out, left alone for a while, tried again, forgotten, and nobody else is blamed. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "preload/history.h"

#define BYTES 65536u
#define THREADS 4
#define THREAD_SENDS 50000u

static struct history history;
static uint64_t now;

static int fresh(void **state)
{
	memset(&history, 0, sizeof(history));
	now = NS_PER_SEC;
	return 0;
}

static struct history_keys keys_of(uintptr_t site, unsigned int buffer)
{
	return history_keys(site, (const void *)(uintptr_t)(0x10000000ull + buffer * BYTES), BYTES);
}

/* One send: asked, guarded if nobody speaks against it, and rewritten then or not. Returns who is to blame. */
static enum history_blame send_one(uintptr_t site, unsigned int buffer, bool rewrites)
{
	struct history_keys keys = keys_of(site, buffer);
	bool begins;
	enum history_blame blame = history_ask(&history, keys, now, &begins);

	if (blame == HISTORY_NOBODY) {
		history_guarded(&history, keys, now);
		if (rewrites)
			history_faulted(&history, keys, now);
	}
	now += NS_PER_MS;
	return blame;
}

/* So many sends of a site from fresh buffers. Returns how many were guarded. */
static unsigned int sends_of_site(uintptr_t site, unsigned int count, bool rewrites)
{
	static unsigned int buffer = 100;
	unsigned int guarded = 0;

	for (unsigned int i = 0; i < count; i++) {
		enum history_blame blame = send_one(site, buffer++, rewrites);

		assert_int_not_equal(blame, HISTORY_BUFFER);
		guarded += blame == HISTORY_NOBODY;
	}
	return guarded;
}

static unsigned int sends_of_buffer(uintptr_t site, unsigned int buffer, unsigned int count, bool rewrites)
{
	unsigned int guarded = 0;

	for (unsigned int i = 0; i < count; i++)
		guarded += send_one(site, buffer, rewrites) == HISTORY_NOBODY;
	return guarded;
}

static unsigned int rows_used(void)
{
	unsigned int used = 0;

	for (unsigned int set = 0; set < HISTORY_SETS; set++)
		for (unsigned int way = 0; way < HISTORY_WAYS; way++)
			used += atomic_load(&history.rows[set][way].word) != 0;
	return used;
}

static void keys_tell_sites_and_buffers_apart(void **state)
{
	struct history_keys keys = history_keys(0x1000, (void *)0x5000, BYTES);

	assert_int_equal(history_keys(0, (void *)0x5000, BYTES).site, 0);
	assert_true(keys.site != history_keys(0x1001, (void *)0x5000, BYTES).site);
	assert_true(keys.buffer == history_keys(1, (void *)0x5fff, BYTES + 1).buffer);
	assert_true(keys.buffer != history_keys(0x1000, (void *)0x6000, BYTES).buffer);
	assert_true(keys.buffer != history_keys(0x1000, (void *)0x5000, 2 * BYTES).buffer);
}

static void site_that_rewrites_is_found_and_others_go_on(void **state)
{
	unsigned int bad = 0, good = 0;

	for (int i = 0; i < 60; i++) {
		bad += sends_of_site(1, 1, true);
		good += sends_of_site(2, 1, false);
	}
	assert_int_equal(bad, HISTORY_SITE_FAULTS);
	assert_int_equal(good, 60);
}

static void quarter_of_faults_is_enough_and_less_is_not(void **state)
{
	unsigned int quarter = 0, tenth = 0;

	for (int i = 0; i < 100; i++) {
		quarter += sends_of_site(1, 1, i % 4 == 0);
		tenth += sends_of_site(2, 1, i % 10 == 0);
	}
	assert_true(quarter < 60);
	assert_int_equal(tenth, 100);
}

static void buffer_is_blamed_before_its_site(void **state)
{
	unsigned int bad = 0, good = 0;

	for (int i = 0; i < 60; i++) {
		bad += sends_of_buffer(1, 7, 1, true);
		good += sends_of_buffer(1, 8, 1, false);
	}
	assert_int_equal(bad, HISTORY_BUFFER_FAULTS);
	assert_int_equal(good, 60);
	assert_int_equal(send_one(1, 7, true), HISTORY_BUFFER);
	assert_int_equal(sends_of_site(1, 20, false), 20);
}

static void buffer_of_an_unknown_site_is_blamed_too(void **state)
{
	assert_int_equal(sends_of_buffer(0, 7, 60, true), HISTORY_BUFFER_FAULTS);
	assert_int_equal(sends_of_site(0, 200, true), 200); /* of no site nothing is known */
}

static void tries_again_come_ever_more_seldom(void **state)
{
	unsigned int pause = HISTORY_PAUSE_FIRST, guarded;

	for (int i = 0; i < 10; i++) {
		guarded = sends_of_site(1, HISTORY_SITE_FAULTS + pause, true);
		assert_int_equal(guarded, HISTORY_SITE_FAULTS);
		pause = pause < HISTORY_PAUSE_MAX ? 2 * pause : pause;
	}
}

static void site_that_stops_rewriting_is_trusted_again(void **state)
{
	assert_int_equal(sends_of_site(1, 300, true),
			 3 * HISTORY_SITE_FAULTS); /* pauses of 64, 128, and 200 yet to come */
	sends_of_site(1, 4 * HISTORY_PAUSE_FIRST, false);
	assert_int_equal(sends_of_site(1, 1000, false), 1000);
	/* And its next pause is a first one. */
	assert_int_equal(sends_of_site(1, HISTORY_SITE_FAULTS, true), HISTORY_SITE_FAULTS);
	assert_int_equal(sends_of_site(1, HISTORY_PAUSE_FIRST, true), 0);
	assert_int_equal(sends_of_site(1, 1, true), 1);
}

static void nothing_is_kept_of_who_never_rewrites(void **state)
{
	sends_of_site(1, 1000, false);
	assert_int_equal(rows_used(), 0);
	sends_of_buffer(2, 7, 2, true);
	assert_int_equal(rows_used(), 2);
	sends_of_buffer(2, 7, 4 * HISTORY_WINDOW, false);
	assert_int_equal(rows_used(), 0);
}

static void late_faults_do_not_prolong_a_pause(void **state)
{
	struct history_keys keys = keys_of(0, 7);

	sends_of_buffer(0, 7, HISTORY_BUFFER_FAULTS + 1, true);
	for (int i = 0; i < 300; i++)
		history_faulted(&history, keys, now);
	assert_int_equal(sends_of_buffer(0, 7, HISTORY_PAUSE_FIRST - 1, false), 0);
	assert_int_equal(sends_of_buffer(0, 7, 100, false), 100);
}

static void address_that_was_long_silent_begins_anew(void **state)
{
	sends_of_site(1, 5000, true);
	assert_int_equal(sends_of_site(1, 1, true), 0);
	now += HISTORY_FORGET_NS + 1;
	assert_int_equal(sends_of_site(1, 1, true), 1);
}

static void full_table_keeps_who_is_in_use(void **state)
{
	sends_of_site(1, HISTORY_SITE_FAULTS + 1, true);
	for (unsigned int i = 0; i < 60 * 40; i++) {
		struct history_keys keys = keys_of(0, 1000 + i);

		history_faulted(&history, keys, now++);
		if (i % 40 == 0)
			assert_int_equal(send_one(1, 100000 + i, true), HISTORY_SITE);
	}
	assert_true(rows_used() <= HISTORY_SETS * HISTORY_WAYS);
	assert_true(rows_used() > HISTORY_SETS * HISTORY_WAYS / 2);
}

/* Threads: each has a site of its own that rewrites, and one that does not; all have one more of each in common. */
static void *sends_of_thread(void *arg)
{
	uintptr_t own = 100 + 2 * (uintptr_t)arg, sites[] = { own, own + 1, 1, 2 };
	unsigned int *guarded = (unsigned int[]){ 0, 0, 0, 0 };

	for (unsigned int i = 0; i < THREAD_SENDS; i++) {
		for (int which = 0; which < 4; which++) {
			struct history_keys keys = { history_keys(sites[which], NULL, 0).site, 0 };
			bool begins;

			if (history_ask(&history, keys, NS_PER_SEC, &begins) != HISTORY_NOBODY)
				continue;
			guarded[which]++;
			history_guarded(&history, keys, NS_PER_SEC);
			if (which % 2 == 0)
				history_faulted(&history, keys, NS_PER_SEC);
		}
	}
	/* Beside the pauses of at most 4096 sends; the common one's faults are of all the threads. */
	return guarded[0] < THREAD_SENDS / 50 && guarded[1] == THREAD_SENDS && guarded[2] < THREAD_SENDS / 10 &&
			       guarded[3] == THREAD_SENDS ?
		       &history :
		       NULL;
}

static void threads_find_the_same(void **state)
{
	pthread_t threads[THREADS];
	void *right;

	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, sends_of_thread, (void *)i), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &right);
		assert_ptr_equal(right, &history);
	}
	assert_int_equal(rows_used(), THREADS + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, fresh)
	const struct CMUnitTest tests[] = {
		TEST(keys_tell_sites_and_buffers_apart),
		TEST(site_that_rewrites_is_found_and_others_go_on),
		TEST(quarter_of_faults_is_enough_and_less_is_not),
		TEST(buffer_is_blamed_before_its_site),
		TEST(buffer_of_an_unknown_site_is_blamed_too),
		TEST(tries_again_come_ever_more_seldom),
		TEST(site_that_stops_rewriting_is_trusted_again),
		TEST(nothing_is_kept_of_who_never_rewrites),
		TEST(late_faults_do_not_prolong_a_pause),
		TEST(address_that_was_long_silent_begins_anew),
		TEST(full_table_keeps_who_is_in_use),
		TEST(threads_find_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
