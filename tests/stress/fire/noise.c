/* SPDX-License-Identifier: MIT */
/* What goes on beside the sessions: forks, executed programs and duplicates that concern them only because they inherit. */
#define _GNU_SOURCE
#include "fire.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOISE_THREADS 2
#define NOISE_PAUSE_US 20000 /* at most, between two of them: the sessions are to get on, too */

extern char **environ;
static char leave[] = "leave";
static pthread_t threads[NOISE_THREADS];
static _Atomic bool stopping;

static pid_t spawn(uint64_t *random)
{
	char *argv[] = { handover_program, leave, NULL }, *nothing[] = { NULL };
	pid_t pid = -1;

	/* One of two has no library in it: a foreign program, to which connections leak. */
	if (posix_spawn(&pid, handover_program, NULL, NULL, argv, fire_below(random, 2) ? nothing : environ))
		return -1;
	return pid;
}

static pid_t execute(bool empty, bool shares)
{
	char *argv[] = { handover_program, leave, NULL }, *nothing[] = { NULL };
	char *const *envp = empty ? nothing : environ;
	pid_t pid = shares ? vfork() : fork();

	if (!pid) {
		execve(handover_program, argv, envp);
		_exit(127);
	}
	return pid;
}

static void duplicate(uint64_t *random)
{
	int fd = 3 + (int)fire_below(random, 40), copy = fcntl(fd, F_DUPFD_CLOEXEC, 500);

	if (copy >= 0)
		close(copy);
}

static pid_t make(uint64_t *random)
{
	pid_t pid;

	switch (fire_below(random, 6)) {
	case 0:
		return spawn(random);
	case 1:
	case 2:
		return execute(fire_below(random, 2), fire_below(random, 2));
	case 3:
		duplicate(random);
		return -1;
	default:
		pid = fork();
		if (!pid)
			_exit(0);
		return pid;
	}
}

static void *noise(void *argument)
{
	uint64_t random = (uint64_t)(uintptr_t)argument;

	while (!atomic_load(&stopping)) {
		struct timespec pause = { 0, 1000 * (long)fire_below(&random, NOISE_PAUSE_US) };
		pid_t pid = make(&random);
		int status = 0;

		if (pid > 0 && waitpid(pid, &status, 0) == pid && status)
			fprintf(stderr, "fire: a bystander ended with status %#x\n", (unsigned int)status);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

void noise_start(uint64_t seed)
{
	atomic_store(&stopping, false);
	for (int i = 0; i < NOISE_THREADS; i++)
		if (pthread_create(&threads[i], NULL, noise, (void *)(uintptr_t)fire_mix(seed + (uint64_t)i)))
			abort();
}

void noise_stop(void)
{
	atomic_store(&stopping, true);
	for (int i = 0; i < NOISE_THREADS; i++)
		pthread_join(threads[i], NULL);
}
