/* SPDX-License-Identifier: MIT */
/*
 * mutate: sends a buffer, changes it in one of many ways, and only then lets the receiver read: what arrives must be what
 * the buffer held when send() returned.
 *
 *	mutate --library FILE [--expect-corruption] WAY	judge; the ends are started with FILE preloaded
 *	mutate --list					names of all ways; an 's' before those that are seen without a guard
 *
 * ZC_PATH says by which path. The receiver does not read before the change is over.
 *
 * zerocopy: the receiver runs without the library, and its buffer is small, so that most of the bytes are still with the
 * sender's kernel when they are changed (over loopback and veth the kernel copies zero-copy bytes when it hands them to the
 * receiving socket). azsdp: both ends run with the library, and nothing of what was announced is fetched before the change.
 *
 * The sender reports how many bytes send() took through a pipe, and that the change is over by the pipe's end; the
 * descriptor closes on exec and exit, so those are changes like all others.
 *
 * The judge runs without the library. It looks into the sender's statistics to be sure that the path was used.
 */
#define _GNU_SOURCE
#include "mutate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAKEN_MIN (BYTES / 2)
#define RECEIVE_BUFFER 8192

static const struct way *find_way(const char *name)
{
	for (size_t i = 0; i < way_count; i++)
		if (!strcmp(ways[i].name, name))
			return &ways[i];
	fprintf(stderr, "mutate: there is no way '%s'; --list names them\n", name);
	exit(2);
}

/* ZC_PATH, which the ends take from the environment. */
static bool is_announced(void)
{
	const char *path = getenv("ZC_PATH");

	return path && !strcmp(path, "azsdp");
}

/* The two processes of a test, as the judge sees them. */
struct ends {
	pid_t sender, receiver;
	int result; /* to be read */
};

static int listen_small(int *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int room = RECEIVE_BUFFER;

	must(fd >= 0);
	must(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)));
	must(!bind(fd, (struct sockaddr *)&address, sizeof(address)));
	must(!listen(fd, 1));
	must(!getsockname(fd, (struct sockaddr *)&address, &bytes));
	*port = ntohs(address.sin_port);
	return fd;
}

static void preload(const char *library, const char *stats_dir)
{
	setenv("LD_PRELOAD", library, 1);
	setenv("ZC_STATS_DIR", stats_dir, 1);
}

static pid_t start_receiver(int listener, int report, int result)
{
	char numbers[3][16];
	const int passed[] = { listener, report, result };
	pid_t pid = fork();

	if (pid)
		return pid;
	for (int i = 0; i < 3; i++) {
		snprintf(numbers[i], sizeof(numbers[i]), "%d", passed[i]);
		fcntl(passed[i], F_SETFD, 0);
	}
	execl("/proc/self/exe", "mutate", "--receive", numbers[0], numbers[1], numbers[2], (char *)NULL);
	failed("exec", __FILE__, __LINE__);
}

static pid_t start_sender(const struct way *way, int port, int report)
{
	char port_text[16], report_text[16];
	pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(port_text, sizeof(port_text), "%d", port);
	snprintf(report_text, sizeof(report_text), "%d", report);
	/* Not through exec: the sender itself sets it again to close then. */
	fcntl(report, F_SETFD, 0);
	execl("/proc/self/exe", "mutate", "--send", way->name, port_text, report_text, (char *)NULL);
	failed("exec", __FILE__, __LINE__);
}

static struct ends start(const struct way *way, const char *library, const char *stats_dir)
{
	int report[2], result[2], port, listener = listen_small(&port);
	struct ends ends;

	must(!pipe2(report, O_CLOEXEC) && !pipe2(result, O_CLOEXEC));
	if (is_announced())
		preload(library, stats_dir);
	ends.receiver = start_receiver(listener, report[0], result[1]);
	preload(library, stats_dir);
	ends.sender = start_sender(way, port, report[1]);
	must(ends.receiver > 0 && ends.sender > 0);
	close(listener);
	close(report[0]);
	close(report[1]);
	close(result[1]);
	ends.result = result[0];
	unsetenv("LD_PRELOAD");
	return ends;
}

