/* SPDX-License-Identifier: MIT */
/*
 * Descriptors: duplicates of every kind, passing them on, numbers that are closed and used again by something else, by calls
 * that the library sees and by calls that it doesn't, and closing under a thread that waits.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "common/sys.h"
#include "end.h"
#include "transcript.h"

static int duplicate(int fd, long how)
{
	switch (how) {
	case DUP_DUP:
		return dup(fd);
	case DUP_DUP2:
		return dup2(fd, 100);
	case DUP_DUP3:
		return dup3(fd, 101, O_CLOEXEC);
	case DUP_FCNTL:
		return fcntl(fd, F_DUPFD, 50);
	case DUP_FCNTL_CLOEXEC:
		return fcntl(fd, F_DUPFD_CLOEXEC, 50);
	case DUP_SYSCALL:
		return (int)syscall(SYS_dup, fd);
	default:
		return (int)sys_call(SYS_dup, fd, 0, 0, 0, 0, 0);
	}
}

/* Sends by both numbers in turn must leave in order, and the connection lives until the last is closed. */
void descriptor_dup(struct end *end, long how)
{
	uint64_t position = 0;
	int twin;

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 2, 0);
		return;
	}
	twin = (int)CALL(duplicate(end->fd, how));
	for (int i = 0; i < 200; i++) {
		size_t bytes = i % 50 == 49 ? 30000 : 10;

		give_pattern(i % 2 ? end->fd : twin, bytes, 2, position);
		position += bytes;
	}
	CALL(close(end->fd));
	CALL(send(end->fd, "x", 1, 0));
	give_pattern(twin, 10, 2, position);
	CALL(fcntl(twin, F_GETFD));
	CALL(close(twin));
	CALL(send(twin, "x", 1, 0));
}

void descriptor_dup_many(struct end *end, long count)
{
	int fds[64];

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 2, 0);
		return;
	}
	for (long i = 0; i < count; i++) {
		fds[i] = (int)CALL(dup(end->fd));
		give_pattern(fds[i], 10, 2, (uint64_t)i * 10);
	}
	MUST(close(end->fd));
	for (long i = count - 1; i >= 0; i--) {
		give_pattern(fds[i], 10, 2, (uint64_t)(2 * count - 1 - i) * 10);
		MUST(close(fds[i]));
	}
}

/* Of more numbers than are kept account of the last one stays: a set tells of what comes by it, and of nothing else. */
void descriptor_last_number(struct end *end, long flags)
{
	struct epoll_event event = { .events = EPOLLIN | (uint32_t)flags };
	int set;

	meet_and_go(end);
	set = (int)MUST(epoll_create1(0));
	if (!end->server) {
		end->fd = keep_last_number(end->fd);
		MUST(epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event));
	}
	for (uint64_t i = 0; i < 200; i++) {
		if (end->server) {
			await(end, "waits");
			give_pattern(end->fd, 30, 2, i * 30);
			continue;
		}
		tell(end, "waits");
		EXPECT(epoll_wait(set, &event, 1, -1) == 1 && event.events == EPOLLIN);
		take_quietly(end->fd, 30, 2, i * 30);
		EXPECT(epoll_wait(set, &event, 1, 0) == 0);
	}
	get_going(end);
	CALL(close(end->fd));
}

/* dup2 over a connection closes that; the number then is another connection. */
void descriptor_dup2_over(struct end *end, long bytes)
{
	int first, second;

	meet(end);
	first = end->fd;
	meet(end);
	second = end->fd;
	if (end->server) {
		take_to_end(first, 2, 0);
		take_to_end(second, 3, 0);
		return;
	}
	give_pattern(first, (size_t)bytes, 2, 0);
	give_pattern(second, (size_t)bytes, 3, 0);
	CALL(dup2(second, first));
	CALL(dup2(second, second));
	CALL(dup3(second, second, 0));
	CALL(dup2(700, second));
	CALL(dup2(second, -1));
	give_pattern(first, (size_t)bytes, 3, (uint64_t)bytes);
	CALL(close(second));
	give_pattern(first, (size_t)bytes, 3, (uint64_t)bytes * 2);
	CALL(close(first));
}

/* The client's connection goes to the server process, which then has both ends of it. */
void descriptor_passed(struct end *end, long bytes)
{
	int taken;

	meet(end);
	if (!end->server) {
		give_pattern(end->fd, (size_t)bytes, 2, 0);
		pass_descriptor(end->control, end->fd);
		give_pattern(end->fd, (size_t)bytes, 2, (uint64_t)bytes);
		CALL(close(end->fd));
		tell(end, "closed");
		return;
	}
	taken = take_descriptor(end->control);
	await(end, "closed");
	take_quietly(end->fd, (size_t)bytes * 2, 2, 0);
	for (int i = 0; i < 10; i++) {
		give_pattern(taken, 10, 2, (uint64_t)bytes * 2 + (uint64_t)i * 10);
		give_pattern(end->fd, 10, 3, (uint64_t)i * 10);
	}
	take_quietly(end->fd, 100, 2, (uint64_t)bytes * 2);
	take_quietly(taken, 100, 3, 0);
	CALL(close(taken));
	take_to_end(end->fd, 2, 0);
}

