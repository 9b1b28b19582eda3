/* SPDX-License-Identifier: MIT */
/*
 * The three processes. Each does what the driver says, a letter at a time, over the socket that it was given: `w` warms up (all
 * that the library keeps for the life of a process is there then), `b` notes what it holds, `g` goes, `s` ends. The answer is the letter, with
 * how many sessions there were.
 */
#define _GNU_SOURCE
#include "fire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fire_control.h"

#define WARM_SESSIONS 24
#define SETTLE_MS 60000
#define GREETINGS 8

static const char *name;
static uint64_t seed;
static int port;
static _Atomic bool wrong;
static _Atomic uint32_t numbers, finished;
static struct census before;

/* Connections ------------------------------------------------------------------------------------------------------ */

static void options_draw(struct state *state, int fd, uint64_t random)
{
	int one = 1, bytes = 8192 << fire_below(&random, 4);

	/* By Nagle's algorithm a turn in several sends would wait for an acknowledgement, 40 ms. */
	if (plan_has_turns(state->seed, state->number) || fire_below(&random, 2))
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	/* Little room in the kernel: what goes by TCP between two visits to the ring is a few KB, too. */
	if (fire_below(&random, 8))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	state->zerocopy = !fire_below(&random, 8) && !setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof(one));
}

/* Before it is connected: the window that the peer has, of segments that are small beside it. */
static void little_room(int fd)
{
	int bytes = FIRE_KERNEL_BYTES, segment = 1448;

	setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

static int flags_draw(uint64_t random)
{
	return fire_below(&random, 8) ? SOCK_CLOEXEC : 0;
}

/* A few bytes to and fro: time for both ends to meet before anybody forks. */
static bool greet(int fd, enum side side)
{
	char byte = 0;
	bool right = true;

	atomic_fetch_add(&meetings_live, 1);
	for (int i = 0; i < 2 * GREETINGS && right; i++)
		right = (i % 2 == (int)side ? send(fd, &byte, 1, MSG_NOSIGNAL) : recv(fd, &byte, 1, 0)) == 1;
	atomic_fetch_sub(&meetings_live, 1);
	return right;
}

static int session_connect(struct state *state)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | flags_draw(seed + state->number), 0);

	if (fd >= 0 && state->number % 8)
		little_room(fd);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return session_wrong(state, "connect: %s", strerror(errno));
	options_draw(state, fd, seed + state->number);
	if (send(fd, &state->number, sizeof(state->number), 0) != sizeof(state->number) || !greet(fd, SIDE_CLIENT))
		return session_wrong(state, "send of the number: %s", strerror(errno));
	return fd;
}

static void session_one(uint32_t number)
{
	struct state state = { .seed = seed, .number = number, .side = SIDE_CLIENT };
	int fd = session_connect(&state);

	if (fd < 0 || session_run(&state, fd))
		atomic_store(&wrong, true);
	atomic_fetch_add(&finished, 1);
}

static void *session_accepted(void *argument)
{
	struct state state = { .seed = seed, .side = SIDE_SERVER };
	int fd = (int)(intptr_t)argument;

	if (recv(fd, &state.number, sizeof(state.number), MSG_WAITALL) != sizeof(state.number)) {
		atomic_store(&wrong, true);
		session_wrong(&state, "receive of the number: %s", strerror(errno));
		close(fd);
	} else {
		options_draw(&state, fd, seed - state.number);
		if (!greet(fd, SIDE_SERVER) || session_run(&state, fd))
			atomic_store(&wrong, true);
	}
	atomic_fetch_add(&finished, 1);
	atomic_fetch_sub(&sessions_live, 1);
	return NULL;
}

static void *accept_all(void *argument)
{
	int listening = (int)(intptr_t)argument, fd;
	pthread_attr_t attributes;
	pthread_t thread;
	uint64_t turn = seed;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	for (;;) {
		fd = accept4(listening, NULL, NULL, flags_draw(turn++));
		if (fd < 0)
			continue;
		atomic_fetch_add(&sessions_live, 1);
		if (pthread_create(&thread, &attributes, session_accepted, (void *)(intptr_t)fd))
			abort();
	}
	return NULL;
}

static int server_start(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;

	if (listening >= 0)
		little_room(listening);
	if (listening < 0 || bind(listening, (struct sockaddr *)&address, bytes) < 0 || listen(listening, 64) < 0 ||
	    getsockname(listening, (struct sockaddr *)&address, &bytes) < 0)
		return -errno;
	port = ntohs(address.sin_port);
	return -pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listening);
}

