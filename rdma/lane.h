/* SPDX-License-Identifier: MIT */
/*
 * A lane: one direction of a connection, as a ring that both ends map, beside the TCP stream that it came from. A single
 * producer, a single consumer; 64-bit positions that never wrap in practice; a ring of a power of two, mapped twice in a row
 * so that no record is ever cut in two.
 *
 * A lane starts on TCP. TAKEOVER moves it to the ring, SWITCH back; both are records in the ring, and both ends count the
 * bytes of the stream, so that at every position it is clear where the next byte comes from. When the ring is full, the lane
 * goes back to TCP: the kernel's buffers, its EAGAIN, its EPOLLOUT and its blocking are then the program's as ever, and no
 * wait exists that TCP would not have had. tests/model/lane.pml is this protocol as a model; its rules:
 *  - TAKEOVER only when the consumer is an intercepted reader, has seen the last SWITCH, and is in no raw receive now. It tells
 *    the position of the stream from which the ring goes on: raw bytes that are still under way come first, and no raw receive
 *    reaches beyond;
 *  - the consumer takes raw bytes only after it has said so and has then found the ring empty (the same for TAKEOVER: each
 *    says what it is about to do, and then looks at the other);
 *  - the consumer arms, looks again, and sleeps; the producer publishes, and then asks whether it must ring;
 *  - while a lane is on the ring its TCP stream carries doorbells alone, one byte each; a SWITCH tells how many were sent;
 *  - a consumer that will hand the stream to somebody who knows nothing of rings leaves: it says so, and then where the ring
 *    ends. Up to there all is its own, and the next byte of the stream is raw. A producer that has put something looks whether
 *    the consumer leaves, says where the ring ends if that was not said, and takes back what is behind it. So neither waits
 *    for the other. From then on the lane is on TCP for good.
 *
 * Everything in shared memory may have been written by a hostile peer: indices are read once and checked, lengths are cut to
 * what the ring can hold, and the mapping is larger than any record; nonsense is -EPROTO and ends the connection.
 *
 * Names after the Sockets Direct Protocol (RFC-less; Infiniband Architecture 1.2, annex A4) and Balaji et al. 2006.
 */
#ifndef ZC_RDMA_LANE_H
#define ZC_RDMA_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define LANE_LINE 64
#define LANE_RING_MIN 4096u
#define LANE_RING_MAX (8u << 20)
#define LANE_CHUNK 65536u     /* published at one time, so that both ends copy at once */
#define LANE_BELLS_MAX 65536u /* due at one time, as far as a peer is believed */

/*
 * Between hosts: memory of a receive that waits (SinkAvail; rdma/avail.h), as its device writes it into the producer's. Such a line may be seen
 * in the middle of a write, so `check` goes over all before it.
 */
struct lane_sink {
	uint64_t address;
	uint64_t tail; /* ring position where the record has to begin that is for it */
	uint32_t key, bytes;
	uint32_t number, unused; /* another one each time; 0: none */
	uint64_t check;
	_Atomic uint64_t revoked; /* the number of one that was taken back; written by itself */
};

/*
 * The share of a lane in the segment; each line is written by one end only. Zeroes are a lane on TCP. The first two change with
 * every record, so the other end looks at them as seldom as it can (head_known, tail_known): each look costs a line that goes
 * from one core to the other and back. What is looked at in every call is in the other two, which hardly ever change.
 */
struct lane_shared {
	/* producer */
	_Alignas(LANE_LINE) _Atomic uint64_t tail; /* ring position behind the last record */
	/* consumer */
	_Alignas(LANE_LINE) _Atomic uint64_t head; /* ring position of the next record */
	_Atomic uint64_t received;		   /* stream position */
	_Atomic uint64_t bells_seen;
	_Atomic uint64_t bells_skip; /* of those, still to be taken from the stream before raw bytes */
	_Atomic uint16_t from_ring;  /* the next byte is in the ring */
	_Atomic uint16_t reader;     /* it has received by an intercepted call, and will go on so */
	_Atomic uint32_t raw;	     /* receives of raw bytes under way */
	_Atomic uint32_t taken;	     /* bytes of the record at `head` that are consumed */
	_Atomic uint16_t away;	     /* it has left, for itself */
	/* The rest of its line is of use between hosts alone, where `armed` is not seen by the other end (preload/far.h). */
	_Atomic uint16_t use; /* enum lane_use: of a ring, for what this end sends */
	_Atomic uint32_t
		waits; /* odd: it has armed, and what is in the ring behind `waits_at` is to be rung for, once */
	_Atomic uint32_t waits_at; /* ring position, modulo 2^32 */
	_Atomic uint64_t seen;	   /* ring position up to which it knows what comes; all that it does obeys that */
	/* Between hosts. Consumer: what it offers. Producer: the number of the one that it fills, which the consumer's device reads. */
	_Alignas(LANE_LINE) struct lane_sink sink;
	_Alignas(LANE_LINE) _Atomic uint64_t claimed;
	/* both: set by the consumer before it sleeps, cleared by the producer that rings */
	_Alignas(LANE_LINE) _Atomic uint32_t armed;
	_Atomic uint32_t leave; /* consumer: it leaves; the producer looks at this line anyway */
	/* both: ring position behind the last record that is for a consumer that leaves, and LANE_END_SET; 0: not said yet */
	_Atomic uint64_t end;
	_Atomic uint32_t gone; /* consumer: it has been a reader, and is none any more */
	/* producer */
	_Alignas(LANE_LINE) _Atomic uint64_t bells; /* doorbells that the TCP stream has taken */
	_Atomic uint32_t ringing;		    /* one more may be about to be put there, or to be counted */
	_Atomic uint32_t on_ring;
	_Atomic uint32_t intent; /* a TAKEOVER is about to be put */
	_Atomic uint32_t cpu;	 /* where it ran last, plus 1: a hint */
	_Atomic uint32_t shut;	 /* its program has ended the stream (SHUT_WR), and may go on to receive */
	/* producer: stream position; by itself, for it changes when the consumer may be at `tail` already */
	_Alignas(LANE_LINE) _Atomic uint64_t sent;
};

