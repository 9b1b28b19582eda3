/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/lane.h"

#include <errno.h>
#include <string.h>

#include "rdma/avail.h"
#include "rdma/lane_fetch.h"
#include "rdma/lane_record.h"
#include "rdma/source.h"
#include "rdma/spans.h"

#define RESERVE (2 * sizeof(struct record)) /* a SWITCH must always find room, and a TAKEOVER after it */
#define AHEAD_MAX                                                                                                      \
	(1u << 31) /* raw bytes that a TAKEOVER may leave to be received: its position is told by its low half */
#define RELAXED memory_order_relaxed

static ssize_t backlog(const struct lane *lane, uint64_t tail)
{
	return between(lane, atomic_load_explicit(&lane->shared->head, memory_order_acquire), tail);
}

/* Where the records end, for the consumer: what comes after it has left is not for it. */
static uint64_t end_of(const struct lane *lane)
{
	return away(lane) ? atomic_load(&lane->shared->end) & ~LANE_END_SET : atomic_load(&lane->shared->tail);
}

/* Whoever comes first says where the records end that are for a consumer that leaves. Returns what was said. */
static uint64_t decide_end(struct lane *lane, uint64_t tail)
{
	uint64_t end = 0;

	if (atomic_compare_exchange_strong(&lane->shared->end, &end, tail | LANE_END_SET))
		return tail;
	return end & ~LANE_END_SET;
}

ssize_t lane_backlog(const struct lane *lane)
{
	return backlog(lane, end_of(lane));
}

/* Bytes that may be published now, in front of which `reserve` stay free. */
static ssize_t room(const struct lane *lane, size_t reserve)
{
	return free_beside(lane, backlog(lane, atomic_load_explicit(&lane->shared->tail, RELAXED)), reserve);
}

/* The same for somebody who needs `wanted`: the consumer's line is left alone as long as what is known of it tells of so many. */
static ssize_t room_for(struct lane *lane, size_t wanted, size_t reserve)
{
	uint64_t tail = atomic_load_explicit(&lane->shared->tail, RELAXED);
	ssize_t known = free_beside(lane, between(lane, lane->head_known, tail), reserve);

	if (__builtin_expect(known >= 0 && (size_t)known >= wanted, 1))
		return known;
	lane->head_known = atomic_load_explicit(&lane->shared->head, memory_order_acquire);
	return free_beside(lane, between(lane, lane->head_known, tail), reserve);
}

ssize_t lane_room(const struct lane *lane)
{
	return room(lane, RESERVE + sizeof(struct record));
}

static void publish(struct lane *lane, uint64_t tail)
{
	/* Sequentially consistent with the load of `armed` behind it: see lane_must_ring. */
	atomic_store(&lane->shared->tail, tail);
}

/* Publishes a record without data. */
static void put_mark(struct lane *lane, enum record_kind kind, uint32_t value)
{
	uint64_t tail = atomic_load_explicit(&lane->shared->tail, RELAXED);

	*record_at(lane, tail) = (struct record){ .kind = kind, .bytes = value, .codes = lane->codes };
	publish(lane, tail + sizeof(struct record));
}

bool lane_may_take_over(const struct lane *lane)
{
	struct lane_shared *shared = lane->shared;
	uint64_t ahead =
		atomic_load_explicit(&shared->sent, RELAXED) - atomic_load_explicit(&shared->received, RELAXED);

	return atomic_load_explicit(&shared->reader, RELAXED) && !atomic_load_explicit(&shared->raw, RELAXED) &&
	       ahead < AHEAD_MAX && backlog(lane, atomic_load_explicit(&shared->tail, RELAXED)) == 0 &&
	       !lane_leaves(lane);
}

bool lane_take_over(struct lane *lane)
{
	struct lane_shared *shared = lane->shared;
	bool alone;

	if (atomic_load_explicit(&shared->on_ring, RELAXED))
		return true;
	if (!lane_may_take_over(lane))
		return false;
	/* In one total order with lane_raw_begins: one of the two sees the other. */
	atomic_store(&shared->intent, 1);
	alone = !atomic_load(&shared->raw);
	if (alone) {
		atomic_store_explicit(&shared->on_ring, 1, RELAXED);
		put_mark(lane, RECORD_TAKEOVER, (uint32_t)atomic_load_explicit(&shared->sent, RELAXED));
	}
	atomic_store(&shared->intent, 0);
	return alone;
}

