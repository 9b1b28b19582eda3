/* SPDX-License-Identifier: MIT */
/*
 * The SDP engine's place in a connection: two lanes (rdma/lane.h) beside the TCP stream, once both ends have met. Before that,
 * and whenever a lane is on TCP, the program's bytes go by its own calls, counted, so that both ends agree on positions.
 *
 * An engine lives in memory that is shared over fork, with the locks of its two directions: all processes that hold the
 * socket go on with the same lanes. Locks: `in` and `out` are held for bounded work only, never while waiting for a
 * program (between hosts: `in` while READs are under way, `out` for room, for a bounded time); neither is
 * taken under the other but by meet(), in the order in, out. A connection's own lock comes before both.
 */
#ifndef ZC_PRELOAD_ENGINE_H
#define ZC_PRELOAD_ENGINE_H

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "preload/away.h"
#include "preload/conn.h"
#include "preload/far_part.h"
#include "preload/spin.h"
#include "rdma/channel.h"
#include "rdma/meet.h"

#define ENGINE_BY_KERNEL (-4096)   /* not on the ring: make the call as the program did (send.h has the same) */
#define ENGINE_PIPE_FULL (-4097)   /* engine_splice() */
#define ENGINE_CLOSING 0x80000000u /* of conn->engine_users: nobody comes to it any more; */
#define ENGINE_ENDING 0x40000000u  /* and nobody is at it */

enum engine_transport {
	TRANSPORT_AUTO,
	TRANSPORT_CMA,
	TRANSPORT_VERBS,
	TRANSPORT_NONE
}; /* as ZC_TRANSPORT numbers them */

enum engine_state {
	ENGINE_FREE,
	ENGINE_APART, /* may meet its peer yet */
	ENGINE_MET,   /* both lanes are there */
	ENGINE_OVER,  /* will not: TCP for good, nothing is counted any more */
};

#define SHUT_IN 1u
#define SHUT_OUT 2u

struct engine {
	struct lock in, out;
	_Atomic int state;
	enum stats_role role;
	_Atomic uint32_t going; /* holders that let go of it at present */
	struct holders holders;
	_Atomic uint32_t calls; /* of data, before it has met */
	_Atomic uint32_t next_try;
	uint32_t tries;
	uint64_t meets_since; /* ns: of the first try */
	int offer;	      /* listening for the accepting end; -1 */
	int visitor;	      /* who has come to it and has not spoken yet; -1 */
	int reached;	      /* who offers, and has not let us in yet; -1 */
	int meeting_process;  /* whose descriptors these are */
	struct meet_names names;
	struct channel channel;
	struct channel rest;   /* what an exec that failed would have taken along; its lane is channel.in */
	_Atomic uint32_t shut; /* by the program: SHUT_IN, SHUT_OUT */
	/* Before it has met, under the lock of the direction; then the lanes have them. */
	uint64_t sent, received;
	uint32_t raw_receiving;
	bool reader;
	/* out */
	_Atomic uint32_t raw_sending;
	_Atomic uint32_t
		raw_refused; /* raw sends that the kernel has not taken all of, by any process: an edge is due for each */
	bool pinned;	     /* to TCP, for good */
	uint64_t ring_bytes; /* of the stream, so far: the others are the kernel's */
	bool nodelay, cork;  /* the program's own options: on the ring the socket has others */
	bool owes_options;   /* and it has them until the rest of this send is out */
	bool pushes;	     /* the library's own bytes are in front of the program's next ones */
	uint64_t head_seen;  /* of the consumer at the last look */
	uint32_t unlooked;   /* sends since then */
	uint64_t looked;
	uint64_t behind_at;		  /* where the receiver was in the last wait for it, if it did not move */
	uint64_t behind_since, behind_ns; /* that sends have waited for a receiver behind the lane's way to the ring */
	_Atomic uint32_t told;		  /* sends, for the hint where this end runs */
	struct away away;
	/* in */
	int error;		  /* that a look at the socket has used up, for when the ring is empty */
	bool ended;		  /* the stream's end was seen there */
	_Atomic bool told_death;  /* ECONNRESET for a peer that was killed: once, as the kernel does */
	_Atomic bool kernel_told; /* of something on the socket, since it was asked last */
	uint64_t kernel_asked;
	_Atomic uint32_t sleepers;   /* threads that wait in the kernel for this lane */
	struct spin spin;	     /* of a wait for this lane */
	_Atomic uint32_t sends_seen; /* of this end, at the last wait */
	_Atomic bool waited;	     /* the socket, when it was asked last, was one that waits: a hint */
	uint32_t dry_looks;	     /* for raw bytes: in a row */
	struct far_part far;
	void *next_free; /* the pool's */
};

