/* SPDX-License-Identifier: MIT */
/*
 * Readiness: what poll, select and epoll tell after sends of all sizes, with a receiver that stalls and one that reads; edges,
 * one-shot, exclusive and nested sets, ends of a connection, and what is refused. Whether a socket is writable after a send
 * that the kernel did not take whole is left open by TCP (its buffers grow by themselves); that nothing else is told is not.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

static const size_t sizes[] = { 1, 100, 4096, 16384, 65536, 262144, 1000000, 4194304 };

/* Returns how much was taken. */
static size_t send_some(int fd, size_t bytes, uint64_t position)
{
	char *data = aligned_alloc(4096, (bytes + 4095) & ~4095ul);
	size_t done = 0;

	pattern_fill(data, bytes, 6, position);
	while (done < bytes) {
		ssize_t rc = send(fd, data + done, bytes - done, MSG_DONTWAIT);

		if (rc < 0) {
			EXPECT(errno == EAGAIN);
			break;
		}
		done += (size_t)rc;
	}
	free(data);
	return done;
}

static void note_told(const struct waiter *waiter, int fd, short events, int timeout, uint32_t open)
{
	uint32_t told = (uint32_t)waiter->wait(fd, events, timeout);

	note("%s %d: %s", event_names((uint32_t)(unsigned short)events), timeout, event_names(told & ~open));
}

/* Argument: the way of waiting. */
void wait_sizes(struct end *end, long which)
{
	const struct waiter *waiter = &waiters[which];
	uint64_t position = 0;

	meet(end);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t taken;

		if (end->server) {
			taken = (size_t)await_number(end);
			take_quietly(end->fd, taken, 6, position);
			tell(end, "drained");
			position += taken;
			continue;
		}
		taken = send_some(end->fd, sizes[i], position);
		position += taken;
		note_told(waiter, end->fd, 0, 0, 0);
		note_told(waiter, end->fd, POLLIN | POLLRDHUP, 0, 0);
		note_told(waiter, end->fd, POLLIN | POLLOUT | POLLRDHUP, 0, POLLOUT);
		note_told(waiter, end->fd, POLLIN, 5, 0);
		tell_number(end, (long)taken);
		note_told(waiter, end->fd, POLLIN | POLLOUT, -1, 0);
		await(end, "drained");
		note_told(waiter, end->fd, 0, 5, 0);
		note_told(waiter, end->fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0, 0);
	}
	if (end->server) {
		await(end, "looked");
		give(end->fd, "!", 1);
		await(end, "done");
		return;
	}
	tell(end, "looked");
	note_told(waiter, end->fd, POLLIN, -1, 0);
	tell(end, "done");
}

