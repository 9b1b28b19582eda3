/* SPDX-License-Identifier: MIT */
/*
 * Registrations in an epoll set that change all the time, as those of programs that ask for room with each message: whatever is
 * made of that on the way to the kernel, results and events are the same, and so they are when the set, or the descriptor, becomes
 * somebody else's as well in the middle of it.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <pthread.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define ROUNDS 40 /* there and back, until a ring is in use */
#define STEPS 300

static int change(int set, int op, int fd, uint32_t events)
{
	return epoll_ctl(set, op, fd, &(struct epoll_event){ .events = events, .data.u64 = 50 });
}

static void note_events(int set, int timeout)
{
	struct epoll_event events[4];
	int count = epoll_wait(set, events, 4, timeout);

	note("%d events", count);
	for (int i = 0; i < count; i++)
		note("%d: %s", (int)events[i].data.u64, event_names(events[i].events));
}

/* A set whose registration of the connection has been told of bytes many times. */
static int busy_set(struct end *end)
{
	int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	struct epoll_event event;
	char byte;

	MUST(change(set, EPOLL_CTL_ADD, end->fd, EPOLLIN));
	for (int i = 0; i < ROUNDS; i++) {
		give(end->fd, "x", 1);
		EXPECT(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 50);
		EXPECT(recv(end->fd, &byte, 1, 0) == 1);
	}
	return set;
}

/* The other end: an echo of the first bytes, then a byte for each number that it is told, until that is 0. */
static void serve(struct end *end)
{
	char byte;

	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	for (int i = 0; i < ROUNDS; i++) {
		EXPECT(recv(end->fd, &byte, 1, 0) == 1);
		give(end->fd, "y", 1);
	}
	while (await_number(end))
		give(end->fd, "z", 1);
}

/* Then so many are unread. */
static void fetch_byte(struct end *end, int unread)
{
	tell_number(end, 1);
	await_bytes(end->fd, unread);
}

/* Returns the client's busy set, or -1 at the other end when it has served. */
static int meet_busy(struct end *end)
{
	meet(end);
	if (!end->server)
		return busy_set(end);
	serve(end);
	return -1;
}

/* Argument: the seed. */
void register_random(struct end *end, long seed)
{
	static const uint32_t masks[] = { EPOLLIN,  EPOLLOUT, EPOLLIN | EPOLLOUT, 0, EPOLLIN | EPOLLRDHUP,
					  EPOLLOUT, EPOLLIN,  EPOLLOUT | EPOLLET };
	uint64_t random = (uint64_t)seed * 2654435761u + 1;
	int set = meet_busy(end), unread = 0;
	char bytes[64];

	if (set < 0)
		return;
	for (int step = 0; step < STEPS; step++) {
		unsigned int dice;

		random = random * 6364136223846793005u + 1442695040888963407u;
		dice = (unsigned int)(random >> 33) % 16;
		note("step %d: %u", step, dice);
		if (dice < 8)
			CALL(change(set, (int)(random >> 40) % 3 + 1, end->fd, masks[(random >> 50) % 8]));
		else if (dice < 13)
			note_events(set, dice == 12 ? 3 : 0);
		else if (dice < 14 && unread < 60)
			fetch_byte(end, ++unread);
		else if (unread && CALL(recv(end->fd, bytes, sizeof(bytes), 0)))
			unread = 0;
	}
	tell_number(end, 0);
}

/*
 * Each time that it is armed a one-shot registration tells once of what is unread, whoever has been told before. Argument: further
 * events that it asks for.
 */
void register_oneshot(struct end *end, long events)
{
	int set = meet_busy(end);
	char byte;

	if (set < 0)
		return;
	for (int i = 0; i < 20; i++) {
		fetch_byte(end, 1);
		for (int k = 0; k < 2; k++) {
			CALL(change(set, EPOLL_CTL_MOD, end->fd, EPOLLIN | EPOLLONESHOT | (uint32_t)events));
			note_events(set, -1);
			note_events(set, 0);
			note_events(set, 1);
		}
		CALL(recv(end->fd, &byte, 1, 0));
	}
	tell_number(end, 0);
}