/* Whether there is, or may be, one on any connection: readiness has to be looked at. */
extern _Atomic bool engine_ever;

static inline bool engine_possible(void)
{
	return __builtin_expect(atomic_load_explicit(&engine_ever, memory_order_relaxed), 0);
}

/* Whether a policy is one of the engine's. */
static inline bool engine_serves(enum zc_path policy)
{
	return policy == PATH_BSDP || policy == PATH_ZSDP || policy == PATH_AZSDP || policy == PATH_AUTO;
}

/*
 * Whether a new connection to this peer gets an engine wherever the peer is: the own address is asked for when it looks for its peer, which
 * it may never do.
 */
bool engine_asks_names(const struct conn *conn, const struct sockaddr_storage *peer);

/* Gives a new connection an engine if its policy and its addresses allow one; `local` may be unknown (engine_asks_names()). Under its lock. */
void engine_open(struct conn *conn, const struct sockaddr_storage *local, const struct sockaddr_storage *peer);

/*
 * The last descriptor of this process goes. Under the connection's lock. Returns false if a call is still under way: then
 * that one releases the connection when it ends (conn_release).
 */
bool engine_close(struct conn *conn, int fd);

/* Returns when nobody has a lock of the lanes who had it before. This thread may have `in`. */
void engine_awaits_those_inside(struct engine *engine);

/* Around every use: engine_enter returns NULL if there is none, or if fd is another connection's by now. */
struct engine *engine_use(struct conn *conn, int fd);
void engine_leave(struct conn *conn);

/* A cancellation point in between, under no lock: a thread that ends there leaves. */
void engine_may_be_cancelled(struct conn *conn);

/* Whether its descriptor is about to be another's. Under one of the locks it is not before the lock is given back. */
static inline bool engine_is_closing(const struct conn *conn)
{
	return (atomic_load(&conn->engine_users) & ENGINE_CLOSING) != 0;
}

static inline struct engine *engine_enter(struct conn *conn, int fd)
{
	if (__builtin_expect(!atomic_load_explicit(&conn->engine, memory_order_relaxed), 1))
		return NULL;
	return engine_use(conn, fd);
}

static inline bool engine_met(const struct engine *engine)
{
	return atomic_load_explicit(&engine->state, memory_order_acquire) == ENGINE_MET;
}

/* The same for receives: a lane that was left, and whose last bytes have been taken, needs nobody. */
static inline bool engine_reads(const struct engine *engine)
{
	return engine_met(engine) &&
	       (!lane_is_over(&engine->channel.in) || engine->error || engine->far.skip || engine->far.error ||
		far_part_counts(&engine->far) || far_part_is_owed(&engine->far, &engine->channel.in));
}

/* Whether the program has shut both directions: the kernel answers whatever comes from here on by a reset. */
static inline bool engine_is_shut(const struct engine *engine)
{
	return atomic_load_explicit(&engine->shut, memory_order_relaxed) == (SHUT_IN | SHUT_OUT);
}

/* Whether the connection's bytes may be in a ring. A hint without a lock. */
static inline bool engine_has_met(struct conn *conn)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);

	return engine && engine_met(engine);
}

/*
 * Whether a data call has nothing to do with the engine, but that its bytes are counted: the ends have not met, and it is not time to try, for
 * which the call has counted then. A hint without a lock, as above; an engine's memory is never unmapped, and a call too many of another
 * connection's does no harm.
 */
static inline bool engine_is_passed_by(struct conn *conn)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_acquire);

	if (!engine || atomic_load_explicit(&engine->state, memory_order_relaxed) != ENGINE_APART ||
	    atomic_load_explicit(&engine->calls, memory_order_relaxed) + 1 >=
		    atomic_load_explicit(&engine->next_try, memory_order_relaxed))
		return false;
	atomic_fetch_add_explicit(&engine->calls, 1, memory_order_relaxed);
	return true;
}

/* A data call of the program: tries to meet, if it is time. */
void engine_step(struct conn *conn, struct engine *engine, int fd);

/*
 * The program needs the descriptors that a meeting has open: this connection does without one. Under no lock. Returns whether there
 * were any; none are opened any more when it returns.
 */
