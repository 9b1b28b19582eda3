/* SPDX-License-Identifier: MIT */
/* The guard against threads that change mappings by raw system calls while others send, write and settle. */
#include "guard_testing.h"

#include <sched.h>

#define ROUNDS 200
#define SIDE_BYTES (16 * PAGE)

struct racer {
	pthread_t thread;
	_Atomic bool *stop;
	_Atomic int failed; /* the line */
};

#define racer_check(racer, condition)                                                                                  \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			atomic_store(&(racer)->failed, __LINE__);                                                      \
	} while (0)

static int protect_anyhow(void *start, size_t bytes, struct owner *owner, struct guard_record **record)
{
	int rc;

	do {
		rc = guard_protect(start, bytes, &pinned_ops, owner, record);
	} while (rc == -EAGAIN); /* the guard's thread is just being made */
	return rc;
}

static bool going_on(struct racer *racer)
{
	return !atomic_load(racer->stop) && !atomic_load(&racer->failed);
}

/* Moves memory again and again while it is under guard. */
static void *mover(void *arg)
{
	struct racer *racer = arg;
	struct owner owner = { 0 };
	unsigned char *at = mmap(NULL, SIDE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	fill(at, SIDE_BYTES, 5);
	while (going_on(racer)) {
		struct guard_record *record;

		racer_check(racer, !protect_anyhow(at, SIDE_BYTES, &owner, &record));
		for (int i = 0; i < 4; i++) {
			unsigned char *to = mmap(NULL, SIDE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			racer_check(racer, mremap(at, SIDE_BYTES, SIDE_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
			at = to;
		}
		at[PAGE] ^= 1;
		guard_release(record);
		at[PAGE] ^= 1;
		racer_check(racer, differing(at, SIDE_BYTES, 5) == 0);
	}
	munmap(at, SIDE_BYTES);
	return NULL;
}

/* Sends, then writes or settles or drops a part, and looks whether all is as it should be. */
static void *user(void *arg)
{
	struct racer *racer = arg;
	struct owner owner = { 0 };
	unsigned char *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (unsigned int round = 0; round < ROUNDS && going_on(racer); round++) {
		struct guard_record *record;

		fill(buffer, BYTES, round);
		racer_check(racer, !protect_anyhow(buffer, BYTES, &owner, &record));
		switch (round % 3) {
		case 0:
			fill(buffer, BYTES, round + 1);
			racer_check(racer, differing(buffer, BYTES, round + 1) == 0);
			break;
		case 1:
			guard_settle(buffer, BYTES);
			racer_check(racer, differing(buffer, BYTES, round) == 0);
			break;
		default:
			racer_check(racer, !madvise(buffer + BYTES / 2, PAGE, MADV_DONTNEED));
			fill(buffer, BYTES, round + 2);
			racer_check(racer, differing(buffer, BYTES, round + 2) == 0);
		}
		guard_release(record);
	}
	munmap(buffer, BYTES);
	return NULL;
}

static void moving_threads_hinder_nobody(void **state)
{
	_Atomic bool stop = false;
	struct racer moving = { .stop = &stop }, users[2] = { { .stop = &stop }, { .stop = &stop } };

	if (guard_needs_settling())
		skip(); /* what it replaces are mappings of their own, which mremap does not take */
	catch_segv();
	assert_int_equal(pthread_create(&moving.thread, NULL, mover, &moving), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&users[i].thread, NULL, user, &users[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(users[i].thread, NULL);
	atomic_store(&stop, true);
	pthread_join(moving.thread, NULL);
	assert_int_equal(users[0].failed, 0);
	assert_int_equal(users[1].failed, 0);
	assert_int_equal(moving.failed, 0);
	assert_false(guard_active());
}

/* Everything at once in one buffer ------------------------------------------------------------------------------------- */

static unsigned char *common;

static size_t some_page(unsigned int *random)
{
	*random = *random * 1103515245 + 12345;
	return (*random >> 8) % PAGES;
}

static void *writer(void *arg)
{
	struct racer *racer = arg;
	unsigned int random = 1;

	while (going_on(racer)) {
		size_t page = some_page(&random);

		for (size_t i = page; i < PAGES && i < page + 8; i++)
			__atomic_add_fetch(&common[i * PAGE], 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Drops pages and puts other memory in their place, without a moment in which there is none. */
static void *dropper(void *arg)
{
	struct racer *racer = arg;
	unsigned int random = 2;

	while (going_on(racer)) {
		unsigned char *at = common + some_page(&random) * PAGE;

		if (some_page(&random) % 2)
			racer_check(racer, !syscall(SYS_madvise, at, PAGE, MADV_DONTNEED));
		else
			racer_check(racer,
				    syscall(SYS_mmap, at, PAGE, PROT_READ | PROT_WRITE,
					    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (long)(uintptr_t)at);
		sched_yield();
	}
	return NULL;
}

static void nobody_waits_for_ever_where_pages_vanish(void **state)
{
	_Atomic bool stop = false;
	struct racer writing = { .stop = &stop }, dropping = { .stop = &stop };
	struct owner owner = { 0 };
	unsigned int random = 3;
	int guarded = 0;

	catch_segv();
	common = map_buffer(BYTES);
	fill(common, BYTES, 1);
	assert_int_equal(pthread_create(&writing.thread, NULL, writer, &writing), 0);
	assert_int_equal(pthread_create(&dropping.thread, NULL, dropper, &dropping), 0);
	for (int round = 0; round < 5 * ROUNDS || !guarded; round++) {
		struct guard_record *record;
		size_t first = some_page(&random), pages = some_page(&random) % (PAGES - first) + 1;

		for (size_t i = first; i < first + pages; i++)
			__atomic_add_fetch(&common[i * PAGE], 1, __ATOMIC_RELAXED);
		if (guard_protect(common + first * PAGE, pages * PAGE, &pinned_ops, &owner, &record))
			continue; /* some page has just been dropped */
		guarded++;
		sched_yield();
		if (guarded % 2)
			guard_settle(common + first * PAGE, pages * PAGE);
		guard_release(record);
	}
	atomic_store(&stop, true);
	pthread_join(writing.thread, NULL);
	pthread_join(dropping.thread, NULL);
	assert_int_equal(writing.failed, 0);
	assert_int_equal(dropping.failed, 0);
	assert_false(guard_active());
	munmap(common, BYTES);
}

/* One that has several sends under guard, and finds each of them done by another thread. */
struct shared_owner {
	pthread_barrier_t inside; /* poll() */
	_Atomic(struct guard_record *) done[2];
	_Atomic int next;
	unsigned char *buffer;
};

static void shared_poll(void *arg)
{
	struct shared_owner *owner = arg;
	int mine = atomic_fetch_add(&owner->next, 1);
	struct guard_record *record = mine < 2 ? atomic_exchange(&owner->done[mine], NULL) : NULL;

	if (!record)
		return;
	pthread_barrier_wait(&owner->inside);
	guard_release(record);
}

static const struct guard_owner_ops shared_ops = { .poll = shared_poll };

static void *write_half(void *arg)
{
	*(unsigned char *)arg ^= 1;
	return NULL;
}

static void threads_that_find_the_owners_sends_done_do_not_wait_for_each_other(void **state)
{
	struct shared_owner owner = { .buffer = map_buffer(BYTES) };
	struct guard_record *records[2];
	pthread_t threads[2];

	catch_segv();
	pthread_barrier_init(&owner.inside, NULL, 2);
	fill(owner.buffer, BYTES, 1);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(
			guard_protect(owner.buffer + i * BYTES / 2, BYTES / 2, &shared_ops, &owner, &records[i]), 0);
		atomic_store(&owner.done[i], records[i]);
	}
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_half, owner.buffer + i * BYTES / 2), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_false(guard_active());
	assert_int_equal(differing(owner.buffer, BYTES, 1), 2);
	munmap(owner.buffer, BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(nobody_waits_for_ever_where_pages_vanish),
		BOTH(moving_threads_hinder_nobody),
		cmocka_unit_test_setup(threads_that_find_the_owners_sends_done_do_not_wait_for_each_other, use_mprotect),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
