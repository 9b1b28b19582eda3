/* SPDX-License-Identifier: MIT */
/* A pair between hosts, one end of which goes on by TCP: its record comes in parts. */
#ifndef ZC_TESTS_FAR_RECORD_TESTING_H
#define ZC_TESTS_FAR_RECORD_TESTING_H

#include <netinet/tcp.h>
#include <poll.h>

#include "far_pair_testing.h"

#define CUT 5
#define LATE_S 3 /* longer than a hundred thousand looks take, after which it was given up */

static inline void await_readable(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };

	assert_int_equal(real.poll(&look, 1, 10000), 1);
}

static uint8_t record[FAR_FRAME_BYTES + 4];

/* The client's FAR_RESUME, behind which nothing is missing, and "next". Its first bytes are there. */
static inline void send_record_in_parts(uint8_t first)
{
	struct engine *engine = engine_of(CLIENT);
	const int on = 1;
	uint64_t at;

	exchange();
	break_both();
	at = atomic_load(&engine->channel.out.shared->sent);
	record[0] = first ? first : FAR_CODE_RESUME(engine->channel.out.codes);
	for (int i = 0; i < 8; i++)
		record[1 + i] = record[9 + i] = (uint8_t)(at >> 8 * i);
	memcpy(record + FAR_FRAME_BYTES, "next", 4);
	assert_int_equal(setsockopt(ends[CLIENT], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	assert_int_equal(real.send(ends[CLIENT], record, CUT, 0), CUT);
	await_readable(ends[SERVER]);
}

static inline void send_rest(void)
{
	assert_int_equal(real.send(ends[CLIENT], record + CUT, sizeof(record) - CUT, 0), sizeof(record) - CUT);
}

static inline void *send_rest_late(void *unused)
{
	const struct timespec late = { .tv_sec = LATE_S };

	nanosleep(&late, NULL);
	send_rest();
	return NULL;
}

#endif
