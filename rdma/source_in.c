/* SPDX-License-Identifier: MIT */
/* The receiver's side of source.h. All that the sender has written is read once, checked, and then used. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "common/sys.h"
#include "rdma/guard.h"
#include "rdma/source.h"
#include "rdma/source_internal.h"

#define CHANGES_MAX 16 /* of a word while it is taken from: the sender has three changes to make */

void source_in_open(struct source_in *in, const struct transport_ops *transport, const uint8_t *identity, pid_t hint)
{
	memset(in, 0, sizeof(*in));
	in->transport = transport;
	in->reach.hint = hint;
	memcpy(in->token.identity, identity, sizeof(in->token.identity));
}

static void tell_verdict(struct lane *lane, uint32_t result)
{
	atomic_store(&lane->sources->verdict, lane->in->seen << 8 | result);
}

static int ask(struct lane *lane)
{
	struct source_in *in = lane->in;
	long rc = sys_call(SYS_getrandom, (long)in->token.challenge, sizeof(in->token.challenge), 0, 0, 0, 0);

	if (rc != (long)sizeof(in->token.challenge))
		return rc < 0 ? (int)rc : -EAGAIN;
	memcpy(lane->sources->challenge, in->token.challenge, sizeof(in->token.challenge));
	atomic_store(&lane->sources->asked, 1);
	in->asked = true;
	return 0;
}

int source_step_in(struct lane *lane)
{
	struct source_in *in = lane->in;
	struct transport_place place;
	uint32_t answered;
	int rc;

	if (!in || !lane->sources)
		return -ENOTSUP;
	if (!in->asked)
		return ask(lane);
	answered = atomic_load_explicit(&lane->sources->answered, memory_order_acquire) & 0xffffff;
	if (answered == in->seen)
		return in->result;
	place = *(volatile struct transport_place *)&lane->sources->place;
	in->seen = answered;
	rc = in->transport->prove(&in->reach, &place, &in->token);
	in->result = rc < 0 ? rc : 1;
	tell_verdict(lane, rc < 0 ? (uint32_t)-rc : VERDICT_PROVED);
	return in->result;
}

void source_refuse(struct lane *lane, int error)
{
	if (!lane->in || !lane->sources || lane->in->result < 0)
		return;
	lane->in->result = error;
	tell_verdict(lane, (uint32_t)-error);
}

int source_look(const struct lane *lane, uint32_t number, struct source_look *out)
{
	struct source_slot *slot = &lane->sources->slot[number % SOURCE_SLOTS];
	uint64_t word = atomic_load(&slot->word);
	volatile struct source_slot *fields = slot;

	*out = (struct source_look){ .word = word,
				     .address = fields->address,
				     .home = fields->home,
				     .bytes = fields->bytes,
				     .taken = SOURCE_TAKEN(word),
				     .state = SOURCE_STATE(word),
				     .there = fields->kept };
	out->place.token = fields->place.token;
	out->place.number = fields->place.number;
	if (SOURCE_NUMBER(word) != number || !out->bytes || out->bytes > SOURCE_BYTES_MAX || out->taken > out->bytes ||
	    out->address + out->bytes < out->address || out->state == SOURCE_FREE || out->state > SOURCE_PROMISED_KEPT)
		return -EPROTO;
	if (out->state != SOURCE_LOST || out->there > out->bytes)
		out->there = out->bytes;
	return out->bytes <= lane->area_bytes ? 0 : -EPROTO;
}

size_t source_left(const struct lane *lane, uint32_t number)
{
	struct source_look look;

	if (!lane->sources || source_look(lane, number, &look) < 0 || look.state == SOURCE_WITHDRAWN ||
	    look.state == SOURCE_PROMISED || look.state == SOURCE_PROMISED_KEPT)
		return 0;
	return look.bytes - look.taken;
}

bool source_is_stuck(const struct lane *lane, uint32_t number)
{
	struct source_look look;

	return lane->sources && !source_look(lane, number, &look) && look.state == SOURCE_REFUSED;
}

/* What iov has from byte `skip` on. */
static size_t space(const struct iovec *iov, int count, size_t skip)
{
	size_t bytes = 0;

	for (int i = 0; i < count; i++)
		bytes += iov[i].iov_len;
	return bytes > skip ? bytes - skip : 0;
}

