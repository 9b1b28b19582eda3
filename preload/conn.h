/* SPDX-License-Identifier: MIT */
/*
 * A connection: what the shim knows of one TCP socket, shared by all descriptors of the process that name it. The kernel's
 * socket stays the only truth; everything here can be dropped at any time (conn_detach) and the program runs on over TCP.
 *
 * Objects are type-stable: they come from slabs that are never unmapped, so that a thread that lost a race with close reads
 * a connection which is not its own and notices under the lock (conn_enter compares the table again).
 *
 * Sharing: after fork two processes hold the socket. Whoever sends first afterwards takes a token in memory that both share
 * and goes on as before, if nobody has sent since it was forked itself (the token says what the next notice's number was);
 * when a second process sends too, both stay on plain calls from then on, since neither can order its held bytes or its
 * zerocopy notices against the other's.
 */
#ifndef ZC_PRELOAD_CONN_H
#define ZC_PRELOAD_CONN_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "common/settings.h"
#include "common/stats.h"
#include "common/sys.h"
#include "preload/holders.h"
#include "preload/lock.h"
#include "preload/table.h"

#define CONN_DESCRIPTORS 4 /* duplicates that are followed; a connection with more goes back to plain calls */
#define CONN_HEIRS 4	   /* forks that may yet fail; with more of them, the oldest counts as a child for good */

enum conn_mode {
	CONN_FREE,
	CONN_PLAIN,  /* counted, nothing else */
	CONN_ACTIVE, /* sg or zerocopy may serve it */
};

/* One registration in an epoll set, kept to tell whose an event is and whether zc alone caused it (wait_epoll.c). */
struct watch {
	struct watch *next;
	struct watch *row_next; /* in the index (watch.c) */
	struct conn *conn;
	struct set *set;
	int fd; /* as registered */
	struct epoll_event event;
	/* For edge-triggered ones, the socket when the last event was told: bytes received, states that last. */
	bool seen;
	uint32_t added; /* set->emptied when it was added or changed */
	uint32_t seen_lasting;
	uint64_t seen_bytes;
	uint64_t seen_bells;   /* of ours: taken from the stream */
	uint32_t seen_refused; /* engine->raw_refused */
	/* hot.h */
	bool hot;
	_Atomic uint32_t place; /* in the hot list, from 1; 0: it is not in it */
	/* hot_rest.h: a thread sleeps by the device's descriptor, which was readable; it is in the library's set, plus 1; 0: it is not */
	bool rests, told;
	int link;
	uint32_t link_ended; /* queue pairs of the connection before that one */
	bool attentive;	     /* counted in conn->attention */
	bool overdue;	     /* in the set's list of them, which this is the link of */
	struct watch *overdue_next, **overdue_link;
	uint32_t turn;	    /* set->turn of the last wait that told of it */
	uint64_t seen_tail; /* of the ring, when it was told last */
	bool spent;	    /* one-shot, and told since it was armed: by the kernel, or by us without its knowing */
	/* defer.h */
	bool deferred;		/* the kernel has another registration: */
	uint32_t kernel_events; /* with these */
	bool gone;		/* the program has taken it out */
	TAILQ_ENTRY(watch) defer_link;
};

struct hot;

/* An epoll set that holds, or may hold, connections of ours. */
struct set {
	_Atomic int descriptors;
	_Atomic uint32_t emptied; /* waits so far that told all there was to tell */
	_Atomic bool has_part;	  /* ENGINE_PART (engine.h) was met */
	_Atomic bool nested;	  /* somebody waits for the set itself: nothing can be hidden in it */
	_Atomic uint32_t overdue; /* registrations that are, and their list */
	struct watch *overdue_first, **overdue_last;
	_Atomic uint32_t turn;
	struct hot *_Atomic hot; /* NULL: never needed */
	/* defer.h */
	struct lock defer_lock;
	int fd; /* of the set */
	uint32_t forks;
	_Atomic uint32_t sleeping;	 /* threads that wait in the kernel */
	_Atomic uint32_t early_sleepers; /* those that have done so since before the first connection */
	_Atomic uint32_t deferred_count;
	TAILQ_HEAD(, watch) deferred;
};

struct hold_slot;
struct zerocopy_send;
struct engine;
struct source_books;
struct far;

/* State of `sg`; see sg.h. The counters are hints: relaxed, races lose a guess and nothing else. */
struct sg {
	struct hold_slot *slot; /* NULL: nothing held */
	_Atomic uint32_t held;	/* bytes */
	uint32_t batch;		/* sends of the program in them, and bytes: not counted in the statistics yet */
	uint64_t batch_bytes;
	_Atomic uint32_t turn; /* sends since the program last waited or looked */
	_Atomic uint32_t last_turn;
	_Atomic uint64_t last_ns; /* end of the last send */
	_Atomic uint32_t skip;	  /* sends for which holding is off, after it did not pay */
	_Atomic uint32_t late;	  /* expiries in a row */
	_Atomic int64_t room;	  /* bytes that the kernel certainly takes without waiting */
	_Atomic int error;	  /* of bytes that had been accepted: told by the next call */
};