static int add(int set, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static void note_epoll(int set, int timeout)
{
	struct epoll_event events[8] = { 0 };
	int count = epoll_wait(set, events, 8, timeout);

	note("epoll_wait %d: %d", timeout, count);
	for (int i = 0; i < count; i++)
		note("  %llu: %s", (unsigned long long)events[i].data.u64, event_names(events[i].events));
}

static void drain(int fd, size_t bytes)
{
	char data[64];

	EXPECT(recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

/* An edge for each thing that happens, none for what does not. Argument: size of the own sends. */
void wait_edge(struct end *end, long size)
{
	size_t taken;
	int set;

	meet(end);
	if (end->server) {
		await(end, "byte");
		give(end->fd, "a", 1);
		await(end, "byte");
		give(end->fd, "b", 1);
		taken = (size_t)await_number(end);
		take_quietly(end->fd, taken, 6, 0);
		tell(end, "drained");
		await(end, "byte");
		give(end->fd, "c", 1);
		await(end, "shut");
		MUST(shutdown(end->fd, SHUT_WR));
		await(end, "done");
		return;
	}
	set = (int)MUST(epoll_create1(0));
	MUST(add(set, end->fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 11));
	note_epoll(set, -1);
	note_epoll(set, 0);
	tell(end, "byte");
	note_epoll(set, -1);
	note_epoll(set, 0);
	tell(end, "byte");
	note_epoll(set, -1);
	drain(end->fd, 2);
	note_epoll(set, 0);
	taken = send_some(end->fd, (size_t)size, 0);
	EXPECT(taken == (size_t)size);
	tell_number(end, (long)taken);
	await(end, "drained");
	note_epoll(set, 20);
	tell(end, "byte");
	note_epoll(set, -1);
	drain(end->fd, 1);
	tell(end, "shut");
	note_epoll(set, -1); /* and perhaps once more: the kernel wakes twice for an end of file */
	tell(end, "done");
}

/*
 * Fills the buffer, also what gets free behind the first EAGAIN, when the receiver's kernel is late: until there is no edge for a
 * while. Each edge tells of room. Returns how much was taken.
 */
static size_t send_until_full(int set, int fd)
{
	size_t taken = send_some(fd, 4194304, 0);
	struct epoll_event event;

	EXPECT(taken < 4194304);
	while (epoll_wait(set, &event, 1, 10) == 1) {
		size_t more = send_some(fd, 4194304, taken);

		EXPECT(event.events == EPOLLOUT && more > 0 && more < 4194304);
		taken += more;
	}
	return taken;
}

/* After a send that met a full buffer there has to be an edge once there is room, and only then. */
void wait_edge_out(struct end *end, long unused)
{
	size_t taken;
	int set;

	meet_small(end);
	if (end->server) {
		taken = (size_t)await_number(end);
		take_quietly(end->fd, taken, 6, 0);
		await(end, "byte");
		give(end->fd, "c", 1);
		await(end, "done");
		return;
	}
	set = (int)MUST(epoll_create1(0));
	MUST(add(set, end->fd, EPOLLIN | EPOLLOUT | EPOLLET, 12));
	note_epoll(set, -1);
	taken = send_until_full(set, end->fd);
	tell_number(end, (long)taken);
	note_epoll(set, -1);
	tell(end, "byte");
	/* A second edge for the room may come or not: it depends on how the receiver's windows arrive. */
	while (!(waiters[WAITER_poll].wait(end->fd, POLLIN, -1) & POLLIN))
		;
	note("told of the byte: %s", event_names((uint32_t)waiters[WAITER_epoll_level].wait(end->fd, POLLIN, 0)));
	tell(end, "done");
}

void wait_oneshot(struct end *end, long size)
{
	struct epoll_event again = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 14 };
	int set;

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)await_number(end), 6, 0);
		tell(end, "drained");
		for (int i = 0; i < 3; i++) {
			await(end, "byte");
			give(end->fd, "a", 1);
		}
		await(end, "done");
		return;
	}
	set = (int)MUST(epoll_create1(0));
	MUST(add(set, end->fd, EPOLLIN | EPOLLONESHOT, 13));
	tell_number(end, (long)send_some(end->fd, (size_t)size, 0));
	note_epoll(set, 5);
	await(end, "drained");
	note_epoll(set, 5);
	tell(end, "byte");
	note_epoll(set, -1);
	tell(end, "byte");
	await_bytes(end->fd, 2);
	note_epoll(set, 0);
	MUST(epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &again));
	note_epoll(set, -1);
	note_epoll(set, 0);
	drain(end->fd, 2);
	MUST(epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &again));
	note_epoll(set, 0);
	tell(end, "byte");
	note_epoll(set, -1);
	tell(end, "done");
}

/*
 * A socket that can be read and written is one event of both, again and again. Argument: further flags of the registration,
 * which is renewed each time.
 */
void wait_both(struct end *end, long flags)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | (uint32_t)flags, .data.u64 = 16 };
	int set;

	meet(end);
	set = end->server ? -1 : (int)MUST(epoll_create1(0));
	if (!end->server)
		MUST(add(set, end->fd, EPOLLIN, 16));
	for (int i = 0; i < 40; i++) {
		if (end->server) {
			drain(end->fd, 1);
			give(end->fd, "a", 1);
			continue;
		}
		give(end->fd, "b", 1);
		if (!flags && i < 20)
			note_epoll(set, -1); /* for the byte alone */
		await_bytes(end->fd, 1);
		MUST(epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &event));
		note_epoll(set, -1);
		drain(end->fd, 1);
		event.events &= ~(uint32_t)EPOLLOUT;
		MUST(epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &event));
		event.events |= EPOLLOUT;
	}
	meet_at(end, "done");
}

