/* SPDX-License-Identifier: MIT */
/* Ways that are elsewhere than in ways.c: those in which the kernel writes, by a call of the program. */
#ifndef ZC_TESTS_WAYS_H
#define ZC_TESTS_WAYS_H

#include "mutate.h"

/* Returns other bytes of the same length, to write from. */
unsigned char *other_bytes(const struct target *target);

void by_read(struct target *target);
void by_pread(struct target *target);
void by_readv(struct target *target);
void by_preadv(struct target *target);
void by_syscall(struct target *target);
void by_instruction(struct target *target);
void by_fread(struct target *target);
void recv_into(struct target *target);
void recvmsg_into(struct target *target);
void by_getrandom(struct target *target);
void by_process_vm_readv(struct target *target);

#endif
