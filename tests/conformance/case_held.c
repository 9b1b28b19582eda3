/* SPDX-License-Identifier: MIT */
/*
 * Small sends that may be held back, and what comes right behind them: system calls of another thread, memory
 * that can't be read.
 */
#define _GNU_SOURCE
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define ROUNDS 20 /* the first ones teach the library that bursts come */
#define SENDS 8
#define PIECE 10
#define LAST 10 /* bytes of the one behind them */
#define BURST (SENDS * PIECE)
#define PAGE 4096

struct other {
	int fd;
	long number;
	_Atomic int turn; /* odd: the thread's */
};

static void send_burst(int fd, uint64_t position)
{
	char data[BURST];

	pattern_fill(data, BURST, 3, position);
	for (int i = 0; i < SENDS; i++)
		EXPECT(write(fd, data + i * PIECE, PIECE) == PIECE);
}

/* Whatever is held must not wait for a turn's end: no call is made, as that would let it go. */
static void await_turn(struct other *other, int turn)
{
	while (atomic_load(&other->turn) != turn)
		;
}

static long call_behind(const struct other *other, int round)
{
	char data[LAST];
	struct iovec iov = { data, LAST };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	pattern_fill(data, LAST, 3, (uint64_t)round * (BURST + LAST) + BURST);
	switch (other->number) {
	case SYS_write:
		return syscall(SYS_write, other->fd, data, LAST);
	case SYS_writev:
		return syscall(SYS_writev, other->fd, &iov, 1);
	case SYS_sendto:
		return syscall(SYS_sendto, other->fd, data, LAST, MSG_NOSIGNAL, NULL, 0);
	case SYS_sendmsg:
		return syscall(SYS_sendmsg, other->fd, &message, MSG_NOSIGNAL);
	default: /* of the last round alone */
		return round < ROUNDS - 1 ? send(other->fd, data, LAST, 0) : syscall(SYS_shutdown, other->fd, SHUT_WR);
	}
}

static void *call_in_turn(void *argument)
{
	struct other *other = argument;

	for (int i = 0; i < ROUNDS; i++) {
		await_turn(other, 2 * i + 1);
		note("%ld", call_behind(other, i));
		atomic_store(&other->turn, 2 * i + 2);
	}
	return NULL;
}

/* What one thread has sent is in front of what another one sends then by a system call, or of the end. */
void held_behind(struct end *end, long number)
{
	struct other other = { .number = number };
	pthread_t thread;

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 3, 0);
		return;
	}
	other.fd = end->fd;
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	MUST(pthread_create(&thread, NULL, call_in_turn, &other));
	for (int i = 0; i < ROUNDS; i++) {
		send_burst(end->fd, (uint64_t)i * (BURST + LAST));
		atomic_store(&other.turn, 2 * i + 1);
		await_turn(&other, 2 * i + 2);
	}
	MUST(pthread_join(thread, NULL));
}

/* A send from memory whose second page can't be read fails, or takes a part; what was sent before it arrives. */
void held_bad(struct end *end, long bytes)
{
	char *data = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t position = 0;

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 3, 0);
		return;
	}
	MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
	MUST(mprotect(data + PAGE, PAGE, PROT_NONE)); /* a hole might become anybody's mapping */
	for (int i = 0; i < ROUNDS; i++) {
		ssize_t rc;

		send_burst(end->fd, position);
		position += BURST;
		pattern_fill(data, PAGE, 3, position);
		rc = CALL(send(end->fd, data, (size_t)bytes, MSG_NOSIGNAL));
		position += rc > 0 ? (uint64_t)rc : 0;
	}
	send_burst(end->fd, position);
}
