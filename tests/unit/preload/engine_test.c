/* SPDX-License-Identifier: MIT */
/*
 * What an engine makes of a peer that was killed, stopped or hostile at the worst moment: both ends of a real connection in this
 * process, met by the real rendezvous, and one end's share of the lanes left as such a peer leaves it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "met_testing.h"

#define LARGE (1 << 20)

/* As a kill does: the kernel ends the stream, and nobody tidies up. */
static void die(int end)
{
	shutdown(ends[end], SHUT_WR);
}

/* Its kernel resets what it had unread, and no doorbell comes. */
static void reset_of_one_killed_as_it_rang_is_told(void **state)
{
	const struct sockaddr none = { .sa_family = AF_UNSPEC };
	char byte;

	atomic_store(&lane_from(0)->shared->ringing, 1);
	assert_int_equal(sys_call(SYS_connect, ends[0], (long)&none, sizeof(none), 0, 0, 0), 0);
	assert_int_equal(receive_some(1, &byte, 1, 0), -ECONNRESET);
}

static void bytes_go_by_the_ring(void **state)
{
	char got[8];
	uint64_t before = atomic_load(&lane_from(0)->shared->tail);

	assert_int_equal(send_whole(0, "hello"), 5);
	assert_true(atomic_load(&lane_from(0)->shared->tail) > before);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 5);
	assert_memory_equal(got, "hello", 5);
}

static void end_of_a_peer_that_was_killed_while_it_rang_is_told(void **state)
{
	char byte;

	atomic_store(&lane_from(0)->shared->ringing, 1);
	assert_int_equal(engine_look(conns[1], ends[1]), ENGINE_SPURIOUS);
	die(0);
	assert_int_equal(engine_look(conns[1], ends[1]), ENGINE_NOT_OURS);
	assert_int_equal(receive_some(1, &byte, 1, 0), 0);
}

