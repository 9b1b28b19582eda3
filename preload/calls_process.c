/* SPDX-License-Identifier: MIT */
/*
 * Where a process becomes another, or ends: what is held leaves first. Where it doubles: calls_fork.c. A child of vfork shares our
 * memory and is told apart by its process number (conn_process_is_ours).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/actions.h"
#include "preload/defer.h"
#include "preload/engine.h"
#include "preload/engine_source.h"
#include "preload/exec.h"
#include "preload/far.h"
#include "preload/far_linger.h"
#include "preload/fork.h"
#include "preload/guest.h"
#include "preload/raw.h"
#include "preload/real.h"
#include "preload/sg.h"
#include "preload/signals.h"

/* Returns twice on one stack: nothing may lie on it. */
#if defined(__x86_64__)
__asm__(".text\n.globl vfork\n.type vfork,@function\nvfork:\n"
	"	endbr64\n"
	"	jmp *real_vfork(%rip)\n"
	".size vfork,.-vfork\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl vfork\n.type vfork,%function\nvfork:\n"
	"	adrp x16, real_vfork\n"
	"	ldr x16, [x16, :lo12:real_vfork]\n"
	"	br x16\n"
	".size vfork,.-vfork\n");
#endif

/* Before another program takes this one's place, and before the end. */
static void leaving(void)
{
	sg_flush_all();
	defer_settle_all();
	flusher_finish();
}

#define EXEC(dir, path, search, envp, call)                                                                            \
	({                                                                                                             \
		const struct target_name name_ = { dir, path, search };                                                \
		struct exec exec_;                                                                                     \
		char *const *environment_;                                                                             \
		bool blocked_;                                                                                         \
		int rc_;                                                                                               \
		leaving();                                                                                             \
		environment_ = exec_begins(&exec_, &name_, envp);                                                      \
		blocked_ = signals_before_exec();                                                                      \
		rc_ = (call);                                                                                          \
		signals_exec_failed(blocked_);                                                                         \
		exec_failed(&exec_);                                                                                   \
		rc_;                                                                                                   \
	})

ZC_EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
	return EXEC(AT_FDCWD, path, false, envp, real.execve(path, argv, environment_));
}

ZC_EXPORT int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

ZC_EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
	return EXEC(AT_FDCWD, file, true, envp, real.execvpe(file, argv, environment_));
}

ZC_EXPORT int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

ZC_EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
	return EXEC(fd, NULL, false, envp, real.fexecve(fd, argv, environment_));
}

ZC_EXPORT int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags)
{
	return EXEC(dir, path, false, envp, real.execveat(dir, path, argv, environment_, flags));
}

/* The list forms end in the vector forms. Counted first: an argument list may be long, and vfork's stack is the parent's. */
static size_t count_list(const char *first, va_list list)
{
	size_t count = 1;

	if (!first)
		return 0;
	while (va_arg(list, const char *))
		count++;
	return count;
}

static void fill_list(char **argv, const char *first, size_t count, va_list list)
{
	for (size_t i = 0; i < count; i++)
		argv[i] = i ? va_arg(list, char *) : (char *)first;
	argv[count] = NULL;
}

#define GATHER(argv, first)                                                                                            \
	va_list list_;                                                                                                 \
	va_start(list_, first);                                                                                        \
	size_t count_ = count_list(first, list_);                                                                      \
	va_end(list_);                                                                                                 \
	char *argv[count_ + 1];                                                                                        \
	va_start(list_, first);                                                                                        \
	fill_list(argv, first, count_, list_)

ZC_EXPORT int execl(const char *path, const char *arg, ...)
{
	GATHER(argv, arg);
	va_end(list_);
	return execv(path, argv);
}

ZC_EXPORT int execlp(const char *file, const char *arg, ...)
{
	GATHER(argv, arg);
	va_end(list_);
	return execvp(file, argv);
}

ZC_EXPORT int execle(const char *path, const char *arg, ...)
{
	char *const *envp;

	GATHER(argv, arg);
	if (count_)
		(void)va_arg(list_, char *); /* the NULL that ends the arguments */
	envp = va_arg(list_, char *const *);
	va_end(list_);
	return execve(path, argv, envp);
}