#define LANE_END_SET 1ull

enum lane_use { LANE_USE_UNKNOWN, LANE_USE_NONE, LANE_USE_RING };

/* One end's view. Ownership: the memory is the channel's; a lane holds pointers into it. */
struct lane {
	struct lane_shared *shared;
	uint8_t *ring;	/* mapped twice in a row */
	uint32_t bytes; /* of the ring once; power of two */
	/* The other end's position, when this one looked at it last: it is there at least, for both only grow. */
	uint64_t head_known; /* producer */
	uint64_t tail_known; /* consumer */
	/* Bytes that are not in the ring (source.h); NULL and 0: there are none. */
	uint32_t area_bytes; /* power of two */
	uint8_t *area;
	struct source_shared *sources;
	struct source_out *out; /* the caller's */
	struct source_in *in;	/* the caller's */
	/*
	 * What the producer's next move (TAKEOVER, SWITCH) tells, and what the last one told that the consumer has passed. For the
	 * owner: bytes in the TCP stream that mean something (preload/far.h).
	 */
	uint32_t codes, passed_codes;
};

enum lane_answer {
	LANE_DATA,  /* bytes were taken */
	LANE_EMPTY, /* on the ring, nothing there */
	LANE_RAW,   /* the next bytes are in the TCP stream, behind lane_bells_due() doorbells */
};

/* Producer -------------------------------------------------------------------------------------------------------- */

/* Whether lane_take_over() is worth a try: a guess. */
bool lane_may_take_over(const struct lane *lane);

/* Moves the lane to the ring if the rules allow it now. Returns whether it is on the ring. */
bool lane_take_over(struct lane *lane);

/* Moves the lane back to TCP. Returns false only if the peer has written nonsense. */
bool lane_switch(struct lane *lane);

/* Puts as many bytes as fit, from the ones after the first `skip`. On the ring only. Returns bytes put, or -EPROTO. */
ssize_t lane_put(struct lane *lane, const struct iovec *iov, int count, size_t skip);

/* The same for one piece, all of it or nothing. Returns whether it was put. */
bool lane_put_one(struct lane *lane, const struct iovec *iov);

/* Whether the consumer sleeps, or is about to; to be asked after a put. */
static inline bool lane_is_armed(const struct lane *lane)
{
	return atomic_load(&lane->shared->armed) != 0;
}

/*
 * The same for bytes that are not in memory yet: where so many go, at most; and so many are there now. Returns bytes, 0 if there
 * is no room, or -EPROTO. On the ring only.
 */
ssize_t lane_space(struct lane *lane, size_t most, void **at);
void lane_filled(struct lane *lane, size_t bytes);

/* Returns bytes that lane_put would take at present. */
ssize_t lane_room(const struct lane *lane);

/* Counts raw bytes that the kernel took. On TCP only. */
void lane_sent_raw(struct lane *lane, size_t bytes);

/* Puts the record of a source of so many bytes (for source.h). Returns whether there was room; *record: where it is. */
bool lane_put_source(struct lane *lane, uint32_t number, size_t bytes, uint64_t *record);

/* The same of one between hosts, which tells all itself (avail.h). */
struct avail;
bool lane_put_avail(struct lane *lane, const struct avail *avail, uint64_t *record);

/* Whether the ring ends where that record does, but for `more` records of sources behind it; and takes `bytes` back then. */
bool lane_is_last(const struct lane *lane, uint64_t record, uint64_t more);
void lane_unsend(struct lane *lane, size_t bytes);

/*
 * Returns whether the consumer must be woken: then one byte goes into the TCP stream, without waiting, and
 * lane_rang() tells whether the kernel took it (if its buffer is full, what is in there wakes as well).
 */
