/* SPDX-License-Identifier: MIT */
/*
 * Signals. The mprotect guard needs SIGSEGV; the program may have a handler too. From the moment that the guard installs its
 * own, what the program installs, and asks for, is kept here, and gets every fault that is not the guard's, with the mask and
 * flags that it was installed with.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/sys.h"
#include "preload/lock.h"
#include "preload/real.h"
#include "preload/signals.h"
#include "rdma/guard.h"

static _Atomic bool ours;		/* our handler is installed */
static struct sigaction theirs;		/* what the program believes to be installed */
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

static void pass_on(int signal, siginfo_t *info, void *context)
{
	struct sigaction action;
	struct lock_hold hold;
	sigset_t before;

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
	pthread_sigmask(SIG_BLOCK, &action.sa_mask, &before);
	if (action.sa_flags & SA_SIGINFO)
		action.sa_sigaction(signal, info, context);
	else
		action.sa_handler(signal);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
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

	if (atomic_load(&ours))
		return 0;
	if (real.sigaction(SIGSEGV, NULL, &before) < 0)
		return -errno;
	theirs = before;
	if (real.sigaction(SIGSEGV, &action, NULL) < 0)
		return -errno;
	atomic_store(&ours, true);
	return 0;
}

static bool is_ours(int signal)
{
	return signal == SIGSEGV && atomic_load(&ours);
}

static void note_handler(sighandler_t handler)
{
	if (handler != SIG_DFL && handler != SIG_IGN)
		atomic_store_explicit(&lock_handlers, true, memory_order_relaxed);
}

ZC_EXPORT int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	struct sigaction given;
	struct lock_hold hold;

	if (action)
		note_handler(action->sa_handler);
	if (!is_ours(signal))
		return real.sigaction(signal, action, old);
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

#define SIGNAL_CALL(name, flags)                                                                                       \
	ZC_EXPORT sighandler_t name(int signal, sighandler_t handler)                                                  \
	{                                                                                                              \
		note_handler(handler);                                                                                 \
		return is_ours(signal) ? set_handler(signal, handler, flags) : real.name(signal, handler);             \
	}

SIGNAL_CALL(signal, SA_RESTART)
SIGNAL_CALL(bsd_signal, SA_RESTART)
SIGNAL_CALL(sysv_signal, SA_RESETHAND | SA_NODEFER)
SIGNAL_CALL(__sysv_signal, SA_RESETHAND | SA_NODEFER)
