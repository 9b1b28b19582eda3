/* SPDX-License-Identifier: MIT */
/*
 * An engine whose peer is on another host: the same lanes, each end with memory of its own, and a queue pair between them
 * (rdma/verbs.h). What is different is what one end sees of the other's words, and when. So:
 *
 *  - Before its bytes come from another place than before, a producer has the consumer's word for it (`seen`): behind a TAKEOVER
 *    nothing is put and nothing is rung, behind a SWITCH nothing is sent by TCP, until the consumer says that it knows of it. Its
 *    agent answers, a thread, if its program makes no call. A peer that does not answer in time is given up, and the connection goes
 *    on over TCP. Between a SWITCH and the next TAKEOVER there is a raw byte at least: without one the consumer could pass
 *    the TAKEOVER before the SWITCH's doorbells and FAR_GO have come.
 *  - In the TCP stream a doorbell is a byte of one value and everything else that is not data begins with another
 *    (lane.codes, told by each move): FAR_GO behind a SWITCH, then raw bytes; FAR_RESUME when the queue pair has broken: the
 *    position of the stream from which raw bytes follow. The sender goes on with what the consumer has not confirmed (it is in the
 *    sender's ring yet), the consumer leaves out what it has. Each direction does so by itself.
 *  - A TAKEOVER that was not answered when the queue pair broke has not happened. The sender then goes on with the very byte that
 *    it had in hand at the time; the codes are other values than that byte, so that a consumer that has seen the TAKEOVER, and
 *    nothing behind it, finds out by the first byte.
 *  - Again: when a queue pair has broken, and a direction is on TCP with nothing owed and nothing to be left out, it is at rest. An end both of
 *    whose directions are looks for another queue pair after a pause (far_again.c), in which the lanes begin anew, on TCP; in between both
 *    ends go on counting. Behind a fork none comes before one process holds the connection alone, and
 *    none where a lane was left for good.
 *  - Settled: where path `auto` has found TCP better, and both directions have been there for a while, an end gives the queue pair up.
 *    Both come to rest, and the lanes end for good: the connection's calls are the kernel's again.
 *  - A consumer that goes to sleep by the socket alone says up to where it has looked (`waits`, `waits_at`); the producer rings if it has
 *    put more, and so does its agent, whatever the consumer has seen meanwhile: the thread that looks need not be the one that sleeps. One that
 *    can poll the device's descriptor, too, says nothing (far_rests()).
 *
 * The connecting end listens with rdma_cm at the connection's own address and port, and the process that uses the
 * accepted socket connects to that, from there: so it is found after a fork and by workers that share a listener. What one
 * process knows of a queue pair is here; all else is in the engine, and outlives it: before a fork the queue pair is given up, and
 * both processes go on over TCP until one is alone with it. The child of a process that has a device gets libraries of its own (far_link.c).
 */
#ifndef ZC_PRELOAD_FAR_H
#define ZC_PRELOAD_FAR_H

#include "preload/engine.h"
#include "preload/far_spin.h"

/*
 * Whether a connection's peer on another host may be reached by RDMA at all: a device is there, and no setting forbids it. `auto`
 * compares then, unless it is told what to take (far_compare.h). Cheap.
 */
bool far_possible(void);

/* At the start: what the plug-in's libraries read of the environment later, when the program may be changing it. */
void far_keep_environment(void);

/*
 * Whether the peer's host has not answered by RDMA lately, so that nobody asks it: then no agent wakes for a connection to it. Its name is
 * known (engine->far.host).
 */
bool far_leaves_alone(const struct engine *engine);

/* If so, the reason: what kept the last connections from meeting there. */
enum stat_reason far_left_alone_for(const struct engine *engine);

/*
 * Whether the connection has to last a while before the peer's host is asked, as others to it ended before anybody came: each would wake
 * the agents of both ends for nothing, and a peer without a library never answers one that ends that soon. Its name is known, and
 * since when it would ask (engine->meets_since).
 */
bool far_lasts_first(const struct engine *engine);

/* Sees to it that there is an agent. May start a thread: never under a lock. Returns whether there is one. */
bool far_ready(void);