bool lane_switch(struct lane *lane)
{
	struct lane_shared *shared = lane->shared;

	if (!atomic_load_explicit(&shared->on_ring, RELAXED))
		return true;
	if (room(lane, 0) < (ssize_t)sizeof(struct record))
		return false;
	atomic_store_explicit(&shared->on_ring, 0, RELAXED);
	/* The low half is enough: fewer than 2^32 doorbells are ever under way. */
	put_mark(lane, RECORD_SWITCH, (uint32_t)atomic_load_explicit(&shared->bells, RELAXED));
	return true;
}

ssize_t lane_space(struct lane *lane, size_t most, void **at)
{
	ssize_t free;

	most = most < LANE_CHUNK ? most : LANE_CHUNK;
	free = room_for(lane, padded(most), RESERVE + sizeof(struct record));
	if (free < 0)
		return free;
	free &= ~(ssize_t)(RECORD_ALIGN - 1);
	*at = record_at(lane, atomic_load_explicit(&lane->shared->tail, RELAXED)) + 1;
	return most < (size_t)free ? (ssize_t)most : free;
}

/* Publishes a record whose data are in place. */
static void publish_data(struct lane *lane, size_t bytes)
{
	uint64_t tail = atomic_load_explicit(&lane->shared->tail, RELAXED);

	record_at(lane, tail)->kind = RECORD_DATA;
	record_at(lane, tail)->bytes = (uint32_t)bytes;
	publish(lane, tail + sizeof(struct record) + padded(bytes));
}

void lane_filled(struct lane *lane, size_t bytes)
{
	publish_data(lane, bytes);
	lane_sent_raw(lane, bytes);
}

bool lane_put_one(struct lane *lane, const struct iovec *iov)
{
	size_t bytes = iov->iov_len;
	void *to = NULL;

	if (bytes - 1 >= LANE_CHUNK || lane_space(lane, bytes, &to) < (ssize_t)bytes)
		return false;
	lane_fetch_ahead(lane, (const uint8_t *)to + bytes, bytes + sizeof(struct record));
	lane_copy(to, iov->iov_base, bytes);
	lane_filled(lane, bytes);
	return true;
}

static ssize_t put_many(struct lane *lane, const struct iovec *iov, int count, size_t skip)
{
	struct gather from = { iov, count, 0 };
	size_t left = 0, put = 0;

	for (int i = 0; i < count; i++)
		left += iov[i].iov_len;
	left = left > skip ? left - skip : 0;
	while (skip && skip >= from.iov->iov_len)
		skip -= (from.iov++)->iov_len;
	from.offset = skip;
	while (left) {
		void *to;
		ssize_t part = lane_space(lane, left, &to);

		if (part < 0)
			return part;
		if (!part)
			break;
		gather_copy(&from, to, (size_t)part);
		publish_data(lane, (size_t)part);
		put += (size_t)part;
		left -= (size_t)part;
	}
	lane_sent_raw(lane, put);
	return (ssize_t)put;
}

ssize_t lane_put(struct lane *lane, const struct iovec *iov, int count, size_t skip)
{
	if (__builtin_expect(count == 1 && !skip && lane_put_one(lane, iov), 1))
		return (ssize_t)iov->iov_len;
	return put_many(lane, iov, count, skip);
}

void lane_sent_raw(struct lane *lane, size_t bytes)
{
	/* Behind the publishing of the bytes: see raw_certain. */
	atomic_store_explicit(&lane->shared->sent, atomic_load_explicit(&lane->shared->sent, RELAXED) + bytes,
			      memory_order_release);
}

bool lane_put_source(struct lane *lane, uint32_t number, size_t bytes, uint64_t *record)
{
	if (room(lane, RESERVE) < (ssize_t)sizeof(struct record))
		return false;
	*record = atomic_load_explicit(&lane->shared->tail, RELAXED);
	put_mark(lane, RECORD_SOURCE, number);
	lane_sent_raw(lane, bytes);
	return true;
}

bool lane_put_avail(struct lane *lane, const struct avail *avail, uint64_t *record)
{
	uint64_t tail = atomic_load_explicit(&lane->shared->tail, RELAXED);
	struct record *at = record_at(lane, tail);

	if (room(lane, RESERVE) < (ssize_t)(sizeof(*at) + padded(sizeof(*avail))))
		return false;
	*record = tail;
	*at = (struct record){ .kind = RECORD_AVAIL, .bytes = sizeof(*avail) };
	*(struct avail *)(at + 1) = *avail;
	publish(lane, tail + sizeof(*at) + padded(sizeof(*avail)));
	lane_sent_raw(lane, avail->bytes);
	return true;
}

