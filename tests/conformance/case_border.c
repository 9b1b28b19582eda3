/* SPDX-License-Identifier: MIT */
/*
 * Receives and waits at the borders of what there is: of nothing, of too much, behind the end, into sets that end with their memory, of many
 * descriptors.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/tcp.h>
#include <stdio.h>
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
#define CALLS 4000
#define TIMES 8
#define GROWTH (1l << 20) /* much less than a page for each call */

static void begin(struct end *end)
{
	meet_and_go(end);
}

/* Sleeps until it is there. */
static void sleep_until(int fd, short events)
{
	struct pollfd look = { .fd = fd, .events = events };

	EXPECT(poll(&look, 1, -1) == 1);
}

static void take_text(int fd, const char *text)
{
	char room[16];
	ssize_t bytes = (ssize_t)strlen(text);

	EXPECT(recv(fd, room, (size_t)bytes, MSG_WAITALL) == bytes && !memcmp(room, text, (size_t)bytes));
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
		CALL(preadv64v2(end->fd, &none, 1, -1, 0));
		CALL(preadv64v2(end->fd, &none, 0, -1, 0));
		CALL(read(end->fd, room, 0));
	}
	meet_at(end, "over");
}

static void note_two(int first, short events_first, int second, short events_second)
{
	struct pollfd looks[2] = { { .fd = first, .events = events_first, .revents = 77 },
				   { .fd = second, .events = events_second, .revents = 77 } };

	CALL(poll(looks, 2, events_first ? -1 : 0));
	note("%s, %s", event_names((uint32_t)(unsigned short)looks[0].revents),
	     event_names((uint32_t)(unsigned short)looks[1].revents));
}

/* A descriptor of which nothing is asked has no result, though bytes are there. */
void border_poll_count(struct end *end, long unused)
{
	int first;

	begin(end);
	first = end->fd;
	begin(end);
	for (int i = 0; i < ROUNDS; i++) {
		if (end->server) {
			give(end->fd, "second", 6);
			give(first, "first", 5);
			await(end, "over");
			continue;
		}
		await_bytes(end->fd, 6);
		note_two(-1, 0, end->fd, 0);
		note_two(first, POLLIN, end->fd, 0);
		await_bytes(first, 5);
		note_two(first, 0, end->fd, 0);
		note_two(first, POLLIN, end->fd, 0);
		note_two(end->fd, POLLIN, first, POLLIN);
		take_text(end->fd, "second");
		take_text(first, "first");
		tell(end, "over");
	}
}

/* In bytes. */
static long address_space(void)
{
	int file = (int)MUST(open("/proc/self/statm", O_RDONLY));
	char text[64] = { 0 };
	long pages = 0;

	MUST(read(file, text, sizeof(text) - 1));
	EXPECT(sscanf(text, "%ld", &pages) == 1);
	close(file);
	return pages * sysconf(_SC_PAGESIZE);
}

/* Whether each of several times so many calls takes memory; what is loaded once, by another thread at that, is none of theirs. */
static bool calls_grow(struct pollfd *looks, nfds_t count)
{
	bool grow = true;

	for (int times = 0; grow && times < TIMES; times++) {
		long before = address_space();

		for (int i = 0; i < CALLS; i++)
			EXPECT(poll(looks, count, -1) == 1);
		grow = address_space() - before >= GROWTH;
	}
	return grow;
}

/* A poll of many, one of which is ready, takes no memory that it does not give back. */
void border_poll_many(struct end *end, long count)
{
	struct pollfd looks[count];
	int quiet[2], ready[2];

	begin(end);
	if (end->server) {
		await(end, "over");
		return;
	}
	MUST(pipe(quiet));
	MUST(pipe(ready));
	MUST(write(ready[1], "x", 1));
	for (long i = 0; i < count; i++)
		looks[i] = (struct pollfd){ .fd = quiet[0], .events = POLLIN };
	looks[0].fd = end->fd;
	looks[count - 1].fd = ready[0];
	EXPECT(poll(looks, (nfds_t)count, -1) == 1);
	note("%s", calls_grow(looks, (nfds_t)count) ? "grows" : "does not grow");
	tell(end, "over");
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

/* Memory that ends with its page, behind which there is none. */
static void *before_the_end(size_t bytes)
{
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(mprotect(pages + PAGE, PAGE, PROT_NONE));
	return pages + PAGE - bytes;
}

/* A control message that says to be longer than all there is. */
void border_control(struct end *end, long unused)
{
	struct cmsghdr *control = before_the_end(CMSG_SPACE(sizeof(int)));
	struct iovec iov = { (char *)"x", 1 };
	struct mmsghdr messages = { { .msg_iov = &iov, .msg_iovlen = 1 }, 0 };
	struct msghdr *message = &messages.msg_hdr;
	int pair[2];

	begin(end);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	*control = (struct cmsghdr){ .cmsg_len = 1 << 20, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	*(int *)CMSG_DATA(control) = pair[0];
	message->msg_control = control;
	message->msg_controllen = CMSG_SPACE(sizeof(int));
	CALL(sendmsg(pair[1], message, MSG_NOSIGNAL));
	CALL(sendmmsg(pair[1], &messages, 1, MSG_NOSIGNAL));
	meet_at(end, "over");
}

/* As programs of before poll() do, with sets of FD_SETSIZE. */
void border_select(struct end *end, long unused)
{
	const struct rlimit most = { 20000, 20000 };
	fd_set *set;

	begin(end);
	if (end->server) {
		CALL(send(end->fd, "x", 1, MSG_NOSIGNAL));
		await(end, "over");
		return;
	}
	MUST(setrlimit(RLIMIT_NOFILE, &most));
	set = before_the_end(sizeof(*set));
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
