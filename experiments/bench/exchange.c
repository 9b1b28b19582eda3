/* SPDX-License-Identifier: MIT */
/*
 * A ping-pong as servers do it: exchange serve PORT blocking|epoll sends back what comes on one connection, until its end;
 * exchange ask PORT blocking|epoll BYTES BUSY MILLISECONDS sends BYTES and waits for them, again and again, and prints as JSON what
 * half a round trip took. Every answer is compared. `epoll` waits in epoll_wait before each receive, as event loops do. BUSY
 * processes that do nothing but run are beside it meanwhile: with more of them than cores nobody can spin for nothing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hist.h"
#include "experiments/bench/bench.h"

#define WARM_UP_NS (50 * NS_PER_MS)
#define BUSY_MAX 64

/* One end of the connection: in an epoll set of its own, or -1. */
struct end {
	int fd, set;
};

static bool is_epoll(const char *how)
{
	if (strcmp(how, "blocking") && strcmp(how, "epoll")) {
		fprintf(stderr, "exchange: there is no way to wait '%s'; there are: blocking epoll\n", how);
		exit(2);
	}
	return *how == 'e';
}

static struct end end_of(int fd, bool epoll)
{
	struct end end = { fd, epoll ? epoll_create1(EPOLL_CLOEXEC) : -1 };
	struct epoll_event event = { .events = EPOLLIN };
	int yes = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)))
		bench_fail("TCP_NODELAY");
	if (epoll && (end.set < 0 || epoll_ctl(end.set, EPOLL_CTL_ADD, fd, &event)))
		bench_fail("an epoll set");
	return end;
}

/* Returns the number of bytes, 0 at the end of the stream. */
static size_t receive_some(const struct end *end, void *bytes, size_t count)
{
	struct epoll_event event;
	ssize_t got;

	do {
		int ready = end->set < 0 ? 1 : epoll_wait(end->set, &event, 1, -1);

		got = ready == 1 ? recv(end->fd, bytes, count, 0) : -1;
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		bench_fail("recv");
	return (size_t)got;
}

static int serve(uint16_t port, bool epoll)
{
	static char buffer[1 << 20];
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				       .sin_port = htons(port) };
	int fd, yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct end end;
	size_t got;

	if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 8))
		bench_fail("a listening socket");
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		bench_fail("accept");
	end = end_of(fd, epoll);
	while ((got = receive_some(&end, buffer, sizeof(buffer))))
		bench_send_all(fd, buffer, got);
	return 0;
}

/* Made before there is a connection, so that they have no part in it. */
static void start_busy(pid_t *busy, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		busy[i] = fork();
		if (busy[i] < 0)
			bench_fail("fork");
		if (!busy[i]) {
			volatile unsigned long turns = 0;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				turns++;
		}
	}
}

static void exchange_once(const struct end *end, uint8_t *out, uint8_t *in, size_t bytes, uint8_t number)
{
	memset(out, number, bytes);
	bench_send_all(end->fd, out, bytes);
	for (size_t done = 0; done < bytes;) {
		size_t got = receive_some(end, in + done, bytes - done);

		if (!got) {
			fprintf(stderr, "exchange: the server has gone\n");
			exit(1);
		}
		done += got;
	}
	if (memcmp(in, out, bytes)) {
		fprintf(stderr, "exchange: other bytes came back than were sent\n");
		exit(1);
	}
}

static void ask(uint16_t port, bool epoll, uint64_t bytes, uint64_t ns)
{
	static struct hist hist;
	uint8_t *out = bench_memory(bytes), *in = bench_memory(bytes), number = 0;
	struct end end = end_of(bench_connect(port), epoll);
	uint64_t begun = clock_now(), now = begun;

	hist_reset(&hist);
	while (now - begun < WARM_UP_NS + ns || !hist.count) {
		uint64_t sent = now;

		exchange_once(&end, out, in, bytes, number++);
		now = clock_now();
		if (sent - begun >= WARM_UP_NS)
			hist_record(&hist, now - sent);
	}
	printf("{\"exchanges\": %llu, \"bytes\": %llu, \"half_round_trip_us\": {\"mean\": %.3f, \"p50\": %.3f, "
	       "\"p99\": %.3f}}\n",
	       (unsigned long long)hist.count, 2 * (unsigned long long)bytes * hist.count, hist_mean(&hist) / 2000,
	       (double)hist_percentile(&hist, 50) / 2000, (double)hist_percentile(&hist, 99) / 2000);
}

int main(int argc, char **argv)
{
	pid_t busy[BUSY_MAX];
	uint64_t count;
	uint16_t port;

	if (!(argc == 4 && !strcmp(argv[1], "serve")) && !(argc == 7 && !strcmp(argv[1], "ask"))) {
		fprintf(stderr, "usage: exchange serve PORT blocking|epoll\n"
				"       exchange ask PORT blocking|epoll BYTES BUSY MILLISECONDS\n");
		return 2;
	}
	port = (uint16_t)bench_number("PORT", argv[2], 1, 65535);
	if (argc == 4)
		return serve(port, is_epoll(argv[3]));
	count = bench_number("BUSY", argv[5], 0, BUSY_MAX);
	start_busy(busy, count);
	ask(port, is_epoll(argv[3]), bench_number("BYTES", argv[4], 1, 1 << 20),
	    bench_number("MILLISECONDS", argv[6], 1, 3600000) * NS_PER_MS);
	for (uint64_t i = 0; i < count; i++) {
		kill(busy[i], SIGKILL);
		waitpid(busy[i], NULL, 0);
	}
	return 0;
}
