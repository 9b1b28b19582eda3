/* SPDX-License-Identifier: MIT */
/* Receives at the borders of what there is: of nothing, of too much, behind the end, into sets that end with their memory. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define PAGE 4096
#define ENDS 20
#define ROUNDS 50
#define MANY (IOV_MAX + 1)

static void begin(struct end *end)
{
	meet(end);
	get_going(end);
}

/* Sleeps until it is there. */
static void sleep_until(int fd, short events)
{
	struct pollfd look = { .fd = fd, .events = events };

	EXPECT(poll(&look, 1, -1) == 1);
}

void border_nothing(struct end *end, long unused)
{
	char room[8];
	const struct iovec none = { room, 0 };

	begin(end);
	if (!end->server) {
		/* A receive that waited would never end. */
		CALL(readv(end->fd, &none, 0));
		CALL(readv(end->fd, &none, 1));
		CALL(preadv2(end->fd, &none, 1, -1, 0));
		CALL(read(end->fd, room, 0));
	}
	meet_at(end, "over");
}

void border_too_much(struct end *end, long unused)
{
	static struct iovec many[MANY];
	volatile int below = -1;
	char room[8];
	const struct iovec iov[2] = { { room, sizeof(room) }, { room, SIZE_MAX } };
	struct msghdr message = { .msg_iov = (struct iovec *)iov, .msg_iovlen = 2 };

	begin(end);
	if (end->server) {
		CALL(send(end->fd, "hello", 5, MSG_NOSIGNAL));
		tell(end, "sent");
		await(end, "over");
		return;
	}
	await(end, "sent");
	await_bytes(end->fd, 5);
	CALL(readv(end->fd, iov, 2));
	CALL(recvmsg(end->fd, &message, MSG_DONTWAIT));
	for (int i = 0; i < MANY; i++)
		many[i] = (struct iovec){ room, 1 };
	CALL(readv(end->fd, many, MANY));
	CALL(readv(end->fd, many, below));
	message = (struct msghdr){ .msg_iov = many, .msg_iovlen = MANY };
	CALL(recvmsg(end->fd, &message, MSG_DONTWAIT));
	CALL(recv(end->fd, room, 5, MSG_WAITALL));
	tell(end, "over");
}

void border_end(struct end *end, long unused)
{
	char room[8];

	begin(end);
	if (end->server) {
		CALL(send(end->fd, "hello", 5, MSG_NOSIGNAL));
		CALL(close(end->fd));
		await(end, "over");
		return;
	}
	CALL(recv(end->fd, room, sizeof(room), MSG_WAITALL));
	sleep_until(end->fd, POLLRDHUP);
	/* As often as it asks. */
	for (int i = 0; i < ENDS; i++)
		CALL(recv(end->fd, room, sizeof(room), MSG_DONTWAIT));
	tell(end, "over");
}

/* As programs of before poll() do, with sets of FD_SETSIZE. */
void border_select(struct end *end, long unused)
{
	const struct rlimit most = { 20000, 20000 };
	char *pages;
	fd_set *set;

	begin(end);
	if (end->server) {
		CALL(send(end->fd, "x", 1, MSG_NOSIGNAL));
		await(end, "over");
		return;
	}
	MUST(setrlimit(RLIMIT_NOFILE, &most));
	pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(mprotect(pages + PAGE, PAGE, PROT_NONE));
	set = (fd_set *)(pages + PAGE - sizeof(*set));
	FD_SET(end->fd, set);
	CALL(select(getdtablesize(), set, NULL, NULL, NULL));
	EXPECT(FD_ISSET(end->fd, set));
	tell(end, "over");
}

static void receive_mapped(int fd)
{
	char copied[100], room[100];
	struct tcp_zerocopy_receive ask = { .copybuf_address = (uintptr_t)copied, .copybuf_len = sizeof(copied) };
	socklen_t bytes = sizeof(ask);
	size_t there;

	sleep_until(fd, POLLIN);
	there = getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &ask, &bytes) < 0 ? 0 : (size_t)ask.copybuf_len;
	if (there < 5)
		EXPECT(recv(fd, copied + there, 5 - there, MSG_WAITALL) == (ssize_t)(5 - there));
	EXPECT(!memcmp(copied, "hello", 5));
	EXPECT(recv(fd, room, sizeof(room), MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

/* It maps what is in the stream. Kernels may refuse it: then a program takes bytes by other calls. */
void border_zerocopy_receive(struct end *end, long unused)
{
	begin(end);
	for (int i = 0; i < ROUNDS; i++) {
		if (end->server) {
			await(end, "waits");
			CALL(send(end->fd, "hello", 5, MSG_NOSIGNAL));
		} else {
			tell(end, "waits");
			receive_mapped(end->fd);
		}
	}
	meet_at(end, "over");
}
