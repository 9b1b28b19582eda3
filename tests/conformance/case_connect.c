/* SPDX-License-Identifier: MIT */
/* How connections begin: addresses of both families, blocking and not, refused, taken apart and made again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

/* Bytes both ways, small and large, then an end. */
static void converse(struct end *end, int fd)
{
	for (int i = 0; i < 10; i++) {
		size_t bytes = i % 5 == 4 ? 50000 : 20;

		if (end->server) {
			take_quietly(fd, bytes, 1, 0);
			give_pattern(fd, bytes, 2, 0);
		} else {
			give_pattern(fd, bytes, 1, 0);
			take_quietly(fd, bytes, 2, 0);
		}
	}
	MUST(shutdown(fd, SHUT_WR));
	take_to_end(fd, 0, 0);
}

static void note_address(const char *what, const struct sockaddr_storage *address, socklen_t bytes)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
	char text[64] = "";

	if (address->ss_family == AF_INET)
		inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
	else if (address->ss_family == AF_INET6)
		inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
	note("%s: family %u, %s, %u bytes", what, address->ss_family, text, bytes);
}

static void note_names(int fd)
{
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);

	MUST(getsockname(fd, (struct sockaddr *)&address, &bytes));
	note_address("own", &address, bytes);
	bytes = sizeof(address);
	MUST(getpeername(fd, (struct sockaddr *)&address, &bytes));
	note_address("peer", &address, bytes);
}

/* Argument: server's address and client's, by number; 9 for the client: IPv4 against a listener for both families. */
void connect_address(struct end *end, long which)
{
	const char *const known[] = { addresses.ipv4, "127.0.0.2", addresses.ipv6, addresses.mapped };
	const char *listen_address = which == 9 ? "::" : known[which];
	struct sockaddr_storage from = { 0 };
	socklen_t bytes = sizeof(from);
	int port, listening;

	if (!end->server) {
		end->fd = connect_to(which == 9 ? addresses.ipv4 : known[which], (int)await_number(end));
	} else {
		listening = listen_on(listen_address, &port);
		tell_number(end, port);
		end->fd = (int)MUST(accept(listening, (struct sockaddr *)&from, &bytes));
		note_address("from", &from, bytes);
		MUST(close(listening));
	}
	note_names(end->fd);
	converse(end, end->fd);
}

/* accept4's flags, a cut address, accept when there is none. */
void connect_accept(struct end *end, long flags)
{
	struct sockaddr_storage from = { 0 };
	socklen_t bytes = 4;
	int port, listening;

	if (!end->server) {
		end->fd = connect_to(addresses.ipv4, (int)await_number(end));
		converse(end, end->fd);
		return;
	}
	listening = listen_on(addresses.ipv4, &port);
	set_nonblocking(listening, true);
	CALL(accept(listening, NULL, NULL));
	note_poll(listening, POLLIN | POLLOUT);
	CALL(accept4(listening, NULL, NULL, 1));
	CALL(accept(-1, NULL, NULL));
	CALL(accept(end->control, NULL, NULL));
	tell_number(end, port);
	poll(&(struct pollfd){ .fd = listening, .events = POLLIN }, 1, -1);
	note_poll(listening, POLLIN | POLLOUT);
	end->fd = (int)CALL(accept4(listening, (struct sockaddr *)&from, &bytes, (int)flags));
	note("%u bytes, family %u", bytes, from.ss_family);
	CALL(fcntl(end->fd, F_GETFL));
	CALL(fcntl(end->fd, F_GETFD));
	note_poll(listening, POLLIN);
	converse(end, end->fd);
}

/* Argument: the way to wait for the connection. On loopback it may be there at once, or in progress. */
void connect_nonblocking(struct end *end, long waiter)
{
	struct sockaddr_storage name;
	socklen_t bytes;

	if (end->server) {
		accept_one(end);
		converse(end, end->fd);
		return;
	}
	bytes = address_of(addresses.ipv4, (int)await_number(end), &name);
	end->fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	CALL(connect(end->fd, (struct sockaddr *)&name, bytes));
	note("told: %s", event_names((uint32_t)waiters[waiter].wait(end->fd, POLLOUT, -1)));
	note_error(end->fd);
	CALL(connect(end->fd, (struct sockaddr *)&name, bytes));
	CALL(connect(end->fd, (struct sockaddr *)&name, bytes));
	note_names(end->fd);
	converse(end, end->fd);
}

