/* SPDX-License-Identifier: MIT */
/*
 * A TAKEOVER between hosts that is not answered, or late: what other threads do meanwhile, how the stream ends behind it, and how long the answer is
 * waited for.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>

#include "far_record_testing.h"

/* Returns how many, or -errno. */
static ssize_t send_raw(const char *bytes, size_t count)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw =
		engine_raw_begins(conns[CLIENT], ends[CLIENT], 0);

	raw.done = raw.error ? raw.error : real.send(ends[CLIENT], bytes, count, MSG_NOSIGNAL);
	return raw.done;
}

/* The lane is on TCP, and its next send moves it to the ring. */
static void begin_by_tcp(void)
{
	char got[3];

	exchange();
	assert_int_equal(send_raw("raw", 3), 3);
	assert_int_equal(receive_some(SERVER, got, sizeof(got), 0), 3);
	serve(SERVER);
	serve(CLIENT);
	assert_false(on_ring(CLIENT));
}

static pthread_t other;
static bool other_began;
static sem_t other_waits;
static void *(*other_does)(void *);

/* The first thread that waits for the word has the other one come to where it waits, too. */
static void begin_other(struct plug *sleeper)
{
	if (!other_began) {
		other_began = true;
		assert_int_equal(pthread_create(&other, NULL, other_does, NULL), 0);
		sem_wait(&other_waits);
	} else if (pthread_equal(other, pthread_self())) {
		sem_post(&other_waits);
	}
}

/*
 * The TAKEOVER of a send is lost while another thread is at something. What comes is what was sent, if the connection is not reset: it is where
 * the first byte behind such a TAKEOVER is not known, as a raw send's may be.
 */
static void send_while(void *(*does)(void *))
{
	struct iovec iov = { (void *)(uintptr_t) "AAAA", 4 };
	ssize_t sent_by[2], rc, all = 0;
	char got[256];
	void *its;

	begin_by_tcp();
	cut();
	other_began = false;
	other_does = does;
	assert_int_equal(sem_init(&other_waits, 0, 0), 0);
	cable.agent = begin_other;
	sent_by[0] = engine_send(conns[CLIENT], ends[CLIENT], &iov, 1, 0, &(enum zc_path){ PATH_BSDP });
	if (sent_by[0] == ENGINE_BY_KERNEL)
		sent_by[0] = send_raw("AAAA", 4);
	assert_true(other_began);
	assert_int_equal(pthread_join(other, &its), 0);
	sent_by[1] = (ssize_t)(intptr_t)its;
	cable.agent = answer;
	await_readable(ends[SERVER]);
	while ((rc = receive_some(SERVER, got + all, sizeof(got) - (size_t)all, MSG_DONTWAIT)) > 0)
		all += rc;
	for (ssize_t i = 0; i < all; i++)
		assert_int_equal(got[i], 'A');
	for (int i = 0; i < 2; i++)
		all -= sent_by[i] > 0 ? sent_by[i] : 0;
	assert_true(rc == -ECONNRESET ? all <= 0 : !all);
}

static void *sends_raw(void *unused)
{
	return (void *)(intptr_t)send_raw("AAAA", 4);
}

static void nothing_but_data_comes_where_another_thread_sends_raw(void **state)
{
	send_while(sends_raw);
}

static void *shuts(void *unused)
{
	engine_shuts(conns[CLIENT], ends[CLIENT], SHUT_WR);
	sys_call(SYS_shutdown, ends[CLIENT], SHUT_WR, 0, 0, 0, 0);
	return NULL;
}

static void nothing_but_data_comes_where_another_thread_shuts_down(void **state)
{
	send_while(shuts);
}

