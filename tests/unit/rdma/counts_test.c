/* SPDX-License-Identifier: MIT */
/* Which ends may be of one connection: what a machine's kernel would tell is written down here (meet_ask_test.c asks a real one). */
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/clock.h"
#include "rdma/counts.h"

#define SLACK 9

/* An accepting end that has received 100 bytes, 50 ms ago, and sent 200, 40 ms ago; and the end that did the opposite. */
static const struct counts own = { .at = 1000 * NS_PER_MS,
				   .open_ns = 60 * NS_PER_MS,
				   .sent = 200,
				   .acked = 200,
				   .received = 100,
				   .sent_ms = 40,
				   .received_ms = 50 };
static const struct counts other = { .open_ns = 61 * NS_PER_MS,
				     .sent = 100,
				     .acked = 101, /* with its SYN */
				     .received = 200,
				     .sent_ms = 50,
				     .received_ms = 40 };

static int with(const struct counts *its)
{
	return counts_compare(&own, &own, its, SLACK);
}

static void ends_of_one_agree(void **state)
{
	struct counts later = own, its = other;

	assert_int_equal(with(&other), 0);
	its.sent_ms = 50 + SLACK;
	its.received_ms = 40 - SLACK;
	assert_int_equal(with(&its), 0);
	/* Much has gone both ways while the other was asked. */
	later.at += 20 * NS_PER_MS;
	later.sent = later.acked = 900;
	later.received = 700;
	later.sent_ms = later.received_ms = 0;
	its = (struct counts){ .sent = 500, .acked = 400, .received = 300 };
	assert_int_equal(counts_compare(&own, &later, &its, SLACK), 0);
	/* The last bytes of one end, and its last segment, are on their way. */
	its = other;
	its.sent = 1000;
	its.received = 150;
	assert_int_equal(counts_compare(&(struct counts){ .at = own.at,
							  .sent = 200,
							  .acked = 150,
							  .received = 100,
							  .sent_ms = 40,
							  .received_ms = 50 },
					&own, &its, SLACK),
			 0);
}

static void who_has_received_more_than_was_sent_is_a_stranger(void **state)
{
	struct counts its = other;

	its.received = 202; /* a FIN is one more */
	assert_int_equal(with(&its), -EXDEV);
	its = other;
	its.received = 198;
	assert_int_equal(with(&its), -EXDEV);
	its = other;
	its.sent = its.acked = 98;
	assert_int_equal(with(&its), -EXDEV);
	its = other;
	its.acked = 102;
	assert_int_equal(with(&its), -EXDEV);
}

static void who_began_behind_the_accept_is_a_stranger(void **state)
{
	struct counts its = other, old = own;

	its.open_ns = 58 * NS_PER_MS;
	assert_int_equal(with(&its), -EXDEV);
	its.open_ns = 600000 * NS_PER_MS; /* it waited to be accepted */
	assert_int_equal(with(&its), 0);
	its.open_ns = 0; /* nobody knows */
	assert_int_equal(with(&its), 0);
	/* Clocks of two machines. */
	its.open_ns = 3600000 * NS_PER_MS;
	old.open_ns = 3602000 * NS_PER_MS;
	assert_int_equal(counts_compare(&old, &old, &its, SLACK), 0);
	old.open_ns = 3610000 * NS_PER_MS;
	assert_int_equal(counts_compare(&old, &old, &its, SLACK), -EXDEV);
}

static void the_same_at_another_time_is_not_believed(void **state)
{
	struct counts its = other, later = own;

	its.sent_ms = 50 + SLACK + 1;
	assert_int_equal(with(&its), -EAGAIN);
	its.sent_ms = 50 - SLACK - 1;
	assert_int_equal(with(&its), -EAGAIN);
	its = other;
	its.received_ms = 40 + SLACK + 1;
	assert_int_equal(with(&its), -EAGAIN);
	/* While the other was asked, time went by. */
	later.at += 5 * NS_PER_MS;
	later.sent_ms += 5;
	later.received_ms += 5;
	its.received_ms = 40 + SLACK + 5;
	assert_int_equal(counts_compare(&own, &later, &its, SLACK), 0);
	its.received_ms++;
	assert_int_equal(counts_compare(&own, &later, &its, SLACK), -EAGAIN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_of_one_agree),
		cmocka_unit_test(who_has_received_more_than_was_sent_is_a_stranger),
		cmocka_unit_test(who_began_behind_the_accept_is_a_stranger),
		cmocka_unit_test(the_same_at_another_time_is_not_believed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