/* A port that nobody listens on. */
void connect_refused(struct end *end, long nonblocking)
{
	struct sockaddr_storage name;
	socklen_t bytes = sizeof(name);
	int port, listening = listen_on(addresses.ipv4, &port), fd;

	/* A bound socket that does not listen keeps the port from everybody else. */
	MUST(close(listening));
	listening = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	address_of(addresses.ipv4, 0, &name);
	MUST(bind(listening, (struct sockaddr *)&name, sizeof(struct sockaddr_in)));
	MUST(getsockname(listening, (struct sockaddr *)&name, &bytes));
	fd = (int)MUST(socket(AF_INET, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0));
	signal(SIGPIPE, SIG_IGN);
	CALL(send(fd, "x", 1, 0));
	CALL(recv(fd, &(char){ 0 }, 1, 0));
	CALL(connect(fd, (struct sockaddr *)&name, bytes));
	if (nonblocking) {
		poll(&(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, -1);
		note_poll(fd, POLLIN | POLLOUT | POLLRDHUP);
		note_error(fd);
	}
	note_error(fd);
	note_poll(fd, POLLIN | POLLOUT | POLLRDHUP);
	CALL(send(fd, "x", 1, 0));
	CALL(recv(fd, &(char){ 0 }, 1, 0));
	CALL(close(fd));
	meet_at(end, "done");
}

/* The same socket, refused first, then connected; dissolved by AF_UNSPEC, then connected again. */
void connect_again(struct end *end, long unused)
{
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	struct sockaddr_storage name;
	int port, listening, first;
	socklen_t bytes;

	if (end->server) {
		listening = listen_on(addresses.ipv4, &port);
		tell_number(end, port);
		first = (int)MUST(accept(listening, NULL, NULL));
		take_quietly(first, 50200, 1, 0);
		tell(end, "taken");
		take_to_end(first, 1, 50200);
		end->fd = (int)MUST(accept(listening, NULL, NULL));
		converse(end, end->fd);
		return;
	}
	bytes = address_of(addresses.ipv4, (int)await_number(end), &name);
	end->fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	CALL(connect(end->fd, (struct sockaddr *)&name, bytes));
	CALL(connect(end->fd, (struct sockaddr *)&name, bytes));
	give_pattern(end->fd, 50000, 1, 0);
	for (int i = 0; i < 20; i++)
		give_pattern(end->fd, 10, 1, 50000 + (uint64_t)i * 10);
	await(end, "taken");
	CALL(connect(end->fd, &none, sizeof(none)));
	CALL(send(end->fd, "x", 1, MSG_NOSIGNAL));
	note_poll(end->fd, POLLIN | POLLOUT);
	CALL(connect(end->fd, (struct sockaddr *)&name, bytes));
	converse(end, end->fd);
}

/* Addresses and states that are refused. */
void connect_arguments(struct end *end, long unused)
{
	struct sockaddr_storage name;
	socklen_t bytes = address_of(addresses.ipv4, 1, &name);
	int port, fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0)), listening = listen_on(addresses.ipv4, &port);

	CALL(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	CALL(socket(12345, SOCK_STREAM, 0));
	CALL(socket(AF_INET, 0x77, 0));
	CALL(close(socket(AF_INET, SOCK_STREAM, IPPROTO_TCP)));
	CALL(connect(fd, (struct sockaddr *)&name, 3));
	CALL(connect(fd, NULL, 0));
	CALL(connect(-1, (struct sockaddr *)&name, bytes));
	name.ss_family = AF_UNIX;
	CALL(connect(fd, (struct sockaddr *)&name, bytes));
	address_of(addresses.ipv4, port, &name);
	CALL(connect(listening, (struct sockaddr *)&name, bytes));
	CALL(bind(fd, (struct sockaddr *)&name, bytes));
	CALL(listen(end->control, 1));
	CALL(accept(fd, NULL, NULL));
	CALL(send(listening, "x", 1, MSG_NOSIGNAL));
	CALL(recv(listening, &(char){ 0 }, 1, 0));
	CALL(getpeername(fd, (struct sockaddr *)&name, &bytes));
	meet_at(end, "done");
}

/* Bytes that come with the connection, by sendto and sendmsg of an address. */
void connect_by_sending(struct end *end, long by_message)
{
	struct sockaddr_storage name;
	struct iovec iov = { (void *)"first words", 11 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_name = &name };
	char data[11];
	ssize_t rc;

	if (end->server) {
		accept_one(end);
		EXPECT(recv(end->fd, data, 11, MSG_WAITALL) == 11 && !memcmp(data, "first words", 11));
		converse(end, end->fd);
		return;
	}
	message.msg_namelen = address_of(addresses.ipv4, (int)await_number(end), &name);
	end->fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
	if (by_message)
		rc = sendmsg(end->fd, &message, MSG_FASTOPEN);
	else
		rc = sendto(end->fd, iov.iov_base, 11, MSG_FASTOPEN, (struct sockaddr *)&name, message.msg_namelen);
	note("%zd %s", rc, errno_name(rc < 0 ? errno : 0));
	if (rc < 0)
		die("MSG_FASTOPEN");
	converse(end, end->fd);
}

/* One after the other: on a busy machine the kernel has been seen to accept in another order than they were connected in. */
static int accept_and_tell(struct end *end, int listening)
{
	int fd = (int)MUST(accept(listening, NULL, NULL));

	tell_number(end, fd);
	return fd;
}

static int connect_and_await(struct end *end, int port)
{
	int fd = connect_to(addresses.ipv4, port);

	await_number(end);
	return fd;
}

/* Many connections that come and go. */
void connect_many(struct end *end, long count)
{
	int port, listening = -1, fds[64];

	if (end->server) {
		listening = listen_on(addresses.ipv4, &port);
		tell_number(end, port);
	} else {
		port = (int)await_number(end);
	}
	for (int round = 0; round < 3; round++) {
		for (long i = 0; i < count; i++)
			fds[i] = end->server ? accept_and_tell(end, listening) : connect_and_await(end, port);
		for (long i = 0; i < count; i++)
			give_pattern(fds[i], (size_t)(i % 8 == 7 ? 20000 : 30), (unsigned int)i, 0);
		for (long i = count - 1; i >= 0; i--)
			take_quietly(fds[i], (size_t)(i % 8 == 7 ? 20000 : 30), (unsigned int)i, 0);
		for (long i = 0; i < count; i++)
			MUST(close(fds[i]));
		note("round %d, first number %d", round, fds[0]);
	}
}
