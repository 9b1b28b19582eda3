/* SPDX-License-Identifier: MIT */
/*
 * What a program does with a socket before it is connected, or with the one that listens, and what holds for the connection then:
 * registrations in epoll sets, duplicates, signals, options.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define ROUNDS 150 /* a ring is in use soon */
#define BYTES 64
#define OWN_BYTES 65536
#define MUCH 500000 /* more than a peer that does not receive has room for, and less than a ring */

static void connect_by(struct end *end, int fd)
{
	struct sockaddr_storage name;
	socklen_t bytes = address_of(addresses.ipv4, (int)await_number(end), &name);

	if (connect(fd, (struct sockaddr *)&name, bytes) < 0)
		EXPECT(errno == EINPROGRESS);
	end->fd = fd;
}

/* An answer to each message, and one more when the client says that it waits. */
static void answer(struct end *end)
{
	for (uint64_t i = 0; i < ROUNDS; i++) {
		take_quietly(end->fd, BYTES, 1, i * BYTES);
		give_pattern(end->fd, BYTES, 2, 2 * i * BYTES);
		await(end, "waits");
		give_pattern(end->fd, BYTES, 2, (2 * i + 1) * BYTES);
	}
}

static void serve(struct end *end, int times)
{
	accept_one(end);
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	for (int i = 0; i < times; i++)
		answer(end);
	await(end, "done");
}

/* By the set, or by SIGIO. */
static void await_told(int set)
{
	struct epoll_event event = { 0 };
	sigset_t signals;

	if (set >= 0) {
		MUST(epoll_wait(set, &event, 1, -1));
		EXPECT(event.data.u64 == 50 && event.events & (EPOLLIN | EPOLLOUT));
		return;
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGIO);
	MUST(sigwaitinfo(&signals, NULL));
}

/* One message, as programs receive that are told of edges: each time until there is no more. */
static void take_told(int set, int fd, uint64_t position)
{
	char data[2 * BYTES];
	size_t done = 0;

	while (done < BYTES) {
		ssize_t got;

		await_told(set);
		while ((got = recv(fd, data, sizeof(data), MSG_DONTWAIT)) > 0) {
			pattern_check(data, (size_t)got, 2, position + done);
			done += (size_t)got;
		}
		if (got != -1 || errno != EAGAIN)
			die("received %zd, %s", got, errno_name(errno));
	}
	EXPECT(done == BYTES);
}

/* The client's part: it sends by the connection's number, and receives by fd. */
static void ask(struct end *end, int set, int fd)
{
	for (uint64_t i = 0; i < ROUNDS; i++) {
		give_pattern(end->fd, BYTES, 1, i * BYTES);
		take_told(set, fd, 2 * i * BYTES);
		tell(end, "waits");
		take_told(set, fd, (2 * i + 1) * BYTES);
	}
	note("%d messages", 2 * ROUNDS);
}

static int change(int set, int op, int fd, uint32_t events, uint64_t data)
{
	return epoll_ctl(set, op, fd, &(struct epoll_event){ .events = events, .data.u64 = data });
}

/* Argument: flags of the registration. */
void before_epoll(struct end *end, long flags)
{
	int fd, set;

	if (end->server) {
		serve(end, 1);
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM | (flags & EPOLLOUT ? SOCK_NONBLOCK : 0), 0));
	set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	CALL(change(set, EPOLL_CTL_ADD, fd, EPOLLIN | (uint32_t)flags, 50));
	connect_by(end, fd);
	if (flags & EPOLLOUT)
		MUST(poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1));
	ask(end, set, fd);
	CALL(change(set, EPOLL_CTL_ADD, fd, EPOLLIN, 51));
	tell(end, "done");
}