bool lane_must_ring(struct lane *lane);
void lane_rang(struct lane *lane, bool taken);

/*
 * Gives the memory of an empty ring back to the system: whoever writes there next gets zeroes first. Returns false if the consumer
 * has not taken all, or the system wants the memory to stay (mlockall).
 */
bool lane_trim(struct lane *lane);
/* The last move among the records from one ring position to another. */
struct lane_move {
	enum { LANE_NO_MOVE, LANE_TAKEOVER, LANE_SWITCH } kind;
	uint32_t bells; /* that a SWITCH tells */
	uint64_t end;	/* ring position behind it */
};

/* Looks for it. Nonsense counts as none: lane_get() finds it. */
struct lane_move lane_find_move(const struct lane *lane, uint64_t from, uint64_t to);

/* Returns bytes in the ring that the consumer has not taken, records' heads included; -EPROTO for nonsense. */
ssize_t lane_backlog(const struct lane *lane);

/* Whether the consumer leaves, or has left: to be asked after every put, before the bytes count as sent. */
static inline bool lane_leaves(const struct lane *lane)
{
	return atomic_load(&lane->shared->leave) != 0;
}

/*
 * The consumer leaves: moves the lane to TCP. Returns how many of the `put` bytes that were put since the last look it has,
 * or -EPROTO. If it has some, lane_must_ring() is still to be asked: others may sleep for them.
 */
ssize_t lane_left(struct lane *lane, size_t put);

/* Consumer -------------------------------------------------------------------------------------------------------- */

/* Says whether the consumer receives by intercepted calls, and will go on so. */
static inline void lane_reads(struct lane *lane, bool reads)
{
	struct lane_shared *shared = lane->shared;

	if (__builtin_expect(atomic_load_explicit(&shared->reader, memory_order_relaxed) == reads, 1))
		return;
	atomic_store(&shared->reader, reads);
	atomic_store(&shared->gone, !reads);
}

/*
 * Takes bytes, up to what iov holds; with `peek` they stay. *got counts them. Returns a lane_answer, -EPROTO, -ECONNRESET (what
 * comes next died with the sender) or -EFAULT (iov is not there, and a source is next).
 */
int lane_get(struct lane *lane, const struct iovec *iov, int count, bool peek, size_t *got);

/* Bytes of the stream that are in the ring, or announced there; nonsense counts as none. Of sources that can't be fetched any more, none. */
size_t lane_unread(const struct lane *lane);

/* The same, also if raw bytes come first. */
size_t lane_unread_all(const struct lane *lane);

/*
 * Whether there is nothing to take: a wait may go on. Also so with a source that its sender has to move first (source.h): then
 * lane_is_stuck(), and the end of the TCP stream is no end of file.
 */
bool lane_is_empty(const struct lane *lane);
bool lane_is_stuck(const struct lane *lane);

/* Says that the consumer is about to sleep or to tell its program that there is nothing. Returns false: look again. */
bool lane_arm(struct lane *lane);

/*
 * How many doorbells are in the TCP stream in front of everything else: at most, since the last one may not get there, and
 * for certain. Only the latter may be taken from a stream that has not been looked at before: it may go on with raw bytes.
 */
uint64_t lane_bells_due(const struct lane *lane);
uint64_t lane_bells_sure(const struct lane *lane);

/* `bytes` doorbells were taken from the TCP stream. */
void lane_saw_bells(struct lane *lane, uint64_t bells);

/*
 * Before a receive of raw bytes, which must not wait, and after it with what it has brought (0 for none). begin returns how many
 * it may take, SIZE_MAX for any number; 0, and then nothing has begun: there is something in the ring, or (lane_is_empty) there
 * may be in a moment, and a look at the stream that leaves everything there may wait for it.
 */
size_t lane_raw_begins(struct lane *lane);
void lane_raw_ends(struct lane *lane, size_t bytes);

/*
 * Leaves the ring for good. What is in it stays for lane_get, with its doorbells and the raw bytes before it; when the lane is
 * over, there is nothing but raw bytes any more, and nobody has to count them.
 */
void lane_leave(struct lane *lane);

/* How many of the bytes in the stream come before the ring's next: behind them are doorbells. SIZE_MAX: any number. */
size_t lane_raw_max(const struct lane *lane);

static inline bool lane_has_left(const struct lane *lane)
{
	return atomic_load_explicit(&lane->shared->away, memory_order_relaxed) != 0;
}

static inline bool lane_is_over(const struct lane *lane)
{
	const struct lane_shared *shared = lane->shared;

	return lane_has_left(lane) && !atomic_load_explicit(&shared->from_ring, memory_order_relaxed) &&
	       !atomic_load_explicit(&shared->bells_skip, memory_order_relaxed) &&
	       atomic_load_explicit(&shared->head, memory_order_relaxed) ==
		       (atomic_load_explicit(&shared->end, memory_order_relaxed) & ~LANE_END_SET);
}

#endif
