/* SPDX-License-Identifier: MIT */
/* The sender and the receiver of mutate.h. */
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
#include <unistd.h>

#include "common/stats.h"

#define SEND_BUFFER (8 * BYTES)
#define WARM_BYTES (256 * 1024)
#define ROUNDS_MAX 200 /* of the warm-up */

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

int64_t bytes_by(const char *dir, int pid, enum zc_path path)
{
	const struct stats_segment *segment;
	int64_t bytes = 0;
	char name[512];
	int fd;

	snprintf(name, sizeof(name), "%s/zc-%d.stats", dir, pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (stats_map(fd, &segment) < 0) {
		close(fd);
		return -1;
	}
	for (uint32_t i = 0; i < segment->slots_used || !i; i++)
		bytes += (int64_t)segment->slot[i].path[path][STAT_PATH_BYTES];
	stats_unmap(segment);
	close(fd);
	return bytes;
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

static int64_t announced_bytes(void)
{
	const char *dir = getenv("ZC_STATS_DIR");

	must(dir);
	return bytes_by(dir, getpid(), PATH_AZSDP);
}

/* Messages and answers until sources are in use. The first byte of the last message is set. */
static void warm_up(int fd)
{
	unsigned char *bytes = mmap(NULL, WARM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool last = false;

	must(bytes != MAP_FAILED);
	for (int round = 0; !last; round++) {
		char answer;

		must(round < ROUNDS_MAX);
		last = announced_bytes() >= WARM_BYTES;
		memset(bytes, last, WARM_BYTES);
		must(send(fd, bytes, WARM_BYTES, 0) == WARM_BYTES);
		must(recv(fd, &answer, 1, 0) == 1);
	}
	munmap(bytes, WARM_BYTES);
}

int sender(const struct way *way, int port, int report, bool announced)
{
	struct target target = { .bytes = BYTES, .memory = -1, .socket = connect_to(port) };
	struct report told = { 0 };

	if (announced) {
		warm_up(target.socket);
		told.before = announced_bytes();
	}
	if (way->prepare) {
		way->prepare(&target);
	} else {
		target.buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		must(target.buffer != MAP_FAILED);
	}
	fill(target.buffer, BYTES, SEED_SENT);
	told.taken = send(target.socket, target.buffer, BYTES, MSG_DONTWAIT);
	must(told.taken > 0);
	must(write(report, &told, sizeof(told)) == sizeof(told));
	way->mutate(&target);
	close(report);
	return 0;
}

/* The receiver --------------------------------------------------------------------------------------------------------- */

static void answer_warm_up(int fd)
{
	unsigned char *bytes = malloc(WARM_BYTES);

	must(bytes);
	do {
		must(recv(fd, bytes, WARM_BYTES, MSG_WAITALL) == WARM_BYTES);
		must(send(fd, "", 1, 0) == 1);
	} while (!bytes[0]);
	free(bytes);
}

/* Waits for the send, and until the change is over. */
static void wait_for_change(int report, struct report *out)
{
	char byte;

	if (read(report, out, sizeof(*out)) != sizeof(*out))
		out->taken = -1;
	else
		must(read(report, &byte, 1) == 0);
}

int receiver(int listener, int report, int result, bool announced)
{
	unsigned char *bytes = malloc(BYTES + 1);
	struct result out = { 0 };
	int fd = accept(listener, NULL, NULL);
	ssize_t got;

	must(bytes && fd >= 0);
	if (announced)
		answer_warm_up(fd);
	wait_for_change(report, &out.report);
	while ((got = read(fd, bytes + out.arrived, (size_t)(BYTES + 1 - out.arrived))) > 0)
		out.arrived += got;
	out.error = got < 0 ? errno : 0;
	for (int64_t i = 0; i < out.arrived; i++)
		out.different += bytes[i] != pattern((size_t)i, SEED_SENT);
	must(write(result, &out, sizeof(out)) == sizeof(out));
	return 0;
}
