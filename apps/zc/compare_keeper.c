/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/zc/compare_keeper.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "apps/zc/library.h"
#include "common/clock.h"

#define GRACE_NS (5 * NS_PER_SEC)
#define KILL_AGAIN_NS (20 * NS_PER_MS)
#define EXIT_NOT_STARTED 126

/* Everything that runs -------------------------------------------------------------------------------------------------- */

struct relation {
	pid_t pid, parent;
};

static bool read_relation(const char *pid, struct relation *out)
{
	char name[300], text[512];
	FILE *file;
	char *at;

	snprintf(name, sizeof(name), "/proc/%s/stat", pid);
	file = fopen(name, "re");
	if (!file)
		return false;
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	at = strrchr(text, ')');
	out->pid = atoi(pid);
	return at && sscanf(at + 1, " %*c %d", &out->parent) == 1;
}

static size_t read_relations(struct relation **out)
{
	DIR *dir = opendir("/proc");
	size_t count = 0, room = 0;
	struct dirent *entry;

	*out = NULL;
	while (dir && (entry = readdir(dir))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		if (count == room) {
			struct relation *more = realloc(*out, (room = room ? 2 * room : 256) * sizeof(*more));

			if (!more)
				break;
			*out = more;
		}
		count += read_relation(entry->d_name, &(*out)[count]);
	}
	if (dir)
		closedir(dir);
	return count;
}

static bool is_in(pid_t pid, const pid_t *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (list[i] == pid)
			return true;
	return false;
}

size_t tree_list(pid_t root, pid_t **out)
{
	struct relation *all;
	size_t alive = read_relations(&all), count = 0, before;

	*out = calloc(alive + 1, sizeof(**out));
	if (!*out)
		alive = 0;
	do {
		before = count;
		for (size_t i = 0; i < alive; i++)
			if ((all[i].parent == root || is_in(all[i].parent, *out, count)) &&
			    !is_in(all[i].pid, *out, count))
				(*out)[count++] = all[i].pid;
	} while (count != before);
	free(all);
	return count;
}

static void signal_below(int number)
{
	pid_t *list = NULL;
	size_t count = tree_list(getpid(), &list);

	for (size_t i = 0; i < count; i++)
		kill(list[i], number);
	free(list);
}

/* The command ------------------------------------------------------------------------------------------------------------ */

static int redirect(const char *file, int flags, int to)
{
	int fd = open(file, flags | O_CLOEXEC, 0600);

	if (fd < 0)
		return -errno;
	if (fd == to)
		return fcntl(fd, F_SETFD, 0) ? -errno : 0;
	if (dup2(fd, to) < 0)
		return -errno;
	close(fd);
	return 0;
}

static void default_signals(void)
{
	sigset_t none;

	for (int i = 1; i < NSIG; i++)
		signal(i, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int set_environment(const struct keeper_plan *plan)
{
	if (!plan->library)
		return 0;
	if (setenv("ZC_PATH", plan->path, 1) || setenv("ZC_STATS_DIR", plan->stats_dir, 1))
		return -errno;
	if (plan->rdma_wait && setenv("ZC_RDMA_WAIT_MS", plan->rdma_wait, 1))
		return -errno;
	return library_preload(plan->library);
}

static void __attribute__((noreturn)) become_command(const struct keeper_plan *plan)
{
	int rc;

	setsid();
	if (plan->meter->join >= 0 && write(plan->meter->join, "0", 1) != 1)
		rc = -errno;
	else
		rc = redirect("/dev/null", O_RDONLY, STDIN_FILENO);
	if (!rc)
		rc = redirect(plan->output, O_WRONLY | O_CREAT | O_APPEND, STDOUT_FILENO);
	if (!rc)
		rc = redirect(plan->error, O_WRONLY | O_CREAT | O_APPEND, STDERR_FILENO);
	if (!rc)
		rc = set_environment(plan);
	if (!rc) {
		default_signals();
		execl("/bin/sh", "sh", "-c", plan->command, (char *)NULL);
		rc = -errno;
	}
	dprintf(STDERR_FILENO, "zc compare: the command can't be started: %s\n", strerror(-rc));
	_exit(EXIT_NOT_STARTED);
}

/* The keeper ------------------------------------------------------------------------------------------------------------- */

struct keeping {
	pid_t command;
	int report;
	struct keeper_note note;
};

/* Takes in whoever has ended. Returns false when nobody is left. */
static bool reap(struct keeping *keeping)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != keeping->command)
			continue;
		keeping->note.ended_ns = clock_now();
		keeping->note.status = status;
		if (write(keeping->report, &keeping->note, sizeof(keeping->note)) < 0)
			continue; /* zc is gone, and asks for the end by the death signal */
	}
	return !pid;
}

