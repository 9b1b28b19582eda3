/* SPDX-License-Identifier: MIT */
/*
 * The real functions behind the intercepted ones. A pointer is never NULL: each starts at a stub that resolves the whole
 * table and forwards, so that no wrapper asks whether we are initialised (the first call of a process may be a recv on an
 * inherited socket). A function that this libc does not have fails with ENOSYS.
 */
#ifndef ZC_PRELOAD_REAL_H
#define ZC_PRELOAD_REAL_H

#include <aio.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <threads.h>

#undef fread_unlocked /* stdio.h may make a macro of it */

#define ZC_EXPORT __attribute__((visibility("default")))

struct real {
#define ZC_CALL(ret, name, params, args) ret(*name) params;
#define ZC_VOID(name, params, args) void(*name) params;
#define ZC_NORETURN(name, params, args) void(*name) params;
#define ZC_VARIADIC(ret, name, params) ret(*name) params;
#define ZC_JUMP(ret, name, params) ret(*name) params;
#include "preload/calls.def"
};

extern struct real real;

/* Resolves every pointer, once; cheap when done. Threads: any; a second one waits for the first. */
void real_resolve(void);

/* Once more, what another library had before glibc 2.34 took it in: forkpty(). */
void real_resolve_late(void);

/* How many bytes of a block that real.free() takes are the program's; SIZE_MAX if its allocator does not tell. */
size_t real_block_bytes(void *block);

#endif
