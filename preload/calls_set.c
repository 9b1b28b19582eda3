/* SPDX-License-Identifier: MIT */
/* Epoll sets: how they are made, and what is registered in them. The waits are in calls_epoll.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/epoll.h>

#include "preload/before.h"
#include "preload/defer.h"
#include "preload/engine.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/spare.h"
#include "preload/watch.h"

ZC_EXPORT int epoll_create(int size)
{
	int fd = SPARE_CALL(real.epoll_create(size));

	set_open(fd);
	return fd;
}

ZC_EXPORT int epoll_create1(int flags)
{
	int fd = SPARE_CALL(real.epoll_create1(flags));

	set_open(fd);
	return fd;
}

/*
 * Between the kernel's change of a one-shot registration and that of the books nobody may arm it again as the books have it (hide).
 * Returns what the kernel does, or DEFER_NOT: it is none of those.
 */
static int change_oneshot(int set_fd, int op, int fd, struct epoll_event *event)
{
	struct conn *conn = table_conn(fd);
	struct set *set = table_set(set_fd);
	struct watch *watch;
	struct lock_hold hold;
	int rc = DEFER_NOT;

	if (op != EPOLL_CTL_MOD || !set || !conn || !conn->watches || !conn_enter(conn, fd, &hold))
		return DEFER_NOT;
	watch = watch_find(conn, set, fd);
	if (watch && watch->event.events & EPOLLONESHOT) {
		rc = real.epoll_ctl(set_fd, op, fd, event);
		if (!rc)
			watch_changes(conn, set, set_fd, op, fd, event);
	}
	conn_leave(conn, &hold);
	return rc;
}

ZC_EXPORT int epoll_ctl(int set, int op, int fd, struct epoll_event *event)
{
	int rc, saved = errno;
	uintptr_t entry;

	sg_before_wait();
	rc = engine_possible() ? defer_ctl(set, op, fd, event) : DEFER_NOT;
	if (rc != DEFER_NOT) {
		errno = rc < 0 ? -rc : saved;
		return rc < 0 ? -1 : 0;
	}
	rc = change_oneshot(set, op, fd, event);
	if (rc != DEFER_NOT)
		return rc;
	rc = real.epoll_ctl(set, op, fd, event);
	if (rc)
		return rc;
	entry = table_entry(fd);
	if (entry == TABLE_EARLY || (entry == TABLE_UNKNOWN && op == EPOLL_CTL_ADD))
		before_ctl(set, op, fd, event);
	else if (entry > TABLE_OWN)
		watch_follow(set, op, fd, event);
	errno = saved;
	return 0;
}