bool lane_is_last(const struct lane *lane, uint64_t record, uint64_t more)
{
	return atomic_load_explicit(&lane->shared->tail, RELAXED) == record + (more + 1) * sizeof(struct record);
}

void lane_unsend(struct lane *lane, size_t bytes)
{
	atomic_store_explicit(&lane->shared->sent, atomic_load_explicit(&lane->shared->sent, RELAXED) - bytes, RELAXED);
}

bool lane_must_ring(struct lane *lane)
{
	/* publish() and this load are in one total order with lane_arm's store and load: one of the two sees the other. */
	if (!atomic_load(&lane->shared->armed))
		return false;
	/*
	 * Said first: a consumer that finds the byte must know of it, and one that leaves and finds the bell taken must know
	 * that a byte comes. Counted when it is there: only then it may be taken.
	 */
	atomic_store(&lane->shared->ringing, 1);
	if (atomic_exchange(&lane->shared->armed, 0))
		return true;
	atomic_store(&lane->shared->ringing, 0);
	return false;
}

void lane_rang(struct lane *lane, bool taken)
{
	if (taken)
		atomic_store(&lane->shared->bells, atomic_load_explicit(&lane->shared->bells, RELAXED) + 1);
	atomic_store(&lane->shared->ringing, 0);
}

/* Raw bytes that come before the TAKEOVER which is next in the ring; 0: none, or another record is. */
static uint32_t raw_before(const struct lane *lane)
{
	struct lane_shared *shared = lane->shared;
	uint64_t head = atomic_load_explicit(&shared->head, RELAXED);
	struct record record;

	if (atomic_load_explicit(&shared->from_ring, RELAXED) || end_of(lane) == head)
		return 0;
	record = record_read(lane, head);
	if (record.kind != RECORD_TAKEOVER)
		return 0;
	return record.bytes - (uint32_t)atomic_load_explicit(&shared->received, RELAXED);
}

static void moved_to_ring(struct lane *lane)
{
	struct lane_shared *shared = lane->shared;

	atomic_store_explicit(&shared->from_ring, 1, RELAXED);
	atomic_store_explicit(&shared->bells_skip, 0, RELAXED);
}

static void moved_to_tcp(struct lane *lane, uint32_t bells)
{
	struct lane_shared *shared = lane->shared;
	uint32_t due = bells - (uint32_t)atomic_load_explicit(&shared->bells_seen, RELAXED);

	/* Never, but from a hostile peer. */
	if ((int32_t)due < 0)
		due = 0;
	atomic_store_explicit(&shared->from_ring, 0, RELAXED);
	atomic_store_explicit(&shared->bells_skip, due, RELAXED);
}

static void leave_at(struct lane *lane, const struct place *at, size_t got)
{
	struct lane_shared *shared = lane->shared;

	atomic_store_explicit(&shared->taken, at->taken, RELAXED);
	if (lane->sources && atomic_load_explicit(&lane->sources->passed, RELAXED) != at->passed)
		atomic_store_explicit(&lane->sources->passed, at->passed, RELAXED);
	atomic_store_explicit(&shared->head, at->head, memory_order_release);
	/* Nothing follows from it but guesses of the producer, as long as the lane is on the ring: in no order with anything. */
	if (got)
		atomic_store_explicit(&shared->received, atomic_load_explicit(&shared->received, RELAXED) + got,
				      RELAXED);
}

/* A TAKEOVER or a SWITCH. Returns as take_record. */
static int take_mark(struct lane *lane, struct place *at, struct record record, bool peek, size_t got)
{
	if (peek && got)
		return LANE_EMPTY;
	if (record.kind == RECORD_TAKEOVER && raw_before(lane))
		return LANE_RAW;
	if (record.kind == RECORD_TAKEOVER && !atomic_load_explicit(&lane->shared->from_ring, RELAXED))
		moved_to_ring(lane);
	else if (record.kind == RECORD_SWITCH && atomic_load_explicit(&lane->shared->from_ring, RELAXED))
		moved_to_tcp(lane, record.bytes);
	else
		return -EPROTO;
	lane->passed_codes = record.codes;
	at->head += sizeof(record);
	leave_at(lane, at, 0);
	return record.kind == RECORD_SWITCH ? LANE_RAW : LANE_DATA;
}

