/* SPDX-License-Identifier: MIT */
/*
 * What it costs to connect: connects serve ADDRESS prints `listening on ADDRESS:PORT` and answers each connection's first byte with one
 * until it is killed; connects ask ADDRESS PORT COUNT connects so often, one after the other, sends a byte, waits for the answer and
 * closes, and prints as JSON what connect() itself and all of it took (us, medians and percentiles).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hist.h"
#include "experiments/bench/bench.h"

#define WARM_UP 5

static struct sockaddr_in address_of(const char *text, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (inet_pton(AF_INET, text, &address.sin_addr) != 1) {
		fprintf(stderr, "connects: '%s' is no IPv4 address\n", text);
		exit(2);
	}
	return address;
}

static int serve(const char *text)
{
	struct sockaddr_in address = address_of(text, 0);
	socklen_t length = sizeof(address);
	int fd, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint8_t byte;

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 64) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		bench_fail("a listening socket");
	printf("listening on %s:%u\n", text, ntohs(address.sin_port));
	fflush(stdout);
	for (;;) {
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			bench_fail("accept");
		if (bench_receive_all(fd, &byte, 1))
			bench_send_all(fd, &byte, 1);
		/* The client closes first, so that no port of the server's waits for stray packets. */
		bench_receive_all(fd, &byte, 1);
		close(fd);
	}
}

static void print_hist(const char *name, const struct hist *hist, const char *end)
{
	printf("\"%s_p50_us\": %.1f, \"%s_p90_us\": %.1f%s", name, (double)hist_percentile(hist, 50) / 1e3, name,
	       (double)hist_percentile(hist, 90) / 1e3, end);
}

static int ask(const char *text, uint16_t port, uint64_t count)
{
	static struct hist connecting, whole;
	struct sockaddr_in address = address_of(text, port);

	hist_reset(&connecting);
	hist_reset(&whole);
	for (uint64_t i = 0; i < count + WARM_UP; i++) {
		uint64_t begun = clock_now(), connected;
		uint8_t byte = (uint8_t)i, back = (uint8_t)~i;
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
			bench_fail("connect");
		connected = clock_now();
		bench_send_all(fd, &byte, 1);
		if (!bench_receive_all(fd, &back, 1) || back != byte) {
			fprintf(stderr, "connects: no answer, or another byte\n");
			return 1;
		}
		close(fd);
		if (i < WARM_UP)
			continue;
		hist_record(&connecting, connected - begun);
		hist_record(&whole, clock_now() - begun);
	}
	printf("{");
	print_hist("connect", &connecting, ", ");
	print_hist("whole", &whole, "}\n");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "ask"))
		return ask(argv[2], (uint16_t)bench_number("PORT", argv[3], 1, 65535),
			   bench_number("COUNT", argv[4], 1, 10000000));
	fprintf(stderr, "Usage: connects serve ADDRESS | ask ADDRESS PORT COUNT\n");
	return 2;
}
