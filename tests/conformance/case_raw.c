/* SPDX-License-Identifier: MIT */
/*
 * What programs ask of the kernel by syscall(), or by other names of libc's, where bytes may have come another way: unread bytes,
 * duplicates, times that are left.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define TURNS 200

/* Small messages to and fro, so that what comes next may come by a ring. */
static void warm_up(struct end *end)
{
	for (uint64_t i = 0; i < TURNS; i++) {
		if (end->server)
			take_quietly(end->fd, 10, 6, i * 10);
		give_pattern(end->fd, 10, end->server ? 7 : 6, i * 10);
		if (!end->server)
			take_quietly(end->fd, 10, 7, i * 10);
	}
}

/* Argument: bytes. */
void raw_unread(struct end *end, long bytes)
{
	int unread = -1;

	meet(end);
	warm_up(end);
	if (!end->server) {
		give_pattern(end->fd, (size_t)bytes, 6, TURNS * 10);
		await(end, "looked");
		return;
	}
	await_bytes(end->fd, (int)bytes);
	CALL(syscall(SYS_ioctl, end->fd, FIONREAD, &unread));
	note("unread: %d", unread);
	tell(end, "looked");
	take_quietly(end->fd, (size_t)bytes, 6, TURNS * 10);
}

/* Argument: bytes. What one number leaves the other has. */
void raw_dup(struct end *end, long bytes)
{
	int twin;

	meet(end);
	warm_up(end);
	if (!end->server) {
		give_pattern(end->fd, (size_t)bytes * 2, 6, TURNS * 10);
		take_pattern(end->fd, (size_t)bytes, 7, TURNS * 10);
		return;
	}
	twin = (int)CALL(syscall(SYS_fcntl, end->fd, F_DUPFD_CLOEXEC, 300));
	take_pattern(end->fd, (size_t)bytes, 6, TURNS * 10);
	MUST(close(end->fd));
	take_pattern(twin, (size_t)bytes, 6, TURNS * 10 + (uint64_t)bytes);
	give_pattern(twin, (size_t)bytes, 7, TURNS * 10);
	MUST(close(twin));
}

extern int __poll(struct pollfd *fds, nfds_t count, int timeout);
extern int __select(int count, fd_set *in, fd_set *out, fd_set *except, struct timeval *timeout);
extern int __dup2(int fd, int to);
extern int __fcntl(int fd, int command, ...);
extern int __close(int fd);

/* Each byte is waited for and taken by another number, while the others are closed. */
void raw_aliases(struct end *end, long argument)
{
	struct timeval time = { 20, 0 };
	int twin, third;
	fd_set in;
	char byte;

	meet(end);
	warm_up(end);
	if (!end->server) {
		for (int i = 0; i < 3; i++) {
			give(end->fd, "x", 1);
			await(end, "taken");
		}
		CALL(recv(end->fd, &byte, 1, 0));
		return;
	}
	CALL(__poll(&(struct pollfd){ .fd = end->fd, .events = POLLIN }, 1, 20000));
	CALL(recv(end->fd, &byte, 1, MSG_DONTWAIT));
	tell(end, "taken");
	twin = (int)CALL(__dup2(end->fd, 200));
	CALL(__close(end->fd));
	FD_ZERO(&in);
	FD_SET(twin, &in);
	CALL(__select(twin + 1, &in, NULL, NULL, &time));
	CALL(recv(twin, &byte, 1, MSG_DONTWAIT));
	tell(end, "taken");
	third = (int)CALL(__fcntl(twin, F_DUPFD, 300));
	CALL(__close(twin));
	CALL(recv(third, &byte, 1, 0));
	tell(end, "taken");
	CALL(__close(third));
}

static void note_left(long sec, long fraction)
{
	note("left: %s", sec >= 900 ? "most" : sec || fraction ? "some" : "nothing");
}

static void note_left_of(struct timespec *time, int fd, short events, bool polls)
{
	fd_set in, out;

	FD_ZERO(&in);
	FD_ZERO(&out);
	if (events & POLLIN)
		FD_SET(fd, &in);
	if (events & POLLOUT)
		FD_SET(fd, &out);
	if (polls)
		CALL(syscall(SYS_ppoll, &(struct pollfd){ .fd = fd, .events = events }, 1, time, NULL, 0));
	else
		CALL(syscall(SYS_pselect6, fd + 1, &in, &out, NULL, time, NULL));
	note_left(time->tv_sec, time->tv_nsec);
}

#ifdef SYS_select
static void note_left_of_select(struct timeval time, int fd, bool out)
{
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	CALL(syscall(SYS_select, fd + 1, out ? NULL : &set, out ? &set : NULL, NULL, &time));
	note_left(time.tv_sec, time.tv_usec);
}
#endif

/* In memory that is only read, and where there are no signals of that size. */
static void refuse(int fd)
{
	struct timespec *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	*fixed = (struct timespec){ 1000, 0 };
	MUST(mprotect(fixed, 4096, PROT_READ));
	note_left_of(fixed, fd, POLLOUT, true);
	note_left_of(fixed, fd, POLLOUT, false);
	CALL(syscall(SYS_ppoll, &(struct pollfd){ .fd = fd, .events = POLLOUT }, 1, fixed, fixed, 16));
	MUST(munmap(fixed, 4096));
	note_left_of(&(struct timespec){ 1, 1000000000 }, fd, POLLOUT, true);
	CALL(syscall(SYS_epoll_pwait, fd, NULL, 1, 0, &fd, 4));
}

void raw_time_left(struct end *end, long argument)
{
	meet(end);
	warm_up(end);
	for (int polls = 0; !end->server && polls < 2; polls++) {
		note_left_of(&(struct timespec){ 0, 20000000 }, end->fd, POLLIN, polls);
		note_left_of(&(struct timespec){ 1000, 0 }, end->fd, POLLIN | POLLOUT, polls);
		note_left_of(&(struct timespec){ 0, 0 }, end->fd, POLLIN, polls);
	}
#ifdef SYS_select
	if (!end->server) {
		note_left_of_select((struct timeval){ 0, 20000 }, end->fd, false);
		note_left_of_select((struct timeval){ 1000, 0 }, end->fd, true);
	}
#endif
	if (!end->server)
		refuse(end->fd);
	meet_at(end, "done");
}
