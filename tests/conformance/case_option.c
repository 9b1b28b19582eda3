/* SPDX-License-Identifier: MIT */
/* What a program asks of a connection, and what it sets, before and after sends that take other paths. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define LOW_BYTES 100
#define LOW_ROUNDS 20

static void note_option(int fd, const char *name, int level, int option)
{
	int value = 0;
	socklen_t bytes = sizeof(value);
	int rc = getsockopt(fd, level, option, &value, &bytes);

	note("%s: %d %s %d, %u bytes", name, rc, errno_name(rc ? errno : 0), value, bytes);
}
#define OPTION(fd, level, name) note_option(fd, #name, level, name)

static void note_all(int fd)
{
	OPTION(fd, SOL_SOCKET, SO_TYPE);
	OPTION(fd, SOL_SOCKET, SO_DOMAIN);
	OPTION(fd, SOL_SOCKET, SO_PROTOCOL);
	OPTION(fd, SOL_SOCKET, SO_ACCEPTCONN);
	OPTION(fd, SOL_SOCKET, SO_ERROR);
	OPTION(fd, SOL_SOCKET, SO_ZEROCOPY);
	OPTION(fd, SOL_SOCKET, SO_KEEPALIVE);
	OPTION(fd, SOL_SOCKET, SO_LINGER);
	OPTION(fd, SOL_SOCKET, SO_RCVLOWAT);
	OPTION(fd, SOL_SOCKET, SO_RCVTIMEO);
	OPTION(fd, SOL_SOCKET, SO_OOBINLINE);
	OPTION(fd, SOL_SOCKET, SO_REUSEADDR);
	OPTION(fd, IPPROTO_TCP, TCP_NODELAY);
	OPTION(fd, IPPROTO_TCP, TCP_CORK);
	OPTION(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT);
	OPTION(fd, IPPROTO_IP, IP_RECVERR);
	OPTION(fd, IPPROTO_IP, IP_TTL);
	OPTION(fd, 12345, 1);
	OPTION(fd, SOL_SOCKET, 54321);
}

/* Large sends in both directions, all of them taken by the other end. */
static void exchange(struct end *end, unsigned int seed, size_t bytes)
{
	if (end->server)
		take_quietly(end->fd, bytes, seed, 0);
	else
		give_pattern(end->fd, bytes, seed, 0);
	if (end->server)
		give_pattern(end->fd, bytes, seed, 0);
	else
		take_quietly(end->fd, bytes, seed, 0);
}

void option_all(struct end *end, long bytes)
{
	meet(end);
	note_all(end->fd);
	exchange(end, 1, (size_t)bytes);
	note_all(end->fd);
	CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, sizeof(int)));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 3 }, sizeof(struct linger)));
	CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &(int){ 70000 }, sizeof(int)));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_SNDBUF, &(int){ 50000 }, sizeof(int)));
	OPTION(end->fd, SOL_SOCKET, SO_SNDBUF);
	CALL(setsockopt(end->fd, SOL_SOCKET, 54321, &(int){ 1 }, sizeof(int)));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_KEEPALIVE, NULL, 4));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, 1));
	CALL(setsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &(int){ 1 }, sizeof(int)));
	CALL(getsockopt(end->fd, SOL_SOCKET, SO_ERROR, NULL, NULL));
	CALL(getsockopt(-1, SOL_SOCKET, SO_ERROR, &(int){ 0 }, &(socklen_t){ 4 }));
	note_all(end->fd);
	exchange(end, 2, (size_t)bytes);
	meet_at(end, "done");
}

