/* SPDX-License-Identifier: MIT */
/*
 * Threads that sleep in a set which another thread gives a connection: the first that the process has, or one that has
 * bytes left from a receive. The client end has the sets.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define CONNECTION 7 /* the data of its registration */
#define ROUNDS 5
#define ALL 10000
#define TAKEN 16 /* by a receive before there is a registration */

struct sets {
	struct end *end;
	int inner, outer; /* the same if nothing is nested */
	bool fine;	  /* waits by epoll_pwait2() */
	_Atomic int thread;
	_Atomic int fd; /* the connection, once it is registered: what orders the threads, wherever a wait does not */
	uint64_t position; /* up to which it has been taken */
};

static void nest(struct sets *sets)
{
	struct epoll_event event = { .events = EPOLLIN };

	sets->outer = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	MUST(epoll_ctl(sets->outer, EPOLL_CTL_ADD, sets->inner, &event));
}

static void sets_open(struct sets *sets, bool nested)
{
	struct epoll_event event = { .events = EPOLLIN };
	int quiet = (int)MUST(eventfd(0, EFD_CLOEXEC));

	sets->inner = sets->outer = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	MUST(epoll_ctl(sets->inner, EPOLL_CTL_ADD, quiet, &event));
	if (nested)
		nest(sets);
}

static void change(struct sets *sets, int op, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = CONNECTION };

	atomic_store(&sets->fd, sets->end->fd);
	EXPECT(!epoll_ctl(sets->inner, op, sets->end->fd, &event));
}

static int sleep_in(const struct sets *sets, int set, struct epoll_event *event)
{
	return sets->fine ? epoll_pwait2(set, event, 1, NULL, NULL) : epoll_wait(set, event, 1, -1);
}

/* Sleeps until the connection is told of. Returns its events. */
static uint32_t sleep_until_told(const struct sets *sets)
{
	struct epoll_event event = { 0 };

	EXPECT(sleep_in(sets, sets->outer, &event) == 1);
	if (sets->outer != sets->inner)
		EXPECT(epoll_wait(sets->inner, &event, 1, 0) == 1);
	EXPECT(event.data.u64 == CONNECTION);
	return event.events;
}

/* Until the thread is inside the kernel's wait. */
static void await_asleep(const struct sets *sets)
{
	char path[64], text[256];
	long number;

	for (;;) {
		int file, thread = atomic_load(&sets->thread);
		ssize_t got;

		snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
		file = thread ? open(path, O_RDONLY) : -1;
		got = file < 0 ? 0 : read(file, text, sizeof(text) - 1);
		close(file);
		text[got > 0 ? got : 0] = '\0';
		if (sscanf(text, "%ld", &number) == 1 && (number == SYS_epoll_pwait || number == SYS_epoll_pwait2 ||
#ifdef SYS_epoll_wait
							  number == SYS_epoll_wait ||
#endif
							  number == SYS_ppoll))
			return;
		sched_yield();
	}
}

/* Each message is told of, received and answered. */
static void *take_messages(void *argument)
{
	struct sets *sets = argument;
	char data[8] = { 0 };

	atomic_store(&sets->thread, (int)syscall(SYS_gettid));
	for (int i = 0; i < ROUNDS; i++) {
		note("told: %s", event_names(sleep_until_told(sets)));
		EXPECT(recv(atomic_load(&sets->fd), data, 5, MSG_WAITALL) == 5);
		note("'%s'", data);
		tell(sets->end, "taken");
	}
	return NULL;
}

/* The thread sleeps since before there was any connection in the process. */
void asleep_first(struct end *end, long how)
{
	struct sets sets = { .end = end, .fine = how == ASLEEP_FINE };
	pthread_t thread;

	if (!end->server) {
		sets_open(&sets, how == ASLEEP_NESTED);
		MUST(pthread_create(&thread, NULL, take_messages, &sets));
		await_asleep(&sets);
	}
	meet_and_go(end);
	if (!end->server) {
		change(&sets, EPOLL_CTL_ADD, EPOLLIN);
		tell(end, "watched");
		MUST(pthread_join(thread, NULL));
		return;
	}
	await(end, "watched");
	for (int i = 0; i < ROUNDS; i++) {
		give(end->fd, "hello", 5);
		await(end, "taken");
	}
}

static void *wait_for_room(void *argument)
{
	struct sets *sets = argument;

	atomic_store(&sets->thread, (int)syscall(SYS_gettid));
	note("told: %s", event_names(sleep_until_told(sets)));
	return NULL;
}

