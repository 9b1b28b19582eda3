/* SPDX-License-Identifier: MIT */
/*
 * Where a process doubles. daemon(), forkpty() and clone() fork inside libc, where nobody can put another function in fork's place:
 * each has a wrapper of its own. A fork that none of them sees is noticed by the child (unseen.h).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/sys.h"
#include "preload/conn.h"
#include "preload/defer.h"
#include "preload/engine_source.h"
#include "preload/fork.h"
#include "preload/real.h"
#include "preload/sg.h"
#include "preload/signals.h"
#include "rdma/guard.h"
#include "rdma/later.h"

#define NULL_DEVICE makedev(1, 3)
#define NO_FORK (CLONE_VM | CLONE_SETTLS) /* the parent's memory, or thread variables that are not its copies */

uint64_t fork_begins(void)
{
	uint64_t fork;

	sg_flush_all();
	later_before_fork();
	defer_before_fork();
	fork = conn_before_fork();
	guard_before_fork();
	return fork;
}

static void go_on(bool child)
{
	guard_after_fork(child);
	later_after_fork(child);
}

pid_t fork_ends(pid_t child, uint64_t fork)
{
	int saved = errno;

	go_on(child == 0);
	if (child == 0) {
		signals_after_fork();
		threads_after_fork();
		flusher_after_fork();
	}
	conn_after_fork(child, fork);
	if (child == 0)
		table_own_refresh();
	errno = saved;
	return child;
}