void option_names(struct end *end, long bytes)
{
	struct sockaddr_in own, peer;
	socklen_t size = sizeof(own);
	struct stat status;
	char text[32] = { 0 };

	meet(end);
	exchange(end, 1, (size_t)bytes);
	CALL(getsockname(end->fd, (struct sockaddr *)&own, &size));
	note("%u bytes, family %u, %s", size, own.sin_family, inet_ntoa(own.sin_addr));
	CALL(getpeername(end->fd, (struct sockaddr *)&peer, &size));
	note("%u bytes, family %u, %s", size, peer.sin_family, inet_ntoa(peer.sin_addr));
	tell_number(end, peer.sin_port);
	EXPECT(await_number(end) == own.sin_port);
	CALL(fstat(end->fd, &status));
	note("mode %o, size %ld", status.st_mode, (long)status.st_size);
	EXPECT(readlink("/proc/self/fd/0", text, sizeof(text) - 1) > 0);
	CALL(fcntl(end->fd, F_GETFL));
	CALL(fcntl(end->fd, F_GETFD));
	CALL(fcntl(end->fd, F_SETFD, FD_CLOEXEC));
	CALL(fcntl(end->fd, F_GETFD));
	CALL(isatty(end->fd));
	CALL(lseek(end->fd, 0, SEEK_END));
	CALL(ftruncate(end->fd, 0));
	CALL(fsync(end->fd));
	CALL(getpeername(end->fd, NULL, NULL));
	meet_at(end, "done");
}

void option_nonblocking(struct end *end, long how)
{
	char c;

	meet(end);
	if (how)
		CALL(ioctl(end->fd, FIONBIO, &(int){ 1 }));
	else
		CALL(fcntl(end->fd, F_SETFL, O_RDWR | O_NONBLOCK));
	CALL(fcntl(end->fd, F_GETFL));
	CALL(recv(end->fd, &c, 1, 0));
	CALL(read(end->fd, &c, 1));
	meet_at(end, "empty");
	exchange(end, 1, 100000);
	CALL(recv(end->fd, &c, 1, MSG_WAITALL));
	meet_at(end, "done");
	if (how)
		CALL(ioctl(end->fd, FIONBIO, &(int){ 0 }));
	else
		CALL(fcntl(end->fd, F_SETFL, 0));
	CALL(fcntl(end->fd, F_GETFL));
	exchange(end, 2, 100000);
	if (end->server)
		give(end->fd, "x", 1);
	else
		CALL(recv(end->fd, &c, 1, 0));
}

/* FIONREAD counts what has arrived, SIOCOUTQ ends at nothing once the other end has it all. */
void option_queues(struct end *end, long bytes)
{
	int there = -1, left = -1;

	meet(end);
	if (end->server) {
		await_bytes(end->fd, (int)bytes);
		CALL(ioctl(end->fd, FIONREAD, &there));
		note("there: %d", there);
		take_quietly(end->fd, (size_t)bytes, 1, 0);
		CALL(ioctl(end->fd, FIONREAD, &there));
		note("there: %d", there);
		meet_at(end, "done");
		return;
	}
	for (long i = 0; i < 10; i++)
		give_pattern(end->fd, (size_t)bytes / 10, 1, (uint64_t)(bytes / 10 * i));
	CALL(ioctl(end->fd, SIOCOUTQ, &left));
	EXPECT(left >= 0 && left <= bytes);
	meet_at(end, "done");
	/* An acknowledgement may be on its way still: it is waited for, as programs do that ask this. */
	while (!ioctl(end->fd, SIOCOUTQ, &left) && left)
		;
	note("left: %d", left);
}

void option_cork(struct end *end, long unused)
{
	meet(end);
	if (end->server) {
		take_pattern(end->fd, 40, 1, 0);
		give(end->fd, "+", 1);
		take_pattern(end->fd, 20000, 1, 40);
		give(end->fd, "+", 1);
		take_to_end(end->fd, 1, 20040);
		return;
	}
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_CORK, &(int){ 1 }, sizeof(int)));
	for (int i = 0; i < 4; i++)
		give_pattern(end->fd, 10, 1, (uint64_t)i * 10);
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_CORK, &(int){ 0 }, sizeof(int)));
	CALL(recv(end->fd, &(char){ 0 }, 1, 0));
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_CORK, &(int){ 1 }, sizeof(int)));
	give_pattern(end->fd, 20000, 1, 40);
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_CORK, &(int){ 0 }, sizeof(int)));
	CALL(recv(end->fd, &(char){ 0 }, 1, 0));
	give_pattern(end->fd, 5, 1, 20040);
}

