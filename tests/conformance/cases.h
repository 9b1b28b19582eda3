/* SPDX-License-Identifier: MIT */
/* The cases' functions, declared from the list, and what their arguments mean. */
#ifndef ZC_CONFORMANCE_CASES_H
#define ZC_CONFORMANCE_CASES_H

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>

#include "end.h"
#include "movers.h"

enum transfer_mode { TRANSFER_BLOCKING, TRANSFER_NONBLOCKING, TRANSFER_TIMEOUTS };
#define TRANSFER(sender, mode) ((long)SENDER_##sender * 4 + (mode))
#define TRANSFER_SENDER(argument) ((argument) / 4)
#define TRANSFER_MODE(argument) ((enum transfer_mode)((argument) % 4))

enum burst_number {
#define BURST_CALL(name) BURST_##name,
#include "bursts.def"
};
enum burst_end {
	BURST_END_EXIT,
	BURST_END__EXIT,
	BURST_END_QUICK_EXIT,
	BURST_END_ABORT,
	BURST_END_KILL,
	BURST_END_RAISE,
	BURST_END_PTHREAD_KILL,
	BURST_END_EXEC,
	BURST_END_THREAD,
	BURST_END_EXIT_GROUP,
};

enum pipe_kind { PIPE_PIPE, PIPE_FIFO, PIPE_NONBLOCKING };

enum exec_by {
	EXEC_BY_FORK,
	EXEC_BY_VFORK,
	EXEC_BY_SPAWN,
	EXEC_BY_SPAWN_BEFORE, /* the actions name the number before it is the connection's */
	EXEC_BY_SPAWN_CHAIN,  /* by a number that the actions have made */
	EXEC_BY_SPAWN_AGAIN,  /* after a spawn with the same actions has failed */
	EXEC_BY_SPAWN_OTHERS, /* other actions name it, too */
};

enum fork_by {
	FORK_BY_FORK,
	FORK_BY_DAEMON,
	FORK_BY_FORKPTY,
	FORK_BY_CLONE,
	FORK_BY_SYSCALL,
	FORK_BY_CLONE3,
	FORK_BY_TRAP, /* by an instruction of the program's own */
};

enum descriptor_dup { DUP_DUP, DUP_DUP2, DUP_DUP3, DUP_FCNTL, DUP_FCNTL_CLOEXEC, DUP_SYSCALL, DUP_TRAP };
enum descriptor_close {
	CLOSE_CALL,
	CLOSE_SYSCALL,
	CLOSE_TRAP,
	CLOSE_RANGE,
	CLOSE_DUP2,
	CLOSE_FROM,
	CLOSE_RANGE_LATER,
	CLOSE_RANGE_SYSCALL,
};
enum descriptor_wait { WAIT_RECV, WAIT_READ, WAIT_POLL };

enum signal_wait {
	SIGNAL_RECV,
	SIGNAL_WAITALL,
	SIGNAL_RECVMSG,
	SIGNAL_READ, /* those before and this take bytes */
	SIGNAL_POLL,
	SIGNAL_PPOLL,
	SIGNAL_SELECT,
	SIGNAL_PSELECT,
	SIGNAL_EPOLL,
	SIGNAL_EPOLL_PWAIT,
	SIGNAL_EPOLL_PWAIT2,
};

/* Who writes to a sent buffer, with SIGSEGV in its mask. */
enum mask_of {
	MASK_PLAIN, /* the mask is as it was */
	MASK_SIGPROCMASK,
	MASK_THREAD,
	MASK_INHERITED, /* of a thread that has it from the one before */
	MASK_SPAWN,	/* libc's, in posix_spawn, which writes the child's number */
	MASK_HANDLER,
	MASK_PPOLL, /* this and those behind: a handler in a wait */
	MASK_PSELECT,
	MASK_EPOLL_PWAIT,
	MASK_EPOLL_PWAIT2,
	MASK_SIGSUSPEND,
};

/* What is done by an io_uring; which may be there before the connection is, or be made past libc. */
enum uring_way { URING_POLL, URING_SET, URING_TAKES };
#define URING_WAY(argument) ((argument)&3)
#define URING_EARLY 4
#define URING_BARE 8
#define URING_LAST_NUMBER 16 /* keep_last_number() */

enum option_low { LOW_BEFORE_DATA, LOW_AFTER_DATA, LOW_LISTENER };

/* Which number of a socket is registered before it is connected; and how a registration goes. */
enum before_watched { BEFORE_FIRST, BEFORE_TWIN };
enum before_gone { BEFORE_DEL, BEFORE_CLOSE, BEFORE_CLOSE_SET };

enum asleep_how { ASLEEP_PLAIN, ASLEEP_FINE, ASLEEP_NESTED, ASLEEP_EXCLUSIVE };
#define ASLEEP_LEFT_NESTED 1
#define ASLEEP_LEFT_THREAD 2
#define ASLEEP_LEFT_NESTED_LATER 4

enum defer_order { DEFER_DELETE_FIRST, DEFER_PASS_FIRST };

enum thread_cancel { CANCEL_RECV, CANCEL_READV, CANCEL_POLL, CANCEL_EPOLL, CANCEL_SEND };

#define CASE(name, function, argument) case_function function;
#include "cases.def"

#endif
