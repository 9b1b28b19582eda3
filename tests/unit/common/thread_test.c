/* SPDX-License-Identifier: MIT */
/* A thread of our own takes none of the program's signals, has the stack that was asked for, and starts where that is too small. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/thread.h"

#define SMALL_BYTES (256 * 1024)
#define LARGE_BYTES (3 * 1024 * 1024)
#define LIBCS_OWN (1ull << 31 | 1ull << 32)
#define NEVER_BLOCKED (1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1))

/* More than a small stack has room for: every thread of this program needs a larger one. */
static __thread char static_data[2 * SMALL_BYTES];

static struct {
	sem_t done;
	void *arg;
	uint64_t mask;
	size_t stack_bytes;
	int detached;
	char *data;
} seen;

static uint64_t mask_now(void)
{
	uint64_t mask = 0;

	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &mask, sizeof(mask)), 0);
	return mask;
}

static void *look(void *arg)
{
	pthread_attr_t attributes;

	syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &seen.mask, sizeof(seen.mask));
	if (!pthread_getattr_np(pthread_self(), &attributes)) {
		pthread_attr_getstacksize(&attributes, &seen.stack_bytes);
		pthread_attr_getdetachstate(&attributes, &seen.detached);
		pthread_attr_destroy(&attributes);
	}
	memset(static_data, 1, sizeof(static_data));
	seen.data = static_data;
	seen.arg = arg;
	sem_post(&seen.done);
	return NULL;
}

static void start(size_t stack_bytes)
{
	memset(&seen, 0, sizeof(seen));
	sem_init(&seen.done, 0, 0);
	errno = ENOTTY;
	assert_int_equal(thread_start(look, &seen, stack_bytes), 0);
	assert_int_equal(errno, ENOTTY);
	while (sem_wait(&seen.done))
		assert_int_equal(errno, EINTR);
	assert_ptr_equal(seen.arg, &seen);
	assert_ptr_not_equal(seen.data, static_data);
}

static void thread_blocks_all_signals_but_libcs_own(void **state)
{
	start(LARGE_BYTES);
	assert_true(seen.mask == ~(LIBCS_OWN | NEVER_BLOCKED));
}

static void callers_mask_stays(void **state)
{
	uint64_t mine = 1ull << (SIGUSR1 - 1) | 1ull << (SIGRTMAX - 1), before = mask_now();

	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mine, NULL, sizeof(mine)), 0);
	start(LARGE_BYTES);
	assert_true(mask_now() == mine);
	assert_int_equal(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before)), 0);
}

static void nobody_has_to_join_it(void **state)
{
	start(LARGE_BYTES);
	assert_int_equal(seen.detached, PTHREAD_CREATE_DETACHED);
}

static void stack_is_as_large_as_asked_for(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* always the default there */
#endif
	start(LARGE_BYTES);
	assert_in_range(seen.stack_bytes, LARGE_BYTES - 65536, LARGE_BYTES);
}

static void stack_too_small_for_static_data_gives_way_to_the_default(void **state)
{
	start(SMALL_BYTES);
	assert_true(seen.stack_bytes > sizeof(static_data));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thread_blocks_all_signals_but_libcs_own),
		cmocka_unit_test(callers_mask_stays),
		cmocka_unit_test(nobody_has_to_join_it),
		cmocka_unit_test(stack_is_as_large_as_asked_for),
		cmocka_unit_test(stack_too_small_for_static_data_gives_way_to_the_default),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