/* One record at the place. Returns LANE_DATA to go on, LANE_EMPTY when iov is full, LANE_RAW behind a SWITCH, or -errno. */
static inline int take_record(struct lane *lane, struct place *at, const struct iovec *iov, int count, bool peek,
			      size_t *got)
{
	struct record record = record_read(lane, at->head);
	size_t part;

	if (__builtin_expect(record.kind == RECORD_SOURCE || record.kind == RECORD_AVAIL, 0))
		return lane_take_source(lane, at, record, iov, count, peek, got);
	if (__builtin_expect(record.kind != RECORD_DATA, 0))
		return take_mark(lane, at, record, peek, *got);
	if (!atomic_load_explicit(&lane->shared->from_ring, RELAXED) || record.bytes < at->taken ||
	    sizeof(record) + padded(record.bytes) > at->tail - at->head)
		return -EPROTO;
	part = scatter(iov, count, *got, (const uint8_t *)(record_at(lane, at->head) + 1) + at->taken,
		       record.bytes - at->taken);
	*got += part;
	at->taken += (uint32_t)part;
	if (at->taken < record.bytes)
		return LANE_EMPTY;
	at->taken = 0;
	at->head += sizeof(record) + padded(record.bytes);
	return LANE_DATA;
}

/* The end of the ring, of a consumer that has left, is a SWITCH: with the doorbells that are rung by now, for no other will be. */
static void ring_ends(struct lane *lane)
{
	struct lane_shared *shared = lane->shared;

	if (!atomic_load_explicit(&shared->from_ring, RELAXED))
		return;
	atomic_exchange(&shared->armed, 0);
	if (!atomic_load(&shared->ringing))
		moved_to_tcp(lane, (uint32_t)atomic_load(&shared->bells));
}

/*
 * Whether there is a record at the place. The producer's line is looked at only behind the last record that is known to be there,
 * so that in the time of a batch it is the producer's alone.
 */
static bool is_there(struct lane *lane, struct place *at)
{
	at->tail = lane->tail_known;
	if (__builtin_expect(at->tail - at->head - 1 < lane->bytes, 1))
		return true;
	at->tail = lane->tail_known = end_of(lane);
	return at->tail != at->head;
}

int lane_get(struct lane *lane, const struct iovec *iov, int count, bool peek, size_t *got)
{
	struct lane_shared *shared = lane->shared;
	struct place at = { .head = atomic_load_explicit(&shared->head, RELAXED),
			    .taken = atomic_load_explicit(&shared->taken, RELAXED),
			    .passed = lane->sources ? atomic_load_explicit(&lane->sources->passed, RELAXED) : 0 };
	size_t before = 0;
	int rc = LANE_DATA;

	*got = 0;
	if (lane->in && atomic_load_explicit(&lane->in->lost, RELAXED))
		return -ECONNRESET;
	while (rc == LANE_DATA && is_there(lane, &at)) {
		if (at.tail - at.head > lane->bytes || at.tail % RECORD_ALIGN || at.head % RECORD_ALIGN)
			return -EPROTO;
		rc = take_record(lane, &at, iov, count, peek, got);
		/* Room is given back as it comes, for the producer copies at the same time. */
		if (!peek && *got - before >= LANE_CHUNK) {
			leave_at(lane, &at, *got - before);
			before = *got;
		}
	}
	/* What came before an error is the program's; the error comes again. */
	if (rc < 0 && (!*got || rc == -EPROTO))
		return rc;
	if (!peek) {
		leave_at(lane, &at, *got - before);
		lane_fetch_next(lane, &at, *got);
	}
	if (*got)
		return LANE_DATA;
	if (at.head == at.tail && away(lane))
		ring_ends(lane);
	return atomic_load_explicit(&shared->from_ring, RELAXED) ? LANE_EMPTY : LANE_RAW;
}

size_t lane_unread(const struct lane *lane)
{
	return raw_before(lane) ? 0 : lane_unread_all(lane);
}

size_t lane_unread_all(const struct lane *lane)
{
	return lane_between(lane, atomic_load_explicit(&lane->shared->head, RELAXED), end_of(lane),
			    atomic_load_explicit(&lane->shared->taken, RELAXED));
}

bool lane_is_stuck(const struct lane *lane)
{
	uint64_t head = atomic_load_explicit(&lane->shared->head, RELAXED);
	struct record record;

	if (!lane->in || end_of(lane) == head)
		return false;
	record = record_read(lane, head);
	return (record.kind == RECORD_SOURCE && source_is_stuck(lane, record.bytes)) ||
	       (record.kind == RECORD_AVAIL && avail_is_missing(lane, head));
}

bool lane_is_empty(const struct lane *lane)
{
	return end_of(lane) == atomic_load_explicit(&lane->shared->head, RELAXED) || raw_before(lane) ||
	       lane_is_stuck(lane);
}

