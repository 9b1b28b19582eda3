/* SPDX-License-Identifier: MIT */
/* What the receiver's side of avail.h is made of: avail.c fetches and takes, avail_ahead.c fetches before it is asked for. */
#ifndef ZC_RDMA_AVAIL_INTERNAL_H
#define ZC_RDMA_AVAIL_INTERNAL_H

#include "rdma/avail.h"
#include "rdma/lane_record.h"

#define AVAIL_RUN 8 /* sources that are fetched at one time */

/* What is known of a source (source_in.known). */
enum { AVAIL_ANNOUNCED, AVAIL_KEPT, AVAIL_HERE };

/* Bytes of a source, from `from` on, and where they go. */
struct piece {
	struct avail avail;
	const struct iovec *iov;
	size_t skip;
	uint32_t from, bytes;
	int count;
	bool done, asked; /* the sender's word: what was read counts by that */
};

/* What is known of a source, by its number; and notes it. */
uint32_t avail_state(const struct lane *lane, uint32_t number);
void avail_note(struct lane *lane, uint32_t number, uint32_t state);

/* What the record at that position says, in bounds. Returns 0 or -EPROTO. */
int avail_read(const struct lane *lane, uint64_t head, struct avail *out);

/* Where the word of a source comes to. */
_Atomic uint64_t *avail_word(const struct lane *lane, uint32_t number);

/* The GETs for the words of what is read with them, behind it. Returns how many. */
int avail_ask_words(struct lane *lane, struct piece *pieces, int count, struct avail_get *out, struct iovec *words);

/* Where a source lies in this end's area. Returns how many parts. */
int avail_home(const struct lane *lane, const struct avail *avail, struct iovec parts[2]);

/* Whether a source is being fetched ahead. */
bool avail_is_coming(const struct lane *lane, uint32_t number);

/* Takes note of what has come. Returns whether it is under way yet. */
bool avail_come(struct lane *lane, bool waits);

/* Begins to fetch what comes next, without a wait. `at` is the place from which it is not received yet. */
void avail_fetch_ahead(struct lane *lane, const struct place *at);

#endif