/* libc writes the child's number with all signals blocked, which kills where that is guarded memory: so to memory of ours first. */
#define SPAWN(path, search, envp, call)                                                                                \
	({                                                                                                             \
		const struct target_name name_ = { AT_FDCWD, path, search };                                           \
		struct exec exec_;                                                                                     \
		char *const *environment_;                                                                             \
		posix_spawnattr_t room_;                                                                               \
		pid_t child_;                                                                                          \
		int rc_;                                                                                               \
		sg_flush_all();                                                                                        \
		defer_settle_all();                                                                                    \
		environment_ = exec_spawns(&exec_, &name_, envp, actions);                                             \
		rc_ = call(&child_, path, actions, signals_spawned(attributes, &room_), argv, environment_);           \
		exec_spawned(&exec_, !rc_);                                                                            \
		if (!rc_ && pid)                                                                                       \
			*pid = child_;                                                                                 \
		rc_;                                                                                                   \
	})

ZC_EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
			  const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])
{
	return SPAWN(path, false, envp, real.posix_spawn);
}

ZC_EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
			   const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])
{
	return SPAWN(file, true, envp, real.posix_spawnp);
}

ZC_EXPORT int posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions)
{
	actions_forget(actions);
	return real.posix_spawn_file_actions_init(actions);
}

ZC_EXPORT int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *actions)
{
	actions_forget(actions);
	return real.posix_spawn_file_actions_destroy(actions);
}

ZC_EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int to)
{
	int rc = real.posix_spawn_file_actions_adddup2(actions, fd, to);

	if (!rc && engine_possible())
		actions_add(actions, fd, to);
	return rc;
}

/* A shell that happens to inherit connections does not use them: they stay as they are. */
ZC_EXPORT int system(const char *command)
{
	sg_flush_all();
	return real.system(command);
}

ZC_EXPORT FILE *popen(const char *command, const char *mode)
{
	sg_flush_all();
	return real.popen(command, mode);
}

/* The kernel will close what is open: doorbells that nobody takes would make that a reset. */
static void let_go_of_all(void)
{
	if (!engine_possible() || guest_sandboxed() || !conn_process_is_ours())
		return;
	sources_stop(true);
	conn_each(engine_goes);
	far_awaits_agent();
	far_linger_end();
}

#define ENDS(name, params, args)                                                                                       \
	ZC_EXPORT void name params                                                                                     \
	{                                                                                                              \
		leaving();                                                                                             \
		let_go_of_all();                                                                                       \
		real.name args;                                                                                        \
		__builtin_unreachable();                                                                               \
	}

ENDS(_exit, (int status), (status))
ENDS(_Exit, (int status), (status))
ENDS(quick_exit, (int status), (status))
ENDS(abort, (void), ())

/* exit() runs destructors; later ones may send more, which then ends with _exit inside libc: the flusher's deadline. */
__attribute__((destructor)) static void ending(void)
{
	leaving();
	let_go_of_all();
	atomic_store(&guest_ending, true); /* nothing is held from here on */
}

static bool closes_own(long number, long fd)
{
	return number == SYS_close && table_is_own((int)fd);
}

