/* SPDX-License-Identifier: MIT */
/* Flags of the send and receive calls, arguments that the kernel refuses, urgent data, timeouts. The client sends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

/* Each piece has been sent when the other end hears of it: telling is a call in which nothing may be held back. */
static void send_text(struct end *end, const char *text, int flags)
{
	CALL(send(end->fd, text, strlen(text), flags));
}

static void note_recv(int fd, size_t room, int flags)
{
	char data[256] = { 0 };
	ssize_t got;

	errno = 0;
	got = recv(fd, data, room, flags);
	note("recv(%zu, %#x): %zd %s '%.*s'", room, (unsigned int)flags, got, errno_name(got < 0 ? errno : 0),
	     got > 0 && !(flags & MSG_TRUNC) ? (int)got : 0, data);
}

void flags_peek(struct end *end, long unused)
{
	meet(end);
	if (!end->server) {
		send_text(end, "hello", 0);
		send_text(end, "world", 0);
		await(end, "done");
		return;
	}
	await_bytes(end->fd, 10);
	note_recv(end->fd, 4, MSG_PEEK);
	note_recv(end->fd, 100, MSG_PEEK);
	note_poll(end->fd, POLLIN);
	note_recv(end->fd, 4, 0);
	note_recv(end->fd, 100, MSG_PEEK | MSG_DONTWAIT);
	note_recv(end->fd, 100, 0);
	note_recv(end->fd, 1, MSG_PEEK | MSG_DONTWAIT);
	tell(end, "done");
}

void flags_waitall(struct end *end, long unused)
{
	meet(end);
	if (!end->server) {
		send_text(end, "abc", 0);
		meet_at(end, "first");
		send_text(end, "defghij", 0);
		meet_at(end, "second");
		send_text(end, "rest", 0);
		MUST(shutdown(end->fd, SHUT_WR));
		note_recv(end->fd, 1, 0);
		return;
	}
	await_bytes(end->fd, 3);
	meet_at(end, "first");
	note_recv(end->fd, 10, MSG_WAITALL);
	meet_at(end, "second");
	note_recv(end->fd, 10, MSG_WAITALL);
	note_recv(end->fd, 10, MSG_WAITALL);
}

void flags_dontwait(struct end *end, long unused)
{
	size_t total = 0;
	char *data;
	ssize_t rc;

	meet_small(end);
	if (end->server) {
		note_recv(end->fd, 1, MSG_DONTWAIT);
		meet_at(end, "empty");
		take_quietly(end->fd, (size_t)await_number(end), 5, 0);
		tell(end, "drained");
		take_to_end(end->fd, 5, 0);
		return;
	}
	meet_at(end, "empty");
	data = malloc(100000);
	do {
		pattern_fill(data, 100000, 5, total);
		rc = send(end->fd, data, 100000, MSG_DONTWAIT);
		total += rc > 0 ? (size_t)rc : 0;
	} while (rc > 0);
	note("in the end: %s", errno_name(errno));
	note_poll(end->fd, POLLOUT);
	tell_number(end, (long)total);
	await(end, "drained");
	note_poll(end->fd, POLLOUT);
	free(data);
}

void flags_trunc(struct end *end, long unused)
{
	meet(end);
	if (!end->server) {
		send_text(end, "0123456789", 0);
		await(end, "done");
		return;
	}
	await_bytes(end->fd, 10);
	CALL(recv(end->fd, NULL, 4, MSG_TRUNC));
	note_recv(end->fd, 3, MSG_TRUNC | MSG_PEEK);
	note_recv(end->fd, 100, 0);
	tell(end, "done");
}

/* All that is there is counted, whatever it is. */
void flags_trunc_large(struct end *end, long unused)
{
	char *data = calloc(1, 60000);

	meet_and_go(end);
	if (!end->server) {
		give_pattern(end->fd, 50000, 1, 0);
		await(end, "done");
		free(data);
		return;
	}
	await_bytes(end->fd, 50000);
	CALL(recv(end->fd, NULL, 60000, MSG_TRUNC | MSG_PEEK));
	CALL(recv(end->fd, NULL, 30001, MSG_TRUNC | MSG_PEEK));
	CALL(recv(end->fd, NULL, 30000, MSG_TRUNC));
	CALL(recv(end->fd, data, 4097, MSG_TRUNC));
	note("the buffer has %d", data[0]);
	take_pattern(end->fd, 15900, 1, 34097);
	CALL(recv(end->fd, NULL, 60000, MSG_TRUNC | MSG_DONTWAIT));
	tell(end, "done");
	free(data);
}

