/* SPDX-License-Identifier: MIT */
/*
 * Signals. A handler of the program must not run in the middle of what we do under a lock: it may send on the same connection.
 * So each handler is called by one of ours, which has the signal wait, pending and blocked, until the thread has no lock any
 * more. That costs nothing unless it happens; what the program asks for is what it has installed. Signals of faults don't
 * wait: they can't.
 *
 * The mprotect guard needs SIGSEGV; the program may have a handler too. From the moment that the guard installs its
 * own, what the program installs, and asks for, is kept here, and gets every fault that is not the guard's, with the mask and
 * flags that it was installed with. And it is never blocked: signals.h.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "common/sys.h"
#include "preload/conn.h"
#include "preload/lock.h"
#include "preload/real.h"
#include "preload/signals.h"
#include "rdma/guard.h"

static _Atomic bool ours;	/* our handler is installed */
static struct sigaction theirs; /* what the program believes to be installed */
static struct lock theirs_lock;

/* Does what the kernel would do for an action that the program left at its default. */
static void default_action(int signal)
{
	struct sigaction fall = { .sa_handler = SIG_DFL };
	sigset_t one;

	real.sigaction(signal, &fall, NULL);
	atomic_store(&ours, false);
	sigemptyset(&one);
	sigaddset(&one, signal);
	/* It strikes again when the faulting instruction is run again; a fault that was sent by kill needs to be sent again. */
	sys_call(SYS_tgkill, getpid(), sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0), signal, 0, 0, 0);
	sys_call(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&one, 0, 8, 0, 0);
}

/* Sends the signal again, to this thread and as it came, where it is blocked now and after the return from the handler. */
static bool send_blocked(int signal, siginfo_t *info, ucontext_t *context)
{
	uint64_t one = 1ull << (signal - 1);
	long pid = sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	long thread = sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);

	sys_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&one, 0, sizeof(one), 0, 0);
	if (sys_call(SYS_rt_tgsigqueueinfo, pid, thread, signal, (long)info, 0, 0) < 0)
		return false;
	sigaddset(&context->uc_sigmask, signal);
	return true;
}

static void pass_on(int signal, siginfo_t *info, ucontext_t *context)
{
	struct sigaction action;
	struct lock_hold hold;
	sigset_t before;

	if (signals_faults_blocked(&context->uc_sigmask)) {
		/* As the kernel does: what was sent by kill waits, and nothing else can. */
		if (info->si_code > 0 || !send_blocked(signal, info, context))
			default_action(signal);
		return;
	}
	if (lock_take(&theirs_lock, &hold)) {
		action = theirs;
		if (action.sa_flags & (int)SA_RESETHAND)
			theirs.sa_handler = SIG_DFL;
		lock_give(&theirs_lock, &hold);
	} else {
		action = theirs;
	}
	if (action.sa_handler == SIG_DFL || (action.sa_handler == SIG_IGN && info->si_code > 0)) {
		default_action(signal);
		return;
	}
	if (action.sa_handler == SIG_IGN)
		return;
	if (!(action.sa_flags & SA_NODEFER))
		sigaddset(&action.sa_mask, signal);
	sigprocmask(SIG_BLOCK, &action.sa_mask, &before);
	if (action.sa_flags & SA_SIGINFO)
		action.sa_sigaction(signal, info, context);
	else
		action.sa_handler(signal);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	int saved = errno;

	if (!guard_handle_signal(signal, info, context))
		pass_on(signal, info, context);
	errno = saved;
}

int signals_take_fault(void)
{
	/* SA_ONSTACK: programs that overflow a stack have prepared another. NODEFER: the program's handler may fault too. */
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
	struct sigaction before;
	struct lock_hold hold;
	int rc = 0;

	if (atomic_load(&ours))
		return 0;
	if (!lock_take(&theirs_lock, &hold))
		return -EAGAIN;
	if (!atomic_load(&ours) && !real.sigaction(SIGSEGV, NULL, &before)) {
		signals_told(&before.sa_mask);
		theirs = before;
		if (!real.sigaction(SIGSEGV, &action, NULL))
			atomic_store(&ours, true);
	}
	if (!atomic_load(&ours))
		rc = -errno;
	lock_give(&theirs_lock, &hold);
	return rc;
}