/* Whether it has found that it can do nothing: there is no plug-in, say. For good, in this process. */
bool far_failed(void);

/* Why far_possible() is not. */
static inline enum stat_reason far_absent_for(void)
{
	return far_failed() ? REASON_RDMA_DEVICE : REASON_REMOTE;
}

/* Wakes it up, to look after all connections. */
void far_kick(void);

/*
 * This process has let go of its connections, and is about to end. Returns when the agent is at none of them that others hold, or has been for
 * too long: it would take along the lock that it has.
 */
void far_awaits_agent(void);

/* A data call on a connection that is FAR_APART: the agent is to try, if it is time. Under both locks. */
void far_step(struct conn *conn, struct engine *engine);

/*
 * In the child of a fork, before a call on a connection whose queue pair the fork has broken: once the child holds it alone, it gets an agent
 * of its own, which looks for another one. Under no lock.
 */
void far_adopts_there(struct conn *conn, struct engine *engine);

static inline void far_adopts(struct conn *conn, struct engine *engine)
{
	if (__builtin_expect(atomic_load_explicit(&engine->far.state, memory_order_relaxed) == FAR_BROKEN, 0) &&
	    !conn->far)
		far_adopts_there(conn, engine);
}

/* Waits as long as ZC_RDMA_WAIT_MS allows for a new connection's meeting. */
void far_wait(struct conn *conn, int fd);

/* Sending ------------------------------------------------------------------------------------------------------------ */

/*
 * Before a send, under no lock: moves the lane to the ring if it may and, under `auto`, if that is better for so many bytes, or back;
 * and waits, for a bounded time, for the peer's word. `first` is what the send begins with. Returns 0: put it, or send it by TCP, as the lane says; or -errno: -EAGAIN, where what the queue pair
 * owes to the peer is still to be sent.
 */
struct far_first {
	uint8_t byte;
	size_t bytes; /* of the send */
};
int far_before_send(struct conn *conn, struct engine *engine, int fd, struct far_first first, int flags);

/*
 * Before raw bytes, under no lock: the lane goes back to TCP, and the peer knows. Returns 0, or -errno as above: -EAGAIN if the send must
 * not wait, or not longer (SO_SNDTIMEO), -EINTR after a signal that ends calls.
 */
int far_before_raw(struct conn *conn, struct engine *engine, int fd, int flags);

/* Whether raw bytes may follow without that. Under the lock `out`. */
bool far_is_raw(struct conn *conn, struct engine *engine, int fd);

/*
 * Under the lock `out`, before raw bytes: whether they can't be taken for anything else. Those of a call whose first byte nobody has looked at may,
 * where a TAKEOVER has not happened that the peer may know of: then the connection is to be reset.
 */
bool far_may_follow(struct conn *conn, struct engine *engine);

/* Whether the lane is between two places: nothing may be put or sent. Under the lock `out`. */
bool far_is_between(const struct engine *engine);

/* After a put, and after a SWITCH. Under the lock `out`. */
void far_push(struct conn *conn, struct engine *engine);
void far_leaves(struct conn *conn, struct engine *engine);

/* Sleeps until something has happened to the queue pair, or for `ms`. */
void far_sleep(struct conn *conn, int ms);

/* Before it is asked whether to ring: takes what the peer has told. Under the lock `out`. */
void far_hear(struct conn *conn, struct engine *engine);

/* The byte that is a doorbell there. */
uint8_t far_bell(const struct engine *engine);

/*
 * Sources (engine_source.c), under the lock `out`: whether there can be some now, 0 or -errno; lets the peer read so many bytes, before
 * they are put under guard; announces these, for which there is room (*sunk: whether they may be written to what the peer offers, and then whether they are being); takes back what was
 * not announced; the reason to count for what each has said.
 */
int far_sources_open(struct conn *conn, struct engine *engine);
int far_expose(struct conn *conn, struct engine *engine, const void *at, size_t bytes);
void far_unexpose(struct conn *conn, struct engine *engine);
int far_announce(struct conn *conn, struct engine *engine, const void *at, size_t bytes, bool *sunk, uint64_t *number);
enum stat_reason far_source_reason(int error);