/* What is unread after the registration has gone is nobody's, wherever the set or the descriptor goes. */
void register_dup(struct end *end, long unused)
{
	int set = meet_busy(end), twin;

	if (set < 0)
		return;
	CALL(change(set, EPOLL_CTL_DEL, end->fd, 0));
	twin = (int)MUST(dup(end->fd));
	CALL(close(end->fd));
	end->fd = twin;
	fetch_byte(end, 1);
	note_events(set, 0);
	CALL(change(set, EPOLL_CTL_ADD, twin, EPOLLIN | EPOLLOUT));
	note_events(set, 0);
	tell_number(end, 0);
}

void register_nested(struct end *end, long unused)
{
	int outer = (int)MUST(epoll_create1(0)), set = meet_busy(end);

	if (set < 0)
		return;
	CALL(change(set, EPOLL_CTL_MOD, end->fd, EPOLLIN | EPOLLOUT));
	CALL(change(outer, EPOLL_CTL_ADD, set, EPOLLIN));
	note_events(outer, 0);
	CALL(change(set, EPOLL_CTL_DEL, end->fd, 0));
	fetch_byte(end, 1);
	note_events(outer, 0);
	tell_number(end, 0);
}

/* Both processes have the set. */
void register_fork(struct end *end, long unused)
{
	int set = meet_busy(end), child;

	if (set < 0)
		return;
	CALL(change(set, EPOLL_CTL_DEL, end->fd, 0));
	child = (int)MUST(fork());
	if (!child) {
		note_events(set, 0);
		CALL(change(set, EPOLL_CTL_MOD, end->fd, EPOLLIN));
		CALL(change(set, EPOLL_CTL_ADD, end->fd, EPOLLOUT));
		note_events(set, 0);
		_exit(0);
	}
	reap(child);
	CALL(change(set, EPOLL_CTL_ADD, end->fd, EPOLLIN));
	note_events(set, 0);
	CALL(change(set, EPOLL_CTL_DEL, end->fd, 0));
	note_events(set, 0);
	tell_number(end, 0);
}

static void *wait_in_thread(void *set)
{
	note_events(*(int *)set, -1);
	return NULL;
}

/* A thread that waits hears of what another one changes. */
void register_thread(struct end *end, long unused)
{
	int set = meet_busy(end);
	pthread_t thread;

	if (set < 0)
		return;
	for (int i = 0; i < 20; i++) {
		CALL(change(set, EPOLL_CTL_DEL, end->fd, 0));
		MUST(pthread_create(&thread, NULL, wait_in_thread, &set));
		MUST(change(set, EPOLL_CTL_ADD, end->fd, EPOLLOUT));
		MUST(pthread_join(thread, NULL));
		CALL(change(set, EPOLL_CTL_MOD, end->fd, EPOLLIN));
	}
	tell_number(end, 0);
}

/* Reading and room are asked for one by one, by two descriptors of the connection with the same data: one event does not use up the other. */
void register_oneshot_twice(struct end *end, long unused)
{
	int set = meet_busy(end), twin;
	char byte;

	if (set < 0)
		return;
	twin = (int)MUST(dup(end->fd));
	CALL(change(set, EPOLL_CTL_MOD, end->fd, EPOLLIN | EPOLLONESHOT));
	CALL(change(set, EPOLL_CTL_ADD, twin, EPOLLOUT | EPOLLONESHOT));
	note_events(set, 0);
	for (int i = 0; i < 3; i++) {
		tell_number(end, 1);
		note_events(set, -1);
		CALL(recv(end->fd, &byte, 1, 0));
		CALL(change(set, EPOLL_CTL_MOD, end->fd, EPOLLIN | EPOLLONESHOT));
	}
	tell_number(end, 0);
}

/* Another descriptor with the same data, as of a program that uses memory again, is another. */
void register_same_data(struct end *end, long unused)
{
	int set = meet_busy(end), ends[2];

	if (set < 0)
		return;
	MUST(pipe(ends));
	CALL(change(set, EPOLL_CTL_DEL, end->fd, 0));
	CALL(change(set, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLET));
	MUST(write(ends[1], "x", 1));
	note_events(set, 0);
	CALL(change(set, EPOLL_CTL_ADD, end->fd, EPOLLIN | EPOLLOUT));
	note_events(set, 0);
	tell_number(end, 0);
}
