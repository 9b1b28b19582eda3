/* SPDX-License-Identifier: MIT */
/*
 * One end of many connections over loopback, most of them idle. `crowd listen COUNT [SPARE]` prints its port and sends back what comes;
 * `crowd connect COUNT PORT [SPARE]` connects and does what the lines of its standard input say, one after the other, with a line
 * of its own for each:
 *
 *	touch		one small turn on each connection
 *	more COUNT	so many more connections
 *	meet BYTES	some small turns, and one of BYTES each way, on each connection, compared byte for byte
 *	ping TURNS	turns of 64 bytes on the first connection alone, waited for in the set of all: CPU and time of one
 *
 * Both wait in one epoll set for all they have, and both end with their standard input. SPARE: so many descriptors more than COUNT
 * are allowed to it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "listening.h"

#define EVENTS 256
#define SMALL_TURNS 8
#define SMALL_BYTES 64
#define SPARE_DESCRIPTORS 1024
#define BYTES_MAX (1 << 20)

static uint8_t sent[BYTES_MAX], got[BYTES_MAX];

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *what, ...)
{
	va_list list;

	va_start(list, what);
	vfprintf(stderr, what, list);
	va_end(list);
	fprintf(stderr, ": %s\n", strerror(errno));
	exit(1);
}

static void want_descriptors(int count, int spare)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = (rlim_t)count + (rlim_t)spare;
	if (limit.rlim_max < limit.rlim_cur)
		limit.rlim_max = limit.rlim_cur;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		give_up("no %d descriptors", count);
}

static void watch(int set, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	/* A file, or /dev/null, which epoll does not take, has ended already. */
	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
		give_up("epoll_ctl of %d", fd);
}

static void put_all(int fd, const uint8_t *from, size_t bytes)
{
	while (bytes) {
		ssize_t now = send(fd, from, bytes, MSG_NOSIGNAL);

		if (now < 0)
			give_up("send");
		from += now;
		bytes -= (size_t)now;
	}
}

/* Returns how many events; a debugger's stop is none. */
static int wait_in(int set, struct epoll_event *events, int count)
{
	int ready;

	do {
		ready = epoll_wait(set, events, count, -1);
	} while (ready < 0 && errno == EINTR);
	if (ready < 1)
		give_up("epoll_wait");
	return ready;
}

/* The listening end --------------------------------------------------------------------------------------------------- */

/* Sends back what is there; its peer receives all before it sends more, so this waits for no end. */
static void echo(int set, int fd)
{
	ssize_t now = recv(fd, got, sizeof(got), MSG_DONTWAIT);

	if (now > 0) {
		put_all(fd, got, (size_t)now);
	} else if (!now || errno != EAGAIN) {
		epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
		close(fd);
	}
}

static int serve(int count)
{
	int set = epoll_create1(0), listening = listen_and_tell(INADDR_LOOPBACK, count);

	watch(set, listening);
	watch(set, STDIN_FILENO);
	for (;;) {
		struct epoll_event events[EVENTS];
		int ready = wait_in(set, events, EVENTS);

		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;

			if (fd == STDIN_FILENO)
				return 0;
			if (fd != listening)
				echo(set, fd);
			else if ((fd = accept(listening, NULL, NULL)) >= 0)
				watch(set, fd);
			else
				give_up("accept");
		}
	}
}

/* The connecting end -------------------------------------------------------------------------------------------------- */

static void turn(int set, int fd, size_t bytes)
{
	static unsigned int next;
	size_t there = 0;

	for (size_t i = 0; i < bytes; i++)
		sent[i] = (uint8_t)(next++ * 2654435761u >> 24);
	put_all(fd, sent, bytes);
	while (there < bytes) {
		struct epoll_event event;
		ssize_t now;

		wait_in(set, &event, 1);
		if (event.data.fd != fd)
			give_up("an event of %d instead of %d", event.data.fd, fd);
		now = recv(fd, got + there, bytes - there, 0);
		if (now <= 0)
			give_up("recv of %d", fd);
		there += (size_t)now;
	}
	if (memcmp(sent, got, bytes) != 0)
		give_up("wrong bytes on %d", fd);
}