/* State of `zerocopy`; see zerocopy.h. Under the lock, but for the atomics. */
struct zerocopy {
	struct zerocopy_send *ring; /* NULL until the first use */
	uint32_t next;		    /* number that the kernel gives the next MSG_ZEROCOPY send */
	uint32_t oldest;	    /* number of the oldest that is not complete */
	size_t bytes;		    /* with the kernel now */
	bool enabled;		    /* SO_ZEROCOPY is set by us */
	bool refused;		    /* never here */
	_Atomic bool used;	    /* notices may be in the error queue */
	enum stat_reason why;	    /* of the pause */
	uint32_t pause;		    /* sends until the next try */
	uint32_t pause_next;	    /* how long the next pause is */
	uint32_t copied;	    /* 'copied' notices in a row */
	uint32_t sends;		    /* of the present window */
	_Atomic uint32_t faults;    /* in it */
	/* For `auto`: bytes sent so far, since only a connection that moves data is worth a probe, and what 1 KB costs. */
	uint64_t sent_bytes;
	uint32_t own_samples, copy_samples;
	uint64_t own_cost, copy_cost; /* CPU ns for 1024 bytes */
};

/* The child of a fork whose end is not known here yet. The number is the fork's, as in conn_before_fork(); 0: none. */
struct heir {
	uint64_t fork;
	struct holder holder;
};

struct conn {
	struct lock lock;
	_Atomic int mode; /* enum conn_mode */
	enum zc_path policy;
	enum stats_role role;
	uint32_t slot; /* of the statistics */
	_Atomic int fds[CONN_DESCRIPTORS];
	_Atomic int descriptors;   /* used entries of fds; more make it plain */
	int extra;		   /* duplicates that are not followed */
	_Atomic uint64_t cookie;   /* SO_COOKIE; 0: not known, see conn_identify() */
	bool believed;		   /* to be the TCP socket that socket() made */
	_Atomic uint64_t opened;   /* ns: before its connect(), behind its accept(); 0: not known */
	uint64_t peer_key;	   /* hash of the peer's address, for what is remembered of destinations */
	_Atomic uint64_t *token;   /* NULL: not shared by a fork */
	bool app_error_queue;	   /* the program reads the error queue itself */
	_Atomic bool send_blocked; /* a send met a full buffer since the last writable event */
	struct watch *watches;
	_Atomic int attention; /* those that wait for bytes and are not hot (hot.h): somebody may sleep in the kernel */
	_Atomic bool signals;  /* O_ASYNC: the kernel's readability is a signal */
	_Atomic int recv_ends; /* by SO_RCVTIMEO: 0: not known yet; 1: it does not; 2: it does */
	struct engine *_Atomic engine; /* NULL: none; see engine.h */
	_Atomic uint32_t engine_users;
	struct source_books *books; /* of what is under guard; NULL: nothing yet; see engine_source.h */
	struct far *far;	    /* its queue pair, of this process; NULL: none */
	int engine_fd;		    /* of a channel that is still to be handed over, or -1 */
	struct holder
		holder; /* this process among those of the engine; it does not count any more when it is about to end */
	struct heir heirs[CONN_HEIRS];
	bool made; /* this process has made the engine, and gets it back */
	/* trim.h; `moved` is under the engine's lock `out` but for whoever has the list */
	_Atomic bool moved;
	uint64_t moved_tail;
	struct conn *moved_next;
	bool inherited; /* over fork: others have had it before */
	bool handed; /* was duplicated for an exec, or cleared of close-on-exec: meant for another program, perhaps */
	_Atomic uint32_t
		spawned; /* children of posix_spawn whose file actions have named it: other programs may have it */
	bool alone;	 /* its engine has never met a peer, and will not: TCP for good */
	bool goes;	 /* has let go of its engine, and counts yet */
	bool left_sets;	 /* at its end: no set of the kernel's has it */
	bool lingers;	 /* was told to reset when it is closed, since bytes are unread in its ring */
	struct sg sg;
	struct zerocopy zerocopy;
	void *next_free; /* the pool's */
};

/* Connections whose zerocopy notices may have to be hidden; and whether there may ever be one (ZC_PATH and rules). */
extern _Atomic unsigned int conn_zerocopy_used;
extern _Atomic bool conn_zerocopy_ever;

/* Lets readers see what this process counts from now on. */
void conn_publish_counts(void);

/*
 * Before anything is counted on a connection: a child that serves one of its parent's shows its statistics once it uses it,
 * and one that only goes on to exec leaves none.
 */
static inline void conn_counts(void)
{
	if (__builtin_expect(atomic_load_explicit(&stats_inherited, memory_order_relaxed), 0))
		conn_publish_counts();
}

