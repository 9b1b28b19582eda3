/* SPDX-License-Identifier: MIT */
/* The sender's side of source.h; the receiver's is in source_in.c. */
#define _GNU_SOURCE
#include "rdma/source.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "common/sys.h"
#include "rdma/avail.h"
#include "rdma/source_internal.h"

#define HOME_ALIGN 64	 /* as memory that is copied likes it */
#define CHANGES_MAX 1000 /* of a word by a receiver that takes ever more; it is another's, so there has to be an end */
#define ANSWERS_MAX 16	 /* processes that share the sending end one after the other; then the ring is all they have */

void source_out_open(struct source_out *out, const struct transport_ops *transport, const uint8_t *identity)
{
	memset(out, 0, sizeof(*out));
	out->transport = transport;
	out->first = out->next = 1;
	memcpy(out->identity, identity, sizeof(out->identity));
}

void source_out_open_remote(struct source_out *out, const struct transport_ops *transport, struct transport_place place)
{
	static const uint8_t none[TRANSPORT_IDENTITY_BYTES];

	source_out_open(out, transport, none);
	out->is_remote = true;
	out->place = place;
	out->answer = 1;
}

bool source_out_rests(const struct source_out *out)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		if (atomic_load(&out->entry[i].users))
			return false;
	}
	return true;
}

/* The peer sees the low half of a number, which begins at 1 as at first. */
void source_out_again(struct source_out *out)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++)
		atomic_store(&out->entry[i].number, 0);
	out->first = out->next = ((out->next >> 32) + 1) << 32 | 1;
}

/* Whether a place is in this process's memory. */
static bool is_own(const struct source_out *out, const struct transport_place *place)
{
	return out->answer && out->transport->keeps(place, &out->token);
}

void source_out_close(struct source_out *out)
{
	if (is_own(out, &out->place))
		out->transport->drop(&out->place);
}

static struct source_entry *entry_of(struct source_out *out, uint64_t number)
{
	return &out->entry[number % SOURCE_SLOTS];
}

/* Handshake --------------------------------------------------------------------------------------------------------- */

/* Keeps a token for the challenge, and says where. */
static int answer(struct source_out *out, struct source_shared *shared)
{
	int rc;

	if (out->answer >= ANSWERS_MAX)
		return -EBUSY;
	if (!out->answer) {
		memcpy(out->token.challenge, shared->challenge, sizeof(out->token.challenge));
		memcpy(out->token.identity, out->identity, sizeof(out->token.identity));
	}
	rc = out->transport->keep(&out->token, &out->place);
	if (rc < 0)
		return rc;
	shared->place = out->place;
	atomic_store(&shared->answered, ++out->answer);
	return -EAGAIN;
}

/* The receiver does not fetch any more. Returns whether it was stuck before a source of ours. */
static bool rescue(struct lane *lane)
{
	struct source_out *out = lane->out;
	bool stuck = false;

	for (uint64_t number = out->first; number < out->next; number++) {
		uint64_t word = atomic_load(&lane->sources->slot[number % SOURCE_SLOTS].word);

		if (SOURCE_STATE(word) == SOURCE_REFUSED || SOURCE_STATE(word) == SOURCE_ANNOUNCED ||
		    SOURCE_STATE(word) == SOURCE_PROMISED) {
			int kept = source_keep(lane, number);

			stuck |= (!kept || kept == -ENXIO) && SOURCE_STATE(word) == SOURCE_REFUSED;
		}
	}
	return stuck;
}

int source_step_out(struct lane *lane, bool *rescued)
{
	struct source_out *out = lane->out;
	struct source_shared *shared = lane->sources;
	uint32_t verdict;

	if (rescued)
		*rescued = false;
	if (!out || !shared || !atomic_load_explicit(&shared->asked, memory_order_acquire))
		return -EAGAIN;
	if (!is_own(out, &out->place))
		return answer(out, shared);
	verdict = atomic_load_explicit(&shared->verdict, memory_order_acquire);
	if (verdict >> 8 != out->answer)
		return -EAGAIN;
	if ((verdict & 0xff) == VERDICT_PROVED)
		return 0;
	if (out->first != out->next && rescue(lane) && rescued)
		*rescued = true;
	return verdict & 0xff ? -(int)(verdict & 0xff) : -EPROTO;
}