/* Handlers of the program that ours stands in front of ---------------------------------------------------------------- */

#define SIGNALS 65

static struct sigaction handlers[SIGNALS];
static struct lock handlers_lock;

/* Those that an instruction raises; SIGABRT is raised on purpose, and libc's abort() counts on what it does. */
static bool is_of_a_fault(int signal)
{
	return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGTRAP ||
	       signal == SIGSYS || signal == SIGABRT;
}

/* Has the signal wait until the thread has no lock. */
static bool send_again(int signal, siginfo_t *info, ucontext_t *context)
{
	if (!send_blocked(signal, info, context))
		return false;
	lock_signals |= 1ull << (signal - 1);
	return true;
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
	struct signals_running outer = signals_running;
	struct sigaction action;
	struct lock_hold hold;
	int saved = errno;

	if (lock_depth && send_again(signal, info, context)) {
		errno = saved;
		return;
	}
	if (!lock_take(&handlers_lock, &hold))
		return; /* not with a lock of this thread: it has none */
	action = handlers[signal];
	if (action.sa_flags & (int)SA_RESETHAND) {
		handlers[signal] = (struct sigaction){ .sa_handler = SIG_DFL };
		real.sigaction(signal, &handlers[signal], NULL);
	}
	lock_give(&handlers_lock, &hold);
	errno = saved;
	if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)
		return; /* changed by another thread a moment ago */
	signals_run++;
	signals_end_calls += !(action.sa_flags & SA_RESTART);
	signals_running = (struct signals_running){ signal, !(action.sa_flags & (int)SA_NODEFER) };
	if (action.sa_flags & SA_SIGINFO)
		action.sa_sigaction(signal, info, context);
	else
		action.sa_handler(signal);
	signals_running = outer;
}

/* As the kernel knows it, but for SIGSEGV in the mask. */
static int set_action(int signal, const struct sigaction *action, struct sigaction *old)
{
	struct sigaction given;
	int rc;

	if (action) {
		given = *action;
		given.sa_mask = *signals_given(SIG_SETMASK, &action->sa_mask, &given.sa_mask);
	}
	rc = real.sigaction(signal, action ? &given : NULL, old);
	if (!rc && old)
		signals_told(&old->sa_mask);
	return rc;
}

static bool is_handler(sighandler_t handler)
{
	return handler != SIG_DFL && handler != SIG_IGN && handler != SIG_ERR;
}

/* Under the lock. */
static int put_in_front(int signal, const struct sigaction *action, struct sigaction *old)
{
	struct sigaction given, before;
	bool ask = action && is_handler(action->sa_handler);
	int rc;

	if (action)
		given = *action;
	if (ask) {
		struct sigaction front = given;

		front.sa_sigaction = on_signal;
		front.sa_flags = (given.sa_flags | SA_SIGINFO) & ~(int)SA_RESETHAND;
		rc = set_action(signal, &front, &before);
	} else {
		rc = set_action(signal, action, &before);
	}
	if (rc < 0)
		return rc;
	if (old)
		*old = before.sa_handler == (sighandler_t)(void *)on_signal ? handlers[signal] : before;
	if (action)
		handlers[signal] = given;
	return 0;
}

void signals_after_fork(void)
{
	atomic_store(&handlers_lock.word, 0);
	atomic_store(&theirs_lock.word, 0);
}

/* A child of vfork shares our memory, but not its handlers. */
static bool stands_in_front(int signal)
{
	return signal > 0 && signal < SIGNALS && !is_of_a_fault(signal) && conn_process_is_ours();
}

static bool is_ours(int signal)
{
	return signal == SIGSEGV && atomic_load(&ours);
}

ZC_EXPORT int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	struct sigaction given;
	struct lock_hold hold;
	int rc;

	if (!is_ours(signal) && !stands_in_front(signal))
		return set_action(signal, action, old);
	if (!is_ours(signal)) {
		if (!lock_take(&handlers_lock, &hold))
			return set_action(signal, action, old);
		rc = put_in_front(signal, action, old);
		lock_give(&handlers_lock, &hold);
		return rc;
	}
	if (action)
		given = *action;
	if (!lock_take(&theirs_lock, &hold))
		return real.sigaction(signal, NULL, old);
	if (old)
		*old = theirs;
	if (action)
		theirs = given;
	lock_give(&theirs_lock, &hold);
	return 0;
}

