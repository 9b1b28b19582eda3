/* SPDX-License-Identifier: MIT */
/* The receiver's side of avail.h, and how a sender reads its own sources again; announcing is source.c's. */
#define _GNU_SOURCE
#include "rdma/avail.h"

#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/cost.h"
#include "rdma/avail_internal.h"
#include "rdma/lane_record.h"
#include "rdma/source_internal.h"

#define DIRECT_MIN 16384u /* bytes of a receive that are worth a READ of their own */
#define LOOKS 3		  /* at a word that the sender changes once */
#define AVAIL_RECORD (sizeof(struct record) + padded(sizeof(struct avail)))

uint32_t avail_state(const struct lane *lane, uint32_t number)
{
	const struct source_in *in = lane->in;

	return in->known[number % SOURCE_SLOTS].number == number ? in->known[number % SOURCE_SLOTS].state :
								   AVAIL_ANNOUNCED;
}

void avail_note(struct lane *lane, uint32_t number, uint32_t state)
{
	lane->in->known[number % SOURCE_SLOTS].number = number;
	lane->in->known[number % SOURCE_SLOTS].state = state;
	lane->in->known[number % SOURCE_SLOTS].ahead = false;
}

/* What the record at that position says, in bounds. Returns 0 or -EPROTO. */
int avail_read(const struct lane *lane, uint64_t head, struct avail *out)
{
	struct record record = record_read(lane, head);

	*out = *(volatile struct avail *)(record_at(lane, head) + 1);
	return record.kind == RECORD_AVAIL && record.bytes == sizeof(*out) && out->bytes &&
			       out->bytes <= lane->area_bytes && out->address + out->bytes > out->address ?
		       0 :
		       -EPROTO;
}

size_t avail_left(const struct lane *lane, uint64_t head, uint32_t taken)
{
	struct avail avail;

	return !avail_read(lane, head, &avail) && avail.bytes > taken ? avail.bytes - taken : 0;
}

bool avail_is_missing(const struct lane *lane, uint64_t head)
{
	struct avail avail;

	return lane->in && atomic_load(&lane->in->gone) &&
	       (avail_read(lane, head, &avail) < 0 || avail_state(lane, avail.number) != AVAIL_HERE);
}

static size_t space_of(const struct iovec *iov, int count, size_t skip)
{
	size_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += iov[i].iov_len;
	return bytes > skip ? bytes - skip : 0;
}

/* Fetching ---------------------------------------------------------------------------------------------------------- */

/* The GETs for a piece; what was kept may lie around the end of the area. Returns how many. */
static int plan(const struct lane *lane, const struct piece *piece, struct avail_get *out)
{
	const struct avail *avail = &piece->avail;
	uint64_t at = (avail->home + piece->from) & (lane->area_bytes - 1);
	size_t first = lane->area_bytes - at < piece->bytes ? lane->area_bytes - at : piece->bytes;

	out[0] = (struct avail_get){ .address = avail->address + piece->from,
				     .key = avail->key,
				     .bytes = piece->bytes,
				     .iov = piece->iov,
				     .count = piece->count,
				     .skip = piece->skip };
	if (avail_state(lane, avail->number) != AVAIL_KEPT)
		return 1;
	out[0].address = avail->area + at;
	out[0].key = avail->area_key;
	out[0].bytes = first;
	out[1] = out[0];
	out[1].address = avail->area;
	out[1].bytes = piece->bytes - first;
	out[1].skip += first;
	return out[1].bytes ? 2 : 1;
}

/* Where the word of a source comes to. */
_Atomic uint64_t *avail_word(const struct lane *lane, uint32_t number)
{
	return &lane->sources->slot[number % SOURCE_SLOTS].word;
}

/* What the sender's word says of bytes that were read before it was. Returns 0 or -errno. */
static int learn(struct lane *lane, struct piece *piece)
{
	uint64_t word = atomic_load(avail_word(lane, piece->avail.number));
	uint32_t state = SOURCE_STATE(word);

	if (SOURCE_NUMBER(word) != piece->avail.number)
		return -EPROTO;
	piece->done = state == SOURCE_ANNOUNCED;
	if (state == SOURCE_KEPT)
		avail_note(lane, piece->avail.number, AVAIL_KEPT);
	return state == SOURCE_ANNOUNCED || state == SOURCE_KEPT ? 0 : state == SOURCE_LOST ? -ECONNRESET : -EPROTO;
}

