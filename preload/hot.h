/* SPDX-License-Identifier: MIT */
/*
 * The hot list of an epoll set: connections in it whose rings the waits of this process look at themselves, so that no doorbell
 * is needed, nor a system call. All others are cold: their lanes are armed whenever they are empty, and a doorbell in the TCP
 * stream is what the kernel's set sees.
 *
 * A connection becomes hot when it has been told readable, or enters a set, and cold when a thread is about to sleep in the
 * kernel. While a thread sleeps there nothing in the set is hot, but for what wakes it in another way (hot_rest.h): what comes must
 * wake it, even if another thread looks on. So a connection is never hot that a second process, a set of sets, or a one-shot registration is concerned with.
 *
 * Locks: a connection's lock comes before a list's, and that before an engine's.
 */
#ifndef ZC_PRELOAD_HOT_H
#define ZC_PRELOAD_HOT_H

#include "preload/watch.h"

/* Whether the registration counts among those that somebody may sleep for. Under the connection's lock, or the list's if hot. */
void hot_attend(struct conn *conn, struct watch *watch, bool attentive);

/* The registration becomes hot if it may. Under the connection's lock. Returns whether it is. */
bool hot_add(struct conn *conn, struct watch *watch);

/* The registration becomes cold. Under the connection's lock. The lane is not armed by it. */
void hot_drop(struct conn *conn, struct watch *watch);

/* All registrations of a connection become cold, and its lane is armed. Under the connection's lock. */
void hot_cool(struct conn *conn);

/* Starts a new wait: registrations that it tells of are told of once. */
void hot_turn(struct set *set);

/* Puts an event for each hot connection that has something new in its ring. Returns how many. */
int hot_tell(struct set *set, struct epoll_event *events, int count);

/* Whether hot_tell would tell something. */
bool hot_has_news(struct set *set);

/* Whether the ring has something that this registration, which is hot, is to be told of. Under the connection's lock. */
bool hot_is_news(struct conn *conn, struct watch *watch);

/* Whether the kernel has not been asked for a while; and that it is now. */
bool hot_kernel_waits(struct set *set);

/* The same whatever the set has: rings that are told again and again must not hide what is the kernel's to tell. */
bool hot_kernel_waits_long(struct set *set);
void hot_kernel_asked(struct set *set);

/* How long a wait may spin now, in ns; 0: not at all. And what has become of it. */
uint32_t hot_spin_ns(struct set *set);
void hot_has_spun(struct set *set, bool paid);

/*
 * Before a sleep in the kernel. Returns false if there is something: then there is none. *more: a descriptor to be polled beside the set,
 * or -1; it was readable: hot_device_told().
 */
bool hot_sleeps(struct set *set, int *more);
void hot_device_told(struct set *set);
void hot_wakes(struct set *set);

/* A registration that was made or changed: it becomes hot, or is armed; what its ring has already is told. */
void hot_enters(struct conn *conn, struct watch *watch, int set_fd);

/* Puts the events of registrations whose rings had something before anybody could ring. Returns how many. */
int hot_tell_overdue(struct set *set, int set_fd, struct epoll_event *events, int count);

/* Wakes one who sleeps in the set, or in a wait for the set. */
void hot_wake_sleeper(int set_fd);

/* Whether the event is one that has only woken a thread. */
bool hot_is_wake(const struct epoll_event *event);

/* The set is gone. */
void hot_free(struct set *set);

/* In the child of a fork. */
void hot_after_fork(void);

#endif