/* Passed to oneself: one more duplicate, of which the library hears by its number only. */
void descriptor_passed_to_self(struct end *end, long bytes)
{
	int pair[2], twin;

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 2, 0);
		return;
	}
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	give_pattern(end->fd, (size_t)bytes, 2, 0);
	pass_descriptor(pair[0], end->fd);
	twin = take_descriptor(pair[1]);
	for (int i = 1; i < 20; i++)
		give_pattern(i % 2 ? twin : end->fd, (size_t)bytes, 2, (uint64_t)(bytes * i));
	CALL(close(end->fd));
	give_pattern(twin, (size_t)bytes, 2, (uint64_t)(bytes * 20));
	CALL(close(twin));
}

static void close_how(int fd, long how)
{
	if (how == CLOSE_CALL)
		CALL(close(fd));
	else if (how == CLOSE_SYSCALL)
		CALL(syscall(SYS_close, fd));
	else if (how == CLOSE_TRAP)
		CALL(sys_call(SYS_close, fd, 0, 0, 0, 0, 0));
	else if (how == CLOSE_RANGE)
		CALL(close_range((unsigned int)fd, (unsigned int)fd, 0));
	else
		CALL(dup2((int)MUST(open("/dev/null", O_RDWR)), fd));
}

/* Argument: how the connection is closed. What takes its number next must be what it is. */
void descriptor_reused(struct end *end, long how)
{
	static char large[65536] __attribute__((aligned(4096)));
	char data[64] = { 0 };
	int number, pipe_ends[2];

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 2, 0);
		meet(end);
		take_to_end(end->fd, 3, 0);
		return;
	}
	number = end->fd;
	MUST(setsockopt(end->fd, IPPROTO_TCP, 1, &(int){ 1 }, sizeof(int)));
	for (int i = 0; i < 20; i++)
		give_pattern(end->fd, 10, 2, (uint64_t)i * 10);
	give_pattern(end->fd, 40000, 2, 200);
	poll(NULL, 0, 0);
	close_how(number, how);
	if (how == CLOSE_DUP2)
		MUST(close(number));
	/* A file. */
	EXPECT(open("/dev/shm", O_TMPFILE | O_RDWR, 0600) == number);
	for (int i = 0; i < 5; i++)
		CALL(write(number, "file", 4));
	CALL(write(number, large, sizeof(large)));
	CALL(pread(number, data, sizeof(data), 0));
	CALL(send(number, "x", 1, 0));
	CALL(lseek(number, 0, SEEK_CUR));
	CALL(close(number));
	/* A pipe. */
	MUST(pipe(pipe_ends));
	EXPECT(pipe_ends[0] == number);
	CALL(write(pipe_ends[1], "pipe", 4));
	CALL(read(number, data, sizeof(data)));
	CALL(write(number, "x", 1));
	CALL(close(number));
	CALL(close(pipe_ends[1]));
	/* Another connection. */
	meet(end);
	EXPECT(end->fd == number);
	for (int i = 0; i < 20; i++)
		give_pattern(end->fd, 10, 3, (uint64_t)i * 10);
	give_pattern(end->fd, 40000, 3, 200);
}

/* Many at once, without hitting what the library has open itself. */
void descriptor_closed_in_range(struct end *end, long how)
{
	int connection;

	meet(end);
	connection = end->fd;
	meet(end);
	if (end->server) {
		take_to_end(connection, 2, 0);
		take_to_end(end->fd, 3, 0);
		return;
	}
	give_pattern(connection, 40000, 2, 0);
	for (int i = 0; i < 20; i++)
		give_pattern(connection, 10, 2, 40000 + (uint64_t)i * 10);
	MUST(dup2(end->fd, 0)); /* out of the way: standard input is not needed */
	give_pattern(0, 40000, 3, 0);
	if (how == CLOSE_FROM || how == CLOSE_RANGE_SYSCALL) {
		MUST(dup2(end->control, 1));
		end->control = 1;
		if (how == CLOSE_FROM)
			closefrom(2);
		else
			CALL(syscall(SYS_close_range, 2, ~0u, 0));
	} else {
		CALL(close_range(3, CONTROL_FD - 1, how == CLOSE_RANGE_LATER ? 4 : 0));
	}
	give_pattern(0, 40000, 3, 40000);
	CALL(send(connection, "x", how == CLOSE_RANGE_LATER ? 0 : 1, 0));
	for (int i = 0; i < 20; i++)
		give_pattern(0, 10, 3, 80000 + (uint64_t)i * 10);
}

