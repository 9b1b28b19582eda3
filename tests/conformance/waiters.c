/* SPDX-License-Identifier: MIT */
/* Ways to wait for one descriptor, each with its own interface to the kernel. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/select.h>
#include <unistd.h>

#include "end.h"
#include "movers.h"
#include "sets.h"

static struct timespec *timespec_of(int timeout, struct timespec *time)
{
	*time = (struct timespec){ timeout / 1000, timeout % 1000 * 1000000L };
	return timeout < 0 ? NULL : time;
}

static int wait_by_poll(int fd, short events, int timeout)
{
	struct pollfd look = { .fd = fd, .events = events };

	return poll(&look, 1, timeout) > 0 ? look.revents : 0;
}

static int wait_by_ppoll(int fd, short events, int timeout)
{
	struct pollfd look = { .fd = fd, .events = events };
	struct timespec time;

	return ppoll(&look, 1, timespec_of(timeout, &time), NULL) > 0 ? look.revents : 0;
}

static int wait_by_select(int fd, short events, int timeout)
{
	struct timeval time = { timeout / 1000, timeout % 1000 * 1000L };
	struct sets sets;

	fill_sets(&sets, fd, events);
	return read_sets(&sets, fd, select(fd + 1, &sets.in, &sets.out, &sets.except, timeout < 0 ? NULL : &time));
}

static int wait_by_pselect(int fd, short events, int timeout)
{
	struct timespec time;
	struct sets sets;

	fill_sets(&sets, fd, events);
	return read_sets(&sets, fd,
			 pselect(fd + 1, &sets.in, &sets.out, &sets.except, timespec_of(timeout, &time), NULL));
}

enum epoll_call { EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2 };

static int wait_by_epoll(int fd, short events, int timeout, uint32_t flags, enum epoll_call call)
{
	struct epoll_event event = { .events = (uint32_t)(unsigned short)events | flags, .data.fd = fd };
	int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC)), ready;
	struct timespec time;

	MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	event.events = 0;
	if (call == EPOLL_WAIT)
		ready = epoll_wait(set, &event, 1, timeout);
	else if (call == EPOLL_PWAIT)
		ready = epoll_pwait(set, &event, 1, timeout, NULL);
	else
		ready = epoll_pwait2(set, &event, 1, timespec_of(timeout, &time), NULL);
	if (ready > 0 && event.data.fd != fd)
		note_wrong("epoll told of %d instead of %d", event.data.fd, fd);
	close(set);
	return ready > 0 ? (int)event.events : 0;
}

static int wait_by_epoll_level(int fd, short events, int timeout)
{
	return wait_by_epoll(fd, events, timeout, 0, EPOLL_WAIT);
}

static int wait_by_epoll_edge(int fd, short events, int timeout)
{
	return wait_by_epoll(fd, events, timeout, EPOLLET, EPOLL_PWAIT);
}

static int wait_by_epoll_oneshot(int fd, short events, int timeout)
{
	return wait_by_epoll(fd, events, timeout, EPOLLONESHOT, EPOLL_PWAIT2);
}

static int wait_by_epoll_exclusive(int fd, short events, int timeout)
{
	/* It goes with few others. */
	return wait_by_epoll(fd, events & (POLLIN | POLLOUT), timeout, EPOLLEXCLUSIVE, EPOLL_WAIT);
}

/* A set in a set: the outer one is asked, then the inner one tells what it was. */
static int wait_by_epoll_nested(int fd, short events, int timeout)
{
	struct epoll_event event = { .events = (uint32_t)(unsigned short)events }, outer_event = { .events = EPOLLIN };
	int inner = (int)MUST(epoll_create1(EPOLL_CLOEXEC)), outer = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	int ready;

	MUST(epoll_ctl(inner, EPOLL_CTL_ADD, fd, &event));
	MUST(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &outer_event));
	ready = epoll_wait(outer, &outer_event, 1, timeout);
	event.events = 0;
	if (ready > 0 && epoll_wait(inner, &event, 1, 0) < 1)
		note_wrong("the outer set is ready, the inner one is not");
	close(outer);
	close(inner);
	return ready > 0 ? (int)event.events : 0;
}

#define WAITER(name) [WAITER_##name] = { #name, wait_by_##name }
const struct waiter waiters[WAITER_COUNT] = {
	WAITER(poll),
	WAITER(ppoll),
	WAITER(select),
	WAITER(pselect),
	[WAITER_poll_chk] = { "poll_chk", poll_chk },
	[WAITER_ppoll_chk] = { "ppoll_chk", ppoll_chk },
	WAITER(epoll_level),
	WAITER(epoll_edge),
	WAITER(epoll_oneshot),
	WAITER(epoll_exclusive),
	[WAITER_raw_ppoll] = { "raw_ppoll", raw_ppoll },
	[WAITER_raw_select] = { "raw_select", raw_select },
	[WAITER_raw_pselect] = { "raw_pselect", raw_pselect },
	[WAITER_raw_epoll] = { "raw_epoll", raw_epoll },
	[WAITER_raw_epoll_fine] = { "raw_epoll_fine", raw_epoll_fine },
	WAITER(epoll_nested),
};