/* Returns true if the number is of a data call, and then the wrapper's answer: bytes may be in a ring, or held. */
static bool moves_data(long number, const long *a, long *answer)
{
	struct conn *conn = table_conn((int)a[0]);
	const int fd = (int)a[0];

	if (!conn || (!engine_is_there(conn) && !conn_active(conn)))
		return false;
	switch (number) {
	case SYS_read:
		*answer = read(fd, (void *)a[1], (size_t)a[2]);
		return true;
	case SYS_readv:
		*answer = readv(fd, (const struct iovec *)a[1], (int)a[2]);
		return true;
	case SYS_recvfrom:
		*answer =
			recvfrom(fd, (void *)a[1], (size_t)a[2], (int)a[3], (struct sockaddr *)a[4], (socklen_t *)a[5]);
		return true;
	case SYS_recvmsg:
		*answer = recvmsg(fd, (struct msghdr *)a[1], (int)a[2]);
		return true;
	case SYS_write:
		*answer = write(fd, (const void *)a[1], (size_t)a[2]);
		return true;
	case SYS_writev:
		*answer = writev(fd, (const struct iovec *)a[1], (int)a[2]);
		return true;
	case SYS_sendto:
		*answer = sendto(fd, (const void *)a[1], (size_t)a[2], (int)a[3], (const struct sockaddr *)a[4],
				 (socklen_t)a[5]);
		return true;
	case SYS_sendmsg:
		*answer = sendmsg(fd, (const struct msghdr *)a[1], (int)a[2]);
		return true;
	case SYS_shutdown:
		*answer = shutdown(fd, (int)a[1]);
		return true;
	default:
		return false;
	}
}

/* The same for a wait, which must know doorbells from data. */
static bool waits_for_data(long number, const long *a, long *answer)
{
	switch (number) {
#ifdef SYS_poll
	case SYS_poll:
		*answer = poll((struct pollfd *)a[0], (nfds_t)a[1], (int)a[2]);
		return true;
#endif
#ifdef SYS_epoll_wait
	case SYS_epoll_wait:
		*answer = epoll_wait((int)a[0], (struct epoll_event *)a[1], (int)a[2], (int)a[3]);
		return true;
#endif
	default:
		return false;
	}
}

static bool is_for_path(long number, const long *a, long *answer)
{
	return moves_data(number, a, answer) || (engine_possible() && waits_for_data(number, a, answer));
}

/* A call that may put this thread in seccomp's strict mode: a handler may run before it is known whether it has. */
#define STRICTLY(strict, call)                                                                                         \
	({                                                                                                             \
		bool strict_ = (strict);                                                                               \
		__typeof__(call) rc_;                                                                                  \
		if (__builtin_expect(strict_, 0))                                                                      \
			clock_stands(true);                                                                            \
		rc_ = (call);                                                                                          \
		if (__builtin_expect(strict_ && rc_ < 0, 0))                                                           \
			clock_stands(false);                                                                           \
		rc_;                                                                                                   \
	})

/* A raw system call of the program does what the wrapper would have done, where it concerns descriptors or memory. */
__attribute__((no_sanitize_address)) /* takes six arguments whether they were given or not, as libc's does */
ZC_EXPORT long
syscall(long number, ...)
{
	va_list list;
	long a[6], answer;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	real_resolve();
	if (is_for_path(number, a, &answer) || raw_does(number, a, &answer))
		return answer;
	sg_before_wait();
	if (closes_own(number, a[0])) {
		errno = EBADF;
		return -1;
	}
	if (number == SYS_dup)
		return dup((int)a[0]);
#ifdef SYS_dup2
	if (number == SYS_dup2)
		return dup2((int)a[0], (int)a[1]);
#endif
	if (number == SYS_dup3)
		return dup3((int)a[0], (int)a[1], (int)a[2]);
	if (number == SYS_close_range)
		return close_range((unsigned int)a[0], (unsigned int)a[1], (int)a[2]);
#ifdef SYS_execve
	if (number == SYS_execve)
		return execve((const char *)a[0], (char *const *)a[1], (char *const *)a[2]);
#endif
	if (number == SYS_execveat)
		return execveat((int)a[0], (const char *)a[1], (char *const *)a[2], (char *const *)a[3], (int)a[4]);
	if (number == SYS_exit_group)
		_exit((int)a[0]);
	if (fork_by_syscall(number, a))
		return FORK(real.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]));
	guest_notes_syscall(number, a);
	return STRICTLY(guest_is_strict_syscall(number, a), real.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

ZC_EXPORT int prctl(int option, ...)
{
	va_list list;
	unsigned long a[4];

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(list, unsigned long);
	va_end(list);
	real_resolve();
	guest_notes_prctl(option);
	return STRICTLY(guest_is_strict_prctl(option, a[0]), real.prctl(option, a[0], a[1], a[2], a[3]));
}