static sighandler_t set_handler(int signal, sighandler_t handler, int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	struct sigaction old;

	sigemptyset(&action.sa_mask);
	return sigaction(signal, &action, &old) < 0 ? SIG_ERR : old.sa_handler;
}

/* libc chooses the flags (siginterrupt has a say), and then ours goes in front. */
static sighandler_t set_by(sighandler_t (*really)(int, sighandler_t), int signal, sighandler_t handler)
{
	struct sigaction old, now;

	if (sigaction(signal, NULL, &old) < 0 || really(signal, handler) == SIG_ERR)
		return SIG_ERR;
	if (real.sigaction(signal, NULL, &now) == 0)
		sigaction(signal, &now, NULL);
	return old.sa_handler;
}

#define SIGNAL_CALL(name, flags)                                                                                       \
	ZC_EXPORT sighandler_t name(int signal, sighandler_t handler)                                                  \
	{                                                                                                              \
		if (is_ours(signal))                                                                                   \
			return set_handler(signal, handler, flags);                                                    \
		return stands_in_front(signal) ? set_by(real.name, signal, handler) : real.name(signal, handler);      \
	}

SIGNAL_CALL(signal, SA_RESTART)
SIGNAL_CALL(bsd_signal, SA_RESTART)
SIGNAL_CALL(sysv_signal, SA_RESETHAND | SA_NODEFER)
SIGNAL_CALL(__sysv_signal, SA_RESETHAND | SA_NODEFER)

/* libc notes it for the next signal(), and changes the kernel's flags, which are ours: the program's are changed here. */
ZC_EXPORT int siginterrupt(int signal, int ends)
{
	struct sigaction action;
	int rc = real.siginterrupt(signal, ends);

	if (rc || (!is_ours(signal) && !stands_in_front(signal)) || sigaction(signal, NULL, &action))
		return rc;
	action.sa_flags = ends ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
	return sigaction(signal, &action, NULL);
}

/*
 * What was before is written here and not by the kernel, which would find a page under guard read-only. Where faults are believed to be
 * blocked, our handler has to be there: the program's is not for them.
 */
static int change_mask(int (*really)(int, const sigset_t *, sigset_t *), int how, const sigset_t *set, sigset_t *old)
{
	sigset_t given, before;
	int saved = errno, rc;

	set = signals_given(how, set, &given);
	if (set && how != SIG_UNBLOCK && signals_faults_blocked(set) && !atomic_load(&ours) && conn_process_is_ours()) {
		signals_take_fault();
		errno = saved;
	}
	rc = really(how, set, old ? &before : NULL);
	if (!rc && old) {
		signals_told(&before);
		memcpy(old, &before, sizeof(uint64_t)); /* as much as the kernel writes */
	}
	return rc;
}

/* As libc has them (System V), by the calls above: its own go to the kernel. */
ZC_EXPORT sighandler_t sigset(int signal, sighandler_t disposition)
{
	struct sigaction action = { .sa_handler = disposition }, old;
	sigset_t one, before;

	if (disposition == SIG_ERR || signal <= 0 || signal > SIGRTMAX) {
		errno = EINVAL;
		return SIG_ERR;
	}
	if (sigaction(signal, disposition == SIG_HOLD ? NULL : &action, &old) < 0)
		return SIG_ERR;
	sigemptyset(&one);
	sigaddset(&one, signal);
	if (sigprocmask(disposition == SIG_HOLD ? SIG_BLOCK : SIG_UNBLOCK, &one, &before) < 0)
		return SIG_ERR;
	return sigismember(&before, signal) ? SIG_HOLD : old.sa_handler;
}

ZC_EXPORT int sigignore(int signal)
{
	const struct sigaction action = { .sa_handler = SIG_IGN };

	return sigaction(signal, &action, NULL);
}

#define MASK_CALL(name)                                                                                                \
	ZC_EXPORT int name(int how, const sigset_t *set, sigset_t *old)                                                \
	{                                                                                                              \
		return guard_may_use_signal() ? change_mask(real.name, how, set, old) : real.name(how, set, old);      \
	}

MASK_CALL(sigprocmask)
MASK_CALL(pthread_sigmask)
