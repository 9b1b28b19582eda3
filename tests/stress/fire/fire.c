/* SPDX-License-Identifier: MIT */
/*
 * The driver: starts the three processes with the library preloaded, tells them when, and looks at what is left: processes that
 * were orphaned, and the statistics, which have to show that lanes went back and forth.
 */
#define _GNU_SOURCE
#include "fire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/stats.h"
#include "fire_control.h"

#define ANSWER_MS 200000
#define ORPHANS_MS 60000

static const char usage[] =
	"usage: fire --library FILE [--seconds N] [--sessions N] [--runs N] [--seed S] [--uses PATH] [--switches N]\n"
	"            [--stacks] [--keep]\n"
	"Streams between preloaded processes while their connections change hands. The settings (ZC_PATH, ...) are the environment's.\n"
	"Goes on for so many seconds, and until there were so many sessions.\n"
	"--uses PATH and --switches N: fails unless that path has carried bytes, and lanes have gone back to TCP so often.\n"
	"--stacks has gdb print the stacks of a process that does not answer; --keep keeps the statistics.\n";

static struct {
	const char *library, *uses;
	uint64_t seed, switches;
	unsigned int seconds, sessions, runs;
	bool stacks, keep;
} options = { .seconds = 5, .runs = 1 };

enum { SERVER, CLIENT, HELPER, PROCESSES };
static const char *const names[] = { "server", "client", "helper" };

struct process {
	pid_t pid;
	int control;
};

static struct process processes[PROCESSES];
static char directory[64];

static int complain(const char *format, const char *text)
{
	fprintf(stderr, "fire: --seed %llu: ", (unsigned long long)options.seed);
	fprintf(stderr, format, text);
	fputc('\n', stderr);
	return -1;
}

/* Processes -------------------------------------------------------------------------------------------------------- */

static void become(int which, int control, int port)
{
	char numbers[3][24], left[80];
	char *argv[] = { handover_program, (char *)names[which], numbers[0], numbers[1], directory, numbers[2], NULL };

	snprintf(numbers[0], 24, "%d", control);
	snprintf(numbers[1], 24, "%llu", (unsigned long long)options.seed);
	snprintf(numbers[2], 24, "%d", port);
	snprintf(left, sizeof(left), "%s/stats", directory);
	fcntl(control, F_SETFD, 0);
	setenv("ZC_STATS_DIR", left, 1);
	setenv("LD_PRELOAD", options.library, 1);
	execv(handover_program, argv);
	perror(handover_program);
	_exit(127);
}

static void show_stacks(void)
{
	char command[160];

	for (int i = 0; options.stacks && i < PROCESSES; i++) {
		snprintf(
			command, sizeof(command),
			"for p in %d $(pgrep -P %d); do echo == $p; gdb -p $p -batch -ex 'thread apply all bt 14' 2>&1; done",
			(int)processes[i].pid, (int)processes[i].pid);
		if (system(command))
			fprintf(stderr, "fire: no stacks of %s\n", names[i]);
	}
}

static int answer(int which, struct control *control)
{
	struct pollfd look = { .fd = processes[which].control, .events = POLLIN };

	if (poll(&look, 1, ANSWER_MS + 1000 * (int)options.seconds) < 1) {
		complain("%s does not answer", names[which]);
		show_stacks();
		return -1;
	}
	if (recv(look.fd, control, sizeof(*control), 0) != sizeof(*control))
		return complain("%s has died", names[which]);
	return control->wrong ? complain("%s has met an error", names[which]) : 0;
}

/* Returns the answer's number, or -1. */
static long tell(int which, char word, uint32_t value, uint32_t least)
{
	struct control control = { .word = word, .value = value, .least = least };

	if (send(processes[which].control, &control, sizeof(control), MSG_NOSIGNAL) != sizeof(control))
		return complain("%s has died", names[which]);
	return answer(which, &control) < 0 ? -1 : (long)control.value;
}

static int tell_all(char word)
{
	int rc = 0;

	for (int i = 0; i < PROCESSES; i++)
		if (tell(i, word, 0, 0) < 0)
			rc = -1;
	return rc;
}

static int start(int which, int *port)
{
	struct control control;
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return complain("socketpair: %s", strerror(errno));
	processes[which] = (struct process){ fork(), pair[0] };
	if (!processes[which].pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		become(which, pair[1], *port);
	}
	close(pair[1]);
	if (processes[which].pid < 0 || answer(which, &control) < 0)
		return -1;
	*port = (int)control.value;
	return 0;
}

