/* SPDX-License-Identifier: MIT */
/* Whether a thread is in a handler of the program's: signals.h. The wrapper is the test's own. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "preload/signals.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handler_interrupts_until_it_returns),
		cmocka_unit_test(handler_that_was_left_by_a_jump_has_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
