/* SPDX-License-Identifier: MIT */
/* What is no data, between hosts: nonsense in a line, a record that comes in parts, and bytes that could be taken for one. */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>

#include "far_record_testing.h"
#include "preload/send.h"

static void await_writable_for_a_moment(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLOUT };

	real.poll(&look, 1, 100);
}

static ssize_t send_raw(const void *bytes, size_t count)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw =
		engine_raw_begins(conns[CLIENT], ends[CLIENT], MSG_DONTWAIT);
	ssize_t rc = raw.error;

	if (!rc) {
		rc = real.send(ends[CLIENT], bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
		rc = rc < 0 ? -errno : rc;
		raw.done = rc;
	}
	return rc;
}

static ssize_t send_one(char byte)
{
	struct iovec iov = { &byte, 1 };
	ssize_t rc = engine_send(conns[CLIENT], ends[CLIENT], &iov, 1, MSG_DONTWAIT, &(enum zc_path){ PATH_BSDP });

	return rc == ENGINE_BY_KERNEL ? send_raw(&byte, 1) : rc;
}

/* By RDMA WRITE to what the grant names. */
static void write_nonsense(bool reader)
{
	struct lane_shared *line = engine_of(CLIENT)->channel.out.shared;

	exchange();
	assert_true(on_ring(CLIENT));
	atomic_store(&line->head, 8);
	atomic_store(&line->reader, reader);
}

static void nonsense_in_the_line_ends_a_send(void **state)
{
	write_nonsense(false);
	assert_int_equal(send_one('x'), -ECONNRESET);
}

static void nonsense_in_the_line_ends_raw_bytes(void **state)
{
	write_nonsense(true);
	assert_int_equal(send_raw("x", 1), -ECONNRESET);
}

static void a_receive_waits_for_the_rest_of_a_record(void **state)
{
	pthread_t thread;
	char got[16];

	send_record_in_parts(0);
	assert_int_equal(pthread_create(&thread, NULL, send_rest_late, NULL), 0);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), 4);
	assert_memory_equal(got, "next", 4);
	pthread_join(thread, NULL);
}

static void a_receive_waits_for_it_as_long_as_it_may(void **state)
{
	struct timeval limit = { .tv_usec = 20000 };
	char got[16];

	send_record_in_parts(0);
	assert_int_equal(setsockopt(ends[SERVER], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), -EAGAIN);
	send_rest();
	await_readable(ends[SERVER]);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), 4);
	assert_memory_equal(got, "next", 4);
}

static void a_receive_that_must_not_wait_does_not(void **state)
{
	char got[16];

	send_record_in_parts(0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(receive_some(SERVER, got, sizeof(got), MSG_DONTWAIT), -EAGAIN);
	send_rest();
	await_readable(ends[SERVER]);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), 4);
	assert_memory_equal(got, "next", 4);
}

static void a_stream_that_ends_in_a_record_is_cut(void **state)
{
	char got[16];

	send_record_in_parts(0);
	shutdown(ends[CLIENT], SHUT_WR);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), -ECONNRESET);
}

static void a_part_of_nonsense_is_enough(void **state)
{
	char got[16];

	send_record_in_parts(1); /* the code of another record */
	assert_int_equal(receive_some(SERVER, got, sizeof(got), MSG_DONTWAIT), -ECONNRESET);
}

/* The client's socket is full, and a TAKEOVER of it is not answered: its queue pair has been given up. Returns bytes on their way. */
static size_t have_void_takeover(void)
{
	static char much[1 << 16];
	size_t filled = 1;
	ssize_t rc;
	char byte;

	exchange();
	assert_int_equal(send_raw("r", 1), 1); /* back to TCP, as for a sendfile() */
	serve(SERVER);
	serve(CLIENT);
	assert_int_equal(receive_some(SERVER, &byte, 1, 0), 1);
	serve(SERVER);
	serve(CLIENT);
	assert_false(on_ring(CLIENT));
	/* Down to the last byte, of whose room poll() does not tell; the kernels at both ends move bytes for a while. */
	do {
		while ((rc = send_raw(much, sizeof(much))) > 0)
			filled += (size_t)rc;
		await_writable_for_a_moment(ends[CLIENT]);
		rc = send_raw(much, 1);
		filled += rc > 0;
	} while (rc > 0);
	cable.agent = NULL;
	assert_int_equal(send_one('A'), -EAGAIN);
	assert_true(engine_of(CLIENT)->far.was_void);
	cable.agent = answer;
	return filled - 1;
}

static void drain(size_t bytes)
{
	static char scrap[1 << 16];

	while (bytes) {
		ssize_t rc = receive_some(SERVER, scrap, bytes < sizeof(scrap) ? bytes : sizeof(scrap), 0);

		assert_true(rc > 0);
		bytes -= (size_t)rc;
	}
}

/* The peer has the TAKEOVER: what looks like a doorbell would be taken for one. */
static void bytes_that_nobody_has_looked_at_do_not_follow_a_void_takeover(void **state)
{
	uint8_t file[4] = { 0, 'f', 'i', 'l' };

	drain(have_void_takeover());
	file[0] = FAR_CODE_BELL(engine_of(CLIENT)->channel.out.codes);
	assert_int_equal(send_raw(file, sizeof(file)), -ECONNRESET);
}

static void send_and_take(ssize_t rc, char byte)
{
	ssize_t came;
	char got;

	assert_int_equal(rc, 1);
	do { /* the cable's device has nothing to sleep by */
		await_readable(ends[SERVER]);
		came = receive_some(SERVER, &got, 1, MSG_DONTWAIT);
	} while (came == -EAGAIN);
	assert_int_equal(came, 1);
	assert_int_equal(got, byte);
}

static void a_send_that_was_looked_at_does(void **state)
{
	drain(have_void_takeover());
	send_and_take(send_one('B'), 'B');
	send_and_take(send_raw("C", 1), 'C');
}

static void a_send_that_looks_like_a_doorbell_does_not(void **state)
{
	drain(have_void_takeover());
	assert_true(send_one((char)FAR_CODE_BELL(engine_of(CLIENT)->channel.out.codes)) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nonsense_in_the_line_ends_a_send, begin, finish),
		cmocka_unit_test_setup_teardown(nonsense_in_the_line_ends_raw_bytes, begin, finish),
		cmocka_unit_test_setup_teardown(a_receive_waits_for_the_rest_of_a_record, begin, finish),
		cmocka_unit_test_setup_teardown(a_receive_waits_for_it_as_long_as_it_may, begin, finish),
		cmocka_unit_test_setup_teardown(a_receive_that_must_not_wait_does_not, begin, finish),
		cmocka_unit_test_setup_teardown(a_stream_that_ends_in_a_record_is_cut, begin, finish),
		cmocka_unit_test_setup_teardown(a_part_of_nonsense_is_enough, begin, finish),
		cmocka_unit_test_setup_teardown(bytes_that_nobody_has_looked_at_do_not_follow_a_void_takeover, begin,
						finish),
		cmocka_unit_test_setup_teardown(a_send_that_was_looked_at_does, begin, finish),
		cmocka_unit_test_setup_teardown(a_send_that_looks_like_a_doorbell_does_not, begin, finish),
	};

	use_rings(1 << 16);
	settings.rdma_again_ms = 1000;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
