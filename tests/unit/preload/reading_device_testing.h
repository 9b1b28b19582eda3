/* SPDX-License-Identifier: MIT */
/* A device by hand that READs: both ends are here, met as on one host, and are told that they are far apart. */
#ifndef ZC_TESTS_READING_DEVICE_TESTING_H
#define ZC_TESTS_READING_DEVICE_TESTING_H

#include "idle_device_testing.h"
#include "met_testing.h"
#include "preload/far_internal.h"
#include "rdma/spans.h"

static struct engine *engine_of(int end)
{
	return atomic_load(&conns[end]->engine);
}

/* GETs and exposures: of the connecting end's device. */
static struct {
	int gets, ended, exposed, hidden, reserved, ahead;
	bool silent, guarded, late; /* late: those ahead have not ended yet */
	uint64_t cookies[64];
	uint64_t registration_ns;
	bool refused;	      /* what is to be reserved */
	uint64_t told_at_get; /* up to where the peer had been told that all is known */
} reads;

static ssize_t get(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
		   int count, size_t skip, unsigned int how, uint64_t cookie)
{
	reads.told_at_get = atomic_load(&engine_of(1)->channel.in.shared->seen);
	reads.cookies[reads.gets++ % 64] = cookie;
	reads.ahead += cookie != 0;
	if (!reads.silent && bytes == sizeof(uint64_t)) { /* a word, which the peer may change meanwhile */
		uint64_t word = atomic_load((_Atomic uint64_t *)(uintptr_t)from->address);

		scatter(iov, count, skip, (void *)&word, bytes);
	} else if (!reads.silent)
		scatter(iov, count, skip, (void *)(uintptr_t)from->address, bytes);
	return (ssize_t)bytes;
}

static int got(struct verbs_conn *conn, struct verbs_got *out)
{
	/* In turn, but that those ahead may be held up. */
	for (int i = reads.ended; i < reads.gets; i++) {
		uint64_t cookie = reads.cookies[i % 64];

		if ((reads.silent && !device_given_up) || (cookie && reads.late))
			continue;
		reads.cookies[i % 64] = reads.cookies[reads.ended % 64];
		reads.ended++;
		*out = (struct verbs_got){ .cookie = cookie, .error = device_given_up ? -ENOTCONN : 0 };
		return 1;
	}
	return 0;
}

static int gets_left(struct verbs_conn *conn)
{
	return 16;
}

static uint64_t registration_ns(size_t bytes)
{
	return reads.registration_ns;
}

static int reserve(struct verbs_conn *conn, const void *at, size_t bytes, bool spares, struct verbs_region **out)
{
	static int region;

	assert_ptr_equal(at, engine_of(1)->channel.in.area);
	reads.reserved++;
	assert_int_equal(spares, !settings.recv_async);
	if (reads.refused)
		return -ENOMEM;
	*out = (struct verbs_region *)&region;
	return 0;
}

static int expose(struct verbs_conn *conn, const void *at, size_t bytes, struct verbs_remote *remote,
		  struct verbs_region **out)
{
	static int regions[64];

	if (reads.guarded)
		return -EFAULT;
	*remote = (struct verbs_remote){ (uintptr_t)at, 1 };
	*out = (struct verbs_region *)&regions[reads.exposed++ % 64];
	return 0;
}

static void hide(struct verbs_conn *conn, struct verbs_region *region)
{
	reads.hidden++;
}

static size_t no_sink(struct verbs_conn *conn)
{
	return 0;
}

static const struct verbs_table reading_device = {
	IDLE_DEVICE,	   .get = get,	       .got = got,
	.gets = gets_left, .reserve = reserve, .sink = no_sink,
	.expose = expose,  .hide = hide,       .registration_ns = registration_ns,
};

static struct far fars[2];

/* Both ends are far, with a device that reads. */
static int connect_far(void **state)
{
	if (connect_ends(state))
		return -1;
	memset(&reads, 0, sizeof(reads));
	device_given_up = false;
	far_verbs = &reading_device;
	for (int end = 0; end < 2; end++) {
		fars[end] = (struct far){ .conn = conns[end], .link = (struct verbs_conn *)&reading_device };
		conns[end]->far = &fars[end];
		far_sources_begin(conns[end], engine_of(end));
		lane_from(end)->codes = engine_of(end)->channel.in.passed_codes = 0x030201;
		atomic_store(&engine_of(end)->far.state, FAR_UP);
	}
	return 0;
}

static int close_far(void **state)
{
	for (int end = 0; end < 2; end++) {
		conns[end]->far = NULL;
		engine_of(end)->far.out = FAR_OUT_FREE;
		atomic_store(&engine_of(end)->far.state, FAR_NONE);
	}
	return close_ends(state);
}

/* Announces by the connecting end. Returns the source's number. */
static uint64_t announce(const void *bytes, size_t count)
{
	struct lock_hold hold;
	uint64_t number;

	assert_true(lock_take(&engine_of(0)->out, &hold));
	assert_int_equal(far_sources_open(conns[0], engine_of(0)), 0);
	assert_int_equal(far_expose(conns[0], engine_of(0), bytes, count), 0);
	assert_int_equal(far_announce(conns[0], engine_of(0), bytes, count, &(bool){ false }, &number), 0);
	lock_give(&engine_of(0)->out, &hold);
	return number;
}

static char source[40000], sink[40000];

#endif
