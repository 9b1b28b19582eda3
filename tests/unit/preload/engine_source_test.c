/* SPDX-License-Identifier: MIT */
/* Sends that are announced: what the peer gets is what was sent, whatever becomes of the memory, the thread and the connection. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "met_testing.h"
#include "preload/engine_source.h"
#include "preload/trial.h"
#include "rdma/guard.h"
#include "rdma/later.h"

#define PAGE 4096
#define BYTES (64 * PAGE)

static unsigned char *buffer; /* PAGE + BYTES + PAGE */
static unsigned char got[BYTES + 2 * PAGE];

static unsigned char sent_byte(size_t at)
{
	return (unsigned char)(at * 7 + (at >> 12));
}

static void fill(unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = sent_byte(i);
}

static void expect_sent(size_t bytes)
{
	size_t at = 0;

	while (at < bytes) {
		ssize_t rc = receive_some(1, (char *)got + at, bytes - at, 0);

		assert_true(rc > 0);
		at += (size_t)rc;
	}
	for (size_t i = 0; i < bytes; i++)
		assert_int_equal(got[i], sent_byte(i));
}

static uint64_t sent_by(enum zc_path path)
{
	return atomic_load(&stats->slot[conns[0]->slot].path[path][STAT_PATH_BYTES]);
}

static uint64_t fetched(void)
{
	return atomic_load(&conns[1]->engine)->channel.sources_in.fetched;
}

/* Both ends show each other what they can: the receiver asks, the sender answers, the receiver proves, the sender sees it. */
static int setup(void **state)
{
	memset(&sources_history, 0, sizeof(sources_history)); /* the same addresses are other buffers */
	send_site = 0;
	if (connect_ends(state))
		return -1;
	buffer = mmap(NULL, BYTES + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buffer == MAP_FAILED)
		return -1;
	for (int i = 0; i < 4; i++) {
		fill(buffer, BYTES);
		if (send_bytes(0, buffer, BYTES) != BYTES)
			return -1;
		expect_sent(BYTES);
	}
	return fetched() ? 0 : -1;
}

static int teardown(void **state)
{
	close_ends(state);
	munmap(buffer, BYTES + 2 * PAGE);
	return guard_active(); /* nothing may be left under guard */
}

static int setup_zsdp(void **state)
{
	settings.path = PATH_ZSDP;
	return setup(state);
}

static int setup_azsdp(void **state)
{
	settings.path = PATH_AZSDP;
	return setup(state);
}

static void send_filled(unsigned char *from, size_t bytes)
{
	fill(from, bytes);
	assert_int_equal(send_bytes(0, from, bytes), bytes);
}

static void zsdp_does_not_wait_for_a_peer_that_does_not_come(void **state)
{
	uint64_t before = sent_by(PATH_ZSDP);

	send_filled(buffer, BYTES); /* the peer is this thread */
	assert_int_equal(sent_by(PATH_ZSDP), before + BYTES);
	memset(buffer, 'x', BYTES);
	expect_sent(BYTES);
}

static void azsdp_sends_what_was_there(void **state)
{
	uint64_t before = sent_by(PATH_AZSDP);

	send_filled(buffer, BYTES);
	assert_int_equal(sent_by(PATH_AZSDP), before + BYTES);
	assert_true(guard_active());
	memset(buffer, 'x', BYTES);
	assert_int_equal(buffer[BYTES - 1], 'x');
	expect_sent(BYTES);
}

static void ends_of_a_buffer_that_fill_no_page_go_by_the_ring(void **state)
{
	uint64_t before = sent_by(PATH_AZSDP), ring = sent_by(PATH_BSDP);

	send_filled(buffer + 100, BYTES);
	assert_int_equal(sent_by(PATH_AZSDP), before + BYTES - PAGE);
	assert_int_equal(sent_by(PATH_BSDP), ring + PAGE);
	memset(buffer, 'x', BYTES + PAGE);
	expect_sent(BYTES);
}

static void source_is_free_when_the_peer_has_it(void **state)
{
	send_filled(buffer, BYTES);
	assert_true(guard_active());
	expect_sent(BYTES);
	send_whole(0, "x"); /* whoever comes by next */
	assert_false(guard_active());
	assert_int_equal(receive_some(1, (char *)got, 1, 0), 1);
}

static void *sends_from_its_stack(void *arg)
{
	unsigned char local[BYTES + PAGE], *pages = (unsigned char *)(((uintptr_t)local + PAGE - 1) & -(uintptr_t)PAGE);

	send_filled(pages, BYTES);
	return NULL;
}

