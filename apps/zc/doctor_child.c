/* SPDX-License-Identifier: MIT */
/* What a check does in a process of its own, as it may hang, or end its process. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/zc/doctor.h"

#define CHILD_WAIT_MS 20000

/* Reads what the child says until it closes its end; one that hangs is killed. */
static void listen_to(pid_t child, int in, char *out, size_t bytes)
{
	struct pollfd wait = { .fd = in, .events = POLLIN };
	size_t used = 0;

	for (;;) {
		ssize_t got;

		if (poll(&wait, 1, CHILD_WAIT_MS) == 0) {
			kill(child, SIGKILL);
			used = (size_t)snprintf(out, bytes, "it did not answer within %d s", CHILD_WAIT_MS / 1000);
			break;
		}
		got = read(in, out + used, bytes - 1 - used);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	out[used < bytes ? used : bytes - 1] = '\0';
	out[strcspn(out, "\n")] = '\0';
}

int doctor_in_child(void (*run)(const char *argument, int out), const char *argument, char *said, size_t bytes)
{
	int pipes[2], status = 0;
	pid_t child;

	if (pipe(pipes) < 0) {
		snprintf(said, bytes, "pipe: %s", strerror(errno));
		return -EIO;
	}
	fflush(stdout);
	child = fork();
	if (!child) {
		close(pipes[0]);
		run(argument, pipes[1]);
		_exit(EXIT_FAILURE);
	}
	close(pipes[1]);
	if (child > 0)
		listen_to(child, pipes[0], said, bytes);
	close(pipes[0]);
	if (child < 0 || waitpid(child, &status, 0) != child) {
		snprintf(said, bytes, "fork: %s", strerror(errno));
		return -EIO;
	}
	if (WIFSIGNALED(status) && !*said)
		snprintf(said, bytes, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	return status ? -EIO : 0;
}