/* Whether the word lies in the slot behind that one's, at both ends: then one GET is for both, and for what is in between. */
static bool is_next_slot(const struct avail *avail, const struct avail *before)
{
	return avail->number == before->number + 1 && avail->number % SOURCE_SLOTS &&
	       avail->word == before->word + sizeof(struct source_slot) && avail->word_key == before->word_key;
}

/* The GETs for the words of what is read with them, behind it. Returns how many. */
int avail_ask_words(struct lane *lane, struct piece *pieces, int count, struct avail_get *out, struct iovec *words)
{
	const struct avail *before = NULL;
	int asked = 0;

	for (int i = 0; i < count; i++) {
		const struct avail *avail = &pieces[i].avail;

		pieces[i].asked = !pieces[i].done && avail_state(lane, avail->number) != AVAIL_KEPT;
		pieces[i].done |= !pieces[i].asked; /* what was kept: once this has been read */
		if (!pieces[i].asked)
			continue;
		if (before && is_next_slot(avail, before)) {
			words[asked - 1].iov_len += sizeof(struct source_slot);
			out[asked - 1].bytes = words[asked - 1].iov_len;
			before = avail;
			continue;
		}
		before = avail;
		/* Into memory that a device knows already; between hosts nothing else is there. */
		words[asked].iov_base = avail_word(lane, avail->number);
		words[asked].iov_len = sizeof(uint64_t);
		out[asked] = (struct avail_get){ .address = avail->word,
						 .key = avail->word_key,
						 .own = true,
						 .behind = !asked, /* the others come behind this one */
						 .bytes = sizeof(uint64_t),
						 .iov = &words[asked],
						 .count = 1 };
		asked++;
	}
	return asked;
}

/* Brings the pieces from wherever they are. Returns 0 or -errno. */
static int bring(struct lane *lane, struct piece *pieces, int count)
{
	struct source_in *in = lane->in;

	for (int looks = 0; looks < LOOKS; looks++) {
		struct avail_get gets[3 * AVAIL_RUN];
		struct iovec words[AVAIL_RUN];
		int planned = 0, rc;

		for (int i = 0; i < count; i++)
			planned += pieces[i].done ? 0 : plan(lane, &pieces[i], gets + planned);
		if (!planned)
			return 0;
		planned += avail_ask_words(lane, pieces, count, gets + planned, words);
		rc = in->avail->get(in->avail_context, gets, planned);
		for (int i = 0; i < count && !rc; i++)
			rc = pieces[i].asked ? learn(lane, &pieces[i]) : 0;
		if (rc)
			return rc;
	}
	for (int i = 0; i < count; i++) {
		if (!pieces[i].done)
			return -EPROTO;
	}
	return 0;
}

/* Where a source lies in this end's area. Returns how many parts. */
int avail_home(const struct lane *lane, const struct avail *avail, struct iovec parts[2])
{
	uint64_t at = avail->home & (lane->area_bytes - 1);
	size_t first = lane->area_bytes - at < avail->bytes ? lane->area_bytes - at : avail->bytes;

	parts[0] = (struct iovec){ lane->area + at, first };
	parts[1] = (struct iovec){ lane->area, avail->bytes - first };
	return parts[1].iov_len ? 2 : 1;
}

/* Brings whole sources to this end's area. Returns 0 or -errno. */
static int bring_home(struct lane *lane, const struct avail *avails, int count)
{
	struct piece pieces[AVAIL_RUN];
	struct iovec parts[AVAIL_RUN][2];
	int rc;

	for (int i = 0; i < count; i++) {
		pieces[i] = (struct piece){ .avail = avails[i], .bytes = avails[i].bytes, .iov = parts[i] };
		pieces[i].count = avail_home(lane, &avails[i], parts[i]);
	}
	rc = bring(lane, pieces, count);
	for (int i = 0; i < count && !rc; i++)
		avail_note(lane, avails[i].number, AVAIL_HERE);
	return rc;
}