bool lane_arm(struct lane *lane)
{
	if (!away(lane)) /* else the stream itself wakes */
		atomic_store(&lane->shared->armed, 1);
	return lane_is_empty(lane);
}

static uint64_t bells_due(const struct lane *lane, uint64_t more)
{
	struct lane_shared *shared = lane->shared;
	int64_t due =
		(int64_t)(atomic_load(&shared->bells) + more - atomic_load_explicit(&shared->bells_seen, RELAXED));

	if (!atomic_load_explicit(&shared->from_ring, RELAXED))
		due = (int64_t)atomic_load_explicit(&shared->bells_skip, RELAXED);
	/* Fewer than none: one was taken before it was counted. */
	return due < 0 ? 0 : due < LANE_BELLS_MAX ? (uint64_t)due : LANE_BELLS_MAX;
}

uint64_t lane_bells_due(const struct lane *lane)
{
	/* Before `bells` is: one that is counted in between must not be missed. */
	uint32_t ringing = atomic_load(&lane->shared->ringing);

	return bells_due(lane, ringing ? 1 : 0);
}

uint64_t lane_bells_sure(const struct lane *lane)
{
	return bells_due(lane, 0);
}

void lane_saw_bells(struct lane *lane, uint64_t bells)
{
	struct lane_shared *shared = lane->shared;
	uint64_t skip = atomic_load_explicit(&shared->bells_skip, RELAXED);

	atomic_store_explicit(&shared->bells_seen, atomic_load_explicit(&shared->bells_seen, RELAXED) + bells, RELAXED);
	if (skip)
		atomic_store_explicit(&shared->bells_skip, skip > bells ? skip - bells : 0, RELAXED);
}

size_t lane_raw_max(const struct lane *lane)
{
	uint32_t before = raw_before(lane);

	return before ? before : SIZE_MAX;
}

/*
 * Raw bytes that may be taken now; 0: none for certain. A producer that is about to take over, and may have stopped or died at
 * it, has counted what it gave to TCP: so many are raw, and of those behind them nothing is known.
 */
static size_t raw_certain(const struct lane *lane)
{
	struct lane_shared *shared = lane->shared;
	/* Before the look at the ring: if that is empty then, no byte of a ring is among these. */
	uint64_t sent = atomic_load(&shared->sent);
	uint64_t received = atomic_load_explicit(&shared->received, RELAXED);
	bool intent = !away(lane) && atomic_load(&shared->intent);

	if (end_of(lane) != atomic_load_explicit(&shared->head, RELAXED))
		return raw_before(lane);
	if (!intent)
		return SIZE_MAX;
	return sent > received && sent - received < AHEAD_MAX ? sent - received : 0;
}

size_t lane_raw_begins(struct lane *lane)
{
	size_t most;

	atomic_fetch_add(&lane->shared->raw, 1);
	most = raw_certain(lane);
	if (!most)
		atomic_fetch_sub(&lane->shared->raw, 1);
	return most;
}

void lane_raw_ends(struct lane *lane, size_t bytes)
{
	struct lane_shared *shared = lane->shared;

	atomic_store(&shared->received, atomic_load_explicit(&shared->received, RELAXED) + bytes);
	atomic_fetch_sub(&shared->raw, 1);
}

void lane_leave(struct lane *lane)
{
	struct lane_shared *shared = lane->shared;

	if (away(lane))
		return;
	/*
	 * The bell stays until ring_ends(): others may sleep for what is put before the end.
	 * In one total order with publish() and lane_presence(): a producer that does not see this has published before the
	 * load of `tail`; one that does, decides with us.
	 */
	atomic_store(&shared->leave, 1);
	decide_end(lane, atomic_load(&shared->tail));
	atomic_store_explicit(&shared->away, 1, RELAXED);
}

ssize_t lane_left(struct lane *lane, size_t put)
{
	struct lane_shared *shared = lane->shared;
	uint64_t tail = atomic_load_explicit(&shared->tail, RELAXED);
	uint64_t end = decide_end(lane, tail);
	size_t late;

	if (!atomic_load_explicit(&shared->on_ring, RELAXED))
		return (ssize_t)put; /* by TCP, or with a SWITCH behind it that was put before the look */
	late = tail - end <= lane->bytes && end % RECORD_ALIGN == 0 ? lane_between(lane, end, tail, 0) : SIZE_MAX;
	if (late > put)
		return -EPROTO;
	atomic_store_explicit(&shared->on_ring, 0, RELAXED);
	lane_unsend(lane, late);
	return (ssize_t)(put - late);
}
