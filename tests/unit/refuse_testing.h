/* SPDX-License-Identifier: MIT */
/* A system call that the kernel refuses from here on, as in a sandbox. */
#ifndef ZC_TESTS_REFUSE_TESTING_H
#define ZC_TESTS_REFUSE_TESTING_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "common/sys.h"

/* For this thread and those that it starts, for good. Returns whether it could be had. */
static inline bool refuse_call(unsigned int number, unsigned int error)
{
	struct sock_filter rows[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(rows) / sizeof(rows[0]), rows };

	/* Not by the library's own calls: it keeps away from a process with a filter. */
	return !sys_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0) &&
	       !sys_call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&filter, 0, 0, 0);
}

#endif