#define CROWD 24

static void greet(const int *fds, struct end *end)
{
	for (int i = 0; i < CROWD; i++)
		give(fds[i], "g", 1);
	for (int i = 0; i < CROWD; i++)
		drain(fds[i], 1);
	meet_at(end, "greeted");
}

/* Each has a byte. Tells which of them the set tells of, and takes those bytes by it. */
static void note_crowd(int set, const int *fds)
{
	struct epoll_event events[2 * CROWD];
	unsigned long told = 0;
	int count;

	while ((count = epoll_wait(set, events, 2 * CROWD, 0)) > 0) {
		for (int i = 0; i < count; i++) {
			EXPECT(events[i].events == EPOLLIN && !(told & 1ul << events[i].data.u64));
			told |= 1ul << events[i].data.u64;
			drain(fds[events[i].data.u64], 1);
		}
	}
	note("told of %lx", told);
	for (int i = 0; i < CROWD; i++) {
		if (!(told & 1ul << i))
			drain(fds[i], 1);
	}
}

static void crowd_moves(struct end *end, const int *fds)
{
	int set = (int)MUST(epoll_create1(0));
	unsigned long in = 0;

	for (unsigned int round = 0, random = 1; round < 60; round++) {
		for (int i = 0; i < 6; i++) {
			unsigned int which = (random = random * 1103515245 + 12345) / 65536 % CROWD;

			if (in & 1ul << which)
				MUST(epoll_ctl(set, EPOLL_CTL_DEL, fds[which], NULL));
			else
				MUST(add(set, fds[which], EPOLLIN, which));
			in ^= 1ul << which;
		}
		tell(end, "bytes");
		for (int i = 0; i < CROWD; i++)
			await_bytes(fds[i], 1);
		note_crowd(set, fds);
		EXPECT(epoll_wait(set, &(struct epoll_event){ 0 }, 1, round % 4 ? 0 : 1) == 0);
	}
}

/* Many connections enter and leave a set all the time: those that are in it are told of, each once, and no other. */
void wait_crowd(struct end *end, long unused)
{
	int fds[CROWD], port, listening = end->server ? listen_on(addresses.ipv4, &port) : -1;

	if (end->server)
		tell_number(end, port);
	else
		port = (int)await_number(end);
	for (int i = 0; i < CROWD; i++)
		fds[i] = end->server ? (int)MUST(accept(listening, NULL, NULL)) : connect_to(addresses.ipv4, port);
	for (int i = 0; i < 8; i++)
		greet(fds, end);
	if (end->server) {
		for (int round = 0; round < 60; round++) {
			await(end, "bytes");
			for (int i = 0; i < CROWD; i++)
				give(fds[i], "x", 1);
		}
	} else {
		crowd_moves(end, fds);
	}
	meet_at(end, "done");
}

/* How the end of a connection is told. */
void wait_ends(struct end *end, long unused)
{
	int set;

	meet(end);
	if (end->server) {
		await(end, "shut");
		MUST(shutdown(end->fd, SHUT_WR));
		await(end, "done");
		return;
	}
	set = (int)MUST(epoll_create1(0));
	MUST(add(set, end->fd, EPOLLIN | EPOLLRDHUP, 15));
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	tell(end, "shut");
	note_epoll(set, -1);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	note_poll(end->fd, 0);
	MUST(shutdown(end->fd, SHUT_WR));
	poll(&(struct pollfd){ .fd = end->fd }, 1, -1);
	note_epoll(set, 0);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	for (int i = 0; i < WAITER_COUNT; i++)
		note_told(&waiters[i], end->fd, POLLIN | POLLOUT | POLLPRI, 0, 0);
	tell(end, "done");
}