/* The client's threads --------------------------------------------------------------------------------------------- */

struct work {
	uint32_t until;	    /* the number of the last session, and */
	struct timespec at; /* the time of the last beginning: until both are behind us */
};

static bool is_over(const struct work *work)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return atomic_load(&wrong) ||
	       (atomic_load(&numbers) >= work->until &&
		(now.tv_sec > work->at.tv_sec || (now.tv_sec == work->at.tv_sec && now.tv_nsec >= work->at.tv_nsec)));
}

static void *work_one(void *argument)
{
	while (!is_over(argument))
		session_one(atomic_fetch_add(&numbers, 1));
	return NULL;
}

static void work(struct work *work)
{
	pthread_t threads[FIRE_THREADS];

	for (int i = 0; i < FIRE_THREADS; i++)
		if (pthread_create(&threads[i], NULL, work_one, work))
			abort();
	for (int i = 0; i < FIRE_THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void client_goes(uint32_t ms, uint32_t sessions)
{
	struct work goes = { .until = atomic_load(&numbers) + sessions };

	clock_gettime(CLOCK_MONOTONIC, &goes.at);
	goes.at.tv_sec += ms / 1000;
	goes.at.tv_nsec += ms % 1000 * 1000000l;
	if (goes.at.tv_nsec >= 1000000000l) {
		goes.at.tv_sec++;
		goes.at.tv_nsec -= 1000000000l;
	}
	work(&goes);
}

/* The driver's words ----------------------------------------------------------------------------------------------- */

/* What other threads have just ended is not gone at once. Returns whether nothing more is held than before. */
static bool settle(const struct census *most, struct census *census)
{
	for (int ms = 0; ms < SETTLE_MS; ms += 20) {
		if (!atomic_load(&sessions_live)) {
			census_take(census);
			if (!most || !census_exceeds(census, most))
				return true;
		}
		poll(NULL, 0, 20);
	}
	census_take(census);
	return false;
}

static void census_compare(void)
{
	struct census now;

	if (settle(&before, &now))
		return;
	atomic_store(&wrong, true);
	fprintf(stderr, "fire: %s, --seed %llu: %d sessions under way; more is left behind than there was\n", name,
		(unsigned long long)seed, atomic_load(&sessions_live));
	census_print("before", &before);
	census_print("after", &now);
}

/* A few more sessions may still be at work for a moment: what is held is noted when it no longer shrinks. */
static void census_begin(void)
{
	struct census now;

	settle(NULL, &before);
	for (int same = 0; same < 10; same++) {
		poll(NULL, 0, 20);
		census_take(&now);
		if (now.descriptors < before.descriptors || now.threads < before.threads || now.maps < before.maps)
			same = 0;
		before = now;
	}
}

static void obey(const struct control *control)
{
	struct work warm = { .until = WARM_SESSIONS };

	switch (control->word) {
	case 'w':
		work(&warm);
		break;
	case 'b':
		census_begin();
		break;
	case 'n':
		noise_start(seed ^ (uint64_t)getpid());
		break;
	case 'q':
		noise_stop();
		break;
	case 'g':
		client_goes(control->value, control->least);
		break;
	case 's':
		census_compare();
		break;
	}
}

int process_run(int argc, char **argv)
{
	int driver, rc;
	struct control control;

	if (argc != 6)
		return 2;
	name = argv[1];
	driver = atoi(argv[2]);
	seed = strtoull(argv[3], NULL, 10);
	snprintf(handover_directory, 64, "%s", argv[4]);
	port = atoi(argv[5]);
	signal(SIGPIPE, SIG_IGN);
	fcntl(driver, F_SETFD, FD_CLOEXEC);
	rc = handover_serve(name);
	if (!rc && !strcmp(name, "server"))
		rc = server_start();
	if (rc < 0)
		fprintf(stderr, "fire: %s: %s\n", name, strerror(-rc));
	control = (struct control){ .word = 'r', .value = (uint32_t)port, .wrong = rc < 0 };
	while (send(driver, &control, sizeof(control), 0) == sizeof(control) &&
	       recv(driver, &control, sizeof(control), 0) == sizeof(control)) {
		obey(&control);
		control.value = atomic_load(&finished);
		control.wrong = atomic_load(&wrong);
		if (control.word == 's') {
			send(driver, &control, sizeof(control), 0);
			return control.wrong;
		}
	}
	return 1;
}