/* All that were started, and all that those have left behind, are children of this process by now. */
static int wait_for_processes(bool killed)
{
	char text[64];
	int status, rc = 0;
	pid_t pid;

	for (int ms = 0; ms < ORPHANS_MS;) {
		pid = waitpid(-1, &status, WNOHANG);
		if (pid < 0)
			return rc;
		if (!pid) {
			poll(NULL, 0, 10);
			ms += 10;
		} else if (status && !(killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
			snprintf(text, sizeof(text), "%d, status %#x", (int)pid, (unsigned int)status);
			rc = complain("a process has failed: %s", text);
		}
	}
	return complain("%s", "a process is left behind");
}

static int kill_children(void)
{
	char path[64], text[4096];
	FILE *file;
	int count = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	file = fopen(path, "re");
	if (file && fgets(text, sizeof(text), file))
		for (char *at = strtok(text, " \n"); at; at = strtok(NULL, " \n"), count++)
			kill((pid_t)atoi(at), SIGKILL);
	if (file)
		fclose(file);
	return count;
}

/* Statistics ------------------------------------------------------------------------------------------------------- */

static uint64_t sums[STAT_CONN_COUNT], reasons[REASON_COUNT], bytes_by[PATH_COUNT];

static int add_file(const char *path)
{
	const struct stats_segment *segment;
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc = fd < 0 ? -errno : stats_map(fd, &segment);

	if (fd >= 0)
		close(fd);
	if (rc < 0)
		return rc;
	for (uint32_t slot = 0; slot < segment->slots_used || !slot; slot++) {
		const struct stats_slot *from = &segment->slot[slot];

		for (int i = 0; i < STAT_CONN_COUNT; i++)
			sums[i] += from->conn[i];
		for (int i = 0; i < REASON_COUNT; i++)
			reasons[i] += from->reason[i];
		for (int i = 0; i < PATH_COUNT; i++)
			bytes_by[i] += from->path[i][STAT_PATH_BYTES];
	}
	stats_unmap(segment);
	return 0;
}

static int sum_statistics(void)
{
	char path[400];
	struct dirent *entry;
	DIR *files;

	memset(sums, 0, sizeof(sums));
	memset(reasons, 0, sizeof(reasons));
	memset(bytes_by, 0, sizeof(bytes_by));
	snprintf(path, sizeof(path), "%s/stats", directory);
	files = opendir(path);
	while (files && (entry = readdir(files))) {
		snprintf(path, sizeof(path), "%s/stats/%s", directory, entry->d_name);
		/* A process that was about to publish when it ended leaves a file that says nothing. */
		if (entry->d_name[0] != '.')
			add_file(path);
	}
	if (files)
		closedir(files);
	return 0;
}

/* A send by several ways counts for the one that most of it took. */
static uint64_t sent_by_ring(void)
{
	return bytes_by[PATH_BSDP] + bytes_by[PATH_ZSDP] + bytes_by[PATH_AZSDP];
}

static void print_statistics(long sessions)
{
	uint64_t all = 0;

	for (int i = 0; i < PATH_COUNT; i++)
		all += bytes_by[i];
	printf("fire: --seed %llu: %ld sessions, %llu switches, sent by ring %llu MB, by TCP %llu MB;",
	       (unsigned long long)options.seed, sessions, (unsigned long long)sums[STAT_CONN_SWITCHES],
	       (unsigned long long)sent_by_ring() >> 20, (unsigned long long)(all - sent_by_ring()) >> 20);
	for (int i = 0; i < PATH_COUNT; i++)
		if (bytes_by[i])
			printf(" %s %llu MB", path_name((enum zc_path)i), (unsigned long long)bytes_by[i] >> 20);
	printf(", received %llu MB, by ring %llu MB, fetched %llu MB; meetings %llu, takeovers %llu, switches %llu;",
	       (unsigned long long)sums[STAT_CONN_RECV_BYTES] >> 20,
	       (unsigned long long)sums[STAT_CONN_RING_RECV_BYTES] >> 20,
	       (unsigned long long)sums[STAT_CONN_GET_BYTES] >> 20, (unsigned long long)sums[STAT_CONN_MEETINGS],
	       (unsigned long long)sums[STAT_CONN_TAKEOVERS], (unsigned long long)sums[STAT_CONN_SWITCHES]);
	for (int i = 0; i < REASON_COUNT; i++)
		if (reasons[i])
			printf(" %s %llu", stat_reason_rows[i].name, (unsigned long long)reasons[i]);
	putchar('\n');
	fflush(stdout);
}

static int judge_statistics(void)
{
	int rc = 0;

	if (options.uses) {
		bool used = false;

		for (int i = 0; i < PATH_COUNT; i++)
			used |= !strcmp(path_name((enum zc_path)i), options.uses) && bytes_by[i];
		if (!used)
			rc = complain("path %s has carried nothing", options.uses);
	}
	if (sums[STAT_CONN_SWITCHES] < options.switches || sums[STAT_CONN_TAKEOVERS] < options.switches)
		rc = complain("%s", "too few switches or takeovers");
	if (reasons[REASON_LOST])
		rc = complain("%s", "connections were reset because bytes were unread in a ring");
	return rc;
}

/* A run ------------------------------------------------------------------------------------------------------------ */

static int run_processes(long *sessions)
{
	int port = 0;

	if (start(SERVER, &port) < 0 || start(CLIENT, &port) < 0 || start(HELPER, &port) < 0 ||
	    tell(CLIENT, 'w', 0, 0) < 0 || tell_all('b') < 0 || tell_all('n') < 0)
		return -1;
	*sessions = tell(CLIENT, 'g', options.seconds * 1000, options.sessions);
	if (*sessions < 0 || tell_all('q') < 0)
		return -1;
	return tell_all('s');
}

static void sweep(const char *path)
{
	char inner[400];
	struct dirent *entry;
	DIR *files = opendir(path);

	while (files && (entry = readdir(files))) {
		snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
		if (entry->d_name[0] != '.')
			unlink(inner);
	}
	if (files)
		closedir(files);
	rmdir(path);
}

static int run_once(void)
{
	char stats_path[80];
	int rc;
	long sessions = 0;

	snprintf(directory, sizeof(directory), "%.40s/fire-XXXXXX", getenv("TMPDIR") ?: "/tmp");
	if (!mkdtemp(directory))
		return complain("mkdtemp: %s", strerror(errno));
	snprintf(stats_path, sizeof(stats_path), "%s/stats", directory);
	if (mkdir(stats_path, 0700) < 0)
		return complain("mkdir: %s", strerror(errno));
	rc = run_processes(&sessions);
	for (int i = 0; i < PROCESSES; i++)
		if (processes[i].pid > 0)
			close(processes[i].control);
	while (rc < 0 && kill_children())
		wait_for_processes(true);
	if (wait_for_processes(rc < 0) < 0) {
		kill_children();
		rc = -1;
	}
	sum_statistics();
	print_statistics(sessions);
	if (judge_statistics() < 0)
		rc = -1;
	if (!options.keep) {
		sweep(stats_path);
		sweep(directory);
	}
	return rc;
}

static void parse(int argc, char **argv)
{
	static const struct option known[] = {
		{ "library", required_argument, NULL, 'l' },
		{ "seconds", required_argument, NULL, 't' },
		{ "sessions", required_argument, NULL, 'n' },
		{ "runs", required_argument, NULL, 'r' },
		{ "seed", required_argument, NULL, 's' },
		{ "uses", required_argument, NULL, 'u' },
		{ "switches", required_argument, NULL, 'w' },
		{ "stacks", no_argument, NULL, 'b' },
		{ "keep", no_argument, NULL, 'k' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	options.seed = fire_mix((uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)getpid()) >> 16;
	for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (option) {
		case 'l':
			options.library = realpath(optarg, NULL) ?: (perror(optarg), exit(1), NULL);
			break;
		case 't':
			options.seconds = (unsigned int)strtoul(optarg, NULL, 10);
			break;
		case 'n':
			options.sessions = (unsigned int)strtoul(optarg, NULL, 10);
			break;
		case 'r':
			options.runs = (unsigned int)strtoul(optarg, NULL, 10);
			break;
		case 's':
			options.seed = strtoull(optarg, NULL, 10);
			break;
		case 'u':
			options.uses = optarg;
			break;
		case 'w':
			options.switches = strtoull(optarg, NULL, 10);
			break;
		case 'b':
			options.stacks = true;
			break;
		case 'k':
			options.keep = true;
			break;
		default:
			fputs(usage, option == 'h' ? stdout : stderr);
			exit(option == 'h' ? 0 : 2);
		}
	}
	if (!options.library || optind < argc) {
		fputs(usage, stderr);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	ssize_t bytes = readlink("/proc/self/exe", handover_program, 255);
	int rc = 0;

	if (bytes < 0)
		return 1;
	if (argc > 1 && !strcmp(argv[1], "leave"))
		return 0;
	if (argc == 5 && !strcmp(argv[1], "resume"))
		return handover_resume(argv[2], argv[3], argv[4]);
	if (argc > 1 && argv[1][0] != '-')
		return process_run(argc, argv);
	parse(argc, argv);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (unsigned int run = 0; run < options.runs && !rc; run++, options.seed++)
		rc = run_once();
	return rc ? 1 : 0;
}
