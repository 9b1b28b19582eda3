/* SPDX-License-Identifier: MIT */
/*
 * peer_cases serve CASE ADDRESS | peer_cases ask CASE ADDRESS PORT: an echo server and its client, each of which uses what its case names. The
 * server prints its port and serves one connection. Both know nothing of what is preloaded. An end is 0 if all bytes were right.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGES 10
#define BYTES 20000
#define DUPLICATE 100 /* a number that is free */

/* What programs that were built with _FORTIFY_SOURCE call. */
extern ssize_t __recv_chk(int fd, void *buffer, size_t bytes, size_t room, int flags);
extern ssize_t __read_chk(int fd, void *buffer, size_t bytes, size_t room);
extern int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room);

enum how { PLAIN, TYPES, CHK, PPOLL, EPOLL, EDGE, DUP3, NONBLOCKING, INHERITED, FORK, SENDFILE, HOWS };

static const char *const names[HOWS] = {
	"plain", "types", "chk", "ppoll", "epoll", "edge", "dup3", "nonblocking", "inherited", "fork", "sendfile",
};

static const char *program;

static void check(int right, const char *what)
{
	if (right)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint8_t byte_at(size_t at)
{
	return (uint8_t)(at * 7 + at / 251);
}

static enum how how_of(const char *name)
{
	for (int i = 0; i < HOWS; i++)
		if (!strcmp(names[i], name))
			return (enum how)i;
	fprintf(stderr, "there is no case '%s'\n", name);
	exit(2);
}

/* Both ends ---------------------------------------------------------------------------------------------------------- */

static void put(int fd, const uint8_t *data, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t sent = send(fd, data + done, bytes - done, MSG_NOSIGNAL);

		if (sent < 0 && errno == EAGAIN) {
			struct pollfd room = { fd, POLLOUT, 0 };

			check(poll(&room, 1, -1) == 1, "poll");
			continue;
		}
		check(sent > 0, "send");
		done += (size_t)sent;
	}
}

static int epoll_of(int fd, enum how how)
{
	struct epoll_event event = { .events = EPOLLIN | (how == EDGE ? EPOLLET : 0) };
	int set = epoll_create1(EPOLL_CLOEXEC);

	check(set >= 0, "epoll_create1");
	check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
	check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
	return set;
}

/* Receives something. Returns 0 at the end of the stream. */
static size_t take(int fd, int set, enum how how, uint8_t *data, size_t room)
{
	struct pollfd readable = { fd, POLLIN, 0 };
	struct epoll_event event;
	ssize_t got;

	if (how == PPOLL)
		check(ppoll(&readable, 1, NULL, NULL) == 1, "ppoll");
	if (how == CHK)
		check(__poll_chk(&readable, 1, -1, sizeof(readable)) == 1, "__poll_chk");
	if (how == EPOLL)
		check(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
	for (;;) {
		got = how == CHK ? __recv_chk(fd, data, room, room, 0) : recv(fd, data, room, 0);
		if (how == EDGE && got < 0 && errno == EAGAIN)
			check(epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
		else
			break;
	}
	check(got >= 0, "recv");
	return (size_t)got;
}

/* The server --------------------------------------------------------------------------------------------------------- */

static void echo(int fd, enum how how)
{
	int set = how == EPOLL || how == EDGE ? epoll_of(fd, how) : -1;
	uint8_t data[BYTES];
	size_t got;

	while ((got = take(fd, set, how, data, sizeof(data))))
		put(fd, data, got);
	check(close(fd) == 0, "close");
}

/* As inetd does: the first that the program does with the connection is a receive. */
static void execute(int fd)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", fd);
	execl(program, program, "inherited", number, (char *)NULL);
	check(0, "execl");
}

static void serve_in_child(int fd, enum how how)
{
	pid_t pid = fork();
	int status;

	check(pid >= 0, "fork");
	if (!pid) {
		if (how == INHERITED)
			execute(fd);
		echo(fd, how);
		_exit(0);
	}
	close(fd);
	check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status), "the child");
}