/* The timeout is for the whole call, not for each of the waits that bytes have ended. */
void flags_waitall_timeout(struct end *end, long unused)
{
	struct timeval time = { .tv_usec = 150000 };
	char data[20];
	ssize_t got;

	meet_and_go(end);
	if (!end->server) {
		for (int i = 0; i < 20; i++) {
			give_pattern(end->fd, 1, 8, (uint64_t)i);
			usleep(30000);
		}
		meet_at(end, "done");
		return;
	}
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	got = recv(end->fd, data, sizeof(data), MSG_WAITALL);
	note("%s", got < (ssize_t)sizeof(data) ? "a part" : "all");
	if (got > 0)
		pattern_check(data, (size_t)got, 8, 0);
	meet_at(end, "done");
}

/* All that is asked for has to be there at once, before the stream ends. */
void flags_peek_waitall(struct end *end, long unused)
{
	struct timeval time = { .tv_usec = 50000 };

	meet_and_go(end);
	if (!end->server) {
		send_text(end, "ab", 0);
		meet_at(end, "some");
		usleep(20000);
		send_text(end, "cdefg", 0);
		meet_at(end, "seen");
		usleep(20000);
		MUST(shutdown(end->fd, SHUT_WR));
		meet_at(end, "done");
		return;
	}
	await_bytes(end->fd, 2);
	meet_at(end, "some");
	note_recv(end->fd, 5, MSG_PEEK | MSG_WAITALL);
	note_recv(end->fd, 2, MSG_PEEK | MSG_WAITALL);
	await_bytes(end->fd, 7);
	note_recv(end->fd, 9, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT);
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	note_recv(end->fd, 9, MSG_PEEK | MSG_WAITALL);
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0 }, sizeof(time)));
	meet_at(end, "seen");
	note_recv(end->fd, 9, MSG_PEEK | MSG_WAITALL);
	note_recv(end->fd, 9, MSG_WAITALL);
	note_recv(end->fd, 9, MSG_PEEK | MSG_WAITALL);
	meet_at(end, "done");
}

/* Sockets know RWF_NOWAIT since Linux 6.4. */
static bool sockets_know_nowait(void)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	int pair[2];
	bool know;

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	know = preadv2(pair[0], &iov, 1, -1, RWF_NOWAIT) >= 0 || errno != EOPNOTSUPP;
	close(pair[0]);
	close(pair[1]);
	return know;
}

/* Of the flags of preadv2(), RWF_NOWAIT is about a socket, and others are about nothing there. */
void flags_preadv2(struct end *end, long unused)
{
	char data[10];
	struct iovec iov = { data, sizeof(data) };
	bool knows = sockets_know_nowait();
	int nowait = knows ? RWF_NOWAIT : 0;

	meet_and_go(end);
	if (!end->server) {
		meet_at(end, "nothing");
		give_pattern(end->fd, 40, 9, 0);
		for (int i = 0; i < 3; i++) {
			await(end, "waits");
			give_pattern(end->fd, 10, 9, 40 + (uint64_t)i * 10);
		}
		await(end, "done");
		return;
	}
	if (knows)
		CALL(preadv2(end->fd, &iov, 1, -1, RWF_NOWAIT));
	meet_at(end, "nothing");
	await_bytes(end->fd, 40);
	CALL(preadv2(end->fd, &iov, 1, -1, nowait));
	CALL(preadv64v2(end->fd, &iov, 1, -1, nowait | RWF_HIPRI));
	CALL(preadv2(end->fd, &iov, 1, 0, nowait));
	CALL(preadv2(end->fd, &iov, 1, -2, 0));
	CALL(preadv2(end->fd, &iov, 1, -1, 1 << 30));
	CALL(preadv2(end->fd, &iov, 1, -1, RWF_DSYNC | RWF_SYNC));
	CALL(preadv2(end->fd, &iov, 1, -1, RWF_HIPRI));
	EXPECT(pattern_check(data, sizeof(data), 9, 30));
	for (int i = 0; i < 3; i++) {
		tell(end, "waits");
		CALL(preadv2(end->fd, &iov, 1, -1, RWF_HIPRI));
	}
	EXPECT(pattern_check(data, sizeof(data), 9, 60));
	if (knows)
		CALL(preadv2(end->fd, &iov, 1, -1, RWF_NOWAIT));
	tell(end, "done");
}