enum stat_reason source_reason(int error)
{
	switch (error) {
	case -EAGAIN:
		return REASON_GET_UNPROVED;
	case -ENOBUFS:
		return REASON_SOURCES_FULL;
	case -EACCES:
		return REASON_GET_OTHER_USER;
	case -ESRCH:
	case -ESTALE:
		return REASON_GET_UNSEEN;
	default:
		return REASON_GET_REFUSED;
	}
}

/* Announcing -------------------------------------------------------------------------------------------------------- */

/*
 * Whether the receiver has bytes of it to take though its head has passed: promised ones; where those were lost, the connection
 * is over and nothing is used again.
 */
static bool is_promised(struct lane *lane, uint64_t number)
{
	uint64_t word = atomic_load(&lane->sources->slot[number % SOURCE_SLOTS].word);
	uint32_t state = SOURCE_STATE(word);

	return SOURCE_NUMBER(word) == (uint32_t)number &&
	       (state == SOURCE_PROMISED || state == SOURCE_PROMISED_KEPT || state == SOURCE_LOST) &&
	       SOURCE_TAKEN(word) < entry_of(lane->out, number)->bytes;
}

/* Ends the books of what the receiver has passed. Returns how many are outstanding. */
unsigned int source_outstanding(struct lane *lane)
{
	struct source_out *out = lane->out;
	uint64_t head = atomic_load_explicit(&lane->shared->head, memory_order_acquire);

	for (; out->first < out->next; out->first++) {
		struct source_entry *entry = entry_of(out, out->first);

		if (atomic_load_explicit(&entry->number, memory_order_relaxed) == out->first &&
		    (head <= entry->record || is_promised(lane, out->first)))
			break;
		/* In one total order with source_keep(): either it finds no number here, or it is found. */
		atomic_store(&entry->number, 0);
		if (atomic_load(&entry->users))
			break;
	}
	return (unsigned int)(out->next - out->first);
}

size_t source_room(struct lane *lane)
{
	struct source_out *out = lane->out;
	unsigned int outstanding = out && lane->area ? source_outstanding(lane) : SOURCE_SLOTS;
	uint64_t oldest;

	if (outstanding >= SOURCE_SLOTS || lane_room(lane) <= 0)
		return 0;
	oldest = outstanding ? entry_of(out, out->first)->home : out->home;
	return lane->area_bytes - (size_t)(out->home - oldest);
}

static bool put_record(struct lane *lane, const struct source_entry *entry, uint32_t key, uint32_t sink,
		       uint64_t *record)
{
	const struct source_out *out = lane->out;
	const struct avail avail = {
		.address = (uintptr_t)entry->address,
		.word = out->remote.slots + (out->next % SOURCE_SLOTS) * sizeof(struct source_slot),
		.area = out->remote.area,
		.home = entry->home,
		.bytes = entry->bytes,
		.number = (uint32_t)out->next,
		.key = key,
		.word_key = out->remote.slots_key,
		.area_key = out->remote.area_key,
		.sink = sink,
	};

	return out->is_remote ? lane_put_avail(lane, &avail, record) :
				lane_put_source(lane, avail.number, avail.bytes, record);
}

int source_announce(struct lane *lane, const void *address, size_t bytes, uint64_t *number)
{
	return source_announce_remote(lane, address, bytes, 0, 0, number);
}