static int serve(enum how how, const char *address)
{
	int type = SOCK_STREAM | (how == TYPES ? SOCK_CLOEXEC : 0);
	struct sockaddr_in name = { .sin_family = AF_INET };
	socklen_t bytes = sizeof(name);
	int listening = socket(AF_INET, type, 0), fd;

	check(listening >= 0 && inet_pton(AF_INET, address, &name.sin_addr) == 1, "socket");
	check(bind(listening, (struct sockaddr *)&name, sizeof(name)) == 0, "bind");
	check(listen(listening, 5) == 0, "listen");
	check(getsockname(listening, (struct sockaddr *)&name, &bytes) == 0, "getsockname");
	printf("%d\n", ntohs(name.sin_port));
	fflush(stdout);
	fd = how == TYPES ? accept4(listening, NULL, NULL, SOCK_CLOEXEC) : accept(listening, NULL, NULL);
	check(fd >= 0, "accept");
	if (how == FORK || how == INHERITED)
		serve_in_child(fd, how);
	else
		echo(fd, how);
	return 0;
}

/* The client --------------------------------------------------------------------------------------------------------- */

static void connect_non_blocking(int fd, const struct sockaddr_in *to)
{
	struct pollfd done = { fd, POLLOUT, 0 };
	socklen_t bytes = sizeof(int);
	int code = 0;

	check(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to))) {
		check(errno == EINPROGRESS, "connect");
		check(poll(&done, 1, -1) == 1, "poll");
	}
	check(getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes) == 0, "SO_ERROR");
	errno = code;
	check(!code, "connect, later");
	check(fcntl(fd, F_SETFL, 0) == 0, "blocking again");
}

static int open_connection(enum how how, const char *address, const char *port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM | (how == TYPES ? SOCK_CLOEXEC : 0), 0);

	check(fd >= 0 && inet_pton(AF_INET, address, &to.sin_addr) == 1, "socket");
	if (how == NONBLOCKING)
		connect_non_blocking(fd, &to);
	else
		check(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0, "connect");
	if (how == DUP3) {
		check(dup3(fd, DUPLICATE, O_CLOEXEC) == DUPLICATE, "dup3");
		check(close(fd) == 0, "close");
		fd = DUPLICATE;
	}
	return fd;
}

static void send_file(int fd, const uint8_t *data)
{
	int file = memfd_create("data", MFD_CLOEXEC);
	off_t at = 0;

	check(file >= 0 && write(file, data, BYTES) == BYTES, "memfd");
	while (at < BYTES)
		check(sendfile(fd, file, &at, (size_t)(BYTES - at)) > 0, "sendfile");
	close(file);
}

static int ask(enum how how, const char *address, const char *port)
{
	int fd = open_connection(how, address, port);
	uint8_t data[BYTES], back[BYTES];
	size_t got = 0;

	for (int message = 0; message < MESSAGES; message++) {
		for (size_t i = 0; i < BYTES; i++)
			data[i] = byte_at((size_t)message * BYTES + i);
		if (how == SENDFILE)
			send_file(fd, data);
		else
			put(fd, data, BYTES);
		for (size_t done = 0; done < BYTES; done += got) {
			ssize_t rc = how == CHK ? __read_chk(fd, back + done, BYTES - done, BYTES - done) :
						  recv(fd, back + done, BYTES - done, 0);

			got = rc > 0 ? (size_t)rc : 0;
			check(got, rc < 0 ? "recv" : "the stream ended early");
		}
		errno = 0;
		check(!memcmp(data, back, BYTES), "other bytes came back");
	}
	check(close(fd) == 0, "close");
	return 0;
}

int main(int argc, char **argv)
{
	program = argv[0];
	if (argc == 3 && !strcmp(argv[1], "inherited")) {
		echo(atoi(argv[2]), INHERITED);
		return 0;
	}
	if (argc == 4 && !strcmp(argv[1], "serve"))
		return serve(how_of(argv[2]), argv[3]);
	if (argc == 5 && !strcmp(argv[1], "ask"))
		return ask(how_of(argv[2]), argv[3], argv[4]);
	fprintf(stderr, "usage: peer-cases serve CASE ADDRESS | peer-cases ask CASE ADDRESS PORT\n");
	return 2;
}
