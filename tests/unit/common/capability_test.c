/* SPDX-License-Identifier: MIT */
/* What a thread may do is told as it is now, and root of another user namespace may do nothing on the whole machine. */
#define _GNU_SOURCE
#include "common/capability.h"

#include <linux/capability.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/sys.h"

#define CAN_NOT 77

/* Runs a part in a child, as what it gives up is gone for good. Returns its exit status. */
static int in_child(int (*part)(void))
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child)
		_exit(part());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int give_up_the_lock(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	bool had;

	if (sys_call(SYS_capget, (long)&header, (long)data, 0, 0, 0, 0) < 0)
		return 1;
	had = data[0].effective >> CAP_IPC_LOCK & 1;
	if (capability_here(CAP_IPC_LOCK) != had)
		return 2;
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	if (sys_call(SYS_capset, (long)&header, (long)data, 0, 0, 0, 0) < 0)
		return 3;
	if (capability_here(CAP_IPC_LOCK) || capability_everywhere(CAP_IPC_LOCK))
		return 4;
	return data[0].effective >> CAP_SYS_PTRACE & 1 && !capability_here(CAP_SYS_PTRACE) ? 5 : 0;
}

static void what_was_given_up_is_not_there_any_more(void **state)
{
	(void)state;
	assert_int_equal(in_child(give_up_the_lock), 0);
}

static int become_root_elsewhere(void)
{
	if (unshare(CLONE_NEWUSER) < 0)
		return CAN_NOT;
	if (!capability_here(CAP_IPC_LOCK))
		return 1;
	return capability_everywhere(CAP_IPC_LOCK) ? 2 : 0;
}

static void root_of_another_namespace_has_none_everywhere(void **state)
{
	int status = in_child(become_root_elsewhere);

	(void)state;
	if (status == CAN_NOT)
		skip();
	assert_int_equal(status, 0);
}

static void root_of_the_machine_has_it(void **state)
{
	char name[64] = "";

	(void)state;
	if (!capability_here(CAP_IPC_LOCK) || readlink("/proc/self/ns/user", name, sizeof(name) - 1) < 0 ||
	    strcmp(name, "user:[4026531837]") != 0)
		skip();
	assert_true(capability_everywhere(CAP_IPC_LOCK));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_given_up_is_not_there_any_more),
		cmocka_unit_test(root_of_another_namespace_has_none_everywhere),
		cmocka_unit_test(root_of_the_machine_has_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
