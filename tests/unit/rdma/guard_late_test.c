/* SPDX-License-Identifier: MIT */
/* The guard's thread where whoever starts it does not go on for a long time: the machine is busy. */
#define _GNU_SOURCE
#include "guard_testing.h"

#include "common/thread.h"

#define BUSY_S 2 /* longer than an idle one stays */

/* In the place of the one in common/: it comes back when the thread has ended, or after a time. */
int thread_start(void *(*body)(void *), void *arg, size_t stack_bytes)
{
	struct timespec until;
	pthread_t thread;

	if (pthread_create(&thread, NULL, body, arg))
		return -EAGAIN;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += BUSY_S;
	if (pthread_timedjoin_np(thread, NULL, &until))
		pthread_detach(thread);
	return 0;
}

static void thread_that_is_started_late_is_there(void **state)
{
	unsigned char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct owner owner = { 0 };
	struct guard_record *record;

	if (guard_start(GUARD_UFFD) != GUARD_UFFD)
		skip();
	fill(at, 4 * PAGE, 1);
	assert_int_equal(guard_protect(at, 4 * PAGE, &pinned_ops, &owner, &record), 0);
	alarm(20); /* a write that waits for ever */
	at[PAGE] ^= 1;
	alarm(0);
	guard_release(record);
	munmap(at, 4 * PAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(thread_that_is_started_late_is_there) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
