/* SPDX-License-Identifier: MIT */
/*
 * The masks of a thread that moves off its core. What the kernel does with them is modelled (a seccomp filter traps the calls), as
 * a machine with few cores cannot show a cpuset that grows; one test is without the model, on the cores there are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include <cmocka.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/spread.h"

#define OWN_NONE 0ul

/* A kernel of 64 cores: what it lets the thread have is both the cpuset's and the thread's own, if it has asked for any. */
static struct {
	unsigned long cpuset, own;
	int sets;     /* calls so far */
	int refused;  /* the call that fails, counted from 1; 0: none */
	bool blind;   /* after the first call the mask can't be asked for */
	bool avoided; /* at some time the thread was kept off its core */
} kernel;

static int core; /* that the test's threads really run on */

static unsigned long effective(void)
{
	unsigned long both = kernel.cpuset & kernel.own;

	return kernel.own != OWN_NONE && both ? both : kernel.cpuset;
}

static long answer_set(unsigned long mask)
{
	if (++kernel.sets == kernel.refused)
		return -ENOMEM;
	if (!(mask & kernel.cpuset))
		return -EINVAL;
	kernel.own = mask;
	kernel.avoided |= !(effective() & 1ul << core);
	return 0;
}

static long answer(long number, long bytes, unsigned long *mask)
{
	if (bytes < (long)sizeof(*mask))
		return -EINVAL;
	if (number == SYS_sched_setaffinity)
		return answer_set(*mask);
	if (kernel.blind && kernel.sets)
		return -EPERM;
	*mask = effective();
	return sizeof(*mask);
}

static void trapped(int number, siginfo_t *info, void *context)
{
	ucontext_t *at = context;
#if defined(__x86_64__)
	greg_t *regs = at->uc_mcontext.gregs;

	regs[REG_RAX] = answer(info->si_syscall, regs[REG_RSI], (unsigned long *)regs[REG_RDX]);
#else
	unsigned long long *regs = at->uc_mcontext.regs;

	regs[0] = (unsigned long long)answer(info->si_syscall, (long)regs[1], (unsigned long *)regs[2]);
#endif
}

/* For this thread alone. */
static bool model_the_kernel(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setaffinity, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };
	/* Not by the library's own calls: a process with a filter does not move. */
	return !sys_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0) &&
	       !sys_call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&filter, 0, 0, 0);
}

/* In a thread of its own, as it remembers when it has moved last: finds a peer on its core. */
static void *meet_on_one_core(void *unused)
{
	static struct lane_shared from_peer;
	static struct engine engine;

	engine.role = ROLE_CLIENT;
	engine.channel.in.shared = &from_peer;
	atomic_store(&from_peer.cpu, (uint32_t)sched_getcpu() + 1);
	errno = EDOM;
	spread_apart(&engine);
	return (void *)(intptr_t)errno;
}

static void *meet_in_model(void *unused)
{
	return model_the_kernel() ? meet_on_one_core(NULL) : NULL;
}

static void move(void)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO }, cmocka;
	pthread_t thread;
	void *left_errno;

	assert_int_equal(sigaction(SIGSYS, &action, &cmocka), 0);
	assert_int_equal(pthread_create(&thread, NULL, meet_in_model, NULL), 0);
	assert_int_equal(pthread_join(thread, &left_errno), 0);
	assert_int_equal(sigaction(SIGSYS, &cmocka, NULL), 0);
	assert_int_equal((intptr_t)left_errno, EDOM);
}

/* A cpuset of the thread's core and three others, and what the thread has asked for. */
static void given(unsigned long own)
{
	memset(&kernel, 0, sizeof(kernel));
	kernel.cpuset = 0xful << core / 4 * 4;
	kernel.own = own;
}

static unsigned long core_and_another(void)
{
	return 3ul << core / 2 * 2;
}

static void thread_without_mask_follows_its_cpuset(void **state)
{
	given(OWN_NONE);
	move();
	assert_true(kernel.avoided);
	assert_true(effective() == kernel.cpuset);
	kernel.cpuset = ~0ul;
	assert_true(effective() == ~0ul);
}

static void own_mask_is_put_back(void **state)
{
	given(core_and_another());
	move();
	assert_true(kernel.avoided);
	kernel.cpuset = ~0ul;
	assert_true(effective() == core_and_another());
}

static void only_core_is_kept(void **state)
{
	given(1ul << core);
	move();
	assert_int_equal(kernel.sets, 0);
}

static void refusal_leaves_the_mask(void **state)
{
	const unsigned long own[] = { OWN_NONE, core_and_another() };

	for (int refused = 1; refused <= 2; refused++) {
		for (int i = 0; i < 2; i++) {
			unsigned long before;

			given(own[i]);
			kernel.refused = refused;
			before = effective();
			move();
			assert_true(kernel.sets >= refused);
			assert_true(effective() == before);
		}
	}
}

static void mask_that_cannot_be_asked_for_is_put_back(void **state)
{
	given(core_and_another());
	kernel.blind = true;
	move();
	assert_true(kernel.avoided);
	assert_true(effective() == core_and_another());
}

static void *meet_and_tell_mask(void *mask)
{
	meet_on_one_core(NULL);
	sched_getaffinity(0, sizeof(cpu_set_t), mask);
	return NULL;
}

static void real_mask_is_as_before(void **state)
{
	cpu_set_t before, after;
	pthread_t thread;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(pthread_create(&thread, NULL, meet_and_tell_mask, &after), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(CPU_EQUAL(&before, &after));
}

/* The model has no say in where a thread really runs: on this core. */
static int stay_here(void **state)
{
	unsigned long mask[128] = { 0 };
	long bytes = sys_call(SYS_sched_getaffinity, 0, sizeof(mask), (long)mask, 0, 0, 0);

	for (core = 0; core < 63 && !(mask[0] & 1ul << core);)
		core++;
	memset(mask, 0, sizeof(mask));
	mask[0] = 1ul << core;
	if (bytes <= 0 || sys_call(SYS_sched_setaffinity, 0, bytes, (long)mask, 0, 0, 0) < 0)
		return -1;
	return 0;
}

int main(void)
{
	const struct CMUnitTest real[] = { cmocka_unit_test(real_mask_is_as_before) };
	const struct CMUnitTest modelled[] = {
		cmocka_unit_test(thread_without_mask_follows_its_cpuset),
		cmocka_unit_test(own_mask_is_put_back),
		cmocka_unit_test(only_core_is_kept),
		cmocka_unit_test(refusal_leaves_the_mask),
		cmocka_unit_test(mask_that_cannot_be_asked_for_is_put_back),
	};
	int failed = cmocka_run_group_tests(real, NULL, NULL);

	return failed + cmocka_run_group_tests(modelled, stay_here, NULL);
}