static void remove_dir(const char *dir)
{
	char command[600];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	if (system(command))
		fprintf(stderr, "mutate: %s was left behind\n", dir);
}

/* Whether the stream ended where and how it should. */
static bool ended_well(const struct way *way, const struct result *result)
{
	bool whole = result->arrived == result->report.taken && !result->error;
	bool cut = result->arrived < result->report.taken && result->error == ECONNRESET;
	bool expected = is_announced() && way->fetched == CUT ? cut : whole;

	if (!expected)
		fprintf(stderr, "mutate: %lld bytes were sent, %lld arrived, then %s\n",
			(long long)result->report.taken, (long long)result->arrived,
			result->error ? strerror(result->error) : "end of file");
	return expected;
}

static bool is_right(const struct way *way, const struct result *result, int64_t by_path, bool expect_corruption)
{
	if (result->report.taken < TAKEN_MIN)
		return false;
	if (expect_corruption)
		return result->different > 0;
	if (is_announced() && way->fetched == WRONG) {
		fprintf(stderr, "mutate: nothing is promised of this way on this path\n");
		return true;
	}
	if (!ended_well(way, result))
		return false;
	if (!way->copied && by_path < TAKEN_MIN / 2) {
		fprintf(stderr, "mutate: the path was not used: nothing was tested\n");
		return false;
	}
	return !result->different;
}

static int judge(const struct way *way, const char *library, bool expect_corruption)
{
	char dir[] = "/tmp/zc-mutate-XXXXXX";
	struct result result = { .report.taken = -1 };
	int sender_status, receiver_status;
	struct ends ends;
	int64_t by_path;
	bool killed;

	must(mkdtemp(dir));
	ends = start(way, library, dir);
	if (read(ends.result, &result, sizeof(result)) != sizeof(result))
		fprintf(stderr, "mutate: the receiver has ended without a result\n");
	must(waitpid(ends.sender, &sender_status, 0) == ends.sender);
	must(waitpid(ends.receiver, &receiver_status, 0) == ends.receiver);
	by_path = bytes_by(dir, ends.sender, is_announced() ? PATH_AZSDP : PATH_ZEROCOPY) - result.report.before;
	remove_dir(dir);
	killed = WIFSIGNALED(sender_status) && WTERMSIG(sender_status) == SIGKILL && !strcmp(way->name, "kill");
	printf("%s: %lld bytes sent, %lld by the path, %lld arrived, %lld differ, sender's status %#x\n", way->name,
	       (long long)result.report.taken, (long long)by_path, (long long)result.arrived,
	       (long long)result.different, sender_status);
	if (receiver_status || (sender_status && !killed))
		return 1;
	return is_right(way, &result, by_path, expect_corruption) ? 0 : 1;
}

static int list(void)
{
	for (size_t i = 0; i < way_count; i++)
		printf("%c %s\n", ways[i].unguarded == UNSEEN ? ' ' : 's', ways[i].name);
	return 0;
}

static int usage(void)
{
	fprintf(stderr, "usage: mutate --list | mutate --library FILE [--expect-corruption] WAY\n");
	return 2;
}

int main(int argc, char **argv)
{
	bool corrupted = argc == 5 && !strcmp(argv[3], "--expect-corruption");

	if (argc == 2 && !strcmp(argv[1], "--list"))
		return list();
	if (argc == 5 && !strcmp(argv[1], "--send")) {
		int report = atoi(argv[4]);

		must(!fcntl(report, F_SETFD, FD_CLOEXEC));
		return sender(find_way(argv[2]), atoi(argv[3]), report, is_announced());
	}
	if (argc == 5 && !strcmp(argv[1], "--receive"))
		return receiver(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), is_announced());
	if ((argc != 4 && !corrupted) || strcmp(argv[1], "--library"))
		return usage();
	if (access(argv[2], R_OK) && !strchr(argv[2], ' ') && !strchr(argv[2], ':')) {
		fprintf(stderr, "mutate: can't read the library %s: %s\n", argv[2], strerror(errno));
		return 1;
	}
	return judge(find_way(argv[argc - 1]), argv[2], corrupted);
}
