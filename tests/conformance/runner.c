/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "runner.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transcript.h"

/* Not a measure of anything: the usual run takes some milliseconds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const unsigned int runner_patience = 180;
#else
const unsigned int runner_patience = 30;
#endif
#define ENDS 2 /* server, client */

const char *const mode_names[MODE_COUNT] = { "native", "both", "server", "client" };
static const char *const end_names[ENDS] = { "server", "client" };

struct started {
	pid_t pid;
	int pidfd;
	int memory;
	struct transcript *transcript;
	char how[32]; /* it ended */
};

struct run {
	struct started ends[ENDS];
	unsigned int patience;
	bool stuck;
};

static bool preloads(enum mode mode, int which)
{
	return mode == MODE_BOTH || (mode == MODE_SERVER && which == 0) || (mode == MODE_CLIENT && which == 1);
}

static void become_end(const struct corpus_case *one, int which, const char *library, int control, int memory)
{
	char *const argv[] = { (char *)"corpus", (char *)"--end", (char *)end_names[which], (char *)one->name, NULL };
	char preload[8192];

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dup2(control, CONTROL_FD) < 0 || dup2(memory, TRANSCRIPT_FD) < 0)
		_exit(3);
	unsetenv("LD_PRELOAD");
	unsetenv("CORPUS_LIBRARY");
	if (library) {
		/* A sanitizer's library has to come first. */
		snprintf(preload, sizeof(preload), "%s%s%s", SANITIZER_LIBRARY, SANITIZER_LIBRARY[0] ? ":" : "",
			 library);
		setenv("LD_PRELOAD", preload, 1);
		setenv("CORPUS_LIBRARY", library, 1);
	}
	execv("/proc/self/exe", argv);
	_exit(3);
}

static void start(struct started *end, const struct corpus_case *one, int which, const char *library, int control)
{
	end->memory = memfd_create("transcript", MFD_CLOEXEC);
	if (end->memory < 0 || ftruncate(end->memory, sizeof(struct transcript)) < 0)
		goto fail;
	end->transcript = mmap(NULL, sizeof(struct transcript), PROT_READ | PROT_WRITE, MAP_SHARED, end->memory, 0);
	if (end->transcript == MAP_FAILED)
		goto fail;
	end->pid = fork();
	if (!end->pid)
		become_end(one, which, library, control, end->memory);
	setpgid(end->pid, end->pid);
	end->pidfd = end->pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, end->pid, 0);
	if (end->pidfd >= 0)
		return;
fail:
	perror("corpus: starting an end");
	exit(1);
}

/* Waits for both ends. Returns false if one of them is stuck. */
static bool wait_ends(struct run *run)
{
	struct timespec now, until;
	struct pollfd fds[ENDS];
	int left = ENDS;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += run->patience;
	for (int i = 0; i < ENDS; i++)
		fds[i] = (struct pollfd){ .fd = run->ends[i].pidfd, .events = POLLIN };
	while (left) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec >= until.tv_sec)
			return false;
		poll(fds, ENDS, (int)(until.tv_sec - now.tv_sec) * 1000);
		for (int i = 0; i < ENDS; i++) {
			if (fds[i].fd >= 0 && fds[i].revents) {
				fds[i].fd = -1;
				left--;
			}
		}
	}
	return true;
}

/* Ends the end's whole process group, children that it may have left included, and takes its status. */
static void finish(struct started *end)
{
	int status = 0;

	kill(-end->pid, SIGKILL);
	waitpid(end->pid, &status, 0);
	if (WIFEXITED(status))
		snprintf(end->how, sizeof(end->how), "exit %d", WEXITSTATUS(status));
	else
		snprintf(end->how, sizeof(end->how), "signal %d", WTERMSIG(status));
	close(end->pidfd);
	close(end->memory);
}

static void run_case(const struct runner *runner, struct run *run, const struct corpus_case *one, enum mode mode)
{
	const char *library = runner->library;
	int control[ENDS];

	memset(run, 0, sizeof(*run));
	run->patience = runner->patience;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0) {
		perror("corpus: socketpair");
		exit(1);
	}
	for (int i = 0; i < ENDS; i++)
		start(&run->ends[i], one, i, preloads(mode, i) ? library : NULL, control[i]);
	for (int i = 0; i < ENDS; i++)
		close(control[i]);
	run->stuck = !wait_ends(run);
	for (int i = 0; i < ENDS; i++)
		finish(&run->ends[i]);
}

static bool has_pair(const struct run *run)
{
	return atomic_load(&run->ends[0].transcript->has_pair) || atomic_load(&run->ends[1].transcript->has_pair);
}