static void end_of_a_thread_takes_its_stack_along(void **state)
{
	uint64_t before = sent_by(PATH_AZSDP);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, sends_from_its_stack, NULL), 0);
	pthread_join(thread, NULL);
	assert_true(sent_by(PATH_AZSDP) > before);
	for (int i = 0; i < 4; i++) { /* others take its place */
		assert_int_equal(pthread_create(&thread, NULL, sends_from_its_stack, NULL), 0);
		pthread_join(thread, NULL);
	}
	for (int i = 0; i < 5; i++)
		expect_sent(BYTES);
}

static void bytes_outlive_the_connection_of_the_sender(void **state)
{
	send_filled(buffer, BYTES);
	conn_close(ends[0]);
	assert_false(guard_active());
	memset(buffer, 'x', BYTES);
	expect_sent(BYTES);
	conn_open(ends[0], ROLE_CLIENT, false);
}

static void child_of_a_fork_has_nothing_to_do_with_it(void **state)
{
	int status;
	uint64_t number;
	pid_t child;

	send_filled(buffer, BYTES);
	number = conn_before_fork();
	guard_before_fork();
	child = fork();
	guard_after_fork(!child);
	conn_after_fork(child, number);
	if (!child) {
		memset(buffer, 'c', BYTES);
		conn_close(ends[0]);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	memset(buffer, 'x', BYTES);
	expect_sent(BYTES);
}

static void sender_that_is_stopped_announces_nothing(void **state)
{
	uint64_t before = sent_by(PATH_AZSDP);

	sources_stop(true);
	send_filled(buffer, BYTES);
	sources_stop(false);
	assert_int_equal(sent_by(PATH_AZSDP), before);
	assert_false(guard_active());
	expect_sent(BYTES);
}

/* Many buffers, for rewriters. */
#define SMALL_BYTES (16 * PAGE)
#define SMALL_COUNT 101u
static unsigned char *small;

static int setup_small(void **state)
{
	settings.path = PATH_AZSDP;
	small = mmap(NULL, SMALL_COUNT * SMALL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return small == MAP_FAILED ? -1 : setup(state);
}

static int teardown_small(void **state)
{
	munmap(small, SMALL_COUNT * SMALL_BYTES);
	return teardown(state);
}

static void rewrite_at_once(unsigned int which)
{
	unsigned char *bytes = small + which * SMALL_BYTES;

	send_filled(bytes, SMALL_BYTES);
	memset(bytes, 'x', SMALL_BYTES);
	expect_sent(SMALL_BYTES);
}

/* The peer has it before it is written to. */
static void expect_kept(unsigned int which)
{
	unsigned char *bytes = small + which * SMALL_BYTES;

	send_filled(bytes, SMALL_BYTES);
	expect_sent(SMALL_BYTES);
}

static uint64_t refused_for(enum stat_reason reason)
{
	return atomic_load(&stats->slot[conns[0]->slot].reason[reason]);
}

static void buffers_that_are_rewritten_at_once_are_copied_in_the_end(void **state)
{
	for (int i = 0; i < 200; i++)
		rewrite_at_once(i % 100);
	assert_true(refused_for(REASON_FAULTED) > 0);
	assert_int_equal(refused_for(REASON_FAULTED_BUFFER), 0);
}

static uint64_t azsdp_sends(void)
{
	return atomic_load(&stats->slot[conns[0]->slot].path[PATH_AZSDP][STAT_PATH_CALLS]);
}

static void buffer_that_is_rewritten_goes_by_the_ring_alone(void **state)
{
	uint64_t before = azsdp_sends();

	for (int i = 0; i < 60; i++) {
		rewrite_at_once(0);
		expect_kept(1);
	}
	assert_int_equal(azsdp_sends(), before + 60 + HISTORY_BUFFER_FAULTS);
	assert_int_equal(refused_for(REASON_FAULTED_BUFFER), 60 - HISTORY_BUFFER_FAULTS);
	assert_int_equal(refused_for(REASON_FAULTED), 0);
}

static void call_that_rewrites_goes_by_the_ring_alone(void **state)
{
	uint64_t before = azsdp_sends();

	for (int i = 0; i < 60; i++) {
		send_site = 8;
		rewrite_at_once(i);
		send_site = 16;
		expect_kept(100);
	}
	assert_int_equal(azsdp_sends(), before + 60 + HISTORY_SITE_FAULTS);
	assert_int_equal(refused_for(REASON_FAULTED_SITE), 60 - HISTORY_SITE_FAULTS);
	assert_int_equal(refused_for(REASON_FAULTED), 0);
}

/* Each of the three ways gets a run of sends when a size comes up first; by azsdp only the first of them are guarded. */
static void auto_guards_nothing_for_a_call_that_rewrites(void **state)
{
	const unsigned int run = 3 * TRIAL_WINDOW_SENDS;
	uint64_t before = azsdp_sends();

	conns[0]->policy = PATH_AUTO;
	send_site = 8;
	for (unsigned int i = 0; i < 3 * run; i++)
		rewrite_at_once(i % 100);
	assert_int_equal(azsdp_sends(), before + HISTORY_SITE_FAULTS);
	assert_int_equal(refused_for(REASON_FAULTED_SITE), run - HISTORY_SITE_FAULTS);
}

static void calls_that_the_library_makes_itself_are_no_site(void **state)
{
	send_site = (uintptr_t)sources_put;
	for (int i = 0; i < 60; i++)
		rewrite_at_once(i);
	assert_int_equal(refused_for(REASON_FAULTED_SITE), 0);
}

static void nobody_is_blamed_where_guards_are_kept(void **state)
{
	uint64_t before = azsdp_sends();

	settings.zerocopy_keep = true;
	for (int i = 0; i < 60; i++)
		rewrite_at_once(0);
	settings.zerocopy_keep = false;
	assert_int_equal(azsdp_sends(), before + 60);
}

static void connections_know_what_others_have_learnt(void **state)
{
	uint64_t before;

	for (int i = 0; i < HISTORY_BUFFER_FAULTS; i++)
		rewrite_at_once(0);
	close_ends(state);
	assert_int_equal(connect_ends(state), 0);
	for (unsigned int i = 2; i < 6; i++) /* until both ends have shown what they can */
		expect_kept(i);
	before = azsdp_sends();
	rewrite_at_once(0);
	assert_int_equal(azsdp_sends(), before);
	expect_kept(1);
	assert_int_equal(azsdp_sends(), before + 1);
}

/* Receives that return first ------------------------------------------------------------------------------------------ */

static unsigned char *room;

static int setup_later(void **state)
{
	settings.path = PATH_AZSDP;
	settings.recv_async = 1;
	room = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	return room == MAP_FAILED ? -1 : setup(state);
}

static int teardown_later(void **state)
{
	settings.recv_async = 0;
	munmap(room, BYTES);
	return teardown(state) || later_active();
}

static uint64_t came_later(void)
{
	return atomic_load(&stats->slot[conns[1]->slot].conn[STAT_CONN_LATER_BYTES]);
}

static void expect_room(size_t from, size_t bytes)
{
	for (size_t i = from; i < from + bytes; i++)
		assert_int_equal(room[i], sent_byte(i));
}

#define NEEDS_LATER()                                                                                                  \
	do {                                                                                                           \
		if (later_start() == -ENOTSUP)                                                                         \
			skip();                                                                                        \
	} while (0)

static void receive_may_return_before_its_bytes_are_there(void **state)
{
	uint64_t before = came_later();

	NEEDS_LATER();
	send_filled(buffer, BYTES);
	assert_int_equal(receive_some(1, (char *)room, BYTES, 0), BYTES);
	assert_int_equal(came_later(), before + BYTES);
	assert_true(table_is_own(later_descriptor()));
	memset(buffer, 'x', BYTES);
	expect_room(0, BYTES);
}

static void receives_that_ask_for_more_wait_for_their_bytes(void **state)
{
	uint64_t before = came_later();

	NEEDS_LATER();
	send_filled(buffer, BYTES);
	assert_int_equal(receive_some(1, (char *)room, BYTES, MSG_PEEK), BYTES);
	expect_room(0, BYTES);
	assert_int_equal(receive_some(1, (char *)room, 16 * PAGE, MSG_WAITALL), 16 * PAGE);
	for (size_t at = 0; at < 16 * PAGE;) {
		ssize_t gone = receive_some(1, NULL, 16 * PAGE - at, MSG_TRUNC);

		assert_true(gone > 0);
		at += (size_t)gone;
	}
	assert_int_equal(came_later(), before);
	assert_int_equal(receive_some(1, (char *)room + 32 * PAGE, BYTES - 32 * PAGE, 0), BYTES - 32 * PAGE);
	assert_int_equal(came_later(), before + BYTES - 32 * PAGE);
	expect_room(32 * PAGE, BYTES - 32 * PAGE);
}

static void close_waits_for_what_was_promised(void **state)
{
	NEEDS_LATER();
	send_filled(buffer, BYTES);
	assert_int_equal(receive_some(1, (char *)room, BYTES, 0), BYTES);
	conn_close(ends[1]);
	assert_false(later_active());
	expect_room(0, BYTES);
}

static void end_comes_after_what_was_promised(void **state)
{
	NEEDS_LATER();
	send_filled(buffer, BYTES);
	assert_int_equal(receive_some(1, (char *)room, BYTES, 0), BYTES);
	conn_close(ends[0]);
	shutdown(ends[0], SHUT_WR);
	assert_int_equal(receive_some(1, (char *)got, 1, 0), 0);
	assert_false(later_active());
	expect_room(0, BYTES);
}

static void what_was_promised_and_lost_is_no_end(void **state)
{
	NEEDS_LATER();
	atomic_store(&atomic_load(&conns[1]->engine)->channel.sources_in.lost, true);
	conn_close(ends[0]);
	shutdown(ends[0], SHUT_WR);
	assert_int_equal(receive_some(1, (char *)got, 1, 0), -ECONNRESET);
	assert_int_equal(receive_some(1, (char *)got, 1, 0), -ECONNRESET);
}

/* A peer that may not read this process's memory any more: it has changed its user, say. */
static ssize_t get_never(struct transport_reach *reach, const struct transport_place *place,
			 const struct transport_token *token, const struct transport_get *get)
{
	return -EPERM;
}

static void refuse(struct transport_ops *ops)
{
	struct source_in *in = atomic_load(&conns[1]->engine)->channel.in.in;

	*ops = *in->transport;
	ops->get = get_never;
	in->transport = ops;
}

static void what_the_peer_may_not_fetch_comes_with_the_next_send(void **state)
{
	struct transport_ops ops;

	refuse(&ops);
	send_filled(buffer, BYTES);
	assert_int_equal(receive_some(1, (char *)got, BYTES, MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(receive_some(1, (char *)got, BYTES, MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(send_bytes(0, "x", 1), 1);
	expect_sent(BYTES);
	assert_int_equal(receive_some(1, (char *)got, 1, MSG_DONTWAIT), 1);
	assert_int_equal(got[0], 'x');
}

static void *receive_all(void *unused)
{
	expect_sent(BYTES);
	return unused;
}

static void peer_that_may_not_fetch_and_sleeps_is_woken(void **state)
{
	struct transport_ops ops;
	pthread_t thread;

	alarm(60);
	refuse(&ops);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(pthread_create(&thread, NULL, receive_all, NULL), 0);
		while (!atomic_load(&lane_from(0)->shared->armed)) /* it sleeps */
			sched_yield();
		send_filled(buffer, BYTES);
		memset(buffer, 'x', BYTES);
		pthread_join(thread, NULL);
	}
	alarm(0);
}

int main(void)
{
#define LATER(name) cmocka_unit_test_setup_teardown(name, setup_later, teardown_later)
#define ZSDP(name) cmocka_unit_test_setup_teardown(name, setup_zsdp, teardown)
#define AZSDP(name) cmocka_unit_test_setup_teardown(name, setup_azsdp, teardown)
#define SMALL(name) cmocka_unit_test_setup_teardown(name, setup_small, teardown_small)
	const struct CMUnitTest tests[] = {
		ZSDP(zsdp_does_not_wait_for_a_peer_that_does_not_come),
		ZSDP(peer_that_may_not_fetch_and_sleeps_is_woken),
		AZSDP(what_the_peer_may_not_fetch_comes_with_the_next_send),
		AZSDP(azsdp_sends_what_was_there),
		AZSDP(ends_of_a_buffer_that_fill_no_page_go_by_the_ring),
		AZSDP(source_is_free_when_the_peer_has_it),
		AZSDP(end_of_a_thread_takes_its_stack_along),
		AZSDP(bytes_outlive_the_connection_of_the_sender),
		AZSDP(child_of_a_fork_has_nothing_to_do_with_it),
		AZSDP(sender_that_is_stopped_announces_nothing),
		SMALL(buffers_that_are_rewritten_at_once_are_copied_in_the_end),
		SMALL(buffer_that_is_rewritten_goes_by_the_ring_alone),
		SMALL(call_that_rewrites_goes_by_the_ring_alone),
		SMALL(auto_guards_nothing_for_a_call_that_rewrites),
		SMALL(calls_that_the_library_makes_itself_are_no_site),
		SMALL(nobody_is_blamed_where_guards_are_kept),
		SMALL(connections_know_what_others_have_learnt),
		LATER(receive_may_return_before_its_bytes_are_there),
		LATER(receives_that_ask_for_more_wait_for_their_bytes),
		LATER(close_waits_for_what_was_promised),
		LATER(end_comes_after_what_was_promised),
		LATER(what_was_promised_and_lost_is_no_end),
	};

	if (guard_start(GUARD_AUTO) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