bool engine_spares(struct conn *conn);

/* Moves the own lane back to TCP. Under the lock `out`. */
void engine_switch_back(struct conn *conn, struct engine *engine, int fd);

/* Both ends go on over TCP as far as this one can say: no TAKEOVER of the own lane any more. */
void engine_pin(struct conn *conn, int fd);

/*
 * Before a shutdown(). What is sent behind that of the own direction has to fail as the kernel says; and when both are shut, the
 * kernel resets the connection for every byte that arrives, doorbells too. Under no lock. Returns whether the agent shuts it for sending, later.
 */
bool engine_shuts(struct conn *conn, int fd, int how);

/* Whether its socket may outlive its last descriptor, as the agent goes on with it (far_linger.h). */
bool engine_may_linger(struct conn *conn, int fd);

/* One of several numbers is not the connection's any more, and about to be closed: waits for who may be at it, under the engine's locks. */
void engine_number_goes(struct conn *conn);

/*
 * The connection is handed to somebody who knows nothing of lanes: TCP for good, if nothing is unread in the ring (evict.h).
 * Returns whether its bytes are all in the TCP stream.
 */
bool engine_retire(struct conn *conn, int fd);

/* It does not meet its peer any more, if it has not yet. Under the lock `in`. */
void engine_stays_apart(struct conn *conn, struct engine *engine);

/*
 * This process is about to end, or to become another that does not inherit the connection (gives_up: or that does); and it is
 * not, after all.
 */
void engine_goes(struct conn *conn);

/*
 * Whether this process still holds the connection, and the descriptor names it: what is done to a connection behind its thread's
 * back must not meet another one that has the number by now. Under the lock `in`, which a close() waits for.
 */
bool engine_is_held(struct conn *conn, int fd);
void engine_gives_up(struct conn *conn, struct engine *engine);
void engine_stays(struct conn *conn);

/*
 * Receives begin with the bytes of this channel's lane, which its sender has left; behind them raw bytes follow. Ownership: takes
 * the channel. take_in: on a connection without an engine, when the program starts. Returns false if there is no memory.
 */
void engine_take_back(struct engine *engine, const struct channel *rest);
bool engine_take_in(struct conn *conn, const struct channel *rest);

/* The connection was dissolved: whatever is sent or received from here on is another's. */
void engine_dissolve(struct conn *conn, int fd);

/*
 * One of an engine's locks has died with the process that held it. That one may have been at anything that the lock protects:
 * a record in the ring that is not published, positions that don't count it yet, a TAKEOVER that was announced and not put, a
 * doorbell that is rung and not counted, a channel that was handed over and not entered. Nothing of that can be told from
 * outside, so the connection is reset, for all who hold it, and its bytes are the kernel's: there are none any more. Whoever
 * finds such a lock sees to it, for the one that was first may have died as well. A lock of no engine is nobody's business.
 */
void engine_lost(const struct lock *lock);

/* fork: the child holds the engine, too; one that has not met gets its channel now, or none. Under the connection's lock. */
void engine_before_fork(struct conn *conn, uint64_t fork);
void engine_after_fork(void); /* in the child */

/* After it, for each that engine_before_fork() was called for: 0 in the child, which may be far away (LOCK_FAR); else as fork(). */
void engine_forked(struct conn *conn, uint64_t fork, pid_t child, bool far);
extern uint32_t engine_premade; /* channels made by the present fork */

/* Sends by the ring, and tells by which path most of it went. Returns bytes taken, -errno or ENGINE_BY_KERNEL. */
ssize_t engine_send(struct conn *conn, int fd, const struct iovec *iov, int count, int flags, enum zc_path *path);

/* sendfile() of a file, the same way. Returns as engine_send. */
ssize_t engine_sendfile(struct conn *conn, int fd, int in, off64_t *offset, size_t bytes);

/* Around every send that the kernel serves, and every receive before both ends have met; `done` is what it has brought. */
struct engine_raw {
	struct conn *conn; /* NULL: nothing to end */
	struct engine *engine;
	ssize_t done;
	size_t asked;	/* of a send: bytes; SIZE_MAX: not known */
	int error;	/* of a send: -errno that it ends with, instead of being made; 0: none */
	int fd;		/* of a send */
	uint64_t begun; /* ns: of a send that is compared with others */
	bool again;	/* a receive: they have met in the meantime, engine_recv() has to do it */
};
struct engine_raw engine_raw_use(struct conn *conn, int fd, int flags);
void engine_raw_ends(struct engine_raw *raw);
struct engine_raw engine_raw_recv_use(struct conn *conn, int fd);
void engine_raw_recv_ends(struct engine_raw *raw);

