/* SPDX-License-Identifier: MIT */
/*
 * Changes of registrations in an epoll set that the kernel is told of later, or never. Programs take a connection's interest in
 * room on and off with every message, four calls a request with some; where nobody sleeps in the set, and the waits look at the
 * rings themselves (hot.h), the kernel need not know.
 *
 * What the kernel has may differ from what the program has asked in few ways: the kernel still tells of bytes that the program
 * does not want to hear of at present, or does not tell of room. An event of the former kind is not passed on, and the change made
 * up for, so that it does not come again; room is looked at by each wait. Everything else is the kernel's at once, and before a
 * thread sleeps in the set, before the set is somebody else's as well (a set of sets, fork, exec, SCM_RIGHTS, dup), and before a
 * descriptor is closed that has others, all is made up for. Whether a registration exists, the books tell.
 *
 * Only level-triggered registrations of connections that are this process's alone, in a set that is too. Locks: a connection's
 * lock comes before that of a set's deferred changes, and that before a hot list's.
 */
#ifndef ZC_PRELOAD_DEFER_H
#define ZC_PRELOAD_DEFER_H

#include "preload/watch.h"

#define DEFER_NOT 1 /* the kernel is to be asked */

/* An epoll_ctl. Returns 0 when it is done, the -errno that the kernel would return, or DEFER_NOT. */
int defer_ctl(int set_fd, int op, int fd, const struct epoll_event *event);

/* What the kernel tells of a registration becomes what the program wants to hear. Under the connection's lock. Returns whether anything. */
bool defer_corrects(struct conn *conn, struct watch *watch, struct epoll_event *event);

/* Puts the events of registrations that there is room for, which the kernel does not tell. Returns how many. */
int defer_tell_room(struct set *set, struct epoll_event *events, int count);

/* Whether defer_tell_room has to look at some. */
bool defer_asks_for_room(struct set *set);

/* Around a sleep in the kernel. */
void defer_sleeps(struct set *set);
void defer_wakes(struct set *set);

/* Makes up for what is deferred of a registration, of a set, of all. The first under the connection's lock. */
void defer_settle(struct watch *watch);
void defer_settle_set(struct set *set);
void defer_settle_all(void);

/*
 * The registration is no more. The kernel's goes by itself, but where the socket lives on elsewhere (SCM_RIGHTS): one that the program has
 * deleted is deleted now. Under the connection's lock, before the descriptor is closed.
 */
void defer_forget(struct watch *watch);

/* A set is made; a fork is about to make all that there are another process's as well. */
void defer_open(struct set *set);
void defer_before_fork(void);

/* In a child that nobody has prepared: what is deferred of a registration's set is the parent's to make up. */
void defer_after_unseen_fork(struct watch *watch);

#endif
