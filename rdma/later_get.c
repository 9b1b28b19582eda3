/* SPDX-License-Identifier: MIT */
/* The source's side of later.h: the promise, and the GET behind it. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"
#include "rdma/later_internal.h"
#include "rdma/source_internal.h"

#define PAGE 4096ul
#define CHANGES_MAX 16		/* of a word, by a sender that has two changes to make */
#define KEEP_WAIT_MS 1000	/* for a sender that has to keep what we may no longer fetch */
#define KEEP_LOOK_NS 1000000ull /* between two looks for that */

static bool is_refusal(int error)
{
	return error == -EPERM || error == -EACCES || error == -ENOSYS;
}

/* Fetches exactly so many bytes of the source from `from` on. Returns 0 or -errno. */
static int fetch_all(struct later_get *get, uint32_t from, void *to, size_t bytes)
{
	struct iovec iov = { to, bytes };

	for (size_t done = 0; done < bytes;) {
		struct transport_get part = { get->address + from + done, bytes - done, &iov, 1, done };
		ssize_t got = get->transport->get(&get->reach, &get->place, &get->token, &part);

		if (got <= 0)
			return got < 0 ? (int)got : -ENXIO;
		done += (size_t)got;
	}
	return 0;
}

/* From where they are now. */
static int bring_once(struct later_get *get, const struct source_look *look, void *to, size_t bytes)
{
	struct iovec iov = { to, bytes };
	struct transport_get kept = { 0, bytes, &iov, 1, 0 };

	if (look->state == SOURCE_PROMISED)
		return fetch_all(get, get->taken, to, bytes);
	if (look->there < look->taken + bytes)
		return -ECONNRESET;
	source_copy_kept(&get->lane, look->home + look->taken, bytes, &kept);
	return 0;
}

/* We may no longer fetch: the sender keeps the bytes with its next call, or at its end. Returns whether it has done something. */
static bool wait_for_keep(struct later_get *get, _Atomic uint64_t *word, uint64_t was, int error)
{
	uint64_t until = clock_now() + KEEP_WAIT_MS * NS_PER_MS;

	atomic_store(&get->lane.sources->verdict, get->seen << 8 | (uint32_t)-error);
	while (atomic_load(word) == was && clock_now() < until) {
		struct timespec look_again = { .tv_nsec = KEEP_LOOK_NS };

		sys_call(SYS_nanosleep, (long)&look_again, 0, 0, 0, 0, 0);
	}
	return atomic_load(word) != was;
}

static bool is_promised(uint32_t state)
{
	return state == SOURCE_PROMISED || state == SOURCE_PROMISED_KEPT || state == SOURCE_LOST;
}

int later_bring(struct later_get *get, void *to, size_t bytes, bool last)
{
	_Atomic uint64_t *word = &get->lane.sources->slot[get->number % SOURCE_SLOTS].word;
	uint64_t more = bytes + (last ? get->tail : 0);

	for (int changes = 0; changes < CHANGES_MAX; changes++) {
		struct source_look look;
		uint64_t expected;
		int rc = source_look(&get->lane, get->number, &look);

		if (rc < 0 || !is_promised(look.state) || look.bytes != get->bytes || look.taken != get->taken)
			return -EPROTO;
		rc = bring_once(get, &look, to, bytes);
		if (rc < 0) {
			if (atomic_load(word) != look.word ||
			    (is_refusal(rc) && wait_for_keep(get, word, look.word, rc)))
				continue;
			return rc;
		}
		/* As in source_take(): what was read is right if the sender had not let go of it until here. */
		expected = look.word;
		if (atomic_compare_exchange_strong(word, &expected, look.word + (more << 3))) {
			get->taken += (uint32_t)more;
			return 0;
		}
	}
	return -EPROTO;
}

/* Where byte `skip` of iov goes, if `bytes` from there on are in one piece. */
static uintptr_t one_piece(const struct iovec *iov, int count, size_t skip, size_t bytes)
{
	while (count > 0 && skip >= iov->iov_len) {
		skip -= iov->iov_len;
		iov++;
		count--;
	}
	return count > 0 && iov->iov_len - skip >= bytes ? (uintptr_t)iov->iov_base + skip : 0;
}

/* What does not fill whole pages is fetched now, and then all is promised: if the sender has kept it until then. */
static bool promise(struct later_get *get, const struct source_look *look, uintptr_t base)
{
	_Atomic uint64_t *word = &get->lane.sources->slot[get->number % SOURCE_SLOTS].word;
	uint32_t head = (uint32_t)(get->start - base);
	uint64_t expected = look->word;

	source_settle_local((void *)base, look->bytes - look->taken);
	if ((head && fetch_all(get, look->taken, (void *)base, head) < 0) ||
	    (get->tail && fetch_all(get, look->bytes - get->tail, (void *)get->end, get->tail) < 0))
		return false;
	get->taken = look->taken + head;
	return atomic_compare_exchange_strong(word, &expected, SOURCE_WORD(get->number, get->taken, SOURCE_PROMISED));
}

bool source_take_later(struct lane *lane, uint32_t number, const struct iovec *iov, int count, size_t skip, size_t *got)
{
	struct source_in *in = lane->in;
	struct source_look look;
	struct later_get *get;
	uintptr_t base, start, end;
	size_t left;

	if (source_look(lane, number, &look) < 0 || look.state != SOURCE_ANNOUNCED)
		return false;
	left = look.bytes - look.taken;
	base = one_piece(iov, count, skip, left);
	start = (base + PAGE - 1) & ~(PAGE - 1);
	end = (base + left) & ~(PAGE - 1);
	if (!base || end <= start || end - start < in->later_min)
		return false;
	get = later_claim(start, end);
	if (!get)
		return false;
	get->lane = *lane;
	get->number = number;
	get->bytes = look.bytes;
	get->tail = (uint32_t)(base + left - end);
	get->seen = in->seen;
	get->address = look.address;
	get->place = look.place;
	get->reach = in->reach;
	get->token = in->token;
	get->transport = in->transport;
	if (!promise(get, &look, base)) {
		later_unclaim(get);
		return false;
	}
	later_go(get);
	in->fetched += left;
	in->later += end - start;
	*got = left;
	return true;
}
