/* SPDX-License-Identifier: MIT */
/* How connections end: shutdown, close with and without unread bytes, linger, reset, half-open work, and what comes after. */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

static void note_recv(int fd)
{
	char c;
	ssize_t got;

	errno = 0;
	got = recv(fd, &c, 1, 0);
	note("recv: %zd %s", got, errno_name(got < 0 ? errno : 0));
}

/* Every byte sent before an end arrives before the end of file. Argument: bytes. */
static void send_in_pieces(int fd, size_t bytes)
{
	size_t pieces[] = { bytes / 3, 5, bytes - bytes / 3 - 5 };
	uint64_t position = 0;

	for (int i = 0; i < 3; i++) {
		give_pattern(fd, pieces[i], 8, position);
		position += pieces[i];
	}
}

void close_after_send(struct end *end, long bytes)
{
	meet(end);
	if (end->server) {
		take_to_end(end->fd, 8, 0);
		return;
	}
	send_in_pieces(end->fd, (size_t)bytes);
	CALL(close(end->fd));
}

void close_exit_after_send(struct end *end, long bytes)
{
	meet(end);
	if (end->server) {
		take_to_end(end->fd, 8, 0);
		return;
	}
	send_in_pieces(end->fd, (size_t)bytes);
	if (bytes % 2)
		exit(0);
	_exit(0);
}

/* The end is there before anybody receives, and what was sent may be in the sender's memory yet. */
void close_exit_by_number(struct end *end, long bytes)
{
	struct pollfd look = { .events = POLLRDHUP };
	char *buffer;

	meet_and_go(end);
	for (int i = 0; i < 4; i++) {
		if (end->server)
			take_pattern(end->fd, 300000, 1, 0);
		else
			give_pattern(end->fd, 300000, 1, 0);
		meet_at(end, "large");
	}
	if (end->server) {
		look.fd = end->fd;
		MUST(poll(&look, 1, -1));
		take_to_end(end->fd, 8, 0);
		return;
	}
	buffer = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pattern_fill(buffer, (size_t)bytes, 8, 0);
	give(end->fd, buffer, (size_t)bytes);
	syscall(SYS_exit_group, 0);
}

void close_shutdown_after_send(struct end *end, long bytes)
{
	meet(end);
	if (end->server) {
		take_to_end(end->fd, 8, 0);
		give_pattern(end->fd, (size_t)bytes, 9, 0);
		return;
	}
	signal(SIGPIPE, SIG_IGN);
	send_in_pieces(end->fd, (size_t)bytes);
	CALL(shutdown(end->fd, SHUT_WR));
	CALL(send(end->fd, "x", 1, 0));
	CALL(send(end->fd, "x", 1, 0));
	CALL(write(end->fd, "x", 1));
	take_to_end(end->fd, 9, 0);
	CALL(shutdown(end->fd, SHUT_WR));
	note_error(end->fd);
}

void close_shutdown_rd(struct end *end, long bytes)
{
	meet(end);
	if (end->server) {
		await(end, "shut");
		give(end->fd, "abc", 3);
		tell(end, "sent");
		take_to_end(end->fd, 8, 0);
		return;
	}
	CALL(shutdown(end->fd, SHUT_RD));
	note_recv(end->fd);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	tell(end, "shut");
	await(end, "sent");
	await_bytes(end->fd, 3);
	/* Bytes left unread would turn the end into a reset. */
	for (int i = 0; i < 4; i++)
		note_recv(end->fd);
	send_in_pieces(end->fd, (size_t)bytes);
	CALL(shutdown(end->fd, SHUT_WR));
	note_poll(end->fd, POLLIN | POLLRDHUP);
}

/* Both ends of the stream are on their way between two hosts, and the kernel refuses what comes after them. */
static void await_closed(int fd)
{
	while (kernel_state(fd) != TCP_CLOSE)
		sched_yield();
}