/* The number is a socket's that is not connected, or nothing if there is none. */
static void put_dead(struct conn *conn, int fd)
{
	long dead, flags;

	table_put(fd, TABLE_UNKNOWN);
	if (!conn_is_same(conn, fd))
		return;
	dead = sys_call(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0, 0, 0, 0);
	flags = sys_call(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0) & FD_CLOEXEC ? O_CLOEXEC : 0;
	if (dead < 0 || sys_call(SYS_dup3, dead, fd, flags, 0, 0, 0) < 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	if (dead >= 0)
		sys_call(SYS_close, dead, 0, 0, 0, 0, 0);
}

/* What has, or may yet have, lanes that this process has no part in. The object is lost with what hangs on it. */
static void lose(struct conn *conn)
{
	for (int i = 0; i < conn->descriptors; i++)
		put_dead(conn, conn->fds[i]);
	for (uint32_t fd = 0; conn->extra && fd < table_size; fd++) {
		if (table_conn((int)fd) == conn)
			put_dead(conn, (int)fd);
	}
	atomic_store(&conn->engine, NULL);
	sources_after_fork(conn);
	conn->watches = NULL;
	atomic_store(&conn->mode, CONN_FREE);
}

static void settle_unseen(struct conn *conn)
{
	for (struct watch *watch = conn->watches; watch; watch = watch->next)
		defer_after_unseen_fork(watch);
	if (atomic_load(&conn->engine) && !conn->alone)
		lose(conn);
	else
		atomic_store(&conn->mode, CONN_PLAIN);
}

void fork_was_unseen(void)
{
	conn_each(settle_unseen);
	later_after_fork(true);
	signals_after_fork();
	threads_after_fork();
	flusher_after_fork();
	conn_after_unseen_fork();
	table_own_refresh();
}

/*
 * libc's fork() runs the program's handlers (pthread_atfork()): the first of them may wait for a thread that waits for the fork, in the
 * child they may close connections, and in the parent they may wait for a thread that does, or fork. Ours are registered before
 * those, so that it begins behind their last one, and is over in both before their first. Only who the child is the parent learns later.
 */
enum stage { STAGE_NONE, STAGE_CALLED, STAGE_BEGUN, STAGE_DOUBLED };

struct by_libc {
	enum stage stage;
	uint64_t fork; /* from STAGE_BEGUN on */
};

static __thread struct by_libc by_libc __attribute__((tls_model("initial-exec")));
static _Atomic bool has_handlers;

static void prepare(void)
{
	if (by_libc.stage != STAGE_CALLED)
		return;
	by_libc = (struct by_libc){ STAGE_BEGUN, fork_begins() };
}

static void begin_parent(void)
{
	if (by_libc.stage != STAGE_BEGUN)
		return;
	go_on(false);
	conn_doubles();
	by_libc.stage = STAGE_DOUBLED;
}

static void begin_child(void)
{
	if (by_libc.stage != STAGE_BEGUN)
		return;
	fork_ends(0, by_libc.fork);
	by_libc.stage = STAGE_NONE;
}

void fork_start(void)
{
	atomic_store(&has_handlers, !pthread_atfork(prepare, begin_parent, begin_child));
}

/* Before and after libc forks, handlers included. A handler, or a signal's, that forks may come in between, with a stage of its own. */
static struct by_libc call_libc(void)
{
	struct by_libc outer = by_libc;

	if (atomic_load_explicit(&has_handlers, memory_order_relaxed))
		by_libc.stage = STAGE_CALLED;
	else
		by_libc.fork = fork_begins();
	return outer;
}

static pid_t libc_has_forked(pid_t child, struct by_libc outer)
{
	struct by_libc mine = by_libc;
	int saved = errno;

	by_libc = outer;
	if (mine.stage == STAGE_BEGUN || !atomic_load_explicit(&has_handlers, memory_order_relaxed))
		return fork_ends(child, mine.fork);
	if (mine.stage == STAGE_DOUBLED)
		conn_child_is(child, mine.fork);
	errno = saved;
	return child;
}

#define FORK_BY_LIBC(call)                                                                                             \
	({                                                                                                             \
		struct by_libc outer = call_libc();                                                                    \
                                                                                                                       \
		libc_has_forked((pid_t)(call), outer);                                                                 \
	})

ZC_EXPORT pid_t fork(void)
{
	return FORK_BY_LIBC(real.fork());
}

ZC_EXPORT pid_t __fork(void)
{
	return FORK_BY_LIBC(real.__fork());
}

ZC_EXPORT pid_t _Fork(void)
{
	return FORK(real._Fork());
}

/* Returns 0 or -1, as daemon(). */
static int take_null_device(void)
{
	struct stat is;
	int fd = open("/dev/null", O_RDWR);

	if (fd < 0)
		return -1;
	if (fstat(fd, &is) < 0)
		goto fail;
	if (!S_ISCHR(is.st_mode) || is.st_rdev != NULL_DEVICE) {
		errno = ENODEV;
		goto fail;
	}
	for (int to = STDIN_FILENO; to <= STDERR_FILENO; to++)
		dup2(fd, to);
	if (fd > STDERR_FILENO)
		close(fd);
	return 0;
fail:
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return -1;
}

/* As libc has it, with the calls of this library: the parent ends, and 0 to 2 may be connections. */
ZC_EXPORT int daemon(int stays, int keeps)
{
	pid_t child = fork();

	if (child < 0)
		return -1;
	if (child)
		_exit(0);
	if (setsid() < 0)
		return -1;
	if (!stays)
		(void)!chdir("/");
	return keeps ? 0 : take_null_device();
}

/* In the child libc has put the terminal in the place of what these were. */
static void forget_standard(void)
{
	int saved = errno;

	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		conn_close(fd);
	errno = saved;
}

ZC_EXPORT int forkpty(int *terminal, char *name, const struct termios *modes, const struct winsize *size)
{
	pid_t child;

	real_resolve_late();
	child = FORK_BY_LIBC(real.forkpty(terminal, name, modes, size));
	if (child == 0)
		forget_standard();
	return child;
}

struct cloned {
	int (*run)(void *argument);
	void *argument;
	uint64_t fork;
};

static int run_cloned(void *at)
{
	const struct cloned *cloned = at; /* on the parent's stack, of which this is a copy */

	fork_ends(0, cloned->fork);
	/* libc would end this thread alone, and the process go on with those of the library. */
	_exit(cloned->run(cloned->argument));
}

typedef int clone_call(int (*run)(void *), void *stack, int flags, void *argument, ...);

/*
 * The list: where the kernel puts the child's number for the parent, thread variables, and where it puts it for the child. They are taken
 * whether they were given or not, as libc's does.
 */
__attribute__((no_sanitize_address)) static int clone_by(clone_call *really, struct cloned *cloned, void *stack,
							 int flags, va_list list)
{
	pid_t *number = va_arg(list, pid_t *);
	void *variables = va_arg(list, void *);
	pid_t *own = va_arg(list, pid_t *);

	if (flags & NO_FORK || !cloned->run || !stack)
		return really(cloned->run, stack, flags, cloned->argument, number, variables, own);
	cloned->fork = fork_begins();
	return fork_ends(really(run_cloned, stack, flags, cloned, number, variables, own), cloned->fork);
}

#define CLONES(name)                                                                                                   \
	ZC_EXPORT int name(int (*run)(void *), void *stack, int flags, void *argument, ...)                            \
	{                                                                                                              \
		struct cloned cloned = { run, argument, 0 };                                                           \
		va_list list;                                                                                          \
		int rc;                                                                                                \
                                                                                                                       \
		real_resolve();                                                                                        \
		va_start(list, argument);                                                                              \
		rc = clone_by(real.name, &cloned, stack, flags, list);                                                 \
		va_end(list);                                                                                          \
		return rc;                                                                                             \
	}

CLONES(clone)
CLONES(__clone)

/* As the kernel has them. */
struct clone3 {
	uint64_t flags, descriptor, own, number, signal, stack, stack_bytes, variables;
};

bool fork_by_syscall(long number, const long *a)
{
	const struct clone3 *clone3 = (const struct clone3 *)a[0];

	switch (number) {
#ifdef SYS_fork
	case SYS_fork:
		return true;
#endif
	case SYS_clone:
		return !(a[0] & NO_FORK) && !a[1];
	case SYS_clone3:
		return clone3 && (size_t)a[1] >= sizeof(*clone3) && !(clone3->flags & NO_FORK) && !clone3->stack;
	default:
		return false;
	}
}
