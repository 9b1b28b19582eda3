/* SPDX-License-Identifier: MIT */
/*
 * far_cases CASE ADDRESS: a client and a server under the preload, on the lab's two hosts, at what ends a queue pair from this side: a
 * fork, an exec, an exit; at a thread that is cancelled; and at a connection that idles. Where a case says so the server is stopped
 * meanwhile, and its agent with it: what is done here must not wait for it, nor lose a byte. Ends with 0 if each byte was right, in its
 * place, and nothing was missing.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "far_signals.h"
#include "far_stream.h"

#define ROUNDS 20
#define SMALL 1000
#define CANCELS 300
#define OVER 150000 /* more than a ring of ZC_RING_BYTES=65536, and less than that and a socket take */

#define MUCH 3000000 /* more than small sockets take, less than a ring of ZC_RING_BYTES=4194304 */
#define MARK 32	     /* equal bytes, of which no two follow each other otherwise, and one more */
#define MARK_BYTE 0xa5
#define MARK_END 0x5a

int to_server[2];
static int to_client[2], to_parent[2]; /* a byte: go on */

/* Both lanes go to their rings. */
static void warm_up(struct stream *stream, bool client)
{
	for (int i = 0; i < ROUNDS; i++) {
		if (client)
			put(stream, SMALL, 0);
		take(stream, SMALL);
		if (!client)
			put(stream, SMALL, 0);
	}
}

static struct stream accept_one(int listening)
{
	struct stream stream = { .fd = accept(listening, NULL, NULL) };

	check(stream.fd >= 0, "accept");
	close(listening);
	warm_up(&stream, false);
	return stream;
}

static struct stream connect_to(const struct sockaddr_in *address)
{
	struct stream stream = { .fd = socket(AF_INET, SOCK_STREAM, 0) };

	check(!connect(stream.fd, (const struct sockaddr *)address, sizeof(*address)), "connect");
	warm_up(&stream, true);
	return stream;
}

/* fork: parent and child go on, although the server does not say a word. */
static void fork_server(struct stream *stream)
{
	raise(SIGSTOP);
	take(stream, 3 * (size_t)PART);
	put(stream, PART, 0);
	expect_end(stream);
}

static void fork_client(struct stream *stream, char *self)
{
	int status;
	pid_t child;

	await(to_client);
	put(stream, PART, 0);
	child = fork();
	check(child >= 0, "fork");
	put(stream, child ? 0 : PART, 0);
	if (!child)
		_exit(0);
	check(waitpid(child, &status, 0) == child && !status, "child");
	stream->sent += PART;
	put(stream, PART, 0);
	tell(to_parent);
	take(stream, PART);
}

/* exit: what was sent last is there, although the server has not looked for it. */
static void exit_server(struct stream *stream)
{
	raise(SIGSTOP);
	take(stream, PART);
	expect_end(stream);
}

static void exit_client(struct stream *stream, char *self)
{
	await(to_client);
	put(stream, PART, 0);
}

/* exit_unread: as TCP has it, a reset. */
static void exit_unread_server(struct stream *stream)
{
	char byte;

	put(stream, PART, 0);
	tell(to_client);
	check(recv(stream->fd, &byte, 1, 0) < 0 && errno == ECONNRESET, "reset");
}

static void exit_unread_client(struct stream *stream, char *self)
{
	char byte;

	await(to_client);
	check(recv(stream->fd, &byte, 1, MSG_PEEK) == 1, "peek");
}

/* exec, exec_full: unread bytes go along, also where the rest of the send is behind them in the TCP stream. */
static void exec_both(struct stream *stream, size_t bytes)
{
	put(stream, bytes, 0);
	tell(to_client);
	take(stream, PART);
	expect_end(stream);
}

static void exec_server(struct stream *stream)
{
	exec_both(stream, PART);
}

static void exec_full_server(struct stream *stream)
{
	exec_both(stream, OVER);
}

/* This end's sends go by TCP afterwards: when the ring was full, nobody received. */
static void go_to_tcp(struct stream *stream)
{
	put(stream, OVER, 0);
	tell(to_server);
}

static void setuid_server(struct stream *stream)
{
	await(to_server);
	take(stream, OVER);
	exec_both(stream, PART);
}

static void exec_again(const struct stream *stream, char *self, size_t bytes)
{
	char fd[16], sent[24], received[24], left[24];

	snprintf(fd, sizeof(fd), "%d", stream->fd);
	snprintf(sent, sizeof(sent), "%llu", (unsigned long long)stream->sent);
	snprintf(received, sizeof(received), "%llu", (unsigned long long)stream->received);
	snprintf(left, sizeof(left), "%zu", bytes);
	await(to_client);
	execl(self, self, "again", fd, sent, received, left, (char *)NULL);
	check(false, "exec");
}

