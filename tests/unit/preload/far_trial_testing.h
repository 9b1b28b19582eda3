/* SPDX-License-Identifier: MIT */
/* Programs and hosts of which it is known what is best, for tests of far_trial.h. */
#ifndef ZC_TESTS_FAR_TRIAL_TESTING_H
#define ZC_TESTS_FAR_TRIAL_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "preload/far_trial.h"

#define HOST 0x1234u
#define US NS_PER_US

/* A program's end of a connection. */
struct end {
	struct far_trial trial;
	uint64_t at, ring_at;
	enum far_way way;
	uint32_t sends[FAR_WAYS];
	bool moved; /* by the present send */
};

/* A host: what a send, or a turn, takes by each way, in us. */
struct costs {
	unsigned int us[FAR_WAYS];
	unsigned int move_us; /* of the lane */
	size_t buffers;	      /* of TCP: so much goes there at once when the lane has moved */
	size_t buffered;
};

static struct far_hosts hosts;
static uint64_t now;

static inline int fresh(void **state)
{
	memset(&hosts, 0, sizeof(hosts));
	now = 1;
	return 0;
}

static inline struct far_host *host(void)
{
	return far_trial_host(&hosts, HOST, now);
}

static inline void begin_send(struct end *end, size_t bytes)
{
	const struct far_send send = { bytes, end->at, end->ring_at, bytes >= 65536, now };
	enum far_way before = end->way;

	end->way = far_trial_next(&end->trial, host(), &send);
	assert_true(end->way < FAR_WAYS);
	end->moved = (end->way == FAR_BY_TCP) != (before == FAR_BY_TCP);
	end->sends[end->way]++;
	end->at += bytes;
	if (end->way != FAR_BY_TCP)
		end->ring_at += bytes;
}

static inline void forget_sends(struct end *end)
{
	memset(end->sends, 0, sizeof(end->sends));
}

/* A busy moment, now and then. */
static inline uint64_t noise(void)
{
	return rand() % 500 ? 0 : 3 * NS_PER_MS;
}

static inline void turns(struct end *end, unsigned int count, size_t bytes, const struct costs *costs)
{
	for (unsigned int i = 0; i < count; i++) {
		begin_send(end, bytes);
		now += (costs->us[end->way] + (end->moved ? costs->move_us : 0)) * US + noise();
		far_trial_came(&end->trial, now);
		now += 5 * US; /* the program */
	}
}

static inline void sends(struct end *end, unsigned int count, size_t bytes, struct costs *costs)
{
	for (unsigned int i = 0; i < count; i++) {
		begin_send(end, bytes);
		if (end->moved)
			costs->buffered = 0;
		if (end->moved)
			now += costs->move_us * US;
		if (end->way == FAR_BY_TCP && costs->buffered + bytes <= costs->buffers)
			costs->buffered += bytes;
		else
			now += costs->us[end->way] * US + noise();
	}
}

static inline const struct far_finding *found(int class)
{
	return &host()->classes[class];
}

/* Small turns, small sends, and sends of 1 MiB. */
enum { STREAM = 0, LARGE = FAR_SIZES - 1, TURN = FAR_SIZES };

#endif