static void pass(int number)
{
}

/*
 * sendmmsg() ends behind a message of which a part alone was taken: for want of room, or as a signal came. Returns the bytes that were.
 */
static size_t send_messages(int fd, char *first, size_t bytes)
{
	char second[4];
	struct iovec iov[2] = { { first, bytes }, { second, sizeof(second) } };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = &iov[0], .msg_iovlen = 1 } },
				       { .msg_hdr = { .msg_iov = &iov[1], .msg_iovlen = 1 } } };
	int rc;

	pattern_fill(second, sizeof(second), 6, 0);
	rc = sendmmsg(fd, messages, 2, 0);
	if (rc == 2 && messages[0].msg_len < bytes)
		note_wrong("sendmmsg went on behind %u of %zu bytes", messages[0].msg_len, bytes);
	return rc > 0 ? messages[0].msg_len : 0;
}

void flags_sendmmsg_part(struct end *end, long signalled)
{
	struct itimerval soon = { .it_interval = { .tv_usec = 100000 }, .it_value = { .tv_usec = 100000 } };
	struct sigaction action = { .sa_handler = pass };
	size_t room = 30000000, total = 0;
	char *data;

	meet_and_go(end);
	if (end->server) {
		await(end, "full");
		take_to_end(end->fd, 5, 0);
		return;
	}
	data = malloc(room);
	pattern_fill(data, room, 5, 0);
	if (signalled) {
		sigaction(SIGALRM, &action, NULL);
		setitimer(ITIMER_REAL, &soon, NULL);
	}
	set_nonblocking(end->fd, !signalled);
	total = send_messages(end->fd, data, room);
	EXPECT(total > 0 && total < room);
	setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
	set_nonblocking(end->fd, false);
	tell(end, "full");
	give(end->fd, data + total, room - total);
	MUST(shutdown(end->fd, SHUT_WR));
	free(data);
}

void flags_more(struct end *end, long unused)
{
	meet(end);
	if (!end->server) {
		send_text(end, "ab", MSG_MORE);
		send_text(end, "cd", MSG_MORE | MSG_DONTWAIT);
		send_text(end, "ef", 0);
		note_recv(end->fd, 1, 0);
		send_text(end, "gh", MSG_MORE); /* the kernel lets it go by itself after a while */
		note_recv(end->fd, 1, 0);
		return;
	}
	note_recv(end->fd, 6, MSG_WAITALL);
	send_text(end, "+", 0);
	note_recv(end->fd, 2, MSG_WAITALL);
	send_text(end, "+", 0);
}

static void send_urgent(struct end *end)
{
	send_text(end, "abc", 0);
	send_text(end, "X", MSG_OOB);
	send_text(end, "def", 0);
	await(end, "done");
}

static void pass_urgent(struct end *end, long waiter)
{
	int mark = -1;

	if (!end->server) {
		send_urgent(end);
		return;
	}
	note("told: %s", event_names((uint32_t)waiters[waiter].wait(end->fd, POLLPRI, -1)));
	await_bytes(end->fd, 3);
	CALL(ioctl(end->fd, SIOCATMARK, &mark));
	note("at mark: %d", mark);
	CALL(sockatmark(end->fd));
	note_recv(end->fd, 100, 0);
	CALL(ioctl(end->fd, SIOCATMARK, &mark));
	note("at mark: %d", mark);
	note_recv(end->fd, 10, MSG_OOB);
	note_recv(end->fd, 10, MSG_OOB);
	note_recv(end->fd, 3, MSG_WAITALL);
	note_recv(end->fd, 10, MSG_OOB);
	tell(end, "done");
}

void flags_oob(struct end *end, long waiter)
{
	meet(end);
	pass_urgent(end, waiter);
}