static void end_of_a_peer_that_was_killed_while_it_took_over_is_told(void **state)
{
	char byte;

	assert_true(lane_switch(lane_from(0)));
	assert_int_equal(receive_some(1, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	atomic_store(&lane_from(0)->shared->intent, 1);
	assert_int_equal(receive_some(1, &byte, 1, MSG_DONTWAIT), -EAGAIN);
	die(0);
	assert_int_equal(receive_some(1, &byte, 1, 0), 0);
}

static void bytes_before_a_takeover_that_never_comes_are_received(void **state)
{
	char got[8];

	assert_true(lane_switch(lane_from(0)));
	assert_int_equal(receive_some(1, got, 1, MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(send(ends[0], "abc", 3, 0), 3);
	lane_sent_raw(lane_from(0), 3);
	atomic_store(&lane_from(0)->shared->intent, 1);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 3);
	assert_memory_equal(got, "abc", 3);
	assert_int_equal(receive_some(1, got, 1, MSG_DONTWAIT), -EAGAIN);
}

/* Of the accepting end, as a kill does it, with a reset; the connecting end sends a doorbell with whatever it puts. */
static void die_with_a_reset(void)
{
	struct linger reset = { 1, 0 };

	atomic_store(&lane_from(0)->shared->armed, 1);
	setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	shutdown(ends[1], SHUT_RD);
	dup2(ends[0], ends[1]);
}

static void error_that_a_doorbell_meets_is_the_send_s(void **state)
{
	die_with_a_reset();
	assert_int_equal(send_whole(0, "lost"), -ECONNRESET);
	assert_int_equal(send_whole(0, "lost"), -EPIPE);
}

static void part_of_a_receive_that_waits_for_all_comes_before_the_reset(void **state)
{
	struct linger reset = { 1, 0 };
	char got[8];

	assert_int_equal(send_whole(1, "part"), 4);
	setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)); /* as with bytes unread */
	dup2(ends[0], ends[1]);
	assert_int_equal(receive_some(0, got, sizeof(got), MSG_WAITALL), 4);
	assert_memory_equal(got, "part", 4);
	assert_int_equal(receive_some(0, got, sizeof(got), MSG_WAITALL), -ECONNRESET);
	assert_int_equal(receive_some(0, got, sizeof(got), MSG_WAITALL), 0);
}

static void file_that_could_not_be_sent_stays_where_it_was(void **state)
{
	int file = memfd_create("file", MFD_CLOEXEC);

	assert_int_equal(write(file, "0123456789", 10), 10);
	assert_int_equal(lseek(file, 2, SEEK_SET), 2);
	die_with_a_reset();
	assert_int_equal(engine_sendfile(conns[0], ends[0], file, NULL, 5), -ECONNRESET);
	assert_int_equal(lseek(file, 0, SEEK_CUR), 2);
	close(file);
}

static void file_is_read_into_the_ring(void **state)
{
	int file = memfd_create("file", MFD_CLOEXEC);
	uint64_t before = atomic_load(&lane_from(0)->shared->tail);
	off64_t offset = 3;
	char got[16];

	assert_int_equal(write(file, "0123456789", 10), 10);
	assert_int_equal(engine_sendfile(conns[0], ends[0], file, &offset, 4), 4);
	assert_int_equal(offset, 7);
	assert_int_equal(lseek(file, 2, SEEK_SET), 2);
	assert_int_equal(engine_sendfile(conns[0], ends[0], file, NULL, 5), 5);
	assert_int_equal(lseek(file, 0, SEEK_CUR), 7);
	assert_int_equal(engine_sendfile(conns[0], ends[0], file, NULL, 100), 3); /* the file ends */
	assert_int_equal(engine_sendfile(conns[0], ends[0], file, NULL, 100), 0);
	assert_true(atomic_load(&lane_from(0)->shared->tail) > before);
	assert_int_equal(receive_some(1, got, sizeof(got), 0), 12);
	assert_memory_equal(got, "345623456789", 12);
	close(file);
}

static void file_that_is_larger_than_the_ring_goes_on_by_tcp(void **state)
{
	static char data[3 * LARGE], got[3 * LARGE];
	int file = memfd_create("file", MFD_CLOEXEC), room = 8 * LARGE;
	size_t at = 0;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(i * 7 + (i >> 12));
	assert_int_equal(write(file, data, sizeof(data)), sizeof(data));
	assert_int_equal(lseek(file, 0, SEEK_SET), 0);
	setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	while (at < sizeof(got)) {
		ssize_t sent = engine_sendfile(conns[0], ends[0], file, NULL, sizeof(data));
		ssize_t rc;

		assert_true(sent >= 0 || sent == -EAGAIN || sent == ENGINE_BY_KERNEL);
		do {
			rc = receive_some(1, got + at, sizeof(got) - at, MSG_DONTWAIT);
			at += rc > 0 ? (size_t)rc : 0;
		} while (rc > 0 && at < sizeof(got));
	}
	assert_memory_equal(got, data, sizeof(got));
	assert_true(atomic_load(&stats->slot[conns[0]->slot].path[PATH_COPY][STAT_PATH_BYTES]) > 1000);
	close(file);
}

/* What another process waits for is not known here: it must find its lane armed, and its doorbells where they are. */
static void doorbells_of_a_shared_connection_are_left_to_the_others(void **state)
{
	struct engine *engine = atomic_load(&conns[1]->engine);
	struct lane *lane = lane_from(0);
	int there = 0;
	char byte;

	atomic_fetch_add(&engine->holders.count, 1);
	assert_int_equal(send_whole(0, "x"), 1);
	assert_int_equal(receive_some(1, &byte, 1, 0), 1);
	assert_int_equal(atomic_load(&lane->shared->armed), 1);
	engine_disarm(conns[1], engine);
	assert_int_equal(atomic_load(&lane->shared->armed), 1);
	assert_true(lane_must_ring(lane));
	assert_int_equal(send(ends[0], "", 1, 0), 1);
	lane_rang(lane, true);
	engine_goes(conns[1]);
	assert_int_equal(ioctl(ends[1], FIONREAD, &there), 0);
	assert_int_equal(there, 1);
	engine_stays(conns[1]);
	atomic_fetch_sub(&engine->holders.count, 1);
	engine_goes(conns[1]); /* the last one */
	assert_int_equal(ioctl(ends[1], FIONREAD, &there), 0);
	assert_int_equal(there, 0);
	engine_stays(conns[1]);
}

/* Shows that it moves, and takes nothing. */
static _Atomic bool moving;

static void *move(void *lane)
{
	atomic_store(&((struct lane *)lane)->shared->raw, 1);
	while (atomic_load(&moving))
		atomic_fetch_add(&((struct lane *)lane)->shared->received, 1);
	return NULL;
}

static void peer_that_moves_and_gets_nowhere_does_not_hold_a_send(void **state)
{
	static char data[LARGE];
	struct lane *lane = lane_from(0);
	pthread_t peer;

	atomic_store(&lane->shared->armed, 0);
	atomic_store(&moving, true);
	assert_int_equal(pthread_create(&peer, NULL, move, lane), 0);
	while (!atomic_load(&lane->shared->raw))
		cpu_relax();
	while (atomic_load(&lane->shared->on_ring))
		assert_true(send_bytes(0, data, LARGE) > 0);
	atomic_store(&moving, false);
	pthread_join(peer, NULL);
}

static void ring(int number)
{
	real.send(ends[0], "", 1, 0);
	lane_rang(lane_from(0), true);
}

/* Whoever has the stream next would find its byte there. */
static void doorbell_that_is_being_rung_is_waited_for_beside_notices(void **state)
{
	struct itimerval soon = { .it_value.tv_usec = 20000 };
	char byte;

	notice_sends(ends[1]);
	assert_int_equal(real.send(ends[1], "", 1, 0), 1);
	assert_true(has_notices(ends[1]));
	atomic_store(&lane_from(0)->shared->ringing, 1);
	signal(SIGALRM, ring);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	assert_true(engine_retire(conns[1], ends[1]));
	signal(SIGALRM, SIG_DFL);
	assert_int_equal(atomic_load(&lane_from(0)->shared->ringing), 0);
	assert_int_equal(real.recv(ends[1], &byte, 1, MSG_DONTWAIT), -1);
	assert_int_equal(errno, EAGAIN);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(reset_of_one_killed_as_it_rang_is_told),
		TEST(bytes_go_by_the_ring),
		TEST(file_is_read_into_the_ring),
		TEST(file_that_is_larger_than_the_ring_goes_on_by_tcp),
		TEST(end_of_a_peer_that_was_killed_while_it_rang_is_told),
		TEST(end_of_a_peer_that_was_killed_while_it_took_over_is_told),
		TEST(bytes_before_a_takeover_that_never_comes_are_received),
		TEST(error_that_a_doorbell_meets_is_the_send_s),
		TEST(part_of_a_receive_that_waits_for_all_comes_before_the_reset),
		TEST(file_that_could_not_be_sent_stays_where_it_was),
		TEST(doorbells_of_a_shared_connection_are_left_to_the_others),
		TEST(peer_that_moves_and_gets_nowhere_does_not_hold_a_send),
		TEST(doorbell_that_is_being_rung_is_waited_for_beside_notices),
	};

	use_rings(LARGE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