#define FAR_CHUNK (256 * 1024ul) /* announced at one time */

/* A send that waits until the peer has taken something: zeroes but for the first four at first. */
struct far_patience {
	uint64_t until, quiet_ns; /* and no longer than that behind the peer's last word */
	bool waits;		  /* it may sleep */
	struct far_wait wait;
	uint64_t at, since;
};

/* A moment. Returns false if the peer has had its time. Behind the last: whether it has taken all. */
bool far_waits_for_peer(struct conn *conn, const struct lane *lane, struct far_patience *patience);
void far_has_waited(const struct far_patience *patience, bool all);

/* FIONREAD: what is announced counts when it is here. Under the lock `in`. */
void far_fetch_there(struct conn *conn, struct engine *engine);

/* Receiving: under the lock `in` ------------------------------------------------------------------------------------- */

/* What each receive and each look asks for: on one host it is one branch. The calls behind them, not to be made otherwise: */
int far_look_there(struct conn *conn, struct engine *engine, int fd);
void far_took_there(struct conn *conn);
bool far_is_control_there(const struct engine *engine);
void far_poll_there(struct conn *conn, const struct engine *engine);

static inline bool far_is(const struct engine *engine)
{
	return __builtin_expect(atomic_load_explicit(&engine->far.state, memory_order_relaxed) >= FAR_UP, 0);
}

/*
 * Takes note of what has come to the ring, and of what is no data at the front of the TCP stream: after it, the lane's own
 * books hold for the doorbells that are there. Returns 0, or -ECONNRESET: nonsense.
 */
static inline int far_look(struct conn *conn, struct engine *engine, int fd)
{
	return far_is(engine) ? far_look_there(conn, engine, fd) : 0;
}

/* The same for a receive, which need not look at the TCP stream unless something may be there. */
int far_look_quickly_there(struct conn *conn, struct engine *engine, int fd);

static inline int far_look_quickly(struct conn *conn, struct engine *engine, int fd)
{
	return far_is(engine) ? far_look_quickly_there(conn, engine, fd) : 0;
}

/* Whether what is in the stream now can't be data. */
static inline bool far_is_control(const struct engine *engine)
{
	return far_is(engine) && far_is_control_there(engine);
}

/*
 * How many of the `raw` bytes that the TCP stream has, and has had since far_look(), are data. What is in front of them that the look
 * did not take can't be told from data by its number alone.
 */
size_t far_data_there(struct engine *engine, int fd, size_t raw);

/* After bytes were taken from the ring. */
static inline void far_took(struct conn *conn, const struct engine *engine)
{
	if (far_is(engine))
		far_took_there(conn);
}

/* After lane_arm(). Returns lane_is_empty() as of now. */
bool far_arm(struct conn *conn, struct engine *engine);

/* The kernel has told of something in the TCP stream: the next look looks there, too. */
static inline void far_kernel_told(struct engine *engine)
{
	atomic_store_explicit(&engine->far.quiet, false, memory_order_relaxed);
}

/*
 * In place of it, for one thread of a connection at a time: it is going to sleep until the ring has something, by a descriptor of the
 * device, and the peer need not know. far_rests() returns that descriptor, to be polled beside the connection's if the ring is empty
 * now; or -1: not here. Then far_rises() ends it, under the lock or not; told: the descriptor was readable.
 */
int far_rests(struct conn *conn, struct engine *engine);
void far_rises(struct conn *conn, const struct engine *engine, bool told);

/* Sleeps until either has something. Returns 0, or -EINTR where the kernel's receive would have ended with it. */
struct pollfd;
int far_sleep_for_both(struct pollfd both[2]);

/*
 * A part of what is no data is all that the TCP stream has. Waits a moment for the rest, if it waits. *ended: that it may be the last was seen
 * before, by this receive. Returns 1 to look again, -EAGAIN, -EINTR or -ECONNRESET (the stream has ended in the middle).
 */
static inline bool far_has_part(const struct engine *engine)
{
	return atomic_load_explicit(&engine->far.partial, memory_order_relaxed);
}
ssize_t far_await_rest(int fd, bool waits, bool *ended);

