/* SPDX-License-Identifier: MIT */
/* Sources that are fetched before they are asked for (source_in.ahead): to the lane's area, without a wait. */
#define _GNU_SOURCE
#include "rdma/avail_internal.h"

#define AHEAD_GETS (3 * AVAIL_RUN)

bool avail_is_coming(const struct lane *lane, uint32_t number)
{
	return number - lane->in->coming.first < lane->in->coming.count;
}

/* What is known of a source whose bytes and word have come. Of any other word nothing: what it says is found when it is asked for again. */
static void learn_ahead(struct lane *lane, uint32_t number)
{
	uint64_t word = atomic_load(avail_word(lane, number));

	if (SOURCE_NUMBER(word) != number)
		return;
	if (SOURCE_STATE(word) == SOURCE_ANNOUNCED) {
		avail_note(lane, number, AVAIL_HERE);
		lane->in->known[number % SOURCE_SLOTS].ahead = true;
	} else if (SOURCE_STATE(word) == SOURCE_KEPT) {
		avail_note(lane, number, AVAIL_KEPT);
	}
}

/* Takes note of what has come. Returns whether it is under way yet. */
bool avail_come(struct lane *lane, bool waits)
{
	struct source_in *in = lane->in;
	int rc;

	if (!in->coming.count)
		return false;
	rc = in->avail->begun(in->avail_context, waits);
	if (rc > 0)
		return true;
	/* Behind a break it stays as it was told to the peer. */
	for (uint32_t i = 0; !rc && in->coming.begun && i < in->coming.count && !atomic_load(&in->gone); i++)
		learn_ahead(lane, in->coming.first + i);
	in->coming.count = 0;
	return false;
}

/* What is announced from the place on, as far as it makes no more GETs than that, and half of the area. Returns how many. */
static int gather_ahead(const struct lane *lane, const struct place *at, int room, struct avail avails[AVAIL_RUN])
{
	/* The place's own end is what was known when the receive began. */
	uint64_t head = at->head, tail = atomic_load(&lane->shared->tail);
	uint32_t number = at->passed;
	struct iovec parts[2];
	size_t bytes = 0;
	int count = 0;

	for (size_t left = tail - head; count < AVAIL_RUN && left >= sizeof(struct record) && left <= lane->bytes;
	     left = tail - head) {
		struct record record = record_read(lane, head);
		struct avail *next = &avails[count];

		if (record_length(record) > left - sizeof(record))
			break;
		if (record.kind == RECORD_AVAIL) {
			if (avail_read(lane, head, next) < 0 || next->number != ++number)
				break; /* nonsense is found when it is next */
			/* Behind those that are here, and behind one that is being received. */
			if (avail_state(lane, number) == AVAIL_ANNOUNCED && !(head == at->head && at->taken)) {
				room -= avail_home(lane, next, parts) + 1;
				bytes += next->bytes;
				if (room < 0 || (count && bytes > lane->area_bytes / 2))
					break;
				count++;
			} else if (count) {
				break;
			}
		}
		head += sizeof(record) + record_length(record);
	}
	return count;
}

/* Begins to fetch what comes next, without a wait. `at` is the place from which it is not received yet. */
void avail_fetch_ahead(struct lane *lane, const struct place *at)
{
	const struct iovec area = { lane->area, lane->area_bytes };
	struct source_in *in = lane->in;
	struct avail_get gets[AHEAD_GETS];
	struct iovec parts[AVAIL_RUN][2], words[AVAIL_RUN];
	struct piece pieces[AVAIL_RUN];
	struct avail avails[AVAIL_RUN];
	int count, planned = 0, room;

	if (avail_come(lane, false) || atomic_load(&in->gone) || away(lane))
		return;
	room = in->avail->room(in->avail_context, &area);
	count = gather_ahead(lane, at, room < AHEAD_GETS ? room : AHEAD_GETS, avails);
	if (!count)
		return;
	for (int i = 0; i < count; i++) {
		pieces[i] = (struct piece){ .avail = avails[i], .bytes = avails[i].bytes, .iov = parts[i] };
		pieces[i].count = avail_home(lane, &avails[i], parts[i]);
		gets[planned] = (struct avail_get){ .address = avails[i].address,
						    .key = avails[i].key,
						    .own = true,
						    .bytes = avails[i].bytes,
						    .iov = parts[i],
						    .count = pieces[i].count };
		planned++;
	}
	planned += avail_ask_words(lane, pieces, count, gets + planned, words);
	in->coming.first = avails[0].number;
	in->coming.count = (uint32_t)count;
	in->coming.begun = !in->avail->begin(in->avail_context, gets, planned);
}