/* What comes before it may be in a ring, and it can't. */
void flags_oob_going(struct end *end, long waiter)
{
	meet_and_go(end);
	pass_urgent(end, waiter);
}

void flags_oob_inline(struct end *end, long unused)
{
	int mark = -1;

	meet(end);
	if (!end->server) {
		await(end, "inline");
		send_urgent(end);
		return;
	}
	CALL(setsockopt(end->fd, SOL_SOCKET, SO_OOBINLINE, &(int){ 1 }, sizeof(int)));
	tell(end, "inline");
	await_bytes(end->fd, 7);
	note_recv(end->fd, 100, 0);
	CALL(ioctl(end->fd, SIOCATMARK, &mark));
	note("at mark: %d", mark);
	note_recv(end->fd, 100, 0);
	note_recv(end->fd, 10, MSG_OOB);
	tell(end, "done");
}

/* The peer is gone: which call tells of it, how, and with or without the signal. */
static volatile sig_atomic_t pipes;

static void count_pipe(int number)
{
	pipes++;
}

void flags_nosignal(struct end *end, long size)
{
	char *data = calloc(1, (size_t)size);

	meet(end);
	if (end->server) {
		MUST(close(end->fd));
		tell(end, "closed");
		return;
	}
	signal(SIGPIPE, count_pipe);
	await(end, "closed");
	note_recv(end->fd, 1, 0);
	EXPECT(send(end->fd, data, 1, MSG_NOSIGNAL) == 1);
	poll(&(struct pollfd){ .fd = end->fd }, 1, -1);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	CALL(send(end->fd, data, (size_t)size, MSG_NOSIGNAL));
	note("SIGPIPE: %d", (int)pipes);
	CALL(send(end->fd, data, (size_t)size, 0));
	note("SIGPIPE: %d", (int)pipes);
	CALL(write(end->fd, data, (size_t)size));
	note("SIGPIPE: %d", (int)pipes);
	note_recv(end->fd, 1, 0);
	note_poll(end->fd, POLLIN | POLLOUT | POLLRDHUP);
	free(data);
}

void flags_nothing(struct end *end, long unused)
{
	struct iovec iov[2] = { { NULL, 0 }, { (void *)"", 0 } };
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 }, empty = { 0 };
	struct mmsghdr messages = { 0 };

	meet(end);
	if (end->server) {
		note_recv(end->fd, 0, MSG_DONTWAIT);
		meet_at(end, "look");
		await_bytes(end->fd, 3);
		note_recv(end->fd, 0, 0);
		CALL(read(end->fd, NULL, 0));
		CALL(readv(end->fd, iov, 2));
		note_recv(end->fd, 100, 0);
		return;
	}
	meet_at(end, "look");
	CALL(send(end->fd, NULL, 0, 0));
	CALL(send(end->fd, "abc", 3, 0));
	CALL(write(end->fd, "", 0));
	CALL(writev(end->fd, iov, 2));
	CALL(writev(end->fd, iov, 0));
	CALL(sendmsg(end->fd, &message, 0));
	CALL(sendmsg(end->fd, &empty, 0));
	CALL(sendmmsg(end->fd, &messages, 1, 0));
	CALL(sendmmsg(end->fd, NULL, 0, 0));
	CALL(recvmmsg(end->fd, NULL, 0, MSG_DONTWAIT, NULL));
}

/*
 * Arguments that are refused, each of which has to be refused by the same name. Not among them: an iovec or msghdr that can't
 * be read, and small payloads that can't. Whoever looks at a send in user space meets those as a fault, as libc itself does
 * where it reads its arguments.
 */