/*
 * far_sink.c. A receive that is about to sleep offers the first piece of its memory to the peer; `owner` stands for it. Returns whether it does, now
 * or already; then far_sink_ends() before its program has the memory again: behind that nothing is written there. Under no lock.
 */
bool far_sink_offer(struct conn *conn, struct engine *engine, const struct iovec *iov, const void *owner);
void far_sink_ends(struct conn *conn, struct engine *engine, const void *owner);

/*
 * How much the peer offers to take of what is put next, under the lock `out`; 0: nothing. And, before a program has the memory again that was
 * announced so: waits until the device has written it, at most 50 ms. Under no lock.
 */
size_t far_sink(struct conn *conn);
void far_sink_written(struct conn *conn, struct engine *engine);

/* Whether a receive may, too: one that ends after a time (SO_RCVTIMEO) is the kernel's. */
bool far_may_rest(struct conn *conn, int fd);

/* Cheap, without a lock: moves the lane's tail if something has come, and if the queue pair has not broken. */
static inline void far_poll(struct conn *conn, const struct engine *engine)
{
	if (__builtin_expect(conn->far != NULL, 0))
		far_poll_there(conn, engine);
}

/*
 * What the socket has told a call that the program knows nothing of (0 or more: nothing) is kept for a call of the program's.
 * Returns the -errno that is kept, once, or 0.
 */
void far_keep_error(struct engine *engine, long rc);
int far_take_error(struct engine *engine);

/*
 * The same, where the kernel tells of the stream's end: it does so behind an error, too, that a call has been told which keeps it in a moment, under
 * a lane's lock. The lock `in` may be held.
 */
int far_error_at_end(struct engine *engine);

/* The stream has ended. Returns whether bytes are missing. */
bool far_is_cut(const struct engine *engine);

/* Ends --------------------------------------------------------------------------------------------------------------- */

/*
 * The lane of this end's sends is the stream's from here on, and the peer knows it by now: before an exec, a close, or for who
 * knows nothing of lanes. Waits as far_linger.h has it. Under no lock. Returns 0, or -ETIMEDOUT.
 */
int far_settle_out(struct conn *conn, struct engine *engine, int fd);

/*
 * The last one that holds the connection is about to close it: the peer hears that nobody reads any more, so that it neither rings nor
 * sends again what was not confirmed. The kernel would answer either with a reset, and throw away what it has yet to send. Waits
 * for a bounded time until it is told. Under the lock `in`.
 */
void far_says_bye(struct conn *conn, struct engine *engine, int fd);

/* The exec in front of which that was said has failed. */
void far_stays(struct conn *conn, struct engine *engine);

/* The queue pair is given up. Under no lock of the engine. */
void far_give_up(struct conn *conn, struct engine *engine);

/*
 * The same before a fork, and where others hold the connection: what is known of it is shared, and all go on over TCP, until one holds it
 * alone. What the kernel takes of the bytes that are owed has been sent; the peer is not waited for. Not under the lock `out`.
 */
void far_parts(struct conn *conn, struct engine *engine, int fd);

/* And this process lets go of the connection: nobody else may see to what the queue pair owes. Waits for that as far_settle_out(). */
void far_parts_settled(struct conn *conn, struct engine *engine, int fd);

/* The same, and there is to be no other queue pair. */
void far_parts_for_good(struct conn *conn, struct engine *engine, int fd);

/* This process lets go of the connection: takes the channel's memory, in which a device may write yet. Returns false: there is none. */
bool far_bury(struct conn *conn, struct channel *channel);

/*
 * Whether its queue pair is the one that there was when so many had ended (far_part.ended): its descriptor is another's otherwise, by now. If
 * so, it is not closed before far_lets_go(). Under no lock.
 */
bool far_still_has(struct conn *conn, uint32_t ended, struct far **held);
void far_lets_go(struct far *held);

/* There is no other queue pair for this connection: a lane is left for good. */
void far_never_again(struct engine *engine);

/* In the child of a fork: of each connection; of the process. */
void far_forget(struct conn *conn);
void far_after_fork(void);

#endif