void close_shutdown_refused(struct end *end, long unused)
{
	int port, fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0)), listening = listen_on(addresses.ipv4, &port);

	meet(end);
	CALL(shutdown(fd, SHUT_WR));
	CALL(shutdown(-1, SHUT_WR));
	CALL(shutdown(0x7fff, SHUT_RDWR));
	CALL(shutdown(end->fd, 99));
	CALL(shutdown(listening, SHUT_RD));
	CALL(shutdown(end->fd, SHUT_RDWR));
	meet_at(end, "both");
	await_closed(end->fd);
	note_recv(end->fd);
	CALL(shutdown(end->fd, SHUT_RDWR));
}

/* The kernel notes a reset step by step: whoever looks from another processor may see the error alone. */
static void await_reset(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };

	while (poll(&look, 1, -1) != 1 || !(look.revents & POLLRDHUP))
		sched_yield();
}

/* SO_LINGER of 0: what has arrived can be read, then comes the reset. */
void close_linger_none(struct end *end, long bytes)
{
	struct linger linger = { .l_onoff = 1 };

	meet(end);
	if (end->server) {
		await_bytes(end->fd, (int)bytes);
		tell(end, "close");
		await_reset(end->fd);
		note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
		take_to_end(end->fd, 8, 0);
		note_recv(end->fd);
		return;
	}
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	send_in_pieces(end->fd, (size_t)bytes);
	await(end, "close");
	CALL(close(end->fd));
}

/* A close that lingers ends when all has been acknowledged. */
void close_linger(struct end *end, long bytes)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 100 };

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 8, 0);
		return;
	}
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	send_in_pieces(end->fd, (size_t)bytes);
	CALL(close(end->fd));
}

/* Closed with unread bytes: the other end gets a reset. Argument: how it meets it. */
void close_unread(struct end *end, long how)
{
	meet(end);
	if (end->server) {
		await_bytes(end->fd, 100);
		MUST(close(end->fd));
		tell(end, "closed");
		return;
	}
	signal(SIGPIPE, SIG_IGN);
	give_pattern(end->fd, 100, 8, 0);
	await(end, "closed");
	poll(&(struct pollfd){ .fd = end->fd }, 1, -1);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	if (how == 1)
		note_error(end->fd);
	if (how == 2)
		CALL(send(end->fd, "x", 1, 0));
	if (how == 3) {
		char *large = calloc(1, 200000);

		CALL(send(end->fd, large, 200000, 0));
		free(large);
	}
	note_recv(end->fd);
	note_recv(end->fd);
	note_error(end->fd);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	CALL(send(end->fd, "x", 1, 0));
	CALL(send(end->fd, "x", 1, 0));
}

/* The receiver goes away in the middle of a large blocking send. */
void close_in_mid_send(struct end *end, long piece)
{
	char *data = calloc(1, (size_t)piece);
	ssize_t rc;

	meet_small(end);
	if (end->server) {
		await_bytes(end->fd, 4096);
		MUST(close(end->fd));
		return;
	}
	signal(SIGPIPE, SIG_IGN);
	/* How much goes out before is open; then the reset is told once, and after it EPIPE. */
	do
		rc = send(end->fd, data, (size_t)piece, 0);
	while (rc >= 0);
	note("first: %s", errno_name(errno));
	CALL(send(end->fd, data, (size_t)piece, 0));
	note_recv(end->fd);
	free(data);
}

/*
 * The client end's part where its connection is a process's that is killed. Returns true in the end itself, behind that death, which
 * it has told the server; in the process that is to kill itself, false, with end->fd.
 */
static bool is_survivor(struct end *end)
{
	int port = (int)await_number(end);
	pid_t child = (pid_t)MUST(fork());

	if (!child) {
		end->fd = connect_to(addresses.ipv4, port);
		return false;
	}
	reap(child);
	tell(end, "dead");
	return true;
}

/* A process that is killed with all bytes read: what it has sent arrives, then the end of file. Argument: bytes. */
void close_killed_read(struct end *end, long bytes)
{
	if (end->server) {
		accept_one(end);
		get_going(end);
		await(end, "waits");
		give_pattern(end->fd, 1000, 9, 0);
		await(end, "dead");
		take_to_end(end->fd, 8, 0);
		return;
	}
	if (is_survivor(end))
		return;
	get_going(end);
	tell(end, "waits");
	take_pattern(end->fd, 1000, 9, 0);
	give_pattern(end->fd, (size_t)bytes, 8, 0);
	kill(getpid(), SIGKILL);
}