void flags_refused(struct end *end, long unused)
{
	char *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec over[2] = { { bad, SSIZE_MAX }, { bad, SSIZE_MAX } }, many[1100] = { { 0 } };
	volatile int minus = -1; /* not to be seen through */
	struct msghdr message = { .msg_iov = many, .msg_iovlen = 1100 };

	meet(end);
	if (end->server) {
		note_recv(end->fd, 10, MSG_WAITALL);
		return;
	}
	CALL(send(-1, "a", 1, 0));
	CALL(send(12345, "a", 1, 0));
	CALL(recv(-1, bad, 1, 0));
	CALL(send(end->fd, bad, 100000, 0));
	CALL(write(end->fd, bad, 100000));
	CALL(writev(end->fd, over, 2));
	CALL(writev(end->fd, many, minus));
	CALL(writev(end->fd, many, 1025));
	CALL(sendmsg(end->fd, &message, 0));
	CALL(readv(end->fd, many, minus));
	CALL(readv(end->fd, many, 1025));
	CALL(recvmsg(end->fd, &message, MSG_DONTWAIT));
	CALL(pwrite(end->fd, "a", 1, 0));
	CALL(pread(end->fd, bad, 1, 0));
	CALL(pwritev2(end->fd, many, 1, 0, 0));
	CALL(preadv2(end->fd, many, 1, 0, 0));
	CALL(lseek(end->fd, 0, SEEK_SET));
	CALL(connect(end->fd, (struct sockaddr *)bad, sizeof(struct sockaddr_in)));
	CALL(connect(-1, (struct sockaddr *)bad, sizeof(struct sockaddr_in)));
	CALL(connect((int)MUST(socket(AF_INET, SOCK_STREAM, 0)), (struct sockaddr *)bad, sizeof(struct sockaddr_in)));
	CALL(sendfile(end->fd, end->fd, NULL, 10));
	CALL(splice(end->fd, NULL, end->fd, NULL, 10, 0));
	CALL(send(end->fd, "a", 1, MSG_ERRQUEUE | MSG_DONTWAIT));
	MUST(shutdown(end->fd, SHUT_WR));
	CALL(send(end->fd, "", 0, MSG_NOSIGNAL));
}

/* More spans than there may be, on a connection that has carried enough for every path: none of their bytes is sent. */
void flags_too_many(struct end *end, long unused)
{
	struct iovec many[1025];

	meet(end);
	for (int i = 0; i < 30; i++) {
		if (end->server) {
			take_quietly(end->fd, 100, 7, 0);
			give(end->fd, "on", 2);
		} else {
			give_pattern(end->fd, 100, 7, 0);
			MUST(recv(end->fd, &(char[2]){ 0 }, 2, MSG_WAITALL));
		}
	}
	if (end->server) {
		note_recv(end->fd, 10, MSG_WAITALL);
		return;
	}
	for (int i = 0; i < 1025; i++)
		many[i] = (struct iovec){ (void *)"a", 1 };
	CALL(writev(end->fd, many, 1025));
	CALL(writev(end->fd, many, 3));
}

/* A buffer whose end can't be read: as much as comes before it may be taken, and no more. */
void flags_half_bad(struct end *end, long size)
{
	char *data = mmap(NULL, (size_t)size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t rc;

	meet(end);
	if (end->server) {
		take_quietly(end->fd, (size_t)await_number(end), 7, 0);
		note_recv(end->fd, 1, 0);
		return;
	}
	pattern_fill(data, (size_t)size, 7, 0);
	MUST(mprotect(data + size, 4096, PROT_NONE));
	errno = 0;
	rc = send(end->fd, data, (size_t)size + 100, 0);
	note("%s", rc < 0 ? errno_name(errno) : rc <= size ? "a part" : "more than there is");
	tell_number(end, rc > 0 ? rc : 0);
}

void flags_timeouts(struct end *end, long unused)
{
	struct timeval time = { .tv_usec = 30000 };
	char *data = malloc(100000);
	uint64_t total = 0;
	ssize_t rc;

	meet_small(end);
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
	MUST(setsockopt(end->fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
	if (end->server) {
		note_recv(end->fd, 10, 0);
		tell(end, "some");
		await_bytes(end->fd, 4);
		note_recv(end->fd, 10, MSG_WAITALL);
		note_recv(end->fd, 10, 0);
		tell(end, "fill");
		take_quietly(end->fd, (size_t)await_number(end), 5, 0);
		await(end, "over");
		free(data);
		return;
	}
	await(end, "some");
	send_text(end, "some", 0);
	await(end, "fill");
	do {
		pattern_fill(data, 100000, 5, total);
		rc = send(end->fd, data, 100000, 0);
		total += rc > 0 ? (uint64_t)rc : 0;
	} while (rc > 0);
	note("in the end: %s", errno_name(errno));
	tell_number(end, (long)total);
	note_recv(end->fd, 1, 0);
	tell(end, "over");
	free(data);
}
