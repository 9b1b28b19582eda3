/* SPDX-License-Identifier: MIT */
/*
 * sg: small sends that follow each other closely are held back, as copies, and leave together in one sendmsg, at the
 * latest ZC_SG_HOLD_US after the first of them and before any call in which the program could wait, look at the peer or
 * tell somebody that it has sent.
 *
 * What is held back is decided by the connection's own rhythm. A turn is what lies between two calls that wait or look.
 * The first send of a turn leaves at once unless the last turns were bursts, so that request and reply pay nothing; later
 * ones are held when they come within a quarter of the hold time. Holding that keeps running out of time is switched off for
 * a while. Bytes are held only while the kernel's send buffer certainly has room for them (SO_MEMINFO), so that handing
 * them over never waits.
 *
 * At most SG_SLOTS connections hold bytes at one time; each slot has an arena of ZC_SG_BYTES_MAX bytes. The flusher, a
 * thread started with the first hold, hands over what is due.
 */
#ifndef ZC_PRELOAD_SG_H
#define ZC_PRELOAD_SG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "preload/conn.h"
#include "preload/unseen.h"

#define SG_SLOTS 64
#define SG_NOW_OR_NEVER UINT64_MAX /* as the time of a send: it leaves with what is held, or by itself */
#define SG_SPANS_MAX 64		   /* pieces of memory of one send that can be gathered */

struct hold_slot {
	struct conn *_Atomic conn; /* NULL: free */
	_Atomic uint64_t due_ns;   /* of the first byte held */
	_Atomic int backed_up;	   /* descriptor + 1 to be waited for: the kernel's buffer is full after all */
	uint8_t *arena;		   /* mapped with the first use, then kept */
};

/* Connections on which this thread holds bytes, for the calls that wait. */
extern __thread uint32_t sg_mine __attribute__((tls_model("initial-exec")));

/* Hands over what this thread holds; after a wait, but not after a send, the turns of those connections have ended. */
void sg_flush_mine(bool turn_ends);

/* To be called by every wrapper in which the program may wait, look or tell: a load when nothing is held. */
static inline void sg_before_wait(void)
{
	if (__builtin_expect(sg_mine, 0) || unseen_fork())
		sg_flush_mine(true);
}

/* The same before a send that the kernel serves: it may wait too, but the program goes on sending. */
static inline void sg_before_send(void)
{
	if (__builtin_expect(sg_mine, 0))
		sg_flush_mine(false);
}

/* Hands over what any thread holds: fork, exec, exit. */
void sg_flush_all(void);

/*
 * Decides whether a send of `bytes` may be held, by the rhythm of the connection. Returns REASON_NONE for yes, else why
 * not. Counts the send in its turn. `now` in ns.
 */
enum stat_reason sg_decide(struct conn *conn, size_t bytes, uint64_t now);

/*
 * Holds the bytes or hands them over with what is held. Under the lock. Returns the number of bytes taken (all of them;
 * fewer, or none if the kernel took no more; then what was held before has left), or -EAGAIN: nothing was taken and the
 * caller sends by itself, after sg_drain() if something is held still.
 */
ssize_t sg_hold(struct conn *conn, int fd, const struct iovec *iov, int count, size_t bytes, uint64_t now);

/*
 * The short way for a send on a connection that holds bytes already: joins them if it is small and fits. Without the lock.
 * Returns whether it did.
 */
bool sg_join(struct conn *conn, int fd, const void *data, size_t bytes);

/* Hands over what is held, without waiting. Under the lock. Returns 0, or -EAGAIN when some of it stays. */
int sg_flush(struct conn *conn);

/* As sg_flush, for a caller that may wait as long as the socket's own send would. Without the lock. Returns 0 or -errno. */
int sg_drain(struct conn *conn, int fd, bool may_wait);

/* The program has received something or waited: a turn ends. */
static inline void sg_turn_ends(struct conn *conn)
{
	uint32_t turn = atomic_load_explicit(&conn->sg.turn, memory_order_relaxed);

	if (turn) {
		atomic_store_explicit(&conn->sg.last_turn, turn, memory_order_relaxed);
		atomic_store_explicit(&conn->sg.turn, 0, memory_order_relaxed);
	}
}

/* A send of `bytes` went to the kernel by another way: its room is smaller now. */
static inline void sg_sent(struct conn *conn, size_t bytes)
{
	atomic_fetch_sub_explicit(&conn->sg.room, (int64_t)(2 * bytes + 4096), memory_order_relaxed);
}

/* The last descriptor closes; what the kernel does not take at once is followed up on a duplicate. Under the lock. */
void sg_close(struct conn *conn, int fd);

/* Takes the error that bytes already accepted have met, once. Returns 0 or a positive errno. */
static inline int sg_take_error(struct conn *conn)
{
	if (__builtin_expect(!atomic_load_explicit(&conn->sg.error, memory_order_relaxed), 1))
		return 0;
	return atomic_exchange(&conn->sg.error, 0);
}

/* In the child: what the parent held is the parent's to send. */
void sg_after_fork(struct conn *conn);

/* The flusher's side (flusher.c) */
extern struct hold_slot sg_slots[SG_SLOTS];

/* Time was up for what the connection held. Under the lock. */
void sg_expired(struct conn *conn);

/*
 * Takes over bytes of a socket that the program has closed: they follow on a duplicate of fd. Ownership: memory of
 * ZC_SG_BYTES_MAX bytes is the flusher's if true is returned.
 */
bool flusher_adopt(int fd, uint8_t *memory, size_t bytes);

/* Before the process ends: waits a moment for what flusher_adopt took over. */
void flusher_finish(void);

/* Starts the thread if need be and wakes it if it sleeps. Returns false if it can't be had: nothing may be held. */
bool flusher_ready(void);
void flusher_kick(void);
void flusher_after_fork(void);

#endif