/* The same thread hears at once of room that it is to be told of as well from here on. */
void asleep_first_room(struct end *end, long unused)
{
	struct sets sets = { .end = end };
	pthread_t thread;

	if (!end->server) {
		sets_open(&sets, false);
		MUST(pthread_create(&thread, NULL, wait_for_room, &sets));
		await_asleep(&sets);
	}
	meet_and_go(end);
	if (!end->server) {
		change(&sets, EPOLL_CTL_ADD, EPOLLIN);
		change(&sets, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
		MUST(pthread_join(thread, NULL));
	}
	meet_at(end, "over");
}

/* Takes no more than a part of what is left, once that has been told of. */
static bool take_part(struct sets *sets)
{
	char data[4096];
	ssize_t got;

	EXPECT(sleep_until_told(sets) == EPOLLIN);
	got = MUST(recv(atomic_load(&sets->fd), data, sizeof(data), MSG_DONTWAIT));
	if (!pattern_check(data, (size_t)got, 3, sets->position))
		return false;
	sets->position += (uint64_t)got;
	return true;
}

static void *take_first_part(void *argument)
{
	struct sets *sets = argument;

	atomic_store(&sets->thread, (int)syscall(SYS_gettid));
	take_part(sets);
	return NULL;
}

/* Each part is told of, as the registration is of levels. */
static void *take_the_rest(void *argument)
{
	struct sets *sets = argument;

	atomic_store(&sets->thread, (int)syscall(SYS_gettid));
	while (sets->position < ALL && take_part(sets))
		;
	note("took up to %llu", (unsigned long long)sets->position);
	CALL(epoll_wait(sets->inner, &(struct epoll_event){ 0 }, 1, 0));
	return NULL;
}

/* Returns whether it is the server's end, which has done its part then. */
static bool gives_all(struct end *end)
{
	meet_and_go(end);
	if (!end->server)
		return false;
	give_pattern(end->fd, ALL, 3, 0);
	await(end, "over");
	return true;
}

/* What a receive has left is told of, though the peer sends nothing more. */
void asleep_left(struct end *end, long how)
{
	struct sets sets = { .end = end, .position = TAKEN };
	pthread_t thread;

	if (gives_all(end))
		return;
	sets_open(&sets, how & ASLEEP_LEFT_NESTED);
	if (how & ASLEEP_LEFT_THREAD) {
		MUST(pthread_create(&thread, NULL, take_the_rest, &sets));
		await_asleep(&sets);
	}
	await_bytes(end->fd, ALL);
	take_quietly(end->fd, TAKEN, 3, 0);
	change(&sets, EPOLL_CTL_ADD, EPOLLIN);
	if (how & ASLEEP_LEFT_NESTED_LATER)
		nest(&sets);
	if (how & ASLEEP_LEFT_THREAD)
		MUST(pthread_join(thread, NULL));
	else
		take_the_rest(&sets);
	tell(end, "over");
}

/* The set around it goes on telling of what a thread that slept in the set itself has left. */
void asleep_left_by_thread(struct end *end, long unused)
{
	struct sets sets = { .end = end, .position = TAKEN }, inside;
	pthread_t thread;

	if (gives_all(end))
		return;
	sets_open(&sets, true);
	inside = (struct sets){ .end = end, .inner = sets.inner, .outer = sets.inner, .position = TAKEN };
	MUST(pthread_create(&thread, NULL, take_first_part, &inside));
	await_asleep(&inside);
	await_bytes(end->fd, ALL);
	take_quietly(end->fd, TAKEN, 3, 0);
	change(&inside, EPOLL_CTL_ADD, EPOLLIN);
	MUST(pthread_join(thread, NULL));
	sets.position = inside.position;
	atomic_store(&sets.fd, end->fd);
	take_the_rest(&sets);
	tell(end, "over");
}

/* An edge for what comes each time, though only a part of it is taken. */
void asleep_edge(struct end *end, long how)
{
	struct sets sets = { .end = end };
	uint32_t events = EPOLLIN | EPOLLET | (how == ASLEEP_EXCLUSIVE ? EPOLLEXCLUSIVE : 0);

	meet_and_go(end);
	if (end->server) {
		for (uint64_t i = 0; i < ROUNDS; i++) {
			await(end, "more");
			give_pattern(end->fd, 2 * TAKEN, 3, i * 2 * TAKEN);
		}
		await(end, "over");
		return;
	}
	sets_open(&sets, how == ASLEEP_NESTED);
	change(&sets, EPOLL_CTL_ADD, events);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		tell(end, "more");
		note("told: %s", event_names(sleep_until_told(&sets)));
		take_quietly(end->fd, TAKEN, 3, i * TAKEN);
	}
	take_quietly(end->fd, ROUNDS * TAKEN, 3, ROUNDS * TAKEN);
	tell(end, "over");
}

/* What has told of the connection, and has nothing to tell of by now, does not stand in front of what else is ready, however little room there is. */
void asleep_left_beside(struct end *end, long unused)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = CONNECTION + 1 };
	struct sets sets = { .end = end };
	int pipes[2];

	if (gives_all(end))
		return;
	sets_open(&sets, true);
	await_bytes(end->fd, ALL);
	change(&sets, EPOLL_CTL_ADD, EPOLLIN);
	take_quietly(end->fd, ALL, 3, 0);
	MUST(pipe(pipes));
	MUST(epoll_ctl(sets.inner, EPOLL_CTL_ADD, pipes[0], &event));
	MUST(write(pipes[1], "!", 1));
	event.data.u64 = 0;
	CALL(epoll_wait(sets.inner, &event, 1, 0));
	note("of %llu", (unsigned long long)event.data.u64);
	tell(end, "over");
}
