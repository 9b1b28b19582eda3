/* SPDX-License-Identifier: MIT */
/* Ways to move bytes (movers.def) and ways to wait until they can be moved. */
#ifndef ZC_CONFORMANCE_MOVERS_H
#define ZC_CONFORMANCE_MOVERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum sender_number {
#define SENDER(name) SENDER_##name,
#include "movers.def"
	SENDER_COUNT
};
enum receiver_number {
#define RECEIVER(name) RECEIVER_##name,
#include "movers.def"
	RECEIVER_COUNT
};

/* move() returns as send() or recv() would: the bytes moved, or -1 with errno. */
struct sender {
	const char *name;
	bool blocking_only;
	ssize_t (*move)(int fd, const void *data, size_t bytes);
};
struct receiver {
	const char *name;
	bool blocking_only;
	bool unseen; /* by any library */
	ssize_t (*move)(int fd, void *data, size_t bytes);
};
extern const struct sender senders[SENDER_COUNT];
extern const struct receiver receivers[RECEIVER_COUNT];

/* movers_fortified.c, compiled with _FORTIFY_SOURCE: each lets the compiler know the room, but not the length. */
ssize_t take_by_recv_chk(int fd, void *data, size_t bytes);
ssize_t take_by_recvfrom_chk(int fd, void *data, size_t bytes);
ssize_t take_by_read_chk(int fd, void *data, size_t bytes);
ssize_t send_by_dprintf_chk(int fd, const void *data, size_t bytes);
int poll_chk(int fd, short events, int timeout);
int ppoll_chk(int fd, short events, int timeout);

/* waiters_raw.c: by syscall(). */
int raw_ppoll(int fd, short events, int timeout);
int raw_select(int fd, short events, int timeout);
int raw_pselect(int fd, short events, int timeout);
int raw_epoll(int fd, short events, int timeout);
int raw_epoll_fine(int fd, short events, int timeout);

/* Ways to wait for one descriptor. Each returns the poll bits it was told, 0 after `timeout` ms (-1: none, 0: only look). */
struct waiter {
	const char *name;
	int (*wait)(int fd, short events, int timeout);
};
enum waiter_number {
	WAITER_poll,
	WAITER_ppoll,
	WAITER_select,
	WAITER_pselect,
	WAITER_poll_chk,
	WAITER_ppoll_chk,
	WAITER_epoll_level,
	WAITER_epoll_edge,
	WAITER_epoll_oneshot,
	WAITER_epoll_exclusive,
	WAITER_raw_ppoll,
	WAITER_raw_select,
	WAITER_raw_pselect,
	WAITER_raw_epoll,
	WAITER_raw_epoll_fine,
	WAITER_epoll_nested,
	WAITER_COUNT,
	WAITERS_IN_TURN = WAITER_epoll_nested, /* transfers take turns among those before this one */
};
extern const struct waiter waiters[WAITER_COUNT];

#endif
