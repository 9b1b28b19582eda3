/* SPDX-License-Identifier: MIT */
/* What the kernel lets this thread do: capabilities(7), by number (linux/capability.h), as they are now. */
#ifndef ZC_COMMON_CAPABILITY_H
#define ZC_COMMON_CAPABILITY_H

#include <stdbool.h>

/* Within its own user namespace, as ptrace asks. */
bool capability_here(int number);

/*
 * On the whole machine, as the kernel's capable() asks for locked memory (CAP_IPC_LOCK) and for faults of its own (CAP_SYS_PTRACE): root of
 * another user namespace has none. Without /proc nobody can tell: false.
 */
bool capability_everywhere(int number);

#endif
