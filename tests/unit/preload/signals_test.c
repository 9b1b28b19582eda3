/* SPDX-License-Identifier: MIT */
/* Whether a thread is in a handler of the program's, and what its mask is: signals.h. The wrapper is the test's own. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "preload/signals.h"
#include "rdma/guard.h"

static bool told, jumps;
static int flags;
static sigjmp_buf back;

static void handler(int number)
{
	struct signals_running outer = signals_running;

	signals_running = (struct signals_running){ number, !(flags & (int)SA_NODEFER) };
	told = signals_interrupt();
	if (number == SIGUSR1)
		raise(SIGUSR2);
	told &= signals_interrupt(); /* again in the first one's */
	if (jumps)
		siglongjmp(back, 1);
	signals_running = outer;
}

static void strike(int number, int how)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = how };

	flags = how;
	told = false;
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	assert_int_equal(sigaction(SIGUSR2, &action, NULL), 0);
	raise(number);
}

static void handler_interrupts_until_it_returns(void **state)
{
	assert_false(signals_interrupt());
	strike(SIGUSR2, 0);
	assert_true(told);
	assert_false(signals_interrupt());
	strike(SIGUSR1, 0);
	assert_true(told);
	assert_false(signals_interrupt());
	strike(SIGUSR1, (int)SA_NODEFER);
	assert_true(told);
	assert_false(signals_interrupt());
}

static void handler_that_was_left_by_a_jump_has_ended(void **state)
{
	jumps = true;
	if (!sigsetjmp(back, 1))
		strike(SIGUSR2, 0);
	jumps = false;
	assert_true(told);
	assert_int_equal(signals_running.signal, SIGUSR2);
	assert_false(signals_interrupt());
	assert_int_equal(signals_running.signal, 0);
}

static void make(sigset_t *set, int a, int b)
{
	sigemptyset(set);
	if (a)
		sigaddset(set, a);
	if (b)
		sigaddset(set, b);
}

/* What the kernel is given for a mask with `a` and `b` is one with `c` and `d`. */
static void check_given(int how, int a, int b, int c, int d)
{
	sigset_t set, want, room;
	const sigset_t *given;

	make(&set, a, b);
	make(&want, c, d);
	given = signals_given(how, &set, &room);
	assert_ptr_equal(given, &room);
	for (int i = 1; i <= 64; i++)
		assert_int_equal(sigismember(given, i), sigismember(&want, i));
}

static void another_signal_is_blocked_in_the_place_of_faults(void **state)
{
	sigset_t set, room;

	check_given(SIG_BLOCK, SIGSEGV, SIGUSR1, SIGSTKFLT, SIGUSR1);
	check_given(SIG_SETMASK, SIGSEGV, SIGSTKFLT, SIGSTKFLT, 0);
	/* A fault that was sent by kill waits in earnest. */
	check_given(SIG_UNBLOCK, SIGSEGV, 0, SIGSTKFLT, SIGSEGV);
	/* Of whom has all blocked but faults. */
	check_given(SIG_BLOCK, SIGSTKFLT, SIGUSR1, SIGUSR1, 0);
	check_given(SIG_UNBLOCK, SIGSTKFLT, SIGUSR1, SIGUSR1, 0);
	assert_null(signals_given(SIG_BLOCK, NULL, &room));
	make(&set, SIGSTKFLT, 0);
	assert_true(signals_faults_blocked(&set));
	signals_told(&set);
	assert_true(sigismember(&set, SIGSEGV));
	make(&set, SIGUSR1, 0);
	assert_false(signals_faults_blocked(&set));
	signals_told(&set);
	assert_false(sigismember(&set, SIGSEGV));
}

static void what_was_inherited_is_let_in_and_given_on(void **state)
{
	sigset_t set, now;

	make(&set, SIGSEGV, SIGUSR1);
	assert_int_equal(sigprocmask(SIG_SETMASK, &set, NULL), 0);
	assert_true(signals_start());
	assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	assert_false(sigismember(&now, SIGSEGV));
	assert_true(sigismember(&now, SIGUSR1));
	assert_true(signals_faults_blocked(&now));
	assert_true(signals_before_exec());
	assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	assert_true(sigismember(&now, SIGSEGV));
	assert_false(signals_before_exec());
	signals_exec_failed(true);
	assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	assert_false(sigismember(&now, SIGSEGV));
	/* From a program that knows nothing of this, and has faults open. */
	make(&set, SIGSTKFLT, 0);
	assert_int_equal(sigprocmask(SIG_SETMASK, &set, NULL), 0);
	assert_false(signals_start());
	assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &now), 0);
	assert_false(signals_faults_blocked(&now));
	assert_false(signals_before_exec());
}

static void masks_are_left_alone_without_that_guard(void **state)
{
	sigset_t set, room;

	make(&set, SIGSEGV, 0);
	assert_ptr_equal(signals_given(SIG_BLOCK, &set, &room), &set);
	make(&set, SIGSTKFLT, 0);
	signals_told(&set);
	assert_false(sigismember(&set, SIGSEGV));
}

static int start(void **state)
{
	return guard_start(GUARD_MPROTECT) == GUARD_MPROTECT ? 0 : -1;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handler_interrupts_until_it_returns),
		cmocka_unit_test(handler_that_was_left_by_a_jump_has_ended),
		cmocka_unit_test(masks_are_left_alone_without_that_guard),
		cmocka_unit_test_setup(another_signal_is_blocked_in_the_place_of_faults, start),
		cmocka_unit_test_setup(what_was_inherited_is_let_in_and_given_on, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
