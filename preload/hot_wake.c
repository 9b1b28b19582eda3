/* SPDX-License-Identifier: MIT */
/* Wakes who sleeps in a set, or in a set around it, for what the kernel does not know of. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common/sys.h"
#include "preload/hot.h"
#include "preload/table.h"

static const char wake_mark; /* its address is the data of the event that wakes */

/* The kernel's set gets a descriptor of ours, readable for ever and told once. */
void hot_wake_sleeper(int set_fd)
{
	static _Atomic int always = -1;
	struct epoll_event once = { .events = EPOLLIN | EPOLLONESHOT, .data.ptr = (void *)&wake_mark };
	int fd = atomic_load(&always), none = -1;

	if (fd < 0) {
		fd = (int)sys_call(SYS_eventfd2, 1, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0);
		if (fd < 0)
			return;
		fd = sys_fd_raise(fd);
		if (atomic_compare_exchange_strong(&always, &none, fd)) {
			table_own_keep(fd);
		} else {
			sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
			fd = none;
		}
	}
	if (sys_call(SYS_epoll_ctl, set_fd, EPOLL_CTL_ADD, fd, (long)&once, 0, 0) < 0)
		sys_call(SYS_epoll_ctl, set_fd, EPOLL_CTL_MOD, fd, (long)&once, 0, 0);
}

bool hot_is_wake(const struct epoll_event *event)
{
	return event->data.ptr == &wake_mark;
}