static void meet(int set, const int *fds, int count, size_t bytes)
{
	if (bytes > BYTES_MAX)
		give_up("too many bytes");
	for (int i = 0; i < count; i++) {
		for (int k = 0; k < SMALL_TURNS; k++)
			turn(set, fds[i], SMALL_BYTES);
		turn(set, fds[i], bytes);
	}
	printf("met %d\n", count);
}

static void touch(int set, const int *fds, int count)
{
	for (int i = 0; i < count; i++)
		turn(set, fds[i], SMALL_BYTES);
	printf("touched %d\n", count);
}

static uint64_t ns_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void ping(int set, int fd, int turns)
{
	uint64_t cpu = ns_of(CLOCK_PROCESS_CPUTIME_ID), time = ns_of(CLOCK_MONOTONIC);

	for (int i = 0; i < turns; i++)
		turn(set, fd, SMALL_BYTES);
	cpu = ns_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	time = ns_of(CLOCK_MONOTONIC) - time;
	printf("turns %d cpu_ns %llu ns %llu\n", turns, (unsigned long long)(cpu / (uint64_t)turns),
	       (unsigned long long)(time / (uint64_t)turns));
}

/* What there is at the connecting end. */
struct crowd {
	int set, *fds, count;
	struct sockaddr_in at;
};

static void connect_more(struct crowd *crowd, int count)
{
	int *fds = realloc(crowd->fds, (size_t)(crowd->count + count) * sizeof(*fds));

	if (!fds)
		give_up("no memory");
	crowd->fds = fds;
	while (count--) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (fd < 0 || connect(fd, (struct sockaddr *)&crowd->at, sizeof(crowd->at)) < 0)
			give_up("connect %d", crowd->count);
		watch(crowd->set, fd);
		fds[crowd->count++] = fd;
	}
	printf("connected %d\n", crowd->count);
	fflush(stdout);
}

/* Returns whether there was a line. The set is waited in meanwhile, as a program does that has nothing to do. */
static bool next_order(int set, char *line, size_t bytes)
{
	struct epoll_event event;
	ssize_t there;

	watch(set, STDIN_FILENO);
	wait_in(set, &event, 1);
	if (event.data.fd != STDIN_FILENO)
		give_up("an event where none was expected");
	epoll_ctl(set, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
	there = read(STDIN_FILENO, line, bytes - 1);
	line[there > 0 ? there : 0] = '\0';
	return there > 0;
}

static int drive(int count, int port)
{
	struct crowd crowd = { .set = epoll_create1(0),
			       .at = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
	char line[64];

	connect_more(&crowd, count);
	while (next_order(crowd.set, line, sizeof(line))) {
		if (!strncmp(line, "meet ", 5))
			meet(crowd.set, crowd.fds, crowd.count, (size_t)atol(line + 5));
		else if (!strncmp(line, "ping ", 5))
			ping(crowd.set, crowd.fds[0], atoi(line + 5));
		else if (!strncmp(line, "touch", 5))
			touch(crowd.set, crowd.fds, crowd.count);
		else if (!strncmp(line, "more ", 5))
			connect_more(&crowd, atoi(line + 5));
		else
			give_up("what is %s", line);
		fflush(stdout);
	}
	free(crowd.fds);
	return 0;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 0;

	if (count < 1 || (strcmp(argv[1], "listen") != 0 && argc < 4)) {
		fprintf(stderr, "usage: crowd listen COUNT [SPARE] | connect COUNT PORT [SPARE]\n");
		return 2;
	}
	if (strcmp(argv[1], "listen") != 0) {
		want_descriptors(count, argc > 4 ? atoi(argv[4]) : SPARE_DESCRIPTORS);
		return drive(count, atoi(argv[3]));
	}
	want_descriptors(count, argc > 3 ? atoi(argv[3]) : SPARE_DESCRIPTORS);
	return serve(count);
}