static void exec_client(struct stream *stream, char *self)
{
	exec_again(stream, self, PART);
}

static void exec_full_client(struct stream *stream, char *self)
{
	exec_again(stream, self, OVER);
}

/* setuid: the same of a program that may not speak to rdma_cm any more. The user is the same, the credentials are others. */
static void setuid_client(struct stream *stream, char *self)
{
	check(!setuid(getuid()), "setuid");
	go_to_tcp(stream);
	exec_again(stream, self, PART);
}

static int after_exec(char **argv)
{
	struct stream stream = { .fd = atoi(argv[2]),
				 .sent = strtoull(argv[3], NULL, 10),
				 .received = strtoull(argv[4], NULL, 10) };

	take(&stream, strtoull(argv[5], NULL, 10));
	put(&stream, PART, 0);
	return 0;
}

/* dontwait: a send that must not wait ends, and what it has taken arrives. */
static void dontwait_server(struct stream *stream)
{
	uint64_t bytes;

	check(read(to_server[0], &bytes, sizeof(bytes)) == sizeof(bytes), "count");
	take(stream, bytes);
	expect_end(stream);
}

static void dontwait_client(struct stream *stream, char *self)
{
	uint64_t bytes = put(stream, 64 << 20, MSG_DONTWAIT);

	check(bytes < 64 << 20, "there is no limit");
	fprintf(stderr, "%llu bytes\n", (unsigned long long)bytes);
	check(write(to_server[1], &bytes, sizeof(bytes)) == sizeof(bytes), "count");
}

static void echo_server(struct stream *stream)
{
	char bytes[PART];
	ssize_t got;

	while ((got = recv(stream->fd, bytes, sizeof(bytes), 0)) > 0) {
		for (ssize_t done = 0, rc; done < got; done += rc) {
			rc = send(stream->fd, bytes + done, (size_t)(got - done), MSG_NOSIGNAL);
			check(rc > 0, "send back");
		}
	}
	check(!got, "end of the stream");
}

/* cancelled: threads that end in the middle of anything leave nothing locked, and no byte comes twice or half. */
static void *exchange(void *stream)
{
	for (;;) {
		put(stream, SMALL, 0);
		take(stream, SMALL);
	}
	return NULL;
}

/* All that comes before the mark. Returns bytes. */
static size_t take_to_mark(const struct stream *stream, uint8_t *room, size_t most)
{
	size_t got = 0, marks = 0;

	for (;;) {
		ssize_t rc = recv(stream->fd, room + got, 1, 0);

		check(rc == 1, "recv, up to the mark");
		if (room[got] == MARK_END && marks >= MARK)
			return got - MARK;
		marks = room[got] == MARK_BYTE ? marks + 1 : 0;
		got++;
		check(got < most, "more than was sent");
	}
}

/*
 * A thread that was cancelled in a call may have done what the call does, over TCP as well (sourceware's bug 12683): bytes were sent that it
 * did not count, or received that nobody has. What is left to come tells.
 */
static void find_out(struct stream *stream)
{
	uint8_t mark[MARK + 1], room[6 * SMALL];
	size_t left;
	uint64_t from = stream->received;

	memset(mark, MARK_BYTE, MARK);
	mark[MARK] = MARK_END;
	check(send(stream->fd, mark, sizeof(mark), MSG_NOSIGNAL) == sizeof(mark), "send the mark");
	left = take_to_mark(stream, room, sizeof(room));
	if (stream->receives)
		from = stream->sent - left;
	check(from >= stream->received && from <= stream->received + SMALL, "bytes came twice, or are missing");
	check(from + left >= stream->sent && from + left <= stream->sent + (stream->sends ? SMALL : 0),
	      "bytes are missing");
	for (size_t i = 0; i < left; i++)
		check(room[i] == byte_at(from + i), "wrong byte behind a cancelled call");
	stream->sent = stream->received = from + left;
	stream->sends = stream->receives = false;
}

