/* SPDX-License-Identifier: MIT */
/* What the tests of later.h share: both ends with buffers, and a gate that holds the thread's GETs back while a test looks. */
#ifndef ZC_TESTS_UNIT_RDMA_LATER_TESTING_H
#define ZC_TESTS_UNIT_RDMA_LATER_TESTING_H

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include "rdma/later.h"
#include "source_testing.h"

#define PAGE 4096ul
#define PAGES 40ul
#define BYTES (PAGES * PAGE)

static uint8_t *to;   /* the receiver's buffer: ordinary memory, all there */
static uint8_t *from; /* the sender's */
static size_t got;
static _Atomic bool closed;
static pthread_t self;

static inline void wait_at_the_gate(void)
{
	while (atomic_load(&closed) && !pthread_equal(pthread_self(), self))
		sched_yield();
}

static inline uint8_t *map_bytes(size_t bytes, int flags)
{
	uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	memset(at, 0xee, bytes);
	return at;
}

static inline int begin(void **state)
{
	if (make_channel(state) < 0)
		return -1;
	self = pthread_self();
	atomic_store(&closed, false);
	before_get = wait_at_the_gate;
	to = map_bytes(BYTES, MAP_PRIVATE);
	from = map_bytes(BYTES, MAP_PRIVATE);
	fill(from, 0, BYTES);
	receiving.sources_in.later_min = PAGE;
	return 0;
}

static inline int end(void **state)
{
	atomic_store(&closed, false);
	later_settle_lane(receiving.in.shared);
	later_forget(to, BYTES);
	munmap(to, BYTES);
	munmap(from, BYTES);
	return drop_channel(state);
}

static inline bool can_be_later(void)
{
	int rc;

	while ((rc = later_start()) == -EAGAIN)
		sched_yield();
	if (rc == -ENOTSUP)
		print_message("no userfaultfd that sees the kernel's faults and knows poison\n");
	else
		assert_int_equal(rc, 0);
	return !rc;
}

#define NEEDS_LATER()                                                                                                  \
	do {                                                                                                           \
		if (!can_be_later())                                                                                   \
			skip();                                                                                        \
	} while (0)

/* Whether the page has been filled, by what the kernel says: a look at it would wait. */
static inline bool is_there(const uint8_t *page)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry = 0;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &entry, 8, (off_t)((uintptr_t)page / PAGE * 8)), 8);
	close(fd);
	return entry >> 63;
}

static inline uint64_t announce(size_t at, size_t bytes)
{
	uint64_t number;

	assert_int_equal(source_announce(&sending.out, from + at, bytes, &number), 0);
	return number;
}

static inline void receive(size_t at, size_t bytes)
{
	assert_int_equal(get(to + at, bytes, false, &got), LANE_DATA);
	assert_int_equal(got, bytes);
}

/* What is fetched later waits at the gate. */
static inline void receive_gated(size_t at, size_t bytes)
{
	atomic_store(&closed, true);
	receive(at, bytes);
}

/* Announces all there is, and receives it: the GET is under way. Returns the number of the source. */
static inline uint64_t promise_all(void)
{
	uint64_t number;

	shake_hands();
	number = announce(0, BYTES);
	receive_gated(0, BYTES);
	return number;
}

static inline void open_the_gate(void)
{
	atomic_store(&closed, false);
}

static inline void all_is_right(size_t bytes)
{
	assert_int_equal(wrong_from(to, 0, bytes), bytes);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

#endif
