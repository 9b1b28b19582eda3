/* SPDX-License-Identifier: MIT */
/*
 * The comparison between two hosts, --lab: this command starts itself again in the guest of scripts/lab, which runs the rounds and leaves
 * their results as JSON in a directory that both see. They are shown from there, as those of --merge are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/zc/commands.h"
#include "apps/zc/compare_run.h"
#include "apps/zc/library.h"

#define PLUG_IN "libzc-verbs.so"
#define START_S 300.0
#define LAB_S_MAX 604800.0 /* as much as scripts/lab takes */
#define WORDS_BEFORE 16	   /* of the command line, before the user's own */

/*
 * In the guest: copies are quicker than its view of this machine's files, and the library looks for its plug-in beside it. No transport is
 * forced: a path of the engine takes RDMA unasked, and `auto` is to be what programs get.
 */
static const char in_guest[] =
	"mkdir /run/zc && cp \"$1\" /run/zc/zc && cp \"$2\" /run/zc/libzc.so && cp \"$3\" /run/zc/ && "
	"shift 3 && export ZC_LIBRARY=/run/zc/libzc.so && "
	"exec /run/zc/zc \"$@\" >/dev/null";

struct lab {
	char zc[PATH_MAX], script[PATH_MAX + 64], plug_in[5 * PATH_MAX], told[PATH_MAX + 16], timeout[16];
};

bool lab_is_here(void)
{
	return getenv("LAB_WRITABLE");
}

/* A run of a second is over before both ends have met by RDMA, and would measure TCP. `auto` begins over TCP for its own sake. */
const char *lab_rdma_wait(const struct compare_options *options, enum zc_path path)
{
	bool by_ring = path == PATH_BSDP || path == PATH_ZSDP || path == PATH_AZSDP;

	return options->lab && by_ring && !getenv("ZC_RDMA_WAIT_MS") ? "5000" : NULL;
}

const char *server_address(const struct compare_options *options)
{
	return options->lab ? LAB_SERVER_ADDRESS : "127.0.0.1";
}

static int missing(const char *file, const char *why)
{
	return command_failed("compare", "--lab: %s: %s; %s", file, strerror(errno), why);
}

/* Finds all that a start takes, or says what is missing. */
static int find_parts(struct bench *bench, struct lab *lab)
{
	static const char *const parts[] = { "scripts/lab", "tests/vm/image", "tests/vm/guest" };
	static const char *const places[] = { PLUG_IN, "../rdma/" PLUG_IN };
	ssize_t got = readlink("/proc/self/exe", lab->zc, sizeof(lab->zc) - 1);
	char here[PATH_MAX], part[sizeof(lab->script)];
	int length;

	if (got < 0)
		return missing("/proc/self/exe", "it tells where zc is, and the lab from there");
	lab->zc[got] = '\0';
	if (own_directory(here, sizeof(here)))
		return missing("/proc/self/exe", "it tells where zc is, and the lab from there");
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		snprintf(part, sizeof(part), "%s/../../../../%s", here, parts[i]);
		if (access(part, X_OK))
			return missing(part, "the lab is part of zc's source tree, and not installed: run zc from its "
					     "build there (build/PRESET/apps/zc/zc)");
		if (!i)
			memcpy(lab->script, part, sizeof(part));
	}
	if (library_find(bench->library, sizeof(bench->library)) < 0)
		return command_failed("compare", "%s", bench->library);
	length = (int)(strrchr(bench->library, '/') - bench->library);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(lab->plug_in, sizeof(lab->plug_in), "%.*s/%s", length, bench->library, places[i]);
		if (!access(lab->plug_in, R_OK))
			return 0;
	}
	return missing(
		lab->plug_in,
		"it is built where libibverbs and librdmacm are (scripts/deps build), and carries what goes by RDMA");
}

/* Longer than the guest can take if every end of every run uses up its time. */
static void set_timeout(const struct compare_options *options, struct lab *lab)
{
	double runs = options->warmup + (double)options->repeat * (double)options->paths;
	double seconds = START_S + runs * options->timeout_s * (options->verify ? 3.0 : 2.0);

	snprintf(lab->timeout, sizeof(lab->timeout), "%.0f", seconds < LAB_S_MAX ? seconds : LAB_S_MAX);
}

static pid_t start(const struct bench *bench, const struct lab *lab, int argc, char **argv)
{
	const char *const before[WORDS_BEFORE] = {
		lab->script, "--writable", bench->directory, "--timeout",    lab->timeout, "--",     "sh", "-c",
		in_guest,    "sh",	   lab->zc,	     bench->library, lab->plug_in, "compare"
	};
	const char **words = calloc(WORDS_BEFORE + (size_t)argc + 3, sizeof(*words));
	size_t count = 0;
	pid_t pid = -1;

	while (words && before[count]) {
		words[count] = before[count];
		count++;
	}
	for (int i = 1; words && i < argc; i++)
		words[count++] = argv[i];
	if (words) {
		words[count++] = "--json"; /* the last one of its kind counts */
		words[count++] = lab->told;
		fflush(NULL);
		pid = fork();
	}
	if (!pid) {
		sigset_t none;

		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execv(lab->script, (char **)words);
		fprintf(stderr, "%s: %s\n", lab->script, strerror(errno));
		_exit(EXIT_FAILURE);
	}
	free(words);
	return pid;
}

/* Waits for the lab's end, which a signal to zc asks it for. */
static int wait_lab(struct bench *bench, pid_t pid)
{
	struct pollfd fds[] = { { bench->signals, POLLIN, 0 }, { pidfd_open(pid, 0), POLLIN, 0 } };
	int status = 0;

	while (fds[1].fd >= 0 && !fds[1].revents) {
		if (poll(fds, 2, -1) > 0 && fds[0].revents) {
			take_signal(bench);
			kill(pid, SIGTERM);
		}
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (fds[1].fd >= 0)
		close(fds[1].fd);
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int lab_measure(struct bench *bench, int argc, char **argv, struct comparison **list, size_t *count)
{
	static struct lab lab;
	char why[PATH_MAX + 256];
	int rc = find_parts(bench, &lab);
	pid_t pid;

	if (rc)
		return rc;
	set_timeout(bench->options, &lab);
	snprintf(lab.told, sizeof(lab.told), "%s/told.json", bench->directory);
	pid = start(bench, &lab, argc, argv);
	if (pid < 0)
		return command_failed("compare", "--lab: %s can't be started: %s", lab.script, strerror(errno));
	rc = wait_lab(bench, pid);
	if (bench->stopped)
		return EXIT_FAILURE;
	if (access(lab.told, R_OK))
		return command_failed("compare", "--lab: nothing was measured: the guest ended with exit status %d",
				      rc);
	return json_read(lab.told, list, count, why, sizeof(why)) ? command_failed("compare", "%s", why) : 0;
}