static void cancelled_client(struct stream *stream, char *self)
{
	for (unsigned int i = 0; i < CANCELS; i++) {
		const volatile uint64_t *sent = &stream->sent;
		uint64_t until = *sent + (i % 4 + 1) * SMALL;
		pthread_t thread;

		check(!pthread_create(&thread, NULL, exchange, stream), "thread");
		while (*sent < until)
			sched_yield();
		for (volatile unsigned int k = 0; k < i * 997 % 50000; k++)
			;
		check(!pthread_cancel(thread) && !pthread_join(thread, NULL), "cancel");
		find_out(stream);
	}
	put(stream, PART, 0);
	take(stream, PART);
}

/* returns: there and back, of all sizes, until a file is there. What is sent by parts is echoed as it comes. */
static void returns_client(struct stream *stream, char *self)
{
	static const size_t sizes[] = { 1, SMALL, PART, 3 * PART, 16, 2 * PART + 7 };
	const char *until = getenv("FAR_UNTIL");

	check(until, "FAR_UNTIL");
	for (unsigned int i = 0; access(until, F_OK); i++) {
		size_t bytes = sizes[i % (sizeof(sizes) / sizeof(sizes[0]))];

		put(stream, bytes, 0);
		take(stream, bytes);
	}
	fprintf(stderr, "%llu bytes\n", (unsigned long long)stream->sent);
}

/* forks: while a child has the connection, too, it goes by TCP; then the parent's goes over RDMA again. */
static void forks_client(struct stream *stream, char *self)
{
	int status, go_on[2];
	pid_t child;

	check(!pipe(go_on), "pipe");
	child = fork();
	check(child >= 0, "fork");
	if (!child) {
		await(go_on);
		_exit(0);
	}
	for (int i = 0; i < ROUNDS; i++) {
		put(stream, PART, 0);
		take(stream, PART);
	}
	tell(go_on);
	check(waitpid(child, &status, 0) == child && !status, "child");
	returns_client(stream, self);
}

/*
 * vfork: a child's program inherits the connection and does nothing. This end sends by TCP at that time, so nothing comes
 * from it that would tell the server of the break, whose bytes are all here.
 */
static void vfork_server(struct stream *stream)
{
	await(to_server);
	take(stream, OVER);
	put(stream, PART, 0);
	take(stream, PART);
	put(stream, PART, 0);
	expect_end(stream);
}

static void vfork_client(struct stream *stream, char *self)
{
	int status;
	pid_t child;

	go_to_tcp(stream);
	take(stream, PART);
	child = vfork();
	if (!child) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	check(child > 0 && waitpid(child, &status, 0) == child && !status, "child");
	put(stream, PART, 0);
	take(stream, PART);
}

/* The environment, which whoever reads it on another thread finds changed at any time, and its array freed. */
static void *change_environment(void *unused)
{
	char name[32];

	for (unsigned int i = 0;; i++) {
		if (!(i % 500))
			clearenv();
		snprintf(name, sizeof(name), "FAR_CHANGED_%u", i % 500);
		setenv(name, name, 1);
		sched_yield();
	}
	return NULL;
}

/* heir: the same of the child's, behind the parent's close; and as if it changed its environment, as rsync's does for each connection. */
static void heir_server(struct stream *stream)
{
	pid_t child = fork();
	pthread_t thread;
	int status;

	check(child >= 0, "fork");
	if (!child) {
		check(!pthread_create(&thread, NULL, change_environment, NULL), "thread");
		echo_server(stream);
		_exit(0);
	}
	close(stream->fd);
	check(waitpid(child, &status, 0) == child && !status, "child");
}

static int listen_at(const char *address, struct sockaddr_in *out)
{
	socklen_t bytes = sizeof(*out);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*out = (struct sockaddr_in){ .sin_family = AF_INET };
	check(inet_pton(AF_INET, address, &out->sin_addr) == 1, address);
	check(!bind(fd, (struct sockaddr *)out, bytes) && !listen(fd, 1), "listen");
	check(!getsockname(fd, (struct sockaddr *)out, &bytes), "getsockname");
	return fd;
}

/* A connection of this host, over shared memory, ends before: the next one gets its place. */
static void have_a_neighbour(void)
{
	struct sockaddr_in address;
	int listening = listen_at("127.0.0.1", &address);
	struct stream ours = { .fd = socket(AF_INET, SOCK_STREAM, 0) }, theirs;

	check(!connect(ours.fd, (const struct sockaddr *)&address, sizeof(address)), "connect to oneself");
	theirs.fd = accept(listening, NULL, NULL);
	check(theirs.fd >= 0, "accept");
	theirs.sent = theirs.received = 0;
	for (int i = 0; i < ROUNDS; i++) {
		put(&ours, SMALL, 0);
		take(&theirs, SMALL);
		put(&theirs, SMALL, 0);
		take(&ours, SMALL);
	}
	close(listening);
	close(ours.fd);
	close(theirs.fd);
}

