/* SPDX-License-Identifier: MIT */
/*
 * Epoll sets and the registrations of our connections in them, kept beside the kernel's (whose data is never touched): they
 * tell which connection an event belongs to, so that an event that only a zerocopy notice has caused can be hidden.
 */
#ifndef ZC_PRELOAD_WATCH_H
#define ZC_PRELOAD_WATCH_H

#include <signal.h>
#include <time.h>

#include "preload/conn.h"

/* Takes a new epoll descriptor in. */
void set_open(int fd);

/* One descriptor of the set is closed, or a new one made: nothing happens if `from` is no set by now. */
void set_release(int fd);
void set_dup(int from, int to);

/* Returns a descriptor of the set, or -1. */
int set_number(const struct set *set);

/* After a successful epoll_ctl(set, op, fd, event). */
void watch_follow(int set, int op, int fd, const struct epoll_event *event);

/* The same for a registration that was made by the number `as`; or -1 - that, if it is closed. */
void watch_follow_as(int set, int op, int fd, int as, const struct epoll_event *event);

/* The same for a connection whose events may have to be hidden. Under its lock. */
void watch_changes(struct conn *conn, struct set *set, int set_fd, int op, int fd, const struct epoll_event *event);

/*
 * Behind a wait that has nothing to tell, but met the beginning of a record that is no data (ENGINE_PART): to the kernel that connection is
 * readable, and nothing tells when the rest has come. Sleeps for a moment at most, as the wait does. Returns 0 or -1 (EINTR).
 */
int watch_pauses(uint64_t until, const sigset_t *mask);

/* Returns the registration of a descriptor of the connection in the set, or NULL. Under the lock. */
struct watch *watch_find(struct conn *conn, const struct set *set, int fd);

/* No event is of this registration any more. */
void watch_leave_index(struct watch *watch);

/* Drops the registrations made under a descriptor that is closed while others of the connection stay. Under the lock. */
void watch_forget_descriptor(struct conn *conn, int fd);

/*
 * Before its last descriptor is closed, and the socket goes on: the kernel would go on telling its sets of it. Returns false if one can't be
 * told by any number. Under the lock.
 */
bool watch_leave_sets(struct conn *conn);

/* Drops all registrations of a connection. Under the lock. */
void watch_forget(struct conn *conn);

/* Somebody waits for this epoll descriptor itself: its connections can't use zerocopy from here on. */
void watch_nest(int fd);

/* Returns whether the connection is in a set that is waited for itself. Under the lock. */
bool watch_nested(const struct conn *conn);

/*
 * Returns the connection of an event, if it may have to be hidden; NULL: none of those. A hint: the caller has to lock it and
 * compare. Its cost does not depend on how many connections there are.
 */
struct conn *watch_conn_of(const struct set *set, uint64_t data, bool (*may_hide)(struct conn *conn));

/* Whether several registrations of the set have this data, as the kernel tells. Takes as long as the set is large. */
bool watch_data_is_shared(int set_fd, uint64_t data);

/*
 * The registration of the connection in the set that an event of the kernel's is of; NULL: none. A program may give several the same data, of
 * two descriptors for one socket, say: then one that can have it. Under the connection's lock.
 */
struct watch *watch_of_event(struct conn *conn, const struct set *set, const struct epoll_event *event);

/* The ring has something, and there is no doorbell for it: the set's next wait tells. Under the connection's lock. */
void watch_mark_overdue(struct watch *watch);

/* Takes the registration from the list that stands there longest. Returns its connection, NULL: there is none. */
struct conn *watch_take_overdue(struct set *set, struct watch **watch);

/* In the child of a fork: locks of threads that are not there are free. */
void watch_after_fork(void);

/* Whether the kernel takes this as the length of a wait; if not, it has to say so itself. */
static inline bool watch_time_is_valid(const struct timespec *time)
{
	return time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < 1000000000;
}

#endif
