/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/hot_rest.h"

#include <poll.h>

#include "common/room.h"
#include "common/sys.h"
#include "preload/engine.h"
#include "preload/far.h"

#define TOLD_AT_ONCE 64

static bool opens(struct hot_rest *rest)
{
	long fd;

	if (rest->fd >= 0)
		return true;
	fd = room_for_own() ? sys_call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0) : -1;
	if (fd < 0)
		return false;
	rest->fd = sys_fd_raise((int)fd);
	table_own_keep(rest->fd);
	return true;
}

static bool watches(struct hot_rest *rest, const struct engine *engine, struct watch *watch, int link)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = watch };

	if (watch->link == link + 1 && watch->link_ended == atomic_load(&engine->far.ended))
		return true;
	hot_rest_leaves(rest, watch);
	if (!opens(rest) || sys_call(SYS_epoll_ctl, rest->fd, EPOLL_CTL_ADD, link, (long)&event, 0, 0) < 0)
		return false;
	watch->link = link + 1;
	watch->link_ended = atomic_load(&engine->far.ended); /* it rests: there is no other meanwhile */
	return true;
}

bool hot_rest_begins(struct hot_rest *rest, struct conn *conn, struct watch *watch)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);
	int link;

	if (!engine || rest->crowded || !far_is(engine))
		return false;
	link = engine_rests(conn, engine);
	watch->told = false;
	watch->rests = link >= 0;
	if (watch->rests && watches(rest, engine, watch, link))
		return true;
	/* A broken one is readable for ever. */
	hot_rest_ends(conn, watch);
	hot_rest_leaves(rest, watch);
	return false;
}

void hot_rest_ends(struct conn *conn, struct watch *watch)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);

	if (watch->rests && engine)
		far_rises(conn, engine, watch->told);
	watch->rests = false;
}

void hot_rest_told(struct hot_rest *rest)
{
	struct epoll_event ready[TOLD_AT_ONCE];
	long count = sys_call(SYS_epoll_pwait, rest->fd, (long)ready, TOLD_AT_ONCE, 0, 0, 8);

	for (long i = 0; i < count; i++)
		((struct watch *)ready[i].data.ptr)->told = true;
}

void hot_rest_leaves(struct hot_rest *rest, struct watch *watch)
{
	struct far *held = NULL;

	/* A number that was closed has left by itself, and may be another connection's. */
	if (watch->link && far_still_has(watch->conn, watch->link_ended, &held))
		sys_call(SYS_epoll_ctl, rest->fd, EPOLL_CTL_DEL, watch->link - 1, 0, 0, 0);
	far_lets_go(held);
	watch->link = 0;
}

void hot_rest_close(struct hot_rest *rest)
{
	if (rest->fd < 0)
		return;
	table_own_drop(rest->fd);
	sys_call(SYS_close, rest->fd, 0, 0, 0, 0, 0);
	rest->fd = -1;
}