/* SIGIO for what the connection does, and O_ASYNC set in both ways. */
static volatile sig_atomic_t told;

static void on_io(int number)
{
	told = 1;
}

void option_async(struct end *end, long how)
{
	sigset_t blocked, open;

	meet(end);
	if (end->server) {
		exchange(end, 1, 100000);
		await(end, "send");
		give(end->fd, "x", 1);
		await(end, "done");
		return;
	}
	exchange(end, 1, 100000);
	sigemptyset(&open);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGIO);
	MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
	signal(SIGIO, on_io);
	CALL(fcntl(end->fd, F_SETOWN, getpid()));
	if (how)
		CALL(ioctl(end->fd, FIOASYNC, &(int){ 1 }));
	else
		CALL(fcntl(end->fd, F_SETFL, O_RDWR | O_ASYNC));
	CALL(fcntl(end->fd, F_GETFL));
	tell(end, "send");
	while (!told)
		sigsuspend(&open);
	CALL(recv(end->fd, &(char){ 0 }, 1, 0));
	tell(end, "done");
}

/* The program's own use of MSG_ZEROCOPY, after sends on whatever path: its numbers begin at 0, its notices are all there. */
void option_own_zerocopy(struct end *end, long before)
{
	char *data = aligned_alloc(4096, 65536 * 3);

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)before, 1, 0);
		take_quietly(end->fd, 65536 * 3, 2, 0);
		meet_at(end, "done");
		return;
	}
	give_pattern(end->fd, (size_t)before, 1, 0);
	OPTION(end->fd, SOL_SOCKET, SO_ZEROCOPY);
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_ZEROCOPY, &(int){ 1 }, sizeof(int)));
	OPTION(end->fd, SOL_SOCKET, SO_ZEROCOPY);
	for (int i = 0; i < 3; i++) {
		pattern_fill(data + i * 65536, 65536, 2, (uint64_t)i * 65536);
		CALL(send(end->fd, data + i * 65536, 65536, MSG_ZEROCOPY));
	}
	take_notices(end->fd, 2);
	note_poll(end->fd, POLLIN);
	free(data);
	meet_at(end, "done");
}

/* MSG_ZEROCOPY without SO_ZEROCOPY is a plain send and leaves no notice; the error queue is empty. */
void option_zerocopy_flag_alone(struct end *end, long before)
{
	char *data = aligned_alloc(4096, 65536), control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)before, 1, 0);
		take_quietly(end->fd, 65536, 2, 0);
		tell(end, "taken");
		await(end, "done");
		return;
	}
	give_pattern(end->fd, (size_t)before, 1, 0);
	CALL(recvmsg(end->fd, &message, MSG_ERRQUEUE));
	pattern_fill(data, 65536, 2, 0);
	CALL(send(end->fd, data, 65536, MSG_ZEROCOPY));
	await(end, "taken");
	note_poll(end->fd, POLLIN | POLLOUT);
	CALL(recvmsg(end->fd, &message, MSG_ERRQUEUE));
	CALL(recv(end->fd, control, 1, MSG_ERRQUEUE | MSG_DONTWAIT));
	tell(end, "done");
	free(data);
}

/* The connection comes from a listening socket that the option is set on. */
static void meet_from_listener(struct end *end, int level, int option, int value)
{
	int port, listener;

	if (!end->server) {
		end->fd = connect_to(addresses.ipv4, (int)await_number(end));
		return;
	}
	listener = listen_on(addresses.ipv4, &port);
	CALL(setsockopt(listener, level, option, &value, sizeof(value)));
	tell_number(end, port);
	end->fd = (int)MUST(accept(listener, NULL, NULL));
	close(listener);
}

/*
 * SO_RCVLOWAT: poll waits until so many bytes are there. Set on a connection that has carried nothing or something, or on the
 * listening socket that it comes from.
 */
