/* SPDX-License-Identifier: MIT */
/*
 * Sources: bytes of a lane that are announced instead of being put in the ring (SrcAvail), and fetched by the receiver from
 * the sender's memory into its program's buffer (GET). In the ring a source is one record without data, which keeps its place
 * in the stream; all else is in a slot beside the ring, that the two ends share.
 *
 * A source never makes one end wait for the other, and has no lock that a dead or stopped process could keep. All is one word
 * of the slot, {number of the source, bytes taken, state}, changed by compare-and-swap alone:
 *
 *	state      who    from                 meaning
 *	ANNOUNCED  sender (slot is free)       the bytes are in the sender's memory, which it keeps as it is
 *	  +taken   recv   ANNOUNCED, KEPT      GET_COMPLETE of that many bytes; with the last one the source is done
 *	KEPT       sender ANNOUNCED, REFUSED   the sender has copied what was not taken to the segment (copy-on-write), and its
 *	                                       memory is the program's again
 *	WITHDRAWN  sender ANNOUNCED, KEPT,     what was not taken is sent in another way; only while nothing is behind it in the
 *	                  REFUSED              stream
 *	REFUSED    recv   ANNOUNCED            the receiver may no longer fetch (it has changed its user): the sender has to keep
 *	LOST       sender ANNOUNCED, REFUSED   the memory was gone when the sender came to copy it: the bytes before `kept` are in
 *	                                       the segment, at the next one the connection is reset
 *	PROMISED recv   ANNOUNCED              the receiver's program was told of all bytes, and the head has passed or is about to;
 *	                                       they are fetched and claimed later (later.h). Never withdrawn
 *	P._KEPT  sender PROMISED               as KEPT
 *
 * The receiver fetches first, and then claims what it has: bytes that it has read while the sender let go of its memory are
 * never claimed, for the word has changed, and it reads them again from where they are now. (The lock of Balaji et al. 2006
 * would have the sender wait for a receiver that may be stopped.) The sender copies first, then changes the word, and only
 * then lets its program write. A slot is used again when the receiver's head has passed the record and nothing that was promised
 * is left to be taken, and the number of the
 * source in the word keeps late comers off. tests/model/source.pml is this as a model.
 *
 * Kept bytes have a home in the segment that is theirs from the beginning: the count of bytes announced, modulo the size of
 * the lane's area; so no more are announced at a time than the area holds, copying never lacks memory, and a kept source
 * outlives its process. Memory is used only when bytes are kept, and given back by source_trim().
 *
 * Handshake: the receiver asks (a challenge in the segment), the sender answers (a token in its memory, transport.h), the
 * receiver reads it and says how that went. Each step is taken in a call that the end makes anyway.
 *
 * What a peer can do with its pen: end this lane with -EPROTO, or have the receiver see other bytes of the peer's own. What the
 * sender reads or copies by is kept outside of the segment.
 *
 * Locks: the sender's functions are called under the lock of the direction, but for source_keep() and source_taken(), which
 * any thread may call, also in a fault's handler. The receiver's are called under the lock of its direction.
 */
#ifndef ZC_RDMA_SOURCE_H
#define ZC_RDMA_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/stats.h"
#include "rdma/lane.h"
#include "rdma/transport.h"

#define SOURCE_SLOTS 16u
#define SOURCE_BYTES_MAX (256u << 20)
#define SOURCE_AREA_BYTES (4u << 20) /* of a lane in a channel: so much is announced at a time */

enum source_state {
	SOURCE_FREE,
	SOURCE_ANNOUNCED,
	SOURCE_KEPT,
	SOURCE_WITHDRAWN,
	SOURCE_REFUSED,
	SOURCE_LOST,
	SOURCE_PROMISED,
	SOURCE_PROMISED_KEPT
};

/* The word of a slot: number of the source (its low half) | bytes taken | state. */
#define SOURCE_WORD(number, taken, state) ((uint64_t)(uint32_t)(number) << 32 | (uint64_t)(taken) << 3 | (state))
#define SOURCE_NUMBER(word) ((uint32_t)((word) >> 32))
#define SOURCE_TAKEN(word) ((uint32_t)(word) >> 3)
#define SOURCE_STATE(word) ((uint32_t)(word)&7)

struct source_slot {
	_Alignas(LANE_LINE) _Atomic uint64_t word;
	/* by the sender, before the word is ANNOUNCED */
	uint64_t address;
	uint64_t home;
	uint32_t bytes;
	uint32_t kept; /* before the word is LOST */
	struct transport_place place;
};

/* The share of a lane's sources in the segment. Zeroes: the receiver does not fetch. */
struct source_shared {
	/* receiver */
	_Alignas(LANE_LINE) _Atomic uint32_t asked; /* the challenge is there; counts */
	_Atomic uint32_t verdict;		    /* which answer was looked at << 8 | VERDICT_PROVED or errno */
	_Atomic uint32_t passed;		    /* sources that the head has passed */
	uint8_t challenge[TRANSPORT_CHALLENGE_BYTES];
	/* sender */
	_Alignas(LANE_LINE) _Atomic uint32_t answered; /* the place is there; counts */
	struct transport_place place;
	struct source_slot slot[SOURCE_SLOTS];
};