int avail_fetch_all(struct lane *lane)
{
	uint64_t head = atomic_load(&lane->shared->head), tail = atomic_load(&lane->shared->tail);
	uint32_t passed = atomic_load(&lane->sources->passed);
	struct avail avails[AVAIL_RUN];
	int count = 0, rc = 0;
	size_t bytes = 0;

	avail_come(lane, true);
	for (size_t left = tail - head; !rc && left >= sizeof(struct record) && left <= lane->bytes;
	     left = tail - head) {
		struct record record = record_read(lane, head);

		if (record_length(record) > left - sizeof(record))
			return -EPROTO;
		if (record.kind == RECORD_AVAIL) {
			rc = avail_read(lane, head, &avails[count]);
			bytes += avails[count].bytes;
			/* No more than a sender has room for: then each has its own place here, too. */
			if (rc || avails[count].number != ++passed || bytes > lane->area_bytes)
				return -EPROTO;
			count += avail_state(lane, passed) != AVAIL_HERE;
		}
		head += sizeof(record) + record_length(record);
		if (count == AVAIL_RUN) {
			rc = bring_home(lane, avails, count);
			count = 0;
		}
	}
	return rc || !count ? rc : bring_home(lane, avails, count);
}

/* Taking ------------------------------------------------------------------------------------------------------------ */

static void pass(struct lane *lane, struct place *at, const struct avail *avail, size_t bytes)
{
	at->taken += (uint32_t)bytes;
	if (at->taken < avail->bytes)
		return;
	at->taken = 0;
	at->head += AVAIL_RECORD;
	if (lane->in)
		at->passed = avail->number;
}

/* What copies from an area have cost in this process. */
static struct cost copying;

static void copy_out(const struct lane *lane, uint64_t home, const struct transport_get *to)
{
	uint64_t began = to->bytes < DIRECT_MIN ? 0 : clock_now();

	source_copy_kept(lane, home, to->bytes, to);
	if (began)
		cost_add(&copying, to->bytes, clock_now() - began);
}

/* From this end's area. Returns as lane_take_source(). */
static int take_here(struct lane *lane, struct place *at, const struct avail *avail, const struct iovec *iov, int count,
		     size_t *got)
{
	size_t left = avail->bytes - at->taken, room = space_of(iov, count, *got);
	const struct transport_get to = { 0, left < room ? left : room, iov, count, *got };

	copy_out(lane, avail->home + at->taken, &to);
	*got += to.bytes;
	pass(lane, at, avail, to.bytes);
	return to.bytes == left ? LANE_DATA : LANE_EMPTY;
}

/* What the record there announces, if it is the next source, and nothing of it is here or under way. Nonsense is found when it is next. */
static bool follows(const struct lane *lane, const struct place *at, uint64_t head, uint32_t before, struct avail *out)
{
	return at->tail - head >= AVAIL_RECORD && !avail_read(lane, head, out) && out->number == before + 1 &&
	       avail_state(lane, out->number) != AVAIL_HERE && !avail_is_coming(lane, out->number);
}

/* The sources in a row from the place on that have room in iov. Returns how many. */
static int gather_run(const struct lane *lane, const struct place *at, const struct avail *first,
		      const struct iovec *iov, int count, size_t skip, struct piece *run)
{
	size_t room = space_of(iov, count, skip);
	uint64_t head = at->head + AVAIL_RECORD;
	int found = 1;

	run[0] = (struct piece){ .avail = *first,
				 .from = at->taken,
				 .bytes = first->bytes - at->taken,
				 .iov = iov,
				 .count = count,
				 .skip = skip };
	for (;;) {
		struct piece *last = &run[found - 1], *next = &run[found];

		if (last->bytes > room)
			last->bytes = (uint32_t)room;
		skip += last->bytes;
		room -= last->bytes;
		if (found == AVAIL_RUN || !room)
			return found;
		*next = (struct piece){ .iov = iov, .count = count, .skip = skip };
		if (!follows(lane, at, head, last->avail.number, &next->avail))
			return found;
		next->bytes = next->avail.bytes;
		head += AVAIL_RECORD;
		found++;
	}
}

