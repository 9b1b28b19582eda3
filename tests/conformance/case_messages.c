/* SPDX-License-Identifier: MIT */
/* recvmmsg(): how it ends, its timeout. The client sends. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define ROOM 10

struct messages {
	int fd, got;
	volatile char data[3][ROOM];
	struct iovec iov[3];
	struct mmsghdr headers[3];
};

static void prepare(struct messages *messages, int fd)
{
	*messages = (struct messages){ .fd = fd };
	for (int i = 0; i < 3; i++) {
		messages->iov[i] = (struct iovec){ (void *)messages->data[i], ROOM };
		messages->headers[i].msg_hdr = (struct msghdr){ .msg_iov = &messages->iov[i], .msg_iovlen = 1 };
	}
}

static void *receive(void *argument)
{
	struct messages *messages = argument;

	messages->got = recvmmsg(messages->fd, messages->headers, 3, 0, NULL);
	return NULL;
}

/* The first message is there: the kernel has written it, in the other thread's call. */
__attribute__((noinline, no_sanitize("thread"))) static bool has_come(const struct messages *messages)
{
	return messages->data[0][ROOM - 1];
}

/* A reset while it waits for the second message: the first is returned, and the next call is told of the reset. */
void messages_reset(struct end *end, long unused)
{
	struct messages messages;
	pthread_t thread;
	char byte;

	meet_and_go(end);
	if (!end->server) {
		give_pattern(end->fd, ROOM, 4, 0);
		await(end, "taken");
		MUST(setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)));
		MUST(close(end->fd));
		return;
	}
	prepare(&messages, end->fd);
	EXPECT(!pthread_create(&thread, NULL, receive, &messages));
	while (!has_come(&messages))
		usleep(1000);
	tell(end, "taken");
	pthread_join(thread, NULL);
	note("recvmmsg: %d, of %u", messages.got, messages.headers[0].msg_len);
	CALL(recv(end->fd, &byte, 1, 0));
	CALL(recv(end->fd, &byte, 1, 0));
}

/* What is left of the time is told, and what is no time is refused. */
void messages_timeout(struct end *end, long unused)
{
	struct timespec time = { .tv_sec = 100 }, none = { 0 }, bad = { .tv_nsec = 1000000000 },
			before = { .tv_sec = -1 };
	struct messages messages;

	meet_and_go(end);
	if (!end->server) {
		give_pattern(end->fd, 3 * ROOM, 4, 0);
		await(end, "done");
		return;
	}
	prepare(&messages, end->fd);
	await_bytes(end->fd, 3 * ROOM);
	CALL(recvmmsg(end->fd, messages.headers, 1, 0, &bad));
	CALL(recvmmsg(end->fd, messages.headers, 1, 0, &before));
	CALL(recvmmsg(end->fd, messages.headers, 1, 0, &time));
	note("less than it was: %d, but no other time: %d", time.tv_sec<100, time.tv_sec> 10);
	CALL(recvmmsg(end->fd, messages.headers, 3, 0, &none));
	CALL(recvmmsg(end->fd, messages.headers, 3, MSG_WAITFORONE, &time));
	time = (struct timespec){ .tv_sec = 77 };
	CALL(recvmmsg(end->fd, messages.headers, 1, MSG_DONTWAIT, &time));
	note("%ld s, as nothing came", (long)time.tv_sec);
	tell(end, "done");
}