/* A process that is killed with bytes unread: what it has sent arrives, then a reset, once. Argument: bytes that it has sent. */
void close_killed_unread(struct end *end, long bytes)
{
	if (end->server) {
		accept_one(end);
		get_going(end);
		give_pattern(end->fd, 1000, 9, 0);
		await(end, "dead");
		await_reset(end->fd);
		take_pattern(end->fd, (size_t)bytes, 8, 0);
		note_recv(end->fd);
		note_recv(end->fd);
		return;
	}
	if (is_survivor(end))
		return;
	get_going(end);
	give_pattern(end->fd, (size_t)bytes, 8, 0);
	await_bytes(end->fd, 1000);
	kill(getpid(), SIGKILL);
}

/* The peer is told once what it has sent has been taken by the receive that waits for more. */
static void *tell_when_taken(void *argument)
{
	struct end *end = argument;
	int there = 1;

	await(end, "sent");
	while (there) {
		MUST(ioctl(end->fd, FIONREAD, &there));
		sched_yield();
	}
	tell(end, "end");
	return NULL;
}

/* A part, then the reset, once. */
static void wait_for_all(struct end *end)
{
	char data[1000];
	pthread_t thread;

	give_pattern(end->fd, 1000, 9, 0);
	MUST(pthread_create(&thread, NULL, tell_when_taken, end));
	EXPECT(CALL(recv(end->fd, data, sizeof(data), MSG_WAITALL)) == 100);
	pattern_check(data, 100, 8, 0);
	MUST(pthread_join(thread, NULL));
	for (int i = 0; i < 3; i++)
		note_recv(end->fd);
}

/* A receive that waits for more than there will be, as the peer dies with bytes unread, or resets. */
void close_waitall(struct end *end, long resets)
{
	struct linger linger = { .l_onoff = 1 };

	if (end->server) {
		accept_one(end);
		get_going(end);
		wait_for_all(end);
		await(end, "dead");
		return;
	}
	if (is_survivor(end))
		return;
	get_going(end);
	give_pattern(end->fd, 100, 8, 0);
	await_bytes(end->fd, 1000);
	tell(end, "sent");
	await(end, "end");
	if (!resets)
		kill(getpid(), SIGKILL);
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	MUST(close(end->fd));
	_exit(0);
}

/* A stream that has ended is no reset, whatever the other end has unread: it may receive that later. */
void close_shutdown_unread(struct end *end, long bytes)
{
	meet_and_go(end);
	if (end->server) {
		give_pattern(end->fd, (size_t)bytes, 9, 0);
		tell(end, "sent");
		take_to_end(end->fd, 8, 0);
		note_recv(end->fd);
		tell(end, "ended");
		return;
	}
	await(end, "sent");
	await_bytes(end->fd, 1);
	send_in_pieces(end->fd, (size_t)bytes);
	CALL(shutdown(end->fd, SHUT_WR));
	await(end, "ended");
	take_to_end(end->fd, 9, 0);
}

/*
 * Both send what fits in their buffers, then both receive: nobody may wait for the other. A send buffer may be as large as
 * net.core.wmem_max says, and on older kernels that is 212992 bytes, doubled by the kernel.
 */
void close_both_send_first(struct end *end, long bytes)
{
	meet(end);
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_SNDBUF, &(int){ 4 << 20 }, sizeof(int)));
	give_pattern(end->fd, (size_t)bytes, 8, 0);
	MUST(shutdown(end->fd, SHUT_WR));
	take_to_end(end->fd, 8, 0);
}

/* A process that is killed: what the kernel had taken arrives, then the end of file. */
void close_killed(struct end *end, long bytes)
{
	if (end->server) {
		accept_one(end);
		await(end, "dead");
		take_to_end(end->fd, 8, 0);
		return;
	}
	if (is_survivor(end))
		return;
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_SNDBUF, &(int){ 4 << 20 }, sizeof(int)));
	send_in_pieces(end->fd, (size_t)bytes);
	poll(NULL, 0, 0);
	kill(getpid(), SIGKILL);
}