/* Straight into iov. Returns 0 or -errno. */
static int take_directly(struct lane *lane, struct place *at, const struct avail *first, const struct iovec *iov,
			 int count, size_t *got)
{
	struct piece run[AVAIL_RUN];
	int found = gather_run(lane, at, first, iov, count, *got, run), rc;

	for (int i = 0; i < count; i++)
		source_settle_local(iov[i].iov_base, iov[i].iov_len);
	rc = bring(lane, run, found);
	if (rc == -ECONNRESET && found > 1) { /* one of them is lost: those before it are not */
		found = 1;
		run[0].done = false;
		rc = bring(lane, run, 1);
	}
	for (int i = 0; i < found && !rc; i++) {
		*got += run[i].bytes;
		pass(lane, at, &run[i].avail, run[i].bytes);
	}
	return rc;
}

/* Whether a receive with so much room comes cheaper to the bytes of a source by this end's area. */
static bool is_cheaper_by_area(const struct lane *lane, size_t left, size_t room)
{
	const struct iovec area = { lane->area, lane->area_bytes };
	size_t bytes = left < room ? left : room;

	return lane->in->avail->by_area(lane->in->avail_context, &area, bytes, cost_of(&copying, bytes));
}

/* Brings the sources in a row that such a receive begins with to this end's area. Returns 0 or -errno. */
static int bring_row_home(struct lane *lane, const struct place *at, const struct avail *first, size_t room)
{
	uint64_t head = at->head + AVAIL_RECORD;
	size_t reach = first->bytes - at->taken, bytes = first->bytes;
	struct avail avails[AVAIL_RUN] = { *first };
	int count = 1, rc;

	while (count < AVAIL_RUN && reach < room && follows(lane, at, head, avails[count - 1].number, &avails[count])) {
		reach += avails[count].bytes;
		bytes += avails[count].bytes;
		if (bytes > lane->area_bytes) /* no sender has that much announced */
			break;
		head += AVAIL_RECORD;
		count++;
	}
	rc = bring_home(lane, avails, count);
	/* One of them is lost: those before it are not. */
	return rc == -ECONNRESET && count > 1 ? bring_home(lane, avails, 1) : rc;
}

/* Whether the sender has written the bytes to where they are to go: the receive that waits there has offered it. */
static bool is_sunk(const struct lane *lane, const struct place *at, const struct avail *avail, const struct iovec *iov,
		    int count, size_t got)
{
	const struct source_in *in = lane->in;

	return in->sink.number && avail->sink == in->sink.number && !at->taken && !got && count &&
	       iov->iov_base == in->sink.address && iov->iov_len >= avail->bytes;
}

/* A sender reads its own again, which are all kept by now. Returns as lane_take_source(). */
static int take_own(struct lane *lane, struct place *at, const struct avail *avail, const struct iovec *iov, int count,
		    size_t *got)
{
	uint64_t word = lane->sources ? atomic_load(&lane->sources->slot[avail->number % SOURCE_SLOTS].word) : 0;

	if (SOURCE_NUMBER(word) != avail->number || SOURCE_STATE(word) != SOURCE_KEPT)
		return -ENXIO;
	return take_here(lane, at, avail, iov, count, got);
}

