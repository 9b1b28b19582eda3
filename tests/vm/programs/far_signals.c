/* SPDX-License-Identifier: MIT */
/* Cases of far_cases.c: signals whose handlers send. */
#define _GNU_SOURCE
#include "far_signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SMALL 1000

/*
 * handler: signals whose handler sends on the same connection, while its thread receives, and asks the device for the next event when it goes
 * to sleep: so many that some come in the middle of that.
 */
#define ALIKE 'x'
#define SIGNALS 400
#define SIGNAL_US 1000
#define HANDLED 16 /* bytes */

static int handler_fd = -1;
static _Atomic unsigned int handled;

static void send_in_handler(int number)
{
	uint8_t data[HANDLED];

	memset(data, ALIKE, sizeof(data));
	check(send(handler_fd, data, sizeof(data), MSG_NOSIGNAL) == sizeof(data), "send");
	handled++;
}

void handler_server(struct stream *stream)
{
	uint8_t data[PART];
	uint64_t all = 0;
	unsigned int expected = 0;
	ssize_t got;

	while (!expected) { /* 0: the client waits for an answer */
		check(read(to_server[0], &expected, sizeof(expected)) == sizeof(expected), "count");
		put(stream, expected ? 0 : SMALL, 0);
	}
	while ((got = recv(stream->fd, data, sizeof(data), 0)) > 0) {
		for (ssize_t i = 0; i < got; i++)
			check(data[i] == ALIKE, "wrong byte");
		all += (uint64_t)got;
	}
	check(!got && all == (uint64_t)expected * HANDLED, "end of the stream");
}

static void ask_server(unsigned int what)
{
	check(write(to_server[1], &what, sizeof(what)) == sizeof(what), "ask");
}

void handler_client(struct stream *stream, char *self)
{
	struct sigaction action = { .sa_handler = send_in_handler, .sa_flags = SA_RESTART };
	struct itimerval time = { { 0, SIGNAL_US }, { 0, SIGNAL_US } };
	sigset_t ticks;

	handler_fd = stream->fd;
	check(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &time, NULL), "setitimer");
	while (handled < SIGNALS) {
		ask_server(0);
		take(stream, SMALL);
	}
	sigemptyset(&ticks);
	sigaddset(&ticks, SIGALRM);
	check(!sigprocmask(SIG_BLOCK, &ticks, NULL), "sigprocmask");
	ask_server(handled);
}

/*
 * allocating: signals whose handler sends what is large enough to be announced, while its thread is in malloc() and free() most of the time:
 * what registers memory allocates, too.
 */
#define BLOCK_MAX 4096

static void send_part_in_handler(int number)
{
	static uint8_t data[PART];

	memset(data, ALIKE, sizeof(data));
	for (size_t at = 0; at < sizeof(data) && handled < SIGNALS;) {
		ssize_t sent = send(handler_fd, data + at, sizeof(data) - at, MSG_NOSIGNAL);

		check(sent > 0, "send");
		at += (size_t)sent;
	}
	handled += handled < SIGNALS;
}

void allocating_client(struct stream *stream, char *self)
{
	struct sigaction action = { .sa_handler = send_part_in_handler, .sa_flags = SA_RESTART };
	struct itimerval time = { { 0, SIGNAL_US }, { 0, SIGNAL_US } };

	handler_fd = stream->fd;
	ask_server(SIGNALS * (PART / HANDLED));
	check(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &time, NULL), "setitimer");
	for (unsigned int i = 0; handled < SIGNALS; i++) {
		/* Larger than what a thread keeps for itself. */
		void *volatile block = malloc(BLOCK_MAX + i % 64 * 64);

		free(block);
	}
}

/*
 * interrupted: receives that signals end, while the peer sends at any time: behind such an end the memory is the program's, and nobody writes
 * to it any more. The peer rests and sends once it is asked, so that receives wait for it however slow the machine is: some until it has sent,
 * the others until the signal.
 */
#define MESSAGES 400
#define MARKER 0xee
#define PAUSE_US 8000
#define WAIT_US 16000

static void only_interrupt(int number)
{
}

static void rest_us(long us)
{
	const struct timespec time = { .tv_nsec = us * 1000 };

	nanosleep(&time, NULL); /* a signal may end it */
}

static void check_untouched(uint8_t *room, size_t bytes)
{
	memset(room, MARKER, bytes);
	rest_us(SIGNAL_US);
	for (size_t i = 0; i < bytes; i++)
		check(room[i] == MARKER, "somebody wrote to the memory of a receive that had ended");
}

void interrupted_server(struct stream *stream)
{
	struct sigaction action = { .sa_handler = only_interrupt };
	struct itimerval time = { 0 };
	static uint8_t room[2 * PART];
	unsigned int calls = 0, ended = 0;

	check(!sigaction(SIGALRM, &action, NULL), "sigaction");
	for (unsigned int i = 0; i < MESSAGES; i++) {
		put(stream, 1, 0);
		for (uint64_t until = stream->received + PART; stream->received < until;) {
			ssize_t got;

			time.it_value.tv_usec = SIGNAL_US + calls++ * 997 % WAIT_US;
			check(!setitimer(ITIMER_REAL, &time, NULL), "setitimer");
			got = recv(stream->fd, room, sizeof(room), 0);
			check(got > 0 || (got < 0 && errno == EINTR), "recv");
			for (ssize_t k = 0; k < got; k++)
				check(room[k] == byte_at(stream->received++), "wrong byte");
			if (got < 0) {
				check_untouched(room, sizeof(room));
				ended++;
			}
		}
		time.it_value.tv_usec = 0;
		check(!setitimer(ITIMER_REAL, &time, NULL), "setitimer");
	}
	fprintf(stderr, "%u of %u receives ended by a signal\n", ended, calls);
	check(ended, "no receive was ended by a signal");
	expect_end(stream);
}

void interrupted_client(struct stream *stream, char *self)
{
	for (unsigned int i = 0; i < MESSAGES; i++) {
		take(stream, 1);
		rest_us(i * 997 % PAUSE_US);
		put(stream, PART, 0);
	}
}
