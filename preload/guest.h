/* SPDX-License-Identifier: MIT */
/* What the guest, the program that we run in, has done that concerns the whole process; and the library's start in it. */
#ifndef ZC_PRELOAD_GUEST_H
#define ZC_PRELOAD_GUEST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "rdma/guard.h"

extern _Atomic bool guest_sandbox; /* it has installed a seccomp filter: no new kinds of system call */
extern _Atomic bool guest_ending;  /* exit has begun: nothing is held any more */
extern _Atomic bool
	guest_rings; /* it uses io_uring, which asks the kernel alone: no ring of ours is seen in it, no notice hidden */

static inline bool guest_sandboxed(void)
{
	return __builtin_expect(atomic_load_explicit(&guest_sandbox, memory_order_relaxed), 0);
}

/* Notes what a raw system call or prctl of the program means for us. */
void guest_notes_syscall(long number, const long *arguments);
void guest_notes_prctl(int option);

/* Whether the call would put the thread in seccomp's strict mode: read, write and exit, and no clock. */
bool guest_is_strict_prctl(int option, unsigned long mode);
bool guest_is_strict_syscall(long number, const long *arguments);

/*
 * It has made an io_uring: what that waits for, or moves, is the kernel's. All connections go on over TCP, and so do those to come.
 * Before anything can be asked by it.
 */
void guest_uses_io_uring(void);

/* The same where it was made past libc: its submissions are mapped where nobody maps another kind of file. */
#define GUEST_MAPS_SUBMISSIONS 0x10000000 /* IORING_OFF_SQES */
void guest_maps_submissions(int fd);

/*
 * Before a write to a descriptor that is no connection. /proc/self/mem writes in spite of the protection that the mprotect
 * guard relies on.
 */
void guest_writes_proc(int fd);

static inline void guest_writes_file(int fd)
{
	if (__builtin_expect(guard_active(), 0) && guard_needs_settling())
		guest_writes_proc(fd);
}

/*
 * Memory that a program names and the kernel would look at: copies it, without a fault. Return false if it is none (EFAULT), or may
 * not be read, or written. In a sandbox, where the kernel can't be asked, it is taken for some.
 */
bool guest_read(const void *from, void *to, size_t bytes);
bool guest_write(void *to, const void *from, size_t bytes);

/*
 * Start-up, in order: memory, settings, log, statistics, rules, guard, inherited descriptors. Each row works by itself; what
 * fails is off and the program runs on over TCP. Runs as the library's constructor; harmless a second time.
 */
void guest_start(void);

/* The same before any constructor has run, if it can't wait. Not in unit tests. */
void guest_start_early(void) __attribute__((weak));

#endif