/*
 * Takes a new connection into the table. `fd` is a TCP socket. `peer`: where it was told to connect to, which the kernel does not tell while
 * that is under way; NULL: the kernel is to be asked.
 */
void conn_open(int fd, enum stats_role role, const struct sockaddr_storage *peer);

/* Returns whether fd is a TCP socket of IPv4 or IPv6 that does not listen: a connection, now or later. */
bool conn_may_be(int fd);

/* Looks at a descriptor of unknown kind; takes it in as a plain connection if it is a connected TCP socket. */
struct conn *conn_classify(int fd);

/*
 * Returns the connection of a descriptor on which a socket call was made, looking at it if it is not known yet; NULL
 * means: not ours.
 */
static inline struct conn *conn_of_socket(int fd)
{
	uintptr_t entry = table_entry(fd);

	if (__builtin_expect(entry == TABLE_UNKNOWN || !table_size, 0))
		return conn_classify(fd);
	return entry & TABLE_TAGS ? (struct conn *)0 : (struct conn *)entry;
}

/* Takes the lock if fd still names conn. Returns false otherwise, or when the thread has the lock already. */
bool conn_enter(struct conn *conn, int fd, struct lock_hold *hold);
void conn_leave(struct conn *conn, const struct lock_hold *hold);

/*
 * Whether fd is the socket that it was when the connection was opened, or moved data first (conn_identify()): a number can be closed and used again by system calls
 * that nobody sees. Under the lock.
 */
bool conn_is_same(struct conn *conn, int fd);

/*
 * Returns the connection's cookie, which is asked for by fd if it is not known yet; 0 if it can't be known, or if fd is no TCP socket. At the
 * latest before the first call that moves data: whatever goes by the connection's bytes would be told of another's.
 */
uint64_t conn_identify(struct conn *conn, int fd);

/* After socket(): what was asked for. */
void conn_socket_made(int fd, int domain, int type, int protocol);

/* Returns whether the kernel says that it is a TCP socket. */
bool conn_is_tcp(int fd);

/* A descriptor that names the connection at present, -1 if none. Under the lock. */
int conn_fd(const struct conn *conn);

/* Whether a send or receive with these flags may wait on the socket. */
static inline bool conn_waits(int fd, int flags)
{
	return !(flags & MSG_DONTWAIT) && !(sys_call(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0) & O_NONBLOCK);
}

/* Before close(fd), or before something replaces fd. Returns after everything held is with the kernel. */
void conn_close(int fd);

/* The connection is closed and nobody uses it any more. */
void conn_release(struct conn *conn);

/* After dup: `to` names what `from` does. */
void conn_dup(int from, int to);

/* Whether the descriptor is open, and will be after an exec. */
bool conn_stays_open(int fd);

/* From here on plain calls only, for good: flushes, settles, counts the reason. */
void conn_detach(struct conn *conn, enum stat_reason reason);

/* Returns whether this process may hold bytes and use zerocopy on it (see Sharing). */
bool conn_take_token(struct conn *conn);

/* Before a fork: gives a connection the token that its holders will share. Under the lock. */
void conn_give_token(struct conn *conn);

/* Makes it plain for all processes that hold it: the descriptor is passed on. */
void conn_share(struct conn *conn);

/* Calls visit(conn) for each open connection, without locks. */
void conn_each(void (*visit)(struct conn *conn));

/* The same as a loop: returns the next one from *at on (0 at first), NULL at the end. */
struct conn *conn_next(uint32_t *at);

/* The kernel's own number of a socket; 0 if fd is none. */
uint64_t conn_cookie_of(int fd);

/* Takes a socket in that the program before this one has left unread bytes of, whatever the rules say of it. Returns NULL if it can't. */
struct conn *conn_take_in(int fd);

/* fork: before, everything is flushed and settled; the child starts with clean locks. Returns the fork's number. */
uint64_t conn_before_fork(void);
void conn_after_fork(pid_t child, uint64_t fork); /* what fork() has returned, and what that has */
/*
 * In the parent while libc's fork() has not returned yet, in place of conn_after_fork(): others may go on, and fork, since what the
 * program does there may wait for them. Later conn_child_is() with what fork() has returned: the heirs get their name, which the child
 * gives them, too, or are none. Who has closed a connection in between has left it to the child, also if there turns out to be none.
 */
void conn_doubles(void);
void conn_child_is(pid_t child, uint64_t fork);
void conn_after_unseen_fork(void); /* in a child that nobody has prepared; no connection has an engine then */

/* Whether the caller runs in this process's own address space copy (false in a child of vfork or raw clone). */
bool conn_process_is_ours(void);

/* The number of the process that the connections are of; 0: not known yet. */
int conn_process(void);

static inline bool conn_active(const struct conn *conn)
{
	return atomic_load_explicit(&conn->mode, memory_order_relaxed) == CONN_ACTIVE;
}

#endif