/* Waits until nobody is left, or for `ns` (0: without end). Returns true when a signal asks to stop. */
static bool wait_signal(const sigset_t *awaited, uint64_t ns)
{
	struct timespec left = { (time_t)(ns / NS_PER_SEC), (long)(ns % NS_PER_SEC) };

	return sigtimedwait(awaited, NULL, ns ? &left : NULL) == SIGTERM;
}

static void keep(struct keeping *keeping, const sigset_t *awaited, const struct meter *meter)
{
	uint64_t deadline = 0;

	while (reap(keeping)) {
		uint64_t now = clock_now();

		if (deadline && now >= deadline) {
			if (meter_kill(meter))
				signal_below(SIGKILL);
			wait_signal(awaited, KILL_AGAIN_NS);
		} else if (wait_signal(awaited, deadline ? deadline - now : 0) && !deadline) {
			deadline = clock_now() + GRACE_NS;
			signal_below(SIGTERM);
		}
	}
}

static void __attribute__((noreturn)) be_keeper(const struct keeper_plan *plan, int report, pid_t parent)
{
	struct keeping keeping = { .report = report };
	sigset_t awaited;

	setpgid(0, 0); /* Ctrl-C is for zc, which then stops us */
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&awaited);
	sigaddset(&awaited, SIGCHLD);
	sigaddset(&awaited, SIGTERM);
	sigprocmask(SIG_SETMASK, &awaited, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(EXIT_NOT_STARTED);
	keeping.note.started_ns = clock_now();
	keeping.command = fork();
	if (!keeping.command)
		become_command(plan);
	if (keeping.command < 0)
		_exit(EXIT_NOT_STARTED);
	keep(&keeping, &awaited, plan->meter);
	if (getppid() != parent && *plan->meter->group)
		rmdir(plan->meter->group);
	_exit(0);
}

int keeper_start(const struct keeper_plan *plan, struct keeper *out)
{
	pid_t parent = getpid();
	int ends[2], rc;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	fflush(NULL);
	out->pid = fork();
	if (!out->pid) {
		close(ends[0]);
		be_keeper(plan, ends[1], parent);
	}
	rc = out->pid < 0 ? -errno : 0;
	close(ends[1]);
	out->report = ends[0];
	if (rc) {
		close(ends[0]);
		*out = (struct keeper){ .report = -1 };
	}
	return rc;
}

static double seconds_of(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

/* A keeper that was killed left its processes to us: end them too. */
static void sweep(void)
{
	do {
		signal_below(SIGKILL);
	} while (waitpid(-1, NULL, 0) > 0);
}

double keeper_stop(struct keeper *keeper)
{
	struct rusage usage = { 0 };
	int status = 0;

	if (keeper->pid <= 0)
		return 0.0;
	kill(keeper->pid, SIGTERM);
	while (wait4(keeper->pid, &status, 0, &usage) < 0 && errno == EINTR)
		;
	close(keeper->report);
	if (WIFSIGNALED(status))
		sweep();
	*keeper = (struct keeper){ .report = -1 };
	return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}