/* The registration's number has gone, and is in the set for as long as the socket is there. */
void before_epoll_dup_closed(struct end *end, long unused)
{
	int fd, twin, set;

	if (end->server) {
		serve(end, 1);
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	CALL(change(set, EPOLL_CTL_ADD, fd, EPOLLIN, 50));
	twin = (int)MUST(dup(fd));
	CALL(close(fd));
	connect_by(end, twin);
	ask(end, set, twin);
	tell(end, "done");
}

/* The registration changes, before there is a connection and afterwards. Argument: further flags of it. */
void before_epoll_mod(struct end *end, long flags)
{
	int fd, set;

	if (end->server) {
		serve(end, 2);
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	CALL(change(set, EPOLL_CTL_ADD, fd, EPOLLPRI, 49));
	CALL(change(set, EPOLL_CTL_MOD, fd, EPOLLIN | (uint32_t)flags, 50));
	connect_by(end, fd);
	ask(end, set, fd);
	CALL(change(set, EPOLL_CTL_MOD, fd, EPOLLIN | ((uint32_t)flags ^ EPOLLET), 50));
	ask(end, set, fd);
	tell(end, "done");
}

/* The socket has two numbers before it is connected. */
void before_epoll_dup(struct end *end, long which)
{
	int fds[2], set;

	if (end->server) {
		serve(end, 2);
		return;
	}
	fds[0] = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	if (which == BEFORE_FIRST)
		CALL(change(set, EPOLL_CTL_ADD, fds[0], EPOLLIN, 50));
	fds[1] = (int)MUST(dup(fds[0]));
	if (which == BEFORE_TWIN)
		CALL(change(set, EPOLL_CTL_ADD, fds[1], EPOLLIN | EPOLLET, 50));
	connect_by(end, fds[0]);
	ask(end, set, fds[which]);
	if (which == BEFORE_TWIN) {
		CALL(close(fds[0]));
		end->fd = fds[1];
	}
	ask(end, set, fds[1]);
	tell(end, "done");
}

/* It is the other number that is connected, and the set's number that has gone. */
void before_epoll_set_dup(struct end *end, long unused)
{
	int fd, twin, first, set;

	if (end->server) {
		serve(end, 1);
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	twin = (int)MUST(dup(fd));
	first = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	set = (int)MUST(dup(first));
	CALL(change(first, EPOLL_CTL_ADD, fd, EPOLLIN, 50));
	CALL(close(first));
	connect_by(end, twin);
	ask(end, set, fd);
	CALL(change(set, EPOLL_CTL_DEL, fd, 0, 0));
	tell(end, "done");
}

static void unregister(int *set, int *fd, long how)
{
	if (how == BEFORE_DEL) {
		CALL(change(*set, EPOLL_CTL_DEL, *fd, 0, 0));
	} else if (how == BEFORE_CLOSE) {
		CALL(close(*fd));
		*fd = (int)CALL(socket(AF_INET, SOCK_STREAM, 0));
	} else {
		CALL(close(*set));
		*set = (int)CALL(epoll_create1(EPOLL_CLOEXEC));
	}
}

/* A registration that has gone before there is a connection tells of nothing, and there may be another one. */
void before_epoll_gone(struct end *end, long how)
{
	struct epoll_event event = { 0 };
	int fd, set;

	if (end->server) {
		accept_one(end);
		get_going(end);
		give(end->fd, "x", 1);
		await(end, "done");
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	CALL(change(set, EPOLL_CTL_ADD, fd, EPOLLIN, 49));
	unregister(&set, &fd, how);
	connect_by(end, fd);
	get_going(end);
	await_bytes(fd, 1);
	CALL(epoll_wait(set, &event, 1, 0));
	CALL(change(set, EPOLL_CTL_ADD, fd, EPOLLIN, 50));
	CALL(epoll_wait(set, &event, 1, -1));
	note("%d: %s", (int)event.data.u64, event_names(event.events));
	tell(end, "done");
}

void before_async(struct end *end, long by_ioctl)
{
	sigset_t signals;
	int fd;

	if (end->server) {
		serve(end, 1);
		return;
	}
	sigemptyset(&signals);
	sigaddset(&signals, SIGIO);
	MUST(sigprocmask(SIG_BLOCK, &signals, NULL));
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	CALL(fcntl(fd, F_SETOWN, getpid()));
	if (by_ioctl)
		CALL(ioctl(fd, FIOASYNC, &(int){ 1 }));
	else
		CALL(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC));
	connect_by(end, fd);
	CALL(fcntl(fd, F_GETFL));
	ask(end, -1, fd);
	tell(end, "done");
}

/* Returns how much poll() has asked for while nobody received any of it. */
static size_t send_while_writable(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLOUT };
	char piece[1000];
	size_t total = 0;

	while (total < MUCH && poll(&look, 1, 0) == 1) {
		pattern_fill(piece, sizeof(piece), 3, total);
		total += (size_t)MUST(send(fd, piece, sizeof(piece), MSG_DONTWAIT));
	}
	return total;
}

/* TCP_NOTSENT_LOWAT: there is room as long as few bytes wait for the peer to have room. */
void before_unsent(struct end *end, long unused)
{
	size_t total;
	int fd;

	if (end->server) {
		accept_one(end);
		get_going(end);
		take_quietly(end->fd, (size_t)await_number(end), 3, 0);
		await(end, "done");
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	CALL(setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &(int){ 4096 }, sizeof(int)));
	connect_by(end, fd);
	get_going(end);
	total = send_while_writable(fd);
	note("takes %s", total < MUCH ? "little" : "much");
	tell_number(end, (long)total);
	CALL(poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1));
	tell(end, "done");
}

static void set_zerocopy(int fd)
{
	CALL(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &(int){ 1 }, sizeof(int)));
}

static void connect_zerocopy(struct end *end, bool by_listener)
{
	int port, fd;

	if (end->server) {
		fd = listen_on(addresses.ipv4, &port);
		if (by_listener)
			set_zerocopy(fd);
		tell_number(end, port);
		end->fd = (int)MUST(accept(fd, NULL, NULL));
		return;
	}
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	if (!by_listener)
		set_zerocopy(fd);
	connect_by(end, fd);
}

/* The program's own MSG_ZEROCOPY: its numbers begin at 0 whatever was sent before, as the option was there before. */
void before_zerocopy(struct end *end, long by_listener)
{
	socklen_t size = sizeof(int);
	int value = 0;
	char *data;

	connect_zerocopy(end, by_listener);
	if (end->server != by_listener) {
		take_quietly(end->fd, 300000, 1, 0);
		take_quietly(end->fd, OWN_BYTES, 2, 0);
		await(end, "done");
		return;
	}
	data = aligned_alloc(4096, OWN_BYTES);
	CALL(getsockopt(end->fd, SOL_SOCKET, SO_ZEROCOPY, &value, &size));
	note("SO_ZEROCOPY: %d", value);
	give_pattern(end->fd, 300000, 1, 0);
	pattern_fill(data, OWN_BYTES, 2, 0);
	CALL(send(end->fd, data, OWN_BYTES, MSG_ZEROCOPY));
	take_notices(end->fd, 0);
	note_poll(end->fd, POLLIN);
	free(data);
	tell(end, "done");
}