/* Numbers that a program gets are those that it would get without the library. */
void descriptor_numbers(struct end *end, long unused)
{
	int first, port;

	meet(end);
	give_pattern(end->fd, 100000, 2, 0);
	take_pattern(end->fd, 100000, 2, 0);
	for (int i = 0; i < 20; i++)
		give_pattern(end->fd, 10, 2, 0);
	first = (int)CALL(dup(0));
	CALL(open("/dev/null", O_RDONLY));
	CALL(socket(AF_INET, SOCK_STREAM, 0));
	CALL(epoll_create1(0));
	CALL(listen_on(addresses.ipv4, &port));
	CALL(fcntl(0, F_DUPFD, first));
	meet_at(end, "done");
}

/* Closing under a thread that waits ----------------------------------------------------------------------------------- */

struct waiting {
	int fd;
	long how;
	_Atomic int thread;
};

static void *wait_in_thread(void *argument)
{
	struct waiting *waiting = argument;
	char data[16] = { 0 };

	waiting->thread = (int)syscall(SYS_gettid);
	if (waiting->how == WAIT_RECV) {
		CALL(recv(waiting->fd, data, sizeof(data), 0));
	} else if (waiting->how == WAIT_READ) {
		CALL(read(waiting->fd, data, sizeof(data)));
	} else {
		struct pollfd look = { .fd = waiting->fd, .events = POLLIN };

		CALL(poll(&look, 1, -1));
		note("%s", event_names((uint32_t)(unsigned short)look.revents));
	}
	return NULL;
}

/* Until the thread is inside the system call that it is to wait in. */
static void await_blocked(struct waiting *waiting)
{
	char path[64], text[256];
	long number;

	for (;;) {
		int file;
		ssize_t got = 0;

		snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", waiting->thread);
		file = waiting->thread ? open(path, O_RDONLY) : -1;
		if (file >= 0) {
			got = read(file, text, sizeof(text) - 1);
			close(file);
		}
		text[got > 0 ? got : 0] = 0;
		if (sscanf(text, "%ld", &number) == 1 &&
		    (number == SYS_recvfrom || number == SYS_recvmsg || number == SYS_read || number == SYS_poll ||
		     number == SYS_ppoll))
			return;
		sched_yield();
	}
}

/* The kernel's call keeps the socket: it gets what comes, and the end of the connection comes with the end of the call. */
void descriptor_closed_under(struct end *end, long how)
{
	struct waiting waiting = { .how = how };
	pthread_t thread;

	meet(end);
	if (end->server) {
		await(end, "closed");
		CALL(send(end->fd, "hello", 5, MSG_NOSIGNAL));
		await(end, "over");
		note_poll(end->fd, POLLOUT);
		return;
	}
	give_pattern(end->fd, 40000, 2, 0);
	waiting.fd = end->fd;
	MUST(pthread_create(&thread, NULL, wait_in_thread, &waiting));
	await_blocked(&waiting);
	CALL(close(end->fd));
	EXPECT(open("/dev/null", O_RDWR) == end->fd);
	CALL(write(end->fd, "x", 1));
	tell(end, "closed");
	MUST(pthread_join(thread, NULL));
	CALL(read(end->fd, &(char){ 0 }, 1));
	tell(end, "over");
}

static void *receive_in_thread(void *argument)
{
	struct waiting *waiting = argument;
	char room[16];

	waiting->thread = (int)syscall(SYS_gettid);
	recv(waiting->fd, room, sizeof(room), 0);
	return NULL;
}

/* A receive that has begun is the old socket's: what the number means by then keeps its bytes. */
void descriptor_taken_under(struct end *end, long unused)
{
	struct waiting waiting = { 0 };
	pthread_t thread;
	char room[16];
	int pair[2];

	meet_and_go(end);
	if (end->server) {
		await(end, "taken");
		CALL(send(end->fd, "hello", 5, MSG_NOSIGNAL));
		await(end, "over");
		return;
	}
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	EXPECT(write(pair[1], "SECRET", 6) == 6);
	waiting.fd = end->fd;
	MUST(pthread_create(&thread, NULL, receive_in_thread, &waiting));
	await_blocked(&waiting);
	EXPECT(dup2(pair[0], end->fd) == end->fd);
	tell(end, "taken");
	MUST(pthread_join(thread, NULL));
	CALL(recv(end->fd, room, sizeof(room), MSG_DONTWAIT));
	tell(end, "over");
}
