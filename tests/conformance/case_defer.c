/* SPDX-License-Identifier: MIT */
/*
 * Registrations that are deleted before the descriptor is closed here, while another process holds the socket.
 * The client end has the set.
 */
#define _GNU_SOURCE
#include <sys/eventfd.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define ROUNDS 60 /* until the connection is where it will be, and waits look at it */

/* A process that was there before the connection: it gets the descriptor, tells when there is a byte, and takes it. */
static void hold(struct end *end, int over)
{
	int fd = take_descriptor(over);
	char c;

	MUST(write(over, "h", 1));
	await_bytes(fd, 1);
	MUST(write(over, "a", 1));
	MUST(read(over, &c, 1));
	CALL(recv(fd, &c, 1, 0));
	CALL(close(fd));
	_exit(0);
}

static void answer(struct end *end)
{
	for (int i = 0; i < ROUNDS; i++) {
		give_pattern(end->fd, 100, 1, 0);
		take_quietly(end->fd, 100, 2, 0);
	}
	await(end, "closed");
	CALL(send(end->fd, "x", 1, MSG_NOSIGNAL));
	await(end, "over");
}

static void serve_by_set(struct end *end, int set)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 7 };

	MUST(epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event));
	for (int i = 0; i < ROUNDS; i++) {
		EXPECT(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 7);
		take_quietly(end->fd, 100, 1, 0);
		give_pattern(end->fd, 100, 2, 0);
	}
}

static void hand_over(struct end *end, int set, int over, long way)
{
	if (way == DEFER_PASS_FIRST)
		pass_descriptor(over, end->fd);
	CALL(epoll_ctl(set, EPOLL_CTL_DEL, end->fd, NULL));
	if (way == DEFER_DELETE_FIRST)
		pass_descriptor(over, end->fd);
	CALL(close(end->fd));
}

/* The set tells of nothing any more: it has been told to forget the connection. */
void defer_passed(struct end *end, long way)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 8 };
	int pair[2], set, quiet, child;
	char c;

	if (end->server) {
		meet(end);
		answer(end);
		return;
	}
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = (int)MUST(fork());
	if (!child)
		hold(end, pair[1]);
	set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	meet(end);
	serve_by_set(end, set);
	hand_over(end, set, pair[0], way);
	MUST(read(pair[0], &c, 1));
	tell(end, "closed");
	MUST(read(pair[0], &c, 1));
	CALL(epoll_wait(set, &event, 1, 0));
	quiet = (int)MUST(eventfd(1, EFD_CLOEXEC));
	CALL(epoll_ctl(set, EPOLL_CTL_ADD, quiet, &(struct epoll_event){ .events = EPOLLIN, .data.u64 = 8 }));
	CALL(epoll_wait(set, &event, 1, -1));
	note("%d: %s", (int)event.data.u64, event_names(event.events));
	MUST(write(pair[0], "t", 1));
	reap(child);
	tell(end, "over");
}
