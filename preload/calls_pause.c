/* SPDX-License-Identifier: MIT */
/*
 * Calls in which a program waits for something else than a connection, or tells others that it has come so far: what is held
 * leaves before them, and that is all.
 */
#define _GNU_SOURCE
#include <sys/file.h>
#include <unistd.h>

#include "preload/real.h"
#include "preload/sg.h"
#include "preload/signals.h"

#define PAUSE(ret, name, params, args)                                                                                 \
	ZC_EXPORT ret name params                                                                                      \
	{                                                                                                              \
		sg_before_wait();                                                                                      \
		return real.name args;                                                                                 \
	}

PAUSE(int, nanosleep, (const struct timespec *time, struct timespec *rest), (time, rest))
PAUSE(int, clock_nanosleep, (clockid_t clock, int flags, const struct timespec *time, struct timespec *rest),
      (clock, flags, time, rest))
PAUSE(int, usleep, (useconds_t us), (us))
PAUSE(unsigned int, sleep, (unsigned int seconds), (seconds))
PAUSE(int, pause, (void), ())
PAUSE(int, sigsuspend, (const sigset_t *mask), (signals_given(SIG_SETMASK, mask, &(sigset_t){ 0 })))
PAUSE(int, sigwait, (const sigset_t *set, int *signal), (set, signal))
PAUSE(int, sigwaitinfo, (const sigset_t *set, siginfo_t *info), (set, info))
PAUSE(int, sigtimedwait, (const sigset_t *set, siginfo_t *info, const struct timespec *timeout), (set, info, timeout))
PAUSE(pid_t, wait, (int *status), (status))
PAUSE(pid_t, waitpid, (pid_t pid, int *status, int options), (pid, status, options))
PAUSE(pid_t, wait3, (int *status, int options, struct rusage *usage), (status, options, usage))
PAUSE(pid_t, wait4, (pid_t pid, int *status, int options, struct rusage *usage), (pid, status, options, usage))
PAUSE(int, waitid, (idtype_t type, id_t id, siginfo_t *info, int options), (type, id, info, options))
PAUSE(int, sem_wait, (sem_t * semaphore), (semaphore))
PAUSE(int, sem_timedwait, (sem_t * semaphore, const struct timespec *time), (semaphore, time))
PAUSE(int, sem_post, (sem_t * semaphore), (semaphore))
PAUSE(int, pthread_join, (pthread_t thread, void **result), (thread, result))
PAUSE(int, kill, (pid_t pid, int signal), (pid, signal))
PAUSE(int, raise, (int signal), (signal))
PAUSE(int, pthread_kill, (pthread_t thread, int signal), (thread, signal))
PAUSE(int, flock, (int fd, int operation), (fd, operation))
PAUSE(int, pclose, (FILE * file), (file))
