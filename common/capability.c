/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "common/capability.h"

#include <linux/capability.h>
#include <string.h>

#include "common/sys.h"

#define INITIAL_NAMESPACE "user:[4026531837]" /* the same number everywhere: include/linux/proc_ns.h */

bool capability_here(int number)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { 0 };

	return sys_call(SYS_capget, (long)&header, (long)data, 0, 0, 0, 0) == 0 &&
	       data[number / 32].effective >> number % 32 & 1;
}

bool capability_everywhere(int number)
{
	char name[64] = "";

	return capability_here(number) &&
	       sys_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/ns/user", (long)name, sizeof(name) - 1, 0, 0) > 0 &&
	       !strcmp(name, INITIAL_NAMESPACE);
}
