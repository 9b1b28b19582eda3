/* SPDX-License-Identifier: MIT */
/* A thread that enters seccomp's strict mode, in which a look at the clock is a fault and all system calls but four end it. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/sys.h"

static bool by_prctl(void)
{
	return !prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
}

static bool by_raw_prctl(void)
{
	return !syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
}

static bool by_seccomp(void)
{
	return !syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
}

/* Looks at the clock in strict mode, and ends with 0 if it went on. */
static void look(bool (*enter)(void))
{
	uint64_t before;

	if (!enter())
		sys_call(SYS_exit, 2, 0, 0, 0, 0, 0);
	before = clock_now();
	sys_call(SYS_exit, clock_now() > before && before ? 0 : 3, 0, 0, 0, 0, 0);
}

static void strict_mode_leaves_a_clock(void **state)
{
	bool (*const ways[])(void) = { by_prctl, by_raw_prctl, by_seccomp };
	int status;

	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		pid_t child = fork();

		assert_true(child >= 0);
		if (!child)
			look(ways[i]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
}

static bool runs(void)
{
	struct timespec begun, now;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec == begun.tv_sec && now.tv_nsec - begun.tv_nsec < 1000000);
	return clock_now() >= (uint64_t)now.tv_sec * NS_PER_SEC + (uint64_t)now.tv_nsec;
}

/* The kernel refuses it to who has a filter. */
static int try_behind_a_filter(void)
{
	struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 1, all };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 2;
	if (by_prctl() || errno != EINVAL || !runs())
		return 3;
	return by_seccomp() || errno != EINVAL || !runs() ? 4 : 0;
}

static void clock_runs_on_where_strict_mode_is_refused(void **state)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (!child)
		sys_call(SYS_exit_group, try_behind_a_filter(), 0, 0, 0, 0, 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strict_mode_leaves_a_clock),
		cmocka_unit_test(clock_runs_on_where_strict_mode_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