/* idles: for longer than ZC_IDLE_MS=5, when memory of rings is given back; a device would go on with what it had. */
static void idles_client(struct stream *stream, char *self)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct pollfd look = { .fd = stream->fd, .events = POLLIN };

		put(stream, SMALL, 0);
		take(stream, SMALL);
		check(!poll(&look, 1, 20), "nothing comes");
	}
}

/*
 * twice: the server has all of it, and makes no call on the connection, while it comes once more by TCP, as the queue pair ends before its
 * word that it has. That takes the client no room.
 */
static void twice_server(struct stream *stream)
{
	take(stream, MUCH);
	tell(to_client);
	await(to_server);
	put(stream, PART, 0);
	take(stream, PART);
	expect_end(stream);
}

static void twice_client(struct stream *stream, char *self)
{
	struct pollfd look = { .fd = stream->fd, .events = POLLIN | POLLOUT };
	const int room = 30000;
	pid_t child;
	int status;

	check(!setsockopt(stream->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), "SO_SNDBUF");
	put(stream, MUCH, 0);
	await(to_client);
	child = fork();
	check(child >= 0, "fork");
	if (!child)
		_exit(0);
	check(waitpid(child, &status, 0) == child && !status, "child");
	for (int i = 0; i < 3; i++)
		check(poll(&look, 1, 10000) == 1 && look.revents == POLLOUT, "room");
	tell(to_server);
	put(stream, PART, 0);
	take(stream, PART);
}

static const struct {
	const char *name;
	void (*server)(struct stream *stream);
	void (*client)(struct stream *stream, char *self);
	bool stops; /* the server, and goes on when the client says so or has ended */
} cases[] = {
	{ "fork", fork_server, fork_client, true },
	{ "exit", exit_server, exit_client, true },
	{ "exit_unread", exit_unread_server, exit_unread_client, false },
	{ "exec", exec_server, exec_client, false },
	{ "exec_full", exec_full_server, exec_full_client, false },
	{ "setuid", setuid_server, setuid_client, false },
	{ "vfork", vfork_server, vfork_client, false },
	{ "handler", handler_server, handler_client, false },
	{ "interrupted", interrupted_server, interrupted_client, false },
	{ "allocating", handler_server, allocating_client, false },
	{ "dontwait", dontwait_server, dontwait_client, false },
	{ "cancelled", echo_server, cancelled_client, false },
	{ "returns", echo_server, returns_client, false },
	{ "forks", echo_server, forks_client, false },
	{ "heir", heir_server, returns_client, false },
	{ "idles", echo_server, idles_client, false },
	{ "twice", twice_server, twice_client, false },
};

/* Returns whether it has ended well. */
static bool ended_well(pid_t process, const char *who)
{
	int status;

	check(waitpid(process, &status, 0) == process, "waitpid");
	if (status)
		fprintf(stderr, "the %s has ended with %#x\n", who, (unsigned int)status);
	return !status;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address;
	pid_t server, client;
	int status, listening;
	size_t which = 0;
	char byte;
	bool well;

	if (argc == 6 && !strcmp(argv[1], "again"))
		return after_exec(argv);
	check(argc == 3, "usage: far_cases CASE ADDRESS");
	while (which < sizeof(cases) / sizeof(cases[0]) && strcmp(cases[which].name, argv[1]) != 0)
		which++;
	check(which < sizeof(cases) / sizeof(cases[0]), "no such case");
	check(!pipe(to_client) && !pipe(to_server) && !pipe(to_parent), "pipe");
	listening = listen_at(argv[2], &address);
	server = fork();
	if (!server) {
		struct stream stream = accept_one(listening);

		cases[which].server(&stream);
		return 0;
	}
	client = fork();
	if (!client) {
		struct stream stream;

		close(listening);
		if (cases[which].client == idles_client)
			have_a_neighbour();
		stream = connect_to(&address);
		cases[which].client(&stream, argv[0]);
		return 0;
	}
	close(to_parent[1]);
	if (cases[which].stops) {
		check(waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status), "stop");
		tell(to_client);
		well = cases[which].client == exit_client ? ended_well(client, "client") :
							    read(to_parent[0], &byte, 1) >= 0;
		kill(server, SIGCONT);
		well &= cases[which].client == exit_client || ended_well(client, "client");
	} else {
		well = ended_well(client, "client");
	}
	return !(ended_well(server, "server") && well);
}