/* What FIONREAD tells of may be in a ring before its doorbell has come; and then it may be told of first or last. */
static void note_two(int set)
{
	struct epoll_event events[8];

	while (MUST(epoll_wait(set, events, 8, -1)) < 2)
		;
	note("two events, whose data make %d", (int)(events[0].data.u64 + events[1].data.u64));
}

/* Several sets, several descriptors, equal data. Argument: bytes that the ends exchange before. */
void wait_many(struct end *end, long bytes)
{
	int sets[2], pipe_ends[2], counter, timer;
	struct itimerspec soon = { .it_value.tv_nsec = 1000000 };

	meet(end);
	for (int i = 0; i < 30 && bytes; i++) {
		if (end->server)
			give_pattern(end->fd, (size_t)bytes, 1, 0);
		take_quietly(end->fd, (size_t)bytes, 1, 0);
		if (!end->server)
			give_pattern(end->fd, (size_t)bytes, 1, 0);
	}
	if (end->server) {
		await(end, "byte");
		give(end->fd, "abc", 3);
		await(end, "done");
		return;
	}
	MUST(pipe(pipe_ends));
	counter = (int)MUST(eventfd(0, 0));
	timer = (int)MUST(timerfd_create(CLOCK_MONOTONIC, 0));
	for (int i = 0; i < 2; i++) {
		sets[i] = (int)MUST(epoll_create(1));
		MUST(add(sets[i], end->fd, EPOLLIN | EPOLLEXCLUSIVE, 7));
		MUST(add(sets[i], pipe_ends[0], EPOLLIN, 7));
		MUST(add(sets[i], counter, EPOLLIN, 8));
		MUST(add(sets[i], timer, EPOLLIN, 9));
	}
	note_epoll(sets[0], 0);
	MUST(write(pipe_ends[1], "x", 1));
	note_epoll(sets[0], -1);
	MUST(write(counter, &(uint64_t){ 1 }, 8));
	note_epoll(sets[1], -1);
	MUST(timerfd_settime(timer, 0, &soon, NULL));
	poll(&(struct pollfd){ .fd = timer, .events = POLLIN }, 1, -1);
	note_epoll(sets[1], -1);
	tell(end, "byte");
	await_bytes(end->fd, 3);
	MUST(epoll_ctl(sets[0], EPOLL_CTL_DEL, counter, NULL));
	MUST(epoll_ctl(sets[0], EPOLL_CTL_DEL, pipe_ends[0], NULL));
	note_two(sets[0]);
	CALL(epoll_ctl(sets[0], EPOLL_CTL_MOD, end->fd, &(struct epoll_event){ .events = EPOLLIN }));
	tell(end, "done");
}

/* A set follows the open socket, not the number. */
void wait_duplicates(struct end *end, long size)
{
	int set, twin;

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)size, 6, 0);
		give(end->fd, "x", 1);
		await(end, "done");
		return;
	}
	set = (int)MUST(epoll_create1(0));
	MUST(add(set, end->fd, EPOLLIN, 21));
	twin = (int)MUST(dup(end->fd));
	CALL(add(set, twin, EPOLLIN, 22));
	CALL(close(end->fd));
	EXPECT(send_some(twin, (size_t)size, 0) == (size_t)size);
	while (poll(&(struct pollfd){ .fd = twin, .events = POLLIN }, 1, -1) < 1)
		;
	note_epoll(set, 0);
	CALL(epoll_ctl(set, EPOLL_CTL_DEL, end->fd, NULL));
	CALL(epoll_ctl(set, EPOLL_CTL_DEL, twin, NULL));
	note_epoll(set, 0);
	CALL(close(twin));
	note_epoll(set, 0);
	tell(end, "done");
}