int source_announce_remote(struct lane *lane, const void *address, size_t bytes, uint32_t key, uint32_t sink,
			   uint64_t *number)
{
	struct source_out *out = lane->out;
	struct source_entry *entry;
	struct source_slot *slot;

	if (!bytes || bytes > SOURCE_BYTES_MAX || bytes > source_room(lane))
		return -ENOBUFS;
	entry = entry_of(out, out->next);
	slot = &lane->sources->slot[out->next % SOURCE_SLOTS];
	entry->address = address;
	entry->bytes = (uint32_t)bytes;
	entry->home = out->home;
	entry->place = out->place;
	slot->address = (uintptr_t)address;
	slot->bytes = (uint32_t)bytes;
	slot->home = out->home;
	slot->place = out->place;
	atomic_store(&slot->word, SOURCE_WORD(out->next, 0, SOURCE_ANNOUNCED));
	atomic_store(&entry->number, out->next);
	if (!put_record(lane, entry, key, sink, &entry->record)) {
		atomic_store(&entry->number, 0);
		return -ENOBUFS;
	}
	*number = out->next++;
	out->home += (bytes + HOME_ALIGN - 1) & ~(size_t)(HOME_ALIGN - 1);
	return 0;
}

bool source_is_passed(const struct lane *lane, uint64_t number)
{
	return atomic_load_explicit(&lane->shared->head, memory_order_acquire) > entry_of(lane->out, number)->record;
}

size_t source_taken(struct lane *lane, uint64_t number)
{
	struct source_entry *entry = entry_of(lane->out, number);
	uint64_t word = atomic_load(&lane->sources->slot[number % SOURCE_SLOTS].word);
	uint32_t state = SOURCE_STATE(word);

	if (SOURCE_NUMBER(word) != (uint32_t)number ||
	    (state != SOURCE_ANNOUNCED && state != SOURCE_REFUSED && state != SOURCE_PROMISED) ||
	    atomic_load(&entry->number) != number || SOURCE_TAKEN(word) >= entry->bytes ||
	    (lane->out->is_remote && source_is_passed(lane, number)))
		return SIZE_MAX;
	return SOURCE_TAKEN(word);
}

/* Taking back ------------------------------------------------------------------------------------------------------- */

/*
 * Copies the entry's bytes from `from` on to where they are at home. The kernel copies, for the memory may be gone: a program
 * can unmap it where nobody sees it. Returns up to where the bytes were there.
 */
static uint32_t copy_home(struct lane *lane, const struct source_entry *entry, uint32_t from)
{
	long self = sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);

	while (from < entry->bytes) {
		uint64_t at = (entry->home + from) & (lane->area_bytes - 1);
		size_t bytes = entry->bytes - from, before_end = lane->area_bytes - at;
		struct iovec source = { (void *)(uintptr_t)(entry->address + from), bytes };
		struct iovec home[] = { { lane->area + at, bytes < before_end ? bytes : before_end },
					{ lane->area, bytes < before_end ? 0 : bytes - before_end } };
		long got = sys_call(SYS_process_vm_readv, self, (long)home, 2, (long)&source, 1, 0);

		if (got == -EPERM || got == -ENOSYS) { /* not built in, or a sandbox: then a plain copy has to do */
			memcpy(home[0].iov_base, source.iov_base, home[0].iov_len);
			memcpy(home[1].iov_base, (char *)source.iov_base + home[0].iov_len, home[1].iov_len);
			return entry->bytes;
		}
		if (got <= 0)
			break;
		from += (uint32_t)got;
	}
	return from;
}

/* Copies, then changes the word. Returns 0, -ENXIO or -EPROTO. */
static int copy_and_tell(struct lane *lane, const struct source_entry *entry, uint64_t number)
{
	struct source_slot *slot = &lane->sources->slot[number % SOURCE_SLOTS];
	uint64_t word = atomic_load(&slot->word);
	uint32_t next = SOURCE_FREE;

	for (;;) {
		uint32_t taken = SOURCE_TAKEN(word), state = SOURCE_STATE(word);

		if (SOURCE_NUMBER(word) != (uint32_t)number || taken > entry->bytes)
			return -EPROTO;
		if (taken == entry->bytes || state == SOURCE_KEPT || state == SOURCE_PROMISED_KEPT ||
		    state == SOURCE_WITHDRAWN || state == SOURCE_LOST)
			return 0;
		if (state != SOURCE_ANNOUNCED && state != SOURCE_REFUSED && state != SOURCE_PROMISED)
			return -EPROTO;
		if (next == SOURCE_FREE) {
			uint32_t there = copy_home(lane, entry, taken);

			slot->kept = there;
			next = there == entry->bytes ? SOURCE_KEPT : SOURCE_LOST;
		}
		/* It may have been promised while we copied. */
		if (next != SOURCE_LOST)
			next = state == SOURCE_PROMISED ? SOURCE_PROMISED_KEPT : SOURCE_KEPT;
		/* The receiver takes more and more; what it has not is copied. */
		if (atomic_compare_exchange_strong(&slot->word, &word, SOURCE_WORD(number, taken, next)))
			return next == SOURCE_LOST ? -ENXIO : 0;
		if (SOURCE_TAKEN(word) < taken)
			return -EPROTO;
	}
}