/* What the sender knows of a source that it has announced. */
struct source_entry {
	_Atomic uint64_t number;  /* 0: none */
	_Atomic uint32_t users;	  /* threads in source_keep() */
	_Atomic uint32_t keeping; /* one of them copies */
	const uint8_t *address;
	uint64_t home;
	uint64_t record; /* where in the ring */
	uint32_t bytes;
	struct transport_place place; /* whose memory it is */
};

/* What every SrcAvail of a sender tells of its memory (avail.h). */
struct source_remote {
	uint64_t slots, area;
	uint32_t slots_key, area_key;
};

/* The sender's side; in memory that its forks share and the peer does not see. */
struct source_out {
	const struct transport_ops *transport;
	bool is_remote; /* the receiver is on another host, and does not see the slots change */
	struct source_remote remote;
	uint8_t identity[TRANSPORT_IDENTITY_BYTES];
	struct transport_token token;
	struct transport_place place; /* of the token: of the process that has answered last */
	uint32_t answer;	      /* how often was answered */
	uint64_t first, next;	      /* numbers: those in [first, next) are outstanding */
	uint64_t home;
	_Atomic bool has_kept; /* since the last trim */
	struct source_entry entry[SOURCE_SLOTS];
};

/* A GET from another host. */
struct avail_get {
	uint64_t address;
	uint32_t key;
	bool own;    /* into memory that is the library's, and stays */
	bool behind; /* it is not read before all before it has come */
	size_t bytes;
	const struct iovec *iov;
	int count;
	size_t skip;
};

/* How a receiver fetches from another host; see avail.h. */
struct avail_ops {
	/*
	 * All of these, several at a time, and waits for the last, for a bounded time. Returns 0; -ENOTCONN: the queue pair has broken;
	 * or another -errno: memory of the receiver's can't be read into. Nothing is under way any more then.
	 */
	int (*get)(void *context, const struct avail_get *gets, int count);
	/*
	 * The same ahead, into `area`, the library's own: how many GETs may begin now, 0 for none; to begin them, without a wait (returns 0, or
	 * -errno: then some of them may be under way all the same); and how those stand: returns 1 (under way), 0 (all have ended well) or
	 * -errno (none is under way, and they have not). `waits`: until they have ended, for a bounded time.
	 */
	int (*room)(void *context, const struct iovec *area);
	int (*begin)(void *context, const struct avail_get *gets, int count);
	int (*begun)(void *context, bool waits);
	/* The queue pair is of no use. */
	void (*give_up)(void *context);
	/*
	 * Whether so many bytes come cheaper by `area`, from where they are copied, than straight to the program's memory, which has to be registered
	 * for each receive. `copy_ns`: what such copies have cost; 0: none was made.
	 */
	bool (*by_area)(void *context, const struct iovec *area, size_t bytes, uint64_t copy_ns);
};

/* The receiver's side; in memory of the same kind. */
struct source_in {
	const struct transport_ops *transport;
	const struct avail_ops *avail; /* NULL: the sender is on this host */
	void *avail_context;
	_Atomic bool gone; /* the queue pair has broken: nothing more is fetched */
	struct {
		uint32_t number, state;
		bool ahead;    /* it was fetched before it was asked for */
	} known[SOURCE_SLOTS]; /* of avail.c */
	struct transport_token token;
	struct transport_reach reach;
	bool asked;
	uint32_t seen;	  /* the last answer that was looked at */
	int result;	  /* 1: proved; -errno: why not */
	uint64_t fetched; /* bytes, by GET or from where the sender has kept them */
	uint64_t later;	  /* of them, those that were promised first; between hosts, those that were fetched ahead */
	size_t later_min; /* of the receive under way: as many bytes in whole pages may be promised; 0: none */
	/* Between hosts: sources are fetched before they are asked for, and those that are being fetched. */
	bool ahead;
	/* Memory of a receive that waits, which the peer may fill: then the record names the number. 0: none. */
	struct {
		uint32_t number;
		const void *address;
		bool filled;
	} sink;
	uint64_t sunk;	 /* of the bytes fetched, those that came so */
	uint64_t copied; /* of the bytes fetched, those that were copied from the lane's area */
	struct {
		uint32_t first, count; /* numbers */
		bool begun;	       /* all that they take */
	} coming;
	_Atomic bool lost; /* something that was promised can't be had: the connection is reset */
};

/* Opens the sides of a lane. `identity` is the connection's, by meet_identity(). */
void source_out_open(struct source_out *out, const struct transport_ops *transport, const uint8_t *identity);
void source_in_open(struct source_in *in, const struct transport_ops *transport, const uint8_t *identity, pid_t hint);

