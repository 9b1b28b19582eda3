/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "experiments/bench/bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t bench_number(const char *what, const char *text, uint64_t min, uint64_t max)
{
	char *end;
	unsigned long long number;

	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || number < min || number > max) {
		fprintf(stderr, "%s: %s '%s' is not a number from %llu to %llu\n", program_invocation_short_name, what,
			text, (unsigned long long)min, (unsigned long long)max);
		exit(2);
	}
	return number;
}

void bench_fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

int bench_listen(uint16_t *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) || listen(fd, 8) ||
	    getsockname(fd, (struct sockaddr *)&address, &bytes))
		bench_fail("a listening socket");
	*port = ntohs(address.sin_port);
	return fd;
}

int bench_connect(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				       .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		bench_fail("a connection over loopback");
	return fd;
}

void bench_tcp_pair(int *client, int *server)
{
	uint16_t port;
	int listener = bench_listen(&port);

	*client = bench_connect(port);
	*server = accept(listener, NULL, NULL);
	if (*server < 0)
		bench_fail("accept");
	close(listener);
}

void bench_send_all(int fd, const void *bytes, uint64_t count)
{
	const char *at = bytes;

	while (count) {
		ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			bench_fail("send");
		at += sent;
		count -= (uint64_t)sent;
	}
}

bool bench_receive_all(int fd, void *bytes, uint64_t count)
{
	char *at = bytes;

	while (count) {
		ssize_t got = recv(fd, at, count, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			bench_fail("recv");
		if (!got)
			return false;
		at += got;
		count -= (uint64_t)got;
	}
	return true;
}

void *bench_memory(uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		bench_fail("memory");
	return memory;
}

static void receive(uint16_t port, uint64_t bytes)
{
	char *buffer = bench_memory(bytes);
	int fd = bench_connect(port);

	while (bench_receive_all(fd, buffer, bytes))
		bench_send_all(fd, "r", 1);
	_exit(0);
}

int bench_receiver_start(uint64_t bytes, pid_t *receiver)
{
	uint16_t port;
	int fd, yes = 1, listener = bench_listen(&port);

	*receiver = fork();
	if (*receiver < 0)
		bench_fail("fork");
	if (!*receiver) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		receive(port, bytes);
	}
	fd = accept(listener, NULL, NULL);
	/* The calls are timed, not how long Nagle's algorithm lets the second one of a burst wait. */
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)))
		bench_fail("accept");
	close(listener);
	return fd;
}

void bench_receiver_end(int fd, pid_t receiver)
{
	int status;

	close(fd);
	if (waitpid(receiver, &status, 0) < 0)
		bench_fail("the receiver");
	if (status) {
		fprintf(stderr, "%s: the receiver has failed, status %d\n", program_invocation_short_name, status);
		exit(1);
	}
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_median(double *samples, uint64_t count)
{
	qsort(samples, count, sizeof(*samples), ascending);
	return count % 2 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
}