/* Whether an engine may have a say in a call. One that has given up for good has none. A hint without a lock. */
static inline bool engine_is_there(const struct conn *conn)
{
	const struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_relaxed);

	return __builtin_expect(engine != NULL, 0) &&
	       atomic_load_explicit(&engine->state, memory_order_relaxed) != ENGINE_OVER;
}

static inline struct engine_raw engine_raw_begins(struct conn *conn, int fd, int flags)
{
	return engine_is_there(conn) ? engine_raw_use(conn, fd, flags) : (struct engine_raw){ .conn = NULL };
}

static inline struct engine_raw engine_raw_recv_begins(struct conn *conn, int fd)
{
	return conn && engine_is_there(conn) ? engine_raw_recv_use(conn, fd) : (struct engine_raw){ .conn = NULL };
}

/*
 * Whether the kernel may have refused bytes since *seen was this number: somebody waits for room, and has to be told of it.
 * Puts the number there.
 */
bool engine_was_refused(const struct engine *engine, uint32_t *seen);

/* Receives. Returns bytes, -errno, or ENGINE_BY_KERNEL if the connection has no engine. A cancellation point. */
ssize_t engine_recv(struct conn *conn, int fd, const struct iovec *iov, int count, int flags);

/* The same with MSG_PEEK and MSG_WAITALL: waits until all that is asked for is there at once, or something ends that. */
ssize_t engine_peek_all(struct conn *conn, int fd, const struct iovec *iov, int count, int flags);

/*
 * splice() into a pipe: waits for bytes as engine_recv(), and never for the pipe. Returns as that, or ENGINE_PIPE_FULL if there are some
 * for which the pipe has no room.
 */
ssize_t engine_splice(struct conn *conn, int fd, int pipe, size_t bytes);

/*
 * TCP_NODELAY and TCP_CORK of a connection that has met: a doorbell must leave at once, whatever the program wants for its
 * bytes. Return false if the kernel is to be asked.
 */
bool engine_has_option(int name);
bool engine_sets_option(struct conn *conn, int fd, int name, int value);
bool engine_gets_option(struct conn *conn, int fd, int name, int *value);

/* Readiness (engine_wait.c) --------------------------------------------------------------------------------------- */

enum engine_ready {
	ENGINE_NOT_OURS, /* the kernel's word stands */
	ENGINE_READABLE,
	ENGINE_SPURIOUS, /* what the kernel has are doorbells alone */
	ENGINE_PART,	 /* the same, and it goes on to tell of it: the beginning of what is no data (watch_pauses()) */
};

/* A thread that sleeps in the kernel until a connection is readable; all zeroes: none. */
struct engine_sleep {
	struct conn *conn;
	struct engine *engine;
	int link;  /* a descriptor to be polled beside the connection's, where the peer is on another host; -1: none */
	bool told; /* it was readable */
};

/*
 * Before it sleeps; polls: it can poll a descriptor more. Returns true if the ring has something already. Either way engine_wakes()
 * ends it.
 */
bool engine_sleeps(struct conn *conn, int fd, bool polls, struct engine_sleep *sleep);
void engine_wakes(struct engine_sleep *sleep);

/* As far_rests(), under no lock. */
int engine_rests(struct conn *conn, struct engine *engine);

/*
 * Spins for the ring of a connection, no longer than `until`, while that pays. The kernel is asked about fds in between, if
 * there are others among them. Returns false if a signal has ended it.
 */
bool engine_spin(struct conn *conn, int fd, struct pollfd *fds, nfds_t count, uint64_t until);

/* From here on somebody may sleep in the kernel for the connection at any time (conn->signals). */
void engine_watch(struct conn *conn, int fd);

/* Whether the ring has bytes, and the kernel has been asked a moment ago about the rest. */
bool engine_has_bytes(struct conn *conn, int fd);

/* FIONREAD: puts the bytes that the program has not received yet. Returns false if the kernel knows better. */
bool engine_unread(struct conn *conn, int fd, int *out);

/* Whether the ring has bytes that come before what is in the stream. */
bool engine_is_before_raw(struct conn *conn, int fd);

/* The kernel has told that the connection is readable: is it? */
enum engine_ready engine_look(struct conn *conn, int fd);

#endif
