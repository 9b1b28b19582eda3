/* SPDX-License-Identifier: MIT */
/*
 * Sources (source.h) between hosts: there is no memory that both ends see, so the record in the ring, SrcAvail, tells all by itself,
 * and the receiver fetches by RDMA READ. The word of the source's slot is in the sender's memory, and only the sender changes it:
 * ANNOUNCED, then KEPT or LOST, as it takes its program's memory back.
 *
 * The receiver reads the bytes, and when it has them, the word (its READ is fenced, so that one wait is for both): while that is ANNOUNCED, the program has not written yet, and they are
 * right. Otherwise they are read again from the sender's area, where they stay until the record is passed. So a sender never waits
 * for a READ that is under way, and no key has to be withdrawn while one may be. The receiver's head, which passes the record, is
 * GET_COMPLETE; how much of a source it has taken is `taken`, as of a record with data.
 *
 * A receiver that can't read into its program's memory, only looks, or has to have everything at hand before a lane moves, brings
 * whole sources to its own area, to the same place there: that is free, for the sender's is.
 *
 * What comes next may be fetched ahead, to the same place (source_in.ahead): by GETs that nobody waits for, the words behind the bytes. They count
 * when both have come, and no record is passed before.
 *
 * A receive that waits may have offered its memory (SinkAvail): then the sender has written the bytes there, in front of the record, and the record says
 * so. It is a source all the same: to a receive that does not wait with that memory any more, it is one like others. The sender does not take its
 * program's memory back before that write is delivered, so there is no word to look at.
 *
 * All that a record says was written by the peer, and may change at any time: it is copied once and checked. What it says of the
 * peer's memory, the peer's device checks.
 */
#ifndef ZC_RDMA_AVAIL_H
#define ZC_RDMA_AVAIL_H

#include "rdma/source.h"

/* In the ring, behind the record's head. */
struct avail {
	uint64_t address; /* of the bytes; and their key */
	uint64_t word;	  /* address of the slot's word; and its key */
	uint64_t area;	  /* of the sender's area; and its key */
	uint64_t home;	  /* the bytes' place there */
	uint32_t bytes, number;
	uint32_t key, word_key, area_key;
	uint32_t sink; /* 0, or the number of the receiver's that has the bytes already */
};

/* Receiver: announced bytes that are not here, and of which the queue pair brings no more. */
bool avail_is_missing(const struct lane *lane, uint64_t head);

/* Receiver: bytes of the source at that position behind the first `taken`; 0 for nonsense. */
size_t avail_left(const struct lane *lane, uint64_t head, uint32_t taken);

/*
 * Receiver: brings everything that is announced to the lane's area. Returns 0; -ENOTCONN: the queue pair has broken; or another
 * -errno: then it is of no use.
 */
int avail_fetch_all(struct lane *lane);

/*
 * Receiver: the queue pair has broken, and the stream goes on elsewhere: the ring ends in front of the first source that is not
 * here. Then lane_leave().
 */
void avail_cut(struct lane *lane);

#endif