static void meet_low(struct end *end, long how)
{
	const int low = LOW_BYTES;

	if (how == LOW_LISTENER)
		meet_from_listener(end, SOL_SOCKET, SO_RCVLOWAT, low);
	else
		meet(end);
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int))); /* or each half takes 40 ms */
	for (unsigned int i = 0; how == LOW_AFTER_DATA && i < 20; i++)
		exchange(end, i, 1000);
	if (end->server && how != LOW_LISTENER)
		CALL(setsockopt(end->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)));
	meet_at(end, "set");
}

/* Nothing wakes anybody for fewer bytes than were asked for. */
static void await_half(int fd)
{
	int there = 0;

	while (there < LOW_BYTES / 2) {
		sched_yield();
		MUST(ioctl(fd, FIONREAD, &there));
	}
}

void option_low_water(struct end *end, long how)
{
	struct pollfd wait = { .events = POLLIN };

	meet_low(end, how);
	wait.fd = end->fd;
	if (end->server)
		OPTION(end->fd, SOL_SOCKET, SO_RCVLOWAT);
	for (uint64_t round = 0; round < LOW_ROUNDS; round++) {
		uint64_t at = round * LOW_BYTES;

		if (!end->server) {
			give_pattern(end->fd, LOW_BYTES / 2, 1, at);
			meet_at(end, "half");
			give_pattern(end->fd, LOW_BYTES / 2, 1, at + LOW_BYTES / 2);
			meet_at(end, "taken");
			continue;
		}
		await_half(end->fd);
		note_poll(end->fd, POLLIN);
		tell(end, "half");
		await(end, "half");
		CALL(poll(&wait, 1, -1));
		note("%s", event_names((uint32_t)wait.revents));
		take_pattern(end->fd, LOW_BYTES, 1, at);
		meet_at(end, "taken");
	}
	/* And the other way all is as it was. */
	if (end->server)
		give_pattern(end->fd, 10000, 2, 0);
	else
		take_pattern(end->fd, 10000, 2, 0);
}

/* Returns what is on the error queue, by each of the calls that can ask. */
static ssize_t ask_error_queue(int fd, long how)
{
	char data[100], control[200];
	struct iovec iov = { data, sizeof(data) };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &iov,
						.msg_iovlen = 1,
						.msg_control = control,
						.msg_controllen = sizeof(control) } };
	const int flags = MSG_ERRQUEUE | MSG_DONTWAIT;

	switch (how) {
	case 0:
		return recv(fd, data, sizeof(data), flags);
	case 1:
		return recvfrom(fd, data, sizeof(data), flags, NULL, NULL);
	case 2:
		return recvmsg(fd, &message.msg_hdr, flags);
	default:
		return recvmmsg(fd, &message, 1, flags, NULL);
	}
}

/* A program that has not asked for any notice meets none there. */
void option_error_queue(struct end *end, long how)
{
	size_t bytes = 1 << 20;
	char *data;
	int met = 0;

	meet_and_go(end);
	if (end->server) {
		for (int i = 0; i < 50; i++) {
			take_quietly(end->fd, bytes, 1, 0);
			tell(end, "taken");
		}
		return;
	}
	data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pattern_fill(data, bytes, 1, 0);
	for (int i = 0; i < 50; i++) {
		give(end->fd, data, bytes);
		await(end, "taken");
		met += ask_error_queue(end->fd, how) >= 0 || errno != EAGAIN;
	}
	note("met: %d", met);
}

static void note_peek(int fd, size_t bytes, int flags)
{
	char data[20];
	ssize_t got = recv(fd, data, bytes, flags | MSG_DONTWAIT);

	note("%s: %.*s (%zd)", flags & MSG_PEEK ? "look" : "take", got > 0 ? (int)got : 0, data, got);
}