/* The same where the peer is on another host: `place` is this process. */
void source_out_open_remote(struct source_out *out, const struct transport_ops *transport,
			    struct transport_place place);
void source_in_open_remote(struct source_in *in, const struct avail_ops *avail, void *context);

/*
 * The sources of a lane that begins anew, with other memory, for another queue pair: none is outstanding, and no number that this end's books
 * may know comes again. Returns whether no thread is at an old one: before that it may not.
 */
bool source_out_rests(const struct source_out *out);
void source_out_again(struct source_out *out);
void source_in_again(struct source_in *in);

/* Gives the token back, at the end of the connection in this process. */
void source_out_close(struct source_out *out);

/* Sender ------------------------------------------------------------------------------------------------------------ */

/*
 * A step of the handshake, if one is due; also keeps what the receiver has refused. Returns 0 if sources may be announced by
 * this process, -EAGAIN (not yet), or why the receiver does not fetch: -EPERM, -EACCES, -ENOSYS and others of prove().
 * *rescued, if not NULL, says that the receiver may be asleep for bytes that have come now: it is to be rung (lane_must_ring).
 */
int source_step_out(struct lane *lane, bool *rescued);

/* Returns the reason to count for what source_step_out or source_announce has said. */
enum stat_reason source_reason(int error);

/* Returns how many bytes source_announce would take at present, 0 if it has no slot, no area or no room in the ring. */
size_t source_room(struct lane *lane);

/*
 * Announces bytes at the lane's end, which the caller keeps as they are until source_taken() says that it is over, or until
 * source_keep() or source_withdraw(). On the ring only, after source_step_out() has said 0. Returns 0 with the source's
 * number, or -ENOBUFS (no room: as source_room).
 */
int source_announce(struct lane *lane, const void *address, size_t bytes, uint64_t *number);

/*
 * The same to a receiver on another host, which reads by this key; out->remote has the others. `sink`: the number of one of the receiver's that
 * these bytes are being written to, or 0.
 */
int source_announce_remote(struct lane *lane, const void *address, size_t bytes, uint32_t key, uint32_t sink,
			   uint64_t *number);

/*
 * Returns how many bytes of the source the receiver has taken; SIZE_MAX when the source is over: all taken, kept or withdrawn,
 * so that its memory is the program's. One load.
 */
size_t source_taken(struct lane *lane, uint64_t number);

/*
 * Copies what was not taken to the segment. Then the memory is the program's. Returns 0, -EPERM (it is another process's
 * memory), -ENXIO (there is no memory any more: the receiver will find a reset), or -EPROTO (nonsense in the slot: nobody will
 * fetch it; the connection is to be ended).
 */
int source_keep(struct lane *lane, uint64_t number);

/* As source_keep() for all that this process has announced: before close, exit, exec, a change of user or of dumpability. */
int source_keep_all(struct lane *lane);

/*
 * Takes back what was not taken of the last source, if nothing but withdrawn sources is behind it. Returns 0 with the bytes
 * that are taken: the rest is the caller's to send (SIZE_MAX: the source is over, there is no rest); or -EBUSY (there is
 * something behind it).
 */
int source_withdraw(struct lane *lane, uint64_t number, size_t *taken);

/* Whether the receiver has passed the source: nobody reads its memory, or what was kept of it, any more. Under the lock. */
bool source_is_passed(const struct lane *lane, uint64_t number);

/* Returns how many sources are outstanding: not yet passed by the receiver. */
unsigned int source_outstanding(struct lane *lane);

/* Gives the memory of kept bytes back to the system, if none are outstanding. Returns whether there was any. */
bool source_trim(struct lane *lane);

/* Receiver ---------------------------------------------------------------------------------------------------------- */

/* A step of the handshake, if one is due. Returns 1 once it is proved that this end can fetch, 0 (not yet) or -errno: why not. */
int source_step_in(struct lane *lane);

/* Says that this process does not fetch any more; announced bytes will be kept by the sender. */
void source_refuse(struct lane *lane, int error);

/*
 * Takes bytes of the source `number` (its low half) into iov from byte `skip` on; *got counts them. Returns LANE_DATA when the
 * source has no more, LANE_EMPTY when iov is full (or *got is less, for now), -EPROTO, -ECONNRESET (the sender is gone, or
 * its memory), or -EFAULT (iov is not there). For lane_get().
 */
int source_take(struct lane *lane, uint32_t number, const struct iovec *iov, int count, size_t skip, bool peek,
		size_t *got);

/*
 * Promises what is left of the source instead (later.h), if in->later_min and iov allow it. Returns whether it did: then *got counts
 * the bytes, and the head may pass.
 */
bool source_take_later(struct lane *lane, uint32_t number, const struct iovec *iov, int count, size_t skip,
		       size_t *got);

/* Returns bytes of a source that are neither taken nor promised, 0 for nonsense. */
size_t source_left(const struct lane *lane, uint32_t number);

/* Whether the sender has to keep the source before there is anything to take. */
bool source_is_stuck(const struct lane *lane, uint32_t number);

#endif
