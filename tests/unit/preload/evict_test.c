/* SPDX-License-Identifier: MIT */
/* What is in the stream when it is left to somebody who knows nothing of the library: evict.h, between hosts. */
#define _GNU_SOURCE
#include <poll.h>

#include "far_pair_testing.h"
#include "preload/far_part.h"

#define FRAME 17 /* bytes of FAR_RESUME */

static void await_stream(int end)
{
	struct pollfd look = { .fd = ends[end], .events = POLLIN };

	assert_int_equal(poll(&look, 1, 10000), 1);
}

static void give(int end, const char *data, size_t bytes)
{
	assert_int_equal(real.send(ends[end], data, bytes, MSG_NOSIGNAL), bytes);
	await_stream(1 - end);
}

/*
 * Behind a break the sender sends again what it does not know to be here. The word of that may come before these bytes, which
 * are no data to whoever gets the stream next.
 */
static void bytes_that_come_again_are_taken_before_the_stream_is_passed_on(void **state)
{
	char stream[8 * PART], next[PART];
	const struct engine *engine = engine_of(CLIENT);
	ssize_t got;

	exchange();
	put(SERVER, PART);
	cut(); /* that it was received, nobody hears */
	take_all(CLIENT);
	break_both();
	serve(SERVER);
	await_stream(CLIENT);
	got = real.recv(ends[CLIENT], stream, sizeof(stream), MSG_DONTWAIT);
	assert_true(got > FRAME && got < (ssize_t)sizeof(stream));
	serve(CLIENT); /* it notices, too */
	give(SERVER, stream, FRAME);
	assert_false(rests(CLIENT));
	assert_int_equal(engine->far.skip, got - FRAME);
	assert_true(lane_is_over(&engine->channel.in));
	give(SERVER, stream + FRAME, (size_t)got - FRAME);
	put(SERVER, PART);
	assert_true(engine_retire(conns[CLIENT], ends[CLIENT]));
	await_stream(CLIENT);
	assert_int_equal(real.recv(ends[CLIENT], next, sizeof(next), MSG_WAITALL), PART);
	for (size_t i = 0; i < PART; i++)
		assert_int_equal((uint8_t)next[i], byte_at(SERVER, received[CLIENT] + i));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_that_come_again_are_taken_before_the_stream_is_passed_on, begin,
						finish),
	};

	use_rings(1 << 16);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