/*
 * Two that copy would be wrong: behind the first, the program writes already. A signal's handler that writes to the source
 * would wait for the very thread that it interrupts.
 */
static int keep_alone(struct lane *lane, struct source_entry *entry, uint64_t number)
{
	const uint64_t all = UINT64_MAX;
	uint64_t mask;
	int rc;

	sys_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, (long)&mask, sizeof(mask), 0, 0);
	while (atomic_exchange(&entry->keeping, 1))
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	rc = copy_and_tell(lane, entry, number);
	atomic_thread_fence(memory_order_seq_cst); /* the word before all that the program writes: a device looks */
	atomic_store(&entry->keeping, 0);
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof(mask), 0, 0);
	atomic_store_explicit(&lane->out->has_kept, true, memory_order_relaxed);
	return rc;
}

int source_keep(struct lane *lane, uint64_t number)
{
	struct source_entry *entry = entry_of(lane->out, number);
	int rc = 0;

	atomic_fetch_add(&entry->users, 1);
	if (atomic_load(&entry->number) == number && source_taken(lane, number) != SIZE_MAX)
		rc = is_own(lane->out, &entry->place) ? keep_alone(lane, entry, number) : -EPERM;
	atomic_fetch_sub(&entry->users, 1);
	return rc;
}

int source_keep_all(struct lane *lane)
{
	struct source_out *out = lane->out;
	int rc = 0;

	if (!out || !lane->sources)
		return 0;
	for (uint64_t number = out->first; number < out->next; number++) {
		int kept = source_keep(lane, number);

		if (kept < 0 && kept != -EPERM)
			rc = kept;
	}
	return rc;
}

/* Whether the ring ends with this source and withdrawn ones behind it. */
static bool is_last(struct lane *lane, uint64_t number)
{
	struct source_out *out = lane->out;

	for (uint64_t behind = number + 1; behind < out->next; behind++) {
		uint64_t word = atomic_load(&lane->sources->slot[behind % SOURCE_SLOTS].word);

		if (SOURCE_STATE(word) != SOURCE_WITHDRAWN)
			return false;
	}
	return lane_is_last(lane, entry_of(out, number)->record, out->next - number - 1);
}

int source_withdraw(struct lane *lane, uint64_t number, size_t *taken)
{
	struct source_entry *entry = entry_of(lane->out, number);
	_Atomic uint64_t *at = &lane->sources->slot[number % SOURCE_SLOTS].word;

	for (int changes = 0; changes < CHANGES_MAX; changes++) {
		uint64_t word = atomic_load(at);

		*taken = source_taken(lane, number);
		if (*taken == SIZE_MAX)
			return 0;
		if (!is_last(lane, number) || SOURCE_STATE(word) == SOURCE_PROMISED)
			return -EBUSY;
		if (*taken == SOURCE_TAKEN(word) &&
		    atomic_compare_exchange_strong(at, &word, SOURCE_WORD(number, *taken, SOURCE_WITHDRAWN))) {
			lane_unsend(lane, entry->bytes - *taken);
			return 0;
		}
	}
	return -EBUSY;
}

bool source_trim(struct lane *lane)
{
	struct source_out *out = lane->out;

	if (!out || !atomic_load_explicit(&out->has_kept, memory_order_relaxed) || source_outstanding(lane))
		return false;
	atomic_store_explicit(&out->has_kept, false, memory_order_relaxed);
	return !sys_call(SYS_madvise, (long)lane->area, lane->area_bytes, MADV_REMOVE, 0, 0, 0);
}