/* Each look goes on where the last one has ended, and what is taken moves that. */
void option_peek_offset(struct end *end, long how)
{
	const int zero = 0, off = -1;

	if (how == LOW_LISTENER)
		meet_from_listener(end, SOL_SOCKET, SO_PEEK_OFF, zero);
	else
		meet(end);
	if (end->server && how == LOW_BEFORE_DATA)
		CALL(setsockopt(end->fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)));
	get_going(end);
	if (end->server && how == LOW_AFTER_DATA)
		CALL(setsockopt(end->fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero)));
	meet_at(end, "set");
	if (!end->server) {
		give(end->fd, "0123456789abcdef", 16);
		meet_at(end, "done");
	} else {
		await_bytes(end->fd, 16);
		for (int i = 0; i < 3; i++)
			note_peek(end->fd, 4, MSG_PEEK);
		note_peek(end->fd, 2, 0);
		note_peek(end->fd, 4, MSG_PEEK);
		CALL(setsockopt(end->fd, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off)));
		note_peek(end->fd, 4, MSG_PEEK);
		note_peek(end->fd, 14, 0);
		meet_at(end, "done");
	}
	get_going(end);
}

static void note_hint(int fd, size_t bytes, size_t room, int flags)
{
	_Alignas(struct cmsghdr) char control[64] = { 0 };
	char data[32];
	struct iovec iov = { data, bytes };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room };
	ssize_t got = recvmsg(fd, &message, flags);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	int left = -1;

	if (head)
		memcpy(&left, CMSG_DATA(head), sizeof(left));
	note("%zd of %zu, flags %x, control %zu: level %d, type %d, %d left", got, bytes, message.msg_flags,
	     (size_t)message.msg_controllen, head ? head->cmsg_level : -1, head ? head->cmsg_type : -1, left);
}

/* TCP_INQ: each receive tells what is left, and an end as a byte. */
void option_inq(struct end *end, long how)
{
	struct pollfd look = { .events = POLLRDHUP };
	const int one = 1, zero = 0;

	if (how == LOW_LISTENER)
		meet_from_listener(end, IPPROTO_TCP, TCP_INQ, one);
	else
		meet_and_go(end);
	if (!end->server) {
		give(end->fd, "0123456789abcdef", 16);
		meet_at(end, "done");
		get_going(end);
		give(end->fd, "gh", 2);
		shutdown(end->fd, SHUT_WR);
		meet_at(end, "ended");
		return;
	}
	look.fd = end->fd;
	if (how != LOW_LISTENER)
		CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_INQ, &one, sizeof(one)));
	await_bytes(end->fd, 16);
	note_hint(end->fd, 3, 64, 0);
	note_hint(end->fd, 3, 64, MSG_PEEK);
	note_hint(end->fd, 3, CMSG_LEN(sizeof(int)), MSG_CMSG_CLOEXEC);
	note_hint(end->fd, 1, CMSG_LEN(sizeof(int)) - 1, 0);
	note_hint(end->fd, 1, 0, MSG_CMSG_CLOEXEC);
	note_hint(end->fd, 4, 64, MSG_DONTWAIT);
	note_hint(end->fd, 4, 64, 0);
	meet_at(end, "done");
	get_going(end);
	MUST(poll(&look, 1, -1));
	note_hint(end->fd, 2, 64, 0);
	note_hint(end->fd, 2, 64, 0);
	CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_INQ, &zero, sizeof(zero)));
	note_hint(end->fd, 2, 64, 0);
	meet_at(end, "ended");
}

/* Values that are no memory: refused, and nothing has changed. */
void option_no_memory(struct end *end, long how)
{
	const int one = 1;
	const void *none = (const void *)16;

	meet_and_go(end);
	CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
	CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, none, sizeof(one)));
	CALL(setsockopt(end->fd, IPPROTO_TCP, TCP_CORK, none, sizeof(one)));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_RCVLOWAT, none, sizeof(one)));
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_PEEK_OFF, none, sizeof(one)));
	OPTION(end->fd, IPPROTO_TCP, TCP_NODELAY);
	OPTION(end->fd, IPPROTO_TCP, TCP_CORK);
	get_going(end);
}
