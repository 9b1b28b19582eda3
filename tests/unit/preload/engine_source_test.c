/* SPDX-License-Identifier: MIT */
/* Sends that are announced: what the peer gets is what was sent, whatever becomes of the memory, the thread and the connection. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "met_testing.h"
#include "preload/engine_source.h"
#include "rdma/guard.h"

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
	pid_t child;

	send_filled(buffer, BYTES);
	conn_before_fork();
	guard_before_fork();
	child = fork();
	guard_after_fork(!child);
	conn_after_fork(child);
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

static void buffers_that_are_rewritten_at_once_are_copied_in_the_end(void **state)
{
	for (int i = 0; i < 200; i++) {
		send_filled(buffer, BYTES);
		memset(buffer, 'x', BYTES);
		expect_sent(BYTES);
	}
	assert_true(atomic_load(&stats->slot[conns[0]->slot].reason[REASON_FAULTED]) > 0);
}

int main(void)
{
#define ZSDP(name) cmocka_unit_test_setup_teardown(name, setup_zsdp, teardown)
#define AZSDP(name) cmocka_unit_test_setup_teardown(name, setup_azsdp, teardown)
	const struct CMUnitTest tests[] = {
		ZSDP(zsdp_does_not_wait_for_a_peer_that_does_not_come),
		AZSDP(azsdp_sends_what_was_there),
		AZSDP(ends_of_a_buffer_that_fill_no_page_go_by_the_ring),
		AZSDP(source_is_free_when_the_peer_has_it),
		AZSDP(end_of_a_thread_takes_its_stack_along),
		AZSDP(bytes_outlive_the_connection_of_the_sender),
		AZSDP(child_of_a_fork_has_nothing_to_do_with_it),
		AZSDP(sender_that_is_stopped_announces_nothing),
		AZSDP(buffers_that_are_rewritten_at_once_are_copied_in_the_end),
	};

	if (guard_start(GUARD_AUTO) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
