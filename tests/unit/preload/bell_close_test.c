/* SPDX-License-Identifier: MIT */
/*
 * A doorbell that is on its way when the last end that could receive it goes: the kernel answers it by a reset, which would meet
 * the peer's program. The way is made long by a filter: this process's first receive finds nothing yet, and only then does the byte
 * come.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include "common/sys.h"
#include "met_testing.h"
#include "preload/evict.h"

static volatile sig_atomic_t asked; /* how often the stream was asked for bytes */
static volatile sig_atomic_t comes; /* at which of them the doorbell comes; 0: never */

#if defined(__x86_64__)
#define REGISTERS uc_mcontext.gregs
enum { FIRST = REG_RDI, SECOND = REG_RSI, THIRD = REG_RDX, FOURTH = REG_R10, RESULT = REG_RAX };
#elif defined(__aarch64__)
#define REGISTERS uc_mcontext.regs
enum { FIRST = 0, SECOND = 1, THIRD = 2, FOURTH = 3, RESULT = 0 };
#endif

/* In recvfrom's stead: the same call by another name. */
static void received(int number, siginfo_t *info, void *at)
{
	ucontext_t *context = at;
	struct iovec iov = { (void *)context->REGISTERS[SECOND], (size_t)context->REGISTERS[THIRD] };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	(void)number;
	(void)info;
	asked++;
	context->REGISTERS[RESULT] = sys_call(SYS_recvmsg, (long)context->REGISTERS[FIRST], (long)&message,
					      (long)context->REGISTERS[FOURTH], 0, 0, 0);
	if (asked == comes)
		sys_call(SYS_sendto, ends[0], (long)"", 1, MSG_DONTWAIT, 0, 0);
}

/* In each part of a test: between them cmocka takes the signal for its own. */
static void answer_traps(void)
{
	struct sigaction trap = { .sa_sigaction = received, .sa_flags = SA_SIGINFO };

	assert_int_equal(sigaction(SIGSYS, &trap, NULL), 0);
}

static int start(void **state)
{
	answer_traps();
	comes = 0;
	return connect_ends(state);
}

static int end(void **state)
{
	answer_traps();
	return close_ends(state);
}

static void trap_receives(void)
{
	struct sock_filter rows[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(rows) / sizeof(rows[0]), rows };

	assert_int_equal(sys_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0), 0);
	assert_int_equal(sys_call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&filter, 0, 0, 0), 0);
}

/* The peer has rung, the kernel has it, and it is not here yet. */
static void ring_from_afar(void)
{
	struct lane *lane = lane_from(0);
	char byte = 'x';

	answer_traps();
	while (lane_bells_due(&atomic_load(&conns[1]->engine)->channel.in))
		evict_bells(atomic_load(&conns[1]->engine), ends[1]);
	assert_true(lane_arm(&atomic_load(&conns[1]->engine)->channel.in));
	assert_int_equal(lane_put(lane, &(struct iovec){ &byte, 1 }, 1, 0), 1);
	assert_true(lane_must_ring(lane));
	lane_rang(lane, true);
	assert_int_equal(receive_some(1, &byte, 1, 0), 1);
	asked = 0;
	comes = 2;
}

static int unread(void)
{
	int there = -1;

	assert_int_equal(ioctl(ends[1], FIONREAD, &there), 0);
	return there;
}

static void a_close_waits_for_it(void **state)
{
	ring_from_afar();
	evict_bells(atomic_load(&conns[1]->engine), ends[1]);
	assert_true(asked > comes);
	assert_int_equal(unread(), 0);
}

static void so_does_the_second_shutdown(void **state)
{
	ring_from_afar();
	engine_shuts(conns[1], ends[1], SHUT_RD);
	assert_int_equal(asked, 0);
	engine_shuts(conns[1], ends[1], SHUT_WR);
	assert_true(asked > comes);
	assert_int_equal(unread(), 0);
}

/* Behind a shutdown(SHUT_RD) a receive that finds nothing tells an end, and the kernel answers what comes behind both by a reset. */
static void an_end_that_the_program_has_made_is_none(void **state)
{
	ring_from_afar();
	engine_shuts(conns[1], ends[1], SHUT_RD);
	assert_int_equal(shutdown(ends[1], SHUT_RD), 0);
	engine_shuts(conns[1], ends[1], SHUT_WR);
	assert_true(asked > comes);
	assert_int_equal(unread(), 0);
}

static void the_peer_s_own_end_is_one(void **state)
{
	ring_from_afar();
	comes = 0;
	assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
	evict_bells(atomic_load(&conns[1]->engine), ends[1]);
	assert_int_equal(asked, 1);
}

static void one_that_never_comes_is_not_waited_for_long(void **state)
{
	ring_from_afar();
	comes = 0;
	evict_bells(atomic_load(&conns[1]->engine), ends[1]);
	assert_true(asked > 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_close_waits_for_it, start, end),
		cmocka_unit_test_setup_teardown(so_does_the_second_shutdown, start, end),
		cmocka_unit_test_setup_teardown(an_end_that_the_program_has_made_is_none, start, end),
		cmocka_unit_test_setup_teardown(the_peer_s_own_end_is_one, start, end),
		cmocka_unit_test_setup_teardown(one_that_never_comes_is_not_waited_for_long, start, end),
	};

	settings.path = PATH_BSDP;
	settings.ring_bytes = 1 << 20;
	trap_receives();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
