/* SPDX-License-Identifier: MIT */
/*
 * mutate: sends a buffer, changes it in one of many ways, and only then lets the receiver read: what arrives must be what
 * the buffer held when send() returned.
 *
 *	mutate --library FILE [--expect-corruption] WAY	judge; the sender is started with FILE preloaded
 *	mutate --list					names of all ways; an 's' before those that are seen without a guard
 *
 * The receiver does not read, and its buffer is small, so that most of the bytes are still with the sender's kernel when
 * they are changed (over loopback and veth the kernel copies zero-copy bytes when it hands them to the receiving socket). The
 * sender reports how many bytes send() took through a pipe, and that the change is over by the pipe's end; the
 * descriptor closes on exec and exit, so those are changes like all others.
 *
 * The judge runs without the library. It looks into the sender's statistics to be sure that zerocopy was used.
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
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/stats.h"

#define BYTES (1024 * 1024)
#define TAKEN_MIN (BYTES / 2)
#define RECEIVE_BUFFER 8192
#define SEND_BUFFER (8 * BYTES)

unsigned char pattern(size_t at, unsigned int seed)
{
	return (unsigned char)((at >> 12) * 7 + at + seed * 31 + 1);
}

void fill(unsigned char *bytes, size_t count, unsigned int seed)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = pattern(i, seed);
}

_Noreturn void failed(const char *what, const char *file, int line)
{
	fprintf(stderr, "mutate: %s:%d: %s: %s\n", file, line, what, strerror(errno));
	_exit(1);
}

static const struct way *find_way(const char *name)
{
	for (size_t i = 0; i < way_count; i++)
		if (!strcmp(ways[i].name, name))
			return &ways[i];
	fprintf(stderr, "mutate: there is no way '%s'; --list names them\n", name);
	exit(2);
}

/* The sender ----------------------------------------------------------------------------------------------------------- */

static int connect_to(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int room = SEND_BUFFER;

	must(fd >= 0);
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0)
		must(!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)));
	must(!connect(fd, (struct sockaddr *)&address, sizeof(address)));
	return fd;
}

static int sender(const struct way *way, int port, int report)
{
	struct target target = { .bytes = BYTES, .memory = -1, .socket = connect_to(port) };
	int64_t taken;

	if (way->prepare) {
		way->prepare(&target);
	} else {
		target.buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must(target.buffer != MAP_FAILED);
	}
	fill(target.buffer, BYTES, SEED_SENT);
	taken = send(target.socket, target.buffer, BYTES, MSG_DONTWAIT);
	must(taken > 0);
	must(write(report, &taken, sizeof(taken)) == sizeof(taken));
	way->mutate(&target);
	close(report);
	return 0;
}

static pid_t start_sender(const struct way *way, int port, int report[2], const char *library, const char *stats_dir)
{
	char port_text[16], report_text[16];
	pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(port_text, sizeof(port_text), "%d", port);
	snprintf(report_text, sizeof(report_text), "%d", report[1]);
	/* Not through exec: the sender itself sets it again to close then. */
	fcntl(report[1], F_SETFD, 0);
	setenv("LD_PRELOAD", library, 1);
	setenv("ZC_STATS_DIR", stats_dir, 1);
	execl("/proc/self/exe", "mutate", "--send", way->name, port_text, report_text, (char *)NULL);
	failed("exec", __FILE__, __LINE__);
}

/* The judge ------------------------------------------------------------------------------------------------------------ */

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

/* Returns the bytes that send() took, once the change is over. */
static int64_t wait_for_change(int report)
{
	int64_t taken = -1;
	char byte;

	if (read(report, &taken, sizeof(taken)) != sizeof(taken))
		return -1;
	must(read(report, &byte, 1) == 0);
	return taken;
}

/* Reads to the end. Returns how many bytes differ from what was sent, -1 if there are too few or too many. */
static int64_t receive(int fd, int64_t expected)
{
	static unsigned char bytes[BYTES + 1];
	int64_t at = 0, different = 0;
	ssize_t got;

	while ((got = read(fd, bytes + at, sizeof(bytes) - (size_t)at)) > 0)
		at += got;
	if (got < 0 || at != expected) {
		fprintf(stderr, "mutate: %lld bytes were sent, %lld arrived, then %s\n", (long long)expected,
			(long long)at, got < 0 ? strerror(errno) : "end of file");
		return -1;
	}
	for (int64_t i = 0; i < at; i++)
		different += bytes[i] != pattern((size_t)i, SEED_SENT);
	return different;
}

/* Returns how many bytes the sender says to have sent by zerocopy; -1 if it left no statistics. */
static int64_t zerocopy_bytes(const char *stats_dir, pid_t pid)
{
	const struct stats_segment *segment;
	int64_t bytes = 0;
	char name[512];
	int fd;

	snprintf(name, sizeof(name), "%s/zc-%d.stats", stats_dir, (int)pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || stats_map(fd, &segment) < 0)
		return -1;
	for (uint32_t i = 0; i < segment->slots_used || !i; i++)
		bytes += (int64_t)segment->slot[i].path[PATH_ZEROCOPY][STAT_PATH_BYTES];
	stats_unmap(segment);
	close(fd);
	return bytes;
}

static void remove_dir(const char *dir)
{
	char command[600];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	if (system(command))
		fprintf(stderr, "mutate: %s was left behind\n", dir);
}

static int judge(const struct way *way, const char *library, bool expect_corruption)
{
	char dir[] = "/tmp/zc-mutate-XXXXXX";
	int report[2], port, listener = listen_small(&port), fd, status;
	int64_t taken, different, by_zerocopy;
	bool ended_well;
	pid_t pid;

	must(mkdtemp(dir));
	must(!pipe2(report, O_CLOEXEC));
	pid = start_sender(way, port, report, library, dir);
	must(pid > 0);
	close(report[1]);
	fd = accept(listener, NULL, NULL);
	must(fd >= 0);
	taken = wait_for_change(report[0]);
	different = receive(fd, taken);
	must(waitpid(pid, &status, 0) == pid);
	by_zerocopy = zerocopy_bytes(dir, pid);
	remove_dir(dir);
	ended_well = !status || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !strcmp(way->name, "kill"));
	printf("%s: %lld bytes sent, %lld by zerocopy, %lld differ, sender's status %#x\n", way->name, (long long)taken,
	       (long long)by_zerocopy, (long long)different, status);
	if (taken < TAKEN_MIN || different < 0 || !ended_well)
		return 1;
	if (expect_corruption)
		return different > 0 ? 0 : 1;
	if (!way->copied && by_zerocopy < TAKEN_MIN / 2) {
		fprintf(stderr, "mutate: zerocopy was not used: nothing was tested\n");
		return 1;
	}
	return different == 0 ? 0 : 1;
}

static int list(void)
{
	for (size_t i = 0; i < way_count; i++)
		printf("%c %s\n", ways[i].seen_unguarded ? 's' : ' ', ways[i].name);
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
		return sender(find_way(argv[2]), atoi(argv[3]), report);
	}
	if ((argc != 4 && !corrupted) || strcmp(argv[1], "--library"))
		return usage();
	if (access(argv[2], R_OK) && !strchr(argv[2], ' ') && !strchr(argv[2], ':')) {
		fprintf(stderr, "mutate: can't read the library %s: %s\n", argv[2], strerror(errno));
		return 1;
	}
	return judge(find_way(argv[argc - 1]), argv[2], corrupted);
}
