/* SPDX-License-Identifier: MIT */
/*
 * What goes on beside the sessions: forks, executed programs and duplicates that concern them only because they inherit; and
 * signals with a handler, to any thread at any moment.
 */
#define _GNU_SOURCE
#include "fire.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOISE_THREADS 2
#define NOISE_PAUSE_US 60000 /* at most, between two of them: the sessions are to get on, too */
#define SIGNALS_PAUSE_US 1000

extern char **environ;
static char leave[] = "leave";
static pthread_t threads[NOISE_THREADS + 1];
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

	meetings_wait(random);
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

static void handle(int number)
{
}

/* Returns a thread of this process, or 0. */
static pid_t draw_thread(uint64_t *random)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	pid_t drawn = 0;
	uint64_t seen = 0;

	while (tasks && (entry = readdir(tasks)))
		if (entry->d_name[0] != '.' && !fire_below(random, ++seen))
			drawn = (pid_t)atoi(entry->d_name);
	if (tasks)
		closedir(tasks);
	return drawn;
}

static void *signals(void *argument)
{
	uint64_t random = (uint64_t)(uintptr_t)argument;
	bool quiet = random % 2;

	/* Whoever is interrupted looks again, and so does not notice that nobody wakes him: in one process of two there are none. */
	while (!quiet && !atomic_load(&stopping)) {
		struct timespec pause = { 0, 1000 * (long)fire_below(&random, SIGNALS_PAUSE_US) };

		syscall(SYS_tgkill, getpid(), draw_thread(&random), SIGUSR1);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

void noise_start(uint64_t seed)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };

	sigaction(SIGUSR1, &action, NULL);
	atomic_store(&stopping, false);
	if (pthread_create(&threads[NOISE_THREADS], NULL, signals, (void *)(uintptr_t)fire_mix(seed - 1)))
		abort();
	for (int i = 0; i < NOISE_THREADS; i++)
		if (pthread_create(&threads[i], NULL, noise, (void *)(uintptr_t)fire_mix(seed + (uint64_t)i)))
			abort();
}

void noise_stop(void)
{
	atomic_store(&stopping, true);
	for (int i = 0; i <= NOISE_THREADS; i++)
		pthread_join(threads[i], NULL);
}
