/* SPDX-License-Identifier: MIT */
/* The same by syscall(), with the kernel's own arguments: its sets of signals, and times that it writes to. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "end.h"
#include "movers.h"
#include "sets.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#define SIGSET_BYTES 8

static struct timespec *time_of(int timeout, struct timespec *time)
{
	*time = (struct timespec){ timeout / 1000, timeout % 1000 * 1000000L };
	return timeout < 0 ? NULL : time;
}

int raw_ppoll(int fd, short events, int timeout)
{
	struct pollfd look = { .fd = fd, .events = events };
	struct timespec time;
	sigset_t mask;

	sigemptyset(&mask);
	return syscall(SYS_ppoll, &look, 1, time_of(timeout, &time), &mask, SIGSET_BYTES) > 0 ? look.revents : 0;
}

int raw_pselect(int fd, short events, int timeout)
{
	struct {
		const sigset_t *mask;
		size_t bytes;
	} pair = { NULL, SIGSET_BYTES };
	struct timespec time;
	struct sets sets;
	sigset_t mask;

	sigemptyset(&mask);
	pair.mask = &mask;
	fill_sets(&sets, fd, events);
	return read_sets(&sets, fd,
			 syscall(SYS_pselect6, fd + 1, &sets.in, &sets.out, &sets.except, time_of(timeout, &time),
				 timeout ? &pair : NULL));
}

int raw_select(int fd, short events, int timeout)
{
#ifdef SYS_select
	struct timeval time = { timeout / 1000, timeout % 1000 * 1000L };
	struct sets sets;

	fill_sets(&sets, fd, events);
	return read_sets(&sets, fd,
			 syscall(SYS_select, fd + 1, &sets.in, &sets.out, &sets.except, timeout < 0 ? NULL : &time));
#else
	return raw_pselect(fd, events, timeout);
#endif
}

static int wait_in_set(int fd, short events, int timeout, bool fine)
{
	struct epoll_event event = { .events = (uint32_t)(unsigned short)events, .data.fd = fd };
	int set = (int)MUST(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
	struct timespec time;
	sigset_t mask;
	long ready;

	sigemptyset(&mask);
	MUST(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
	event.events = 0;
	if (fine)
		ready = syscall(SYS_epoll_pwait2, set, &event, 1, time_of(timeout, &time), &mask, SIGSET_BYTES);
	else
		ready = syscall(SYS_epoll_pwait, set, &event, 1, timeout, &mask, SIGSET_BYTES);
	if (ready > 0 && event.data.fd != fd)
		note_wrong("epoll told of %d instead of %d", event.data.fd, fd);
	close(set);
	return ready > 0 ? (int)event.events : 0;
}

int raw_epoll(int fd, short events, int timeout)
{
	return wait_in_set(fd, events, timeout, false);
}

int raw_epoll_fine(int fd, short events, int timeout)
{
	return wait_in_set(fd, events, timeout, true);
}