void wait_refused(struct end *end, long unused)
{
	struct timespec wrong = { 0, 2000000000 };
	struct timeval past = { -1, 0 };
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd looks[3] = { { .fd = -1, .events = POLLIN, .revents = 77 }, { .fd = 700, .events = POLLIN } };
	volatile int minus = -1; /* not to be seen through */
	fd_set in;
	int set, file;

	meet(end);
	meet_at(end, "here");
	if (end->server)
		return;
	set = (int)MUST(epoll_create1(0));
	file = (int)MUST(open("/proc/self/status", O_RDONLY));
	CALL(epoll_create(0));
	CALL(epoll_create1(12345));
	CALL(add(set, end->fd, EPOLLIN, 1));
	CALL(add(set, end->fd, EPOLLIN, 2));
	CALL(epoll_ctl(set, EPOLL_CTL_DEL, 0x7fff, NULL));
	CALL(epoll_ctl(set, EPOLL_CTL_MOD, set, &event));
	CALL(add(set, set, EPOLLIN, 1));
	CALL(add(set, file, EPOLLIN, 1));
	CALL(add(end->fd, set, EPOLLIN, 1));
	CALL(epoll_ctl(set, 99, end->fd, &event));
	CALL(epoll_wait(set, &event, 0, 0));
	CALL(epoll_wait(set, &event, minus, 0));
	CALL(epoll_wait(end->fd, &event, 1, 0));
	CALL(epoll_wait(-1, &event, 1, 0));
	CALL(epoll_pwait2(set, &event, 1, &wrong, NULL));
	CALL(ppoll(looks, 1, &wrong, NULL));
	CALL(ppoll(looks, 1, &(struct timespec){ -1, 0 }, NULL));
	CALL(poll(looks, 2, 0));
	note("revents %d %s", looks[0].revents, event_names((uint32_t)looks[1].revents));
	FD_ZERO(&in);
	FD_SET(700, &in);
	CALL(select(-1, NULL, NULL, NULL, NULL));
	CALL(select(701, &in, NULL, NULL, &(struct timeval){ 0 }));
	CALL(select(1, NULL, NULL, NULL, &past));
	CALL(pselect(1, NULL, NULL, NULL, &wrong, NULL));
	CALL(close(set));
	CALL(epoll_wait(set, &event, 1, 0));
}

/* select leaves the time that was not used; a wait that nothing ends takes its time and leaves none. */
void wait_time_left(struct end *end, long size)
{
	struct timeval time = { .tv_usec = 20000 };
	fd_set in, out;

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)size, 6, 0);
		await(end, "done");
		return;
	}
	EXPECT(send_some(end->fd, (size_t)size, 0) == (size_t)size);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(end->fd, &in);
	CALL(select(end->fd + 1, &in, NULL, &out, &time));
	note("left %ld %ld, in the sets: %d %d", (long)time.tv_sec, (long)time.tv_usec, FD_ISSET(end->fd, &in),
	     FD_ISSET(end->fd, &out));
	time.tv_sec = 1000;
	FD_ZERO(&in);
	FD_SET(end->fd, &in);
	FD_SET(end->fd, &out);
	CALL(select(end->fd + 1, &in, &out, NULL, &time));
	note("some left: %d, in the sets: %d %d", time.tv_sec >= 900, FD_ISSET(end->fd, &in), FD_ISSET(end->fd, &out));
	CALL(poll(&(struct pollfd){ .fd = end->fd, .events = POLLIN }, 1, 20));
	CALL(ppoll(&(struct pollfd){ .fd = end->fd }, 1, &(struct timespec){ 0, 20000000 }, NULL));
	tell(end, "done");
}

/* A descriptor that joins a set, or changes there, while another thread waits for it. */
static void *wait_in_thread(void *set)
{
	note_epoll(*(int *)set, -1);
	return NULL;
}

void wait_joined_late(struct end *end, long size)
{
	pthread_t thread;
	int set;

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)size, 6, 0);
		await(end, "byte");
		give(end->fd, "abc", 3);
		await(end, "done");
		return;
	}
	set = (int)MUST(epoll_create1(0));
	MUST(pthread_create(&thread, NULL, wait_in_thread, &set));
	MUST(add(set, end->fd, EPOLLRDHUP, 31));
	EXPECT(send_some(end->fd, (size_t)size, 0) == (size_t)size);
	MUST(epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &(struct epoll_event){ .events = EPOLLIN, .data.u64 = 31 }));
	tell(end, "byte");
	MUST(pthread_join(thread, NULL));
	tell(end, "done");
}