/* The consumer stands still: its socket fills, and what it says of a TAKEOVER does not go out any more. */
static void stream_ends_behind_a_takeover_that_was_given_up(void **state)
{
	static char data[65536];
	struct iovec iov = { data, sizeof(data) };
	uint64_t until;
	size_t put = 0, all = 0;
	ssize_t rc;

	begin_by_tcp();
	plug_at(SERVER)->cut = true;
	cable.agent = NULL;
	do {
		__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw =
			engine_raw_begins(conns[CLIENT], ends[CLIENT], MSG_DONTWAIT);

		assert_int_equal(raw.error, 0);
		raw.done = real.send(ends[CLIENT], data, sizeof(data), MSG_NOSIGNAL | MSG_DONTWAIT);
		rc = raw.done;
		put += rc > 0 ? (size_t)rc : 0;
	} while (rc > 0);
	assert_int_equal(engine_send(conns[CLIENT], ends[CLIENT], &iov, 1, MSG_DONTWAIT, &(enum zc_path){ PATH_BSDP }),
			 ENGINE_BY_KERNEL);
	assert_true(engine_of(CLIENT)->far.was_void);
	engine_shuts(conns[CLIENT], ends[CLIENT], SHUT_WR);
	assert_int_equal(sys_call(SYS_shutdown, ends[CLIENT], SHUT_WR, 0, 0, 0, 0), 0);
	/* It goes on. */
	plug_give_up(atomic_load(&fars[SERVER].link));
	until = clock_now() + 10 * NS_PER_SEC;
	while ((rc = receive_some(SERVER, data, sizeof(data), MSG_DONTWAIT)) > 0 || rc == -EAGAIN) {
		all += rc > 0 ? (size_t)rc : 0;
		assert_true(clock_now() < until);
	}
	assert_int_equal(all, put);
	assert_int_equal(rc, 0);
}

/* It may have been told: then the producer may have put bytes that nobody sends again, as it was killed. */
static void cut_off_behind_an_answer_is_no_end(void **state)
{
	char byte;

	exchange();
	assert_true(on_ring(CLIENT));
	plug_give_up(atomic_load(&fars[SERVER].link));
	assert_int_equal(sys_call(SYS_shutdown, ends[CLIENT], SHUT_WR, 0, 0, 0, 0), 0);
	await_readable(ends[SERVER]);
	assert_int_equal(receive_some(SERVER, &byte, 1, 0), -ECONNRESET);
}

static int words; /* the peer has yet, before it answers */

/* As it takes what is in front of the move. More time passes than it may be silent. */
static void has_other_words(struct plug *sleeper)
{
	struct far_part *far = &engine_of(CLIENT)->far;

	if (!words || far->out != FAR_OUT_ENTERS) {
		answer(sleeper);
		return;
	}
	words--;
	far->since -= FAR_ANSWER_NS + NS_PER_MS;
	atomic_fetch_add(&lane_from(CLIENT)->shared->received, 1); /* its line tells anew, each time */
}

/* Returns whether there is a queue pair behind it. */
static bool moves_with_words(int count, int flags)
{
	struct iovec iov = { (void *)(uintptr_t) "AAAA", 4 };
	ssize_t rc;

	begin_by_tcp();
	words = count;
	cable.agent = has_other_words;
	rc = engine_send(conns[CLIENT], ends[CLIENT], &iov, 1, flags, &(enum zc_path){ PATH_BSDP });
	assert_true(rc == 4 || rc == ENGINE_BY_KERNEL);
	assert_int_equal(rc == 4, on_ring(CLIENT));
	return atomic_load(&engine_of(CLIENT)->far.state) == FAR_UP;
}

static void peer_is_awaited_while_it_tells_of_something_else(void **state)
{
	assert_true(moves_with_words(3, 0));
	assert_true(on_ring(CLIENT));
	assert_int_equal(words, 0);
}

static void who_may_not_wait_goes_by_the_first_moment(void **state)
{
	assert_false(moves_with_words(3, MSG_DONTWAIT));
	assert_in_range(words, 1, 2);
}

static void who_may_wait_for_a_time_goes_by_that(void **state)
{
	struct timeval limit = { .tv_usec = 5 * FAR_ANSWER_NS / (2 * NS_PER_US) };

	assert_int_equal(setsockopt(ends[CLIENT], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
	assert_false(moves_with_words(1000, 0));
	assert_in_range(words, 1000 - 4, 1000 - 3);
}

static void peer_that_tells_of_all_but_the_move_is_given_up(void **state)
{
	assert_false(moves_with_words(1000, 0));
	assert_in_range(words, 1000 - 2 * FAR_ANSWERS_NS / FAR_ANSWER_NS, 999);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, finish)
		CASE(nothing_but_data_comes_where_another_thread_sends_raw),
		CASE(nothing_but_data_comes_where_another_thread_shuts_down),
		CASE(stream_ends_behind_a_takeover_that_was_given_up),
		CASE(cut_off_behind_an_answer_is_no_end),
		CASE(peer_is_awaited_while_it_tells_of_something_else),
		CASE(who_may_not_wait_goes_by_the_first_moment),
		CASE(who_may_wait_for_a_time_goes_by_that),
		CASE(peer_that_tells_of_all_but_the_move_is_given_up),
	};
#undef CASE

	use_rings(1 << 16);
	settings.rdma_again_ms = 1000;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