void source_copy_kept(const struct lane *lane, uint64_t home, size_t bytes, const struct transport_get *to)
{
	size_t done = 0, skip = to->skip;

	for (int i = 0; i < to->count && done < bytes; i++) {
		char *base = (char *)to->iov[i].iov_base + skip;
		size_t room = to->iov[i].iov_len;

		if (skip >= room) {
			skip -= room;
			continue;
		}
		for (room -= skip; room && done < bytes;) {
			uint64_t at = (home + done) & (lane->area_bytes - 1);
			size_t part = lane->area_bytes - at;

			part = part < room ? part : room;
			part = part < bytes - done ? part : bytes - done;
			memcpy(base, lane->area + at, part);
			base += part;
			room -= part;
			done += part;
		}
		skip = 0;
	}
}

void source_settle_local(const void *at, size_t bytes)
{
	if (__builtin_expect(guard_active(), 0) && guard_needs_settling())
		guard_settle(at, bytes);
}

/* Brings up to `bytes` from where they are. Returns how many, or -errno as a GET does. */
static ssize_t fetch(struct lane *lane, const struct source_look *look, const struct transport_get *to)
{
	struct source_in *in = lane->in;

	if (look->state == SOURCE_KEPT || look->state == SOURCE_LOST) {
		source_copy_kept(lane, look->home + look->taken, to->bytes, to);
		return (ssize_t)to->bytes;
	}
	for (int i = 0; i < to->count; i++)
		source_settle_local(to->iov[i].iov_base, to->iov[i].iov_len);
	return in->transport->get(&in->reach, &look->place, &in->token, to);
}

/* What a GET failed with, if the source is still where it was. Returns LANE_EMPTY (stuck), -errno, or 0 to look again. */
static int failed(struct lane *lane, _Atomic uint64_t *word, const struct source_look *look, int error, int *out)
{
	uint64_t expected = look->word;
	uint32_t number = SOURCE_NUMBER(look->word);

	if (atomic_load(word) != look->word)
		return 0;
	if (error == -EPERM || error == -EACCES || error == -ENOSYS) {
		if (!atomic_compare_exchange_strong(word, &expected, SOURCE_WORD(number, look->taken, SOURCE_REFUSED)))
			return 0;
		source_refuse(lane, error);
		*out = LANE_EMPTY;
	} else {
		*out = error == -EFAULT ? -EFAULT : -ECONNRESET;
	}
	return 1;
}

int source_take(struct lane *lane, uint32_t number, const struct iovec *iov, int count, size_t skip, bool peek,
		size_t *got)
{
	_Atomic uint64_t *word = &lane->sources->slot[number % SOURCE_SLOTS].word;
	size_t room = space(iov, count, skip);

	*got = 0;
	for (int changes = 0; changes < CHANGES_MAX; changes++) {
		struct source_look look;
		int rc = source_look(lane, number, &look);
		size_t left = look.bytes - look.taken;
		struct transport_get to = { look.address + look.taken, left < room ? left : room, iov, count, skip };
		ssize_t bytes;
		uint64_t expected = look.word;

		if (rc < 0)
			return rc;
		if (!left || look.state == SOURCE_WITHDRAWN)
			return LANE_DATA;
		if (look.state == SOURCE_PROMISED || look.state == SOURCE_PROMISED_KEPT)
			return -EPROTO; /* the head has passed what was promised */
		if (!to.bytes || look.state == SOURCE_REFUSED)
			return LANE_EMPTY;
		if (look.there <= look.taken)
			return -ECONNRESET;
		if (to.bytes > look.there - look.taken)
			to.bytes = look.there - look.taken;
		bytes = fetch(lane, &look, &to);
		if (bytes < 0) {
			if (failed(lane, word, &look, (int)bytes, &rc))
				return rc;
			continue;
		}
		/* What was read is right if the sender had not let go of it until here. */
		if (peek ? atomic_load(word) != look.word :
			   !atomic_compare_exchange_strong(word, &expected, look.word + ((uint64_t)bytes << 3)))
			continue;
		*got = (size_t)bytes;
		lane->in->fetched += peek ? 0 : *got;
		return *got == left ? LANE_DATA : LANE_EMPTY;
	}
	return -EPROTO;
}