static int take_avail(struct lane *lane, struct place *at, const struct iovec *iov, int count, bool peek, size_t *got)
{
	size_t room = space_of(iov, count, *got), before = *got;
	struct avail avail;
	bool was_ahead;
	int rc = -EAGAIN;

	if (at->tail - at->head < AVAIL_RECORD || avail_read(lane, at->head, &avail) < 0 || at->taken >= avail.bytes)
		return -EPROTO;
	if (!lane->in)
		return take_own(lane, at, &avail, iov, count, got);
	if (!lane->in->avail || avail.number != at->passed + 1)
		return -EPROTO;
	/* No record is passed while a READ is under way that it has told of. */
	if (room && avail_is_coming(lane, avail.number))
		avail_come(lane, true);
	if (!room || avail_is_missing(lane, at->head))
		return LANE_EMPTY;
	if (!peek && is_sunk(lane, at, &avail, iov, count, *got)) {
		*got = avail.bytes;
		lane->in->fetched += avail.bytes;
		lane->in->sunk += avail.bytes;
		lane->in->sink.filled = true;
		pass(lane, at, &avail, avail.bytes);
		return LANE_DATA;
	}
	if (avail_state(lane, avail.number) != AVAIL_HERE && !peek &&
	    (room >= DIRECT_MIN || room >= avail.bytes - at->taken)) {
		if (is_cheaper_by_area(lane, avail.bytes - at->taken, room)) {
			rc = bring_row_home(lane, at, &avail, room);
		} else {
			rc = take_directly(lane, at, &avail, iov, count, got);
			lane->in->fetched += *got - before;
			if (!rc && lane->in->ahead)
				avail_fetch_ahead(lane, at);
			if (!rc)
				return at->taken ? LANE_EMPTY : LANE_DATA;
		}
	}
	if (rc != -ENOTCONN && rc != -EPROTO && rc != -ECONNRESET)
		rc = avail_state(lane, avail.number) == AVAIL_HERE ? 0 : bring_home(lane, &avail, 1);
	if (!rc) {
		if (lane->in->ahead && !peek) /* while this is copied */
			avail_fetch_ahead(lane, at);
		was_ahead = lane->in->known[avail.number % SOURCE_SLOTS].ahead;
		rc = take_here(lane, at, &avail, iov, count, got);
		lane->in->fetched += peek ? 0 : *got - before;
		lane->in->copied += peek ? 0 : *got - before;
		lane->in->later += peek || !was_ahead ? 0 : *got - before;
		return rc;
	}
	if (rc == -EPROTO || rc == -ECONNRESET)
		return rc;
	if (rc != -ENOTCONN)
		lane->in->avail->give_up(lane->in->avail_context);
	return LANE_EMPTY;
}

int lane_take_source(struct lane *lane, struct place *at, struct record record, const struct iovec *iov, int count,
		     bool peek, size_t *got)
{
	uint32_t number = record.bytes;
	size_t bytes = 0;
	int rc;

	if (!atomic_load_explicit(&lane->shared->from_ring, memory_order_relaxed))
		return -EPROTO;
	if (record.kind == RECORD_AVAIL)
		return take_avail(lane, at, iov, count, peek, got);
	if (!lane->in || lane->in->avail || number != at->passed + 1)
		return -EPROTO;
	if (__builtin_expect(lane->in->later_min && !peek, 0) &&
	    source_take_later(lane, number, iov, count, *got, &bytes))
		rc = LANE_DATA;
	else
		rc = source_take(lane, number, iov, count, *got, peek, &bytes);
	*got += bytes;
	if (rc == LANE_DATA) {
		at->passed = number;
		at->head += sizeof(struct record);
	}
	return rc;
}

/* The end of the lane ------------------------------------------------------------------------------------------------ */

void avail_cut(struct lane *lane)
{
	uint64_t head = atomic_load(&lane->shared->head), tail = atomic_load(&lane->shared->tail), none = 0;

	for (size_t left = tail - head; left >= sizeof(struct record) && left <= lane->bytes; left = tail - head) {
		struct record record = record_read(lane, head);

		if (record_length(record) > left - sizeof(record))
			return;
		if (record.kind == RECORD_AVAIL && avail_is_missing(lane, head)) {
			atomic_compare_exchange_strong(&lane->shared->end, &none, head | LANE_END_SET);
			lane->tail_known = head;
			return;
		}
		head += sizeof(record) + record_length(record);
	}
}

void source_in_again(struct source_in *in)
{
	memset(in->known, 0, sizeof(in->known));
	in->coming.count = 0;
	in->sink.number = 0;
	atomic_store(&in->gone, false);
}

void source_in_open_remote(struct source_in *in, const struct avail_ops *avail, void *context)
{
	memset(in, 0, sizeof(*in));
	in->avail = avail;
	in->avail_context = context;
	in->result = -ENOTSUP; /* no GET by the kernel */
}