static void drop(struct run *run)
{
	for (int i = 0; i < ENDS; i++)
		munmap(run->ends[i].transcript, sizeof(struct transcript));
}

static void print_end(const struct started *end, const char *name)
{
	printf("--- %s (%s)\n%s", name, end->how, end->transcript->text);
}

static void print_run(const struct run *run)
{
	for (int i = 0; i < ENDS; i++)
		print_end(&run->ends[i], end_names[i]);
}

/* Returns the line at *at without its newline in `out`, and moves *at on. False at the end. */
static bool next_line(const char **at, char *out, size_t room)
{
	size_t bytes = strcspn(*at, "\n");

	if (!**at)
		return false;
	snprintf(out, room, "%.*s", (int)bytes, *at);
	*at += bytes + ((*at)[bytes] == '\n');
	return true;
}

static bool same(const struct started *native, const struct started *here, const char *name)
{
	char a[TRANSCRIPT_LINE], b[TRANSCRIPT_LINE];
	const char *at = native->transcript->text, *bt = here->transcript->text;

	for (int line = 1;; line++) {
		bool more_a = next_line(&at, a, sizeof(a)), more_b = next_line(&bt, b, sizeof(b));

		if (!more_a && !more_b)
			break;
		if (more_a && more_b && !strcmp(a, b))
			continue;
		printf("  %s, line %d\n    native: %s\n    here:   %s\n", name, line, more_a ? a : "(nothing)",
		       more_b ? b : "(nothing)");
		return false;
	}
	if (!strcmp(native->how, here->how))
		return true;
	printf("  %s ended otherwise\n    native: %s\n    here:   %s\n", name, native->how, here->how);
	return false;
}

/* What is wrong in any mode: stuck, killed, a WRONG line. Returns whether there is nothing of that kind. */
static bool sound(const struct run *run)
{
	bool good = !run->stuck;

	if (run->stuck)
		printf("  stuck: stopped after %u s\n", run->patience);
	for (int i = 0; i < ENDS; i++) {
		const char *wrong = strstr(run->ends[i].transcript->text, TRANSCRIPT_WRONG);
		bool ended = !strcmp(run->ends[i].how, "exit 0");

		if (wrong)
			printf("  %s: %.*s\n", end_names[i], (int)strcspn(wrong, "\n"), wrong);
		if (!ended)
			printf("  %s: %s\n", end_names[i], run->ends[i].how);
		good &= !wrong && ended;
	}
	return good;
}

static bool compare(struct runner *runner, const struct corpus_case *one, enum mode mode, const struct run *native,
		    const struct run *here)
{
	bool good = true;

	/* The name first: what follows explains it. */
	fflush(stdout);
	for (int i = 0; i < ENDS; i++)
		good &= !strcmp(native->ends[i].how, here->ends[i].how) &&
			!strcmp(native->ends[i].transcript->text, here->ends[i].transcript->text) &&
			!strstr(here->ends[i].transcript->text, TRANSCRIPT_WRONG);
	if (good && !here->stuck)
		return true;
	printf("DIFFERS %s --mode %s\n", one->name, mode_names[mode]);
	sound(here);
	for (int i = 0; i < ENDS; i++)
		same(&native->ends[i], &here->ends[i], end_names[i]);
	runner->failures++;
	return false;
}

static bool native_is_sound(struct runner *runner, const struct corpus_case *one, const struct run *run)
{
	for (int i = 0; i < ENDS; i++) {
		if (!run->stuck && !strstr(run->ends[i].transcript->text, TRANSCRIPT_WRONG) &&
		    !strcmp(run->ends[i].how, "exit 0"))
			continue;
		printf("FAILS %s --mode native\n", one->name);
		sound(run);
		runner->failures++;
		runner->native_failures++;
		return false;
	}
	return true;
}

bool runner_case(struct runner *runner, const struct corpus_case *one)
{
	struct run native, here;
	bool good;

	run_case(runner, &native, one, MODE_NATIVE);
	runner->runs++;
	if (runner->verbose) {
		printf("=== %s --mode native\n", one->name);
		print_run(&native);
	}
	good = native_is_sound(runner, one, &native);
	for (int mode = 0; good && mode < MODE_COUNT; mode++) {
		if (!runner->modes[mode])
			continue;
		run_case(runner, &here, one, (enum mode)mode);
		runner->runs++;
		if (runner->verbose) {
			printf("=== %s --mode %s\n", one->name, mode_names[mode]);
			print_run(&here);
		}
		good &= compare(runner, one, (enum mode)mode, &native, &here);
		if (runner->uses)
			uses_collect(runner->uses, &runner->used, mode == MODE_BOTH || !has_pair(&here));
		drop(&here);
	}
	drop(&native);
	fflush(stdout);
	return good;
}
