/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/pool.h"
#include "preload/engine_source.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/far.h"
#include "preload/far_compare.h"
#include "preload/guest.h"
#include "preload/notice.h"
#include "preload/send.h"
#include "preload/trial.h"
#include "rdma/guard.h"
#include "rdma/later.h"

#define PAGE 4096ul
#define CHUNK (1024 * 1024ul) /* announced at one time, so that the peer fetches one while the next is guarded */
#define WINDOW 64	      /* guarded sends, of which at most a quarter may fault */
#define PAUSE_FIRST 64	      /* sends without guards after that; twice as many each time */
#define PAUSE_MAX 65536
#define ASKS_FROM 16384 /* bytes that a receive has to want for the peer to be asked for sources */

#define CLAIMED UINT64_MAX

struct guarded {
	_Atomic uint64_t number; /* of the source; 0: free; CLAIMED by whoever found it over */
	struct guard_record *_Atomic record;
	_Atomic int thread; /* that announced it: its stack goes with it */
	_Atomic uint64_t since_ns;
	_Atomic uint64_t site, buffer; /* as history_keys says */
	_Atomic bool faulted;
};

/* Of a connection in this process. Under the lock `out`, but for the atomics. */
struct source_books {
	struct lane *lane;
	uint32_t slot; /* of the statistics */
	struct guarded guarded[SOURCE_SLOTS];
	_Atomic uint32_t strays; /* records that were taken before they were in these books */
	_Atomic uint32_t faults; /* in the present window */
	uint32_t sends;
	uint32_t pause, pause_next;
	struct trial trial;	  /* of `auto` */
	struct history_keys keys; /* of the present send */
	void *next_free;	  /* the pool's */
};

static _Atomic bool stopped;
static struct trial_knowledge knowledge;
struct history sources_history;
_Static_assert(TRIAL_CLASSES == STATS_TRIALS && TRIAL_WAYS == STATS_TRIAL_WAYS, "what statistics have room for");
_Static_assert(TRIAL_WINDOW_SENDS == SOURCE_SLOTS && TRIAL_WINDOW_BYTES == SOURCE_AREA_BYTES, "what may be under way");

void sources_stop(bool stop)
{
	if (atomic_exchange(&stopped, stop) == stop)
		return;
	if (stop)
		later_hold();
	else
		later_release();
}

static struct lane *lane_of(struct engine *engine)
{
	return &engine->channel.out;
}

/* A page for each would be more than all else that an idle connection has. */
static struct pool pool = {
	.bytes = sizeof(struct source_books),
	.link = offsetof(struct source_books, next_free),
	.each = 32,
	.slabs_max = UINT32_MAX,
	.sharing = MAP_PRIVATE,
};

/* The guard's owner: the books ---------------------------------------------------------------------------------------- */

/* Releases what the peer is done with. Any thread; never waits for a lock of ours. Numbers never come again. */
static void harvest(struct source_books *books)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		struct guarded *guarded = &books->guarded[i];
		uint64_t number = atomic_load(&guarded->number);
		struct guard_record *record;

		if (!number || number == CLAIMED || source_taken(books->lane, number) != SIZE_MAX ||
		    !atomic_compare_exchange_strong(&guarded->number, &number, CLAIMED))
			continue;
		record = atomic_exchange(&guarded->record, NULL);
		atomic_store(&guarded->number, 0);
		guard_release(record);
	}
}

static void owner_poll(void *owner)
{
	harvest(owner);
}

/* All of the source at once: its slot tells of one place alone. */
static void owner_take_copy(void *owner, struct guard_record *record, const void *page, size_t bytes)
{
	struct source_books *books = owner;

	/* It may not be in the books yet: then whoever announces it sees this. */
	atomic_fetch_add(&books->strays, 1);
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		if (atomic_load(&books->guarded[i].record) == record)
			source_keep(books->lane, atomic_load(&books->guarded[i].number));
	}
}

static void owner_faulted(void *owner, struct guard_record *record)
{
	struct source_books *books = owner;
	uint64_t now = clock_now();

	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		struct guarded *guarded = &books->guarded[i];

		if (atomic_load(&guarded->record) != record)
			continue;
		stats_conn(books->slot, STAT_CONN_REWRITES, 1);
		stats_conn(books->slot, STAT_CONN_REWRITE_NS, now - atomic_load(&guarded->since_ns));
		/* Who writes through a buffer faults several times, and counts as one that was rewritten. */
		if (!atomic_exchange(&guarded->faulted, true)) {
			atomic_fetch_add_explicit(&books->faults, 1, memory_order_relaxed);
			history_faulted(&sources_history, (struct history_keys){ guarded->site, guarded->buffer }, now);
		}
	}
}

static const struct guard_owner_ops owner_ops = { owner_poll, owner_take_copy, owner_faulted };

/* Threads' stacks ----------------------------------------------------------------------------------------------------- */

static pthread_key_t thread_key;
static bool thread_key_made;

static void keep_of_thread(struct conn *conn)
{
	struct engine *engine = engine_enter(conn, conn_fd(conn));
	int self = lock_self();

	if (!engine)
		return;
	for (unsigned int i = 0; conn->books && i < SOURCE_SLOTS; i++) {
		if (atomic_load(&conn->books->guarded[i].thread) == self &&
		    atomic_load(&conn->books->guarded[i].number))
			source_keep(conn->books->lane, atomic_load(&conn->books->guarded[i].number));
	}
	engine_leave(conn);
}

/* The C library drops the pages of a stack behind everybody's back. */
static void thread_ends(void *unused)
{
	if (guard_active())
		conn_each(keep_of_thread);
}

__attribute__((constructor)) static void make_thread_key(void)
{
	thread_key_made = !pthread_key_create(&thread_key, thread_ends);
}

/* Sending ------------------------------------------------------------------------------------------------------------- */

static struct source_books *books_of(struct conn *conn, struct lane *lane)
{
	if (!conn->books) {
		conn->books = pool_take(&pool);
		if (conn->books) {
			memset(conn->books, 0, sizeof(*conn->books));
			conn->books->lane = lane;
			conn->books->slot = conn->slot;
		}
	}
	return conn->books;
}

/*
 * Whether the call site or the buffer of this send is known for faults. When one has just been found out, the connection is
 * not to blame for these.
 */
static bool is_rewriter(struct conn *conn, struct source_books *books)
{
	bool begins = false;
	enum history_blame blame = history_ask(&sources_history, books->keys, clock_now(), &begins);

	if (begins) {
		books->sends = 0;
		atomic_store(&books->faults, 0);
	}
	if (blame != HISTORY_NOBODY)
		stats_reason(conn->slot, blame == HISTORY_SITE ? REASON_FAULTED_SITE : REASON_FAULTED_BUFFER);
	return blame != HISTORY_NOBODY;
}

/* Whether guards pay here: a program that rewrites its buffers at once does better with copies. */
static bool guards_pay(struct conn *conn, struct source_books *books)
{
	uint32_t faults;

	if (settings.zerocopy_keep)
		return true;
	if (is_rewriter(conn, books))
		return false;
	if (books->pause) {
		books->pause--;
		stats_reason(conn->slot, REASON_FAULTED);
		return false;
	}
	if (++books->sends < WINDOW)
		return true;
	faults = atomic_exchange(&books->faults, 0);
	books->sends = 0;
	if (faults < WINDOW / 4) {
		books->pause_next = PAUSE_FIRST;
		return true;
	}
	books->pause = books->pause_next ? books->pause_next : PAUSE_FIRST;
	books->pause_next = books->pause < PAUSE_MAX ? 2 * books->pause : PAUSE_MAX;
	stats_reason(conn->slot, REASON_FAULTED);
	return false;
}

/* Where a send is. */
struct cursor {
	const struct iovec *iov;
	int count;
	size_t skip; /* of *iov */
	size_t done;
};

static void advance(struct cursor *at, size_t bytes)
{
	at->done += bytes;
	at->skip += bytes;
	while (at->count && at->skip >= at->iov->iov_len) {
		at->skip -= at->iov->iov_len;
		at->iov++;
		at->count--;
	}
}

/* Puts up to `bytes` at the cursor into the ring. Returns bytes or -EPROTO. */
static ssize_t put_data(struct lane *lane, struct cursor *at, size_t bytes)
{
	struct iovec part = { (char *)at->iov->iov_base + at->skip, bytes };
	ssize_t put = bytes ? lane_put(lane, &part, 1, 0) : 0;

	if (put > 0)
		advance(at, (size_t)put);
	return put;
}

static struct guarded *free_place(struct source_books *books)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		if (!atomic_load(&books->guarded[i].number))
			return &books->guarded[i];
	}
	return NULL;
}

/* Announces. Returns 0 with the source's number, or -errno. */
static int announce_bytes(struct conn *conn, struct lane *lane, const char *start, size_t bytes, bool *sunk,
			  uint64_t *number)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_relaxed);

	return far_is(engine) ? far_announce(conn, engine, start, bytes, sunk, number) :
				source_announce(lane, start, bytes, number);
}

/* Guards whole pages and announces them. Returns 0 with the source's number, or -errno: these go by the ring. */
static int announce_guarded(struct conn *conn, struct lane *lane, char *start, size_t bytes, uint64_t *number)
{
	struct guarded *guarded = free_place(conn->books);
	struct history_keys keys = conn->books->keys;
	uint32_t strays = atomic_load(&conn->books->strays);
	struct guard_record *record;
	uint64_t now;
	int rc;

	if (!guarded)
		return -ENOBUFS;
	rc = guard_protect(start, bytes, &owner_ops, conn->books, &record);
	if (rc < 0) {
		stats_reason(conn->slot, notice_protect_reason(rc));
		return rc;
	}
	rc = announce_bytes(conn, lane, start, bytes, &(bool){ false }, number);
	if (rc < 0) {
		guard_release(record);
		return rc;
	}
	atomic_store(&guarded->thread, lock_self());
	now = clock_now();
	atomic_store(&guarded->since_ns, now);
	atomic_store(&guarded->site, keys.site);
	atomic_store(&guarded->buffer, keys.buffer);
	atomic_store(&guarded->faulted, false);
	history_guarded(&sources_history, keys, now);
	atomic_store(&guarded->record, record);
	atomic_store(&guarded->number, *number);
	/* A write since then was let through: these bytes, and no later ones. */
	if (atomic_load(&conn->books->strays) != strays)
		source_keep(lane, *number);
	return 0;
}

/* Announces from the cursor on. Returns whether it did. */
static bool announce(struct conn *conn, struct lane *lane, struct cursor *at, struct announced *out)
{
	struct engine *engine = atomic_load_explicit(&conn->engine, memory_order_relaxed);
	char *start = (char *)at->iov->iov_base + at->skip;
	size_t left = at->iov->iov_len - at->skip, most = far_is(engine) ? FAR_CHUNK : CHUNK;
	size_t bytes = left < most ? left : most, sink = 0;
	bool sunk;
	int rc;

	/* Where the peer's receive waits, all that it takes goes there in one. */
	if (far_is(engine) && out->path == PATH_ZSDP)
		sink = far_sink(conn);
	if (sink) {
		size_t all = left < sink ? left : sink;

		bytes = source_room(lane) >= all ? all : bytes;
	}

	if (out->count == SOURCE_SLOTS || !sources_have_room(conn, engine, bytes, out)) {
		stats_reason(conn->slot, REASON_SOURCES_FULL);
		return false;
	}
	sunk = sink != 0;
	if (out->path == PATH_AZSDP)
		bytes &= ~(PAGE - 1);
	rc = far_is(engine) ? far_expose(conn, engine, start, bytes) : 0;
	if (rc < 0) {
		stats_reason(conn->slot, far_source_reason(rc));
		return false;
	}
	if (out->path == PATH_AZSDP)
		rc = announce_guarded(conn, lane, start, bytes, &out->number[out->count]);
	else
		rc = announce_bytes(conn, lane, start, bytes, &sunk, &out->number[out->count]);
	if (rc < 0 && far_is(engine))
		far_unexpose(conn, engine);
	if (rc < 0)
		return false;
	out->sunk |= sunk;
	out->count++;
	out->bytes += bytes;
	advance(at, bytes);
	return true;
}

/*
 * The next piece: what comes before whole pages, an entry that is too small for a source, a source, or the rest behind it.
 * Returns bytes, 0 if there was no room, or -EPROTO.
 */
static ssize_t put_piece(struct conn *conn, struct lane *lane, struct cursor *at, struct announced *out, bool *refused)
{
	size_t left = at->iov->iov_len - at->skip, before = at->done;
	size_t head = out->path == PATH_AZSDP ? -((uintptr_t)at->iov->iov_base + at->skip) & (PAGE - 1) : 0;

	if (*refused || left < head + settings.source_min)
		return put_data(lane, at, left);
	if (head)
		return put_data(lane, at, head);
	if (!announce(conn, lane, at, out))
		*refused = true;
	return *refused ? put_data(lane, at, left) : (ssize_t)(at->done - before);
}

/* What the trials' numbers stand for. */
enum { BSDP_WAY, ZSDP_WAY, AZSDP_WAY };
static const enum zc_path ways[TRIAL_WAYS] = { PATH_BSDP, PATH_ZSDP, PATH_AZSDP };

/* The way that `auto` takes by what was tried; what came out of that is shown to who asks. */
static unsigned int tried_way(struct trial *trial, size_t bytes)
{
	int class = trial->class - 1;
	unsigned int way = trial_next(trial, &knowledge, bytes, clock_now());

	if (class < 0 || trial->class == class + 1)
		return way;
	for (int i = 0; i < TRIAL_WAYS; i++)
		atomic_store(&stats->trial[class].cost[i], atomic_load(&knowledge.classes[class].cost[i]));
	atomic_store(&stats->trial[class].taken, atomic_load(&knowledge.classes[class].best));
	atomic_store(&stats->trial[class].tries, atomic_load(&knowledge.classes[class].tries));
	return way;
}

/* Which path a send of sources takes, of which this is the first; PATH_BSDP for none, with the reason counted. */
static enum zc_path choose(struct conn *conn, struct engine *engine, size_t bytes, const struct iovec *first)
{
	struct lane *lane = lane_of(engine);
	enum zc_path path = conn->policy;
	int rc;

	if (path == PATH_BSDP)
		return PATH_BSDP;
	if (guest_sandboxed() || atomic_load_explicit(&stopped, memory_order_relaxed))
		return PATH_BSDP;
	if (far_is(engine) && path == PATH_AUTO) {
		enum far_way way = far_compare_way_taken(engine);

		if (way != FAR_BY_ZSDP && way != FAR_BY_AZSDP)
			return PATH_BSDP;
		path = way == FAR_BY_ZSDP ? PATH_ZSDP : PATH_AZSDP;
	}
	rc = far_is(engine) ? far_sources_open(conn, engine) : source_step_out(lane, NULL);
	if (rc < 0) {
		stats_reason(conn->slot, far_is(engine) ? far_source_reason(rc) : source_reason(rc));
		return PATH_BSDP;
	}
	if (!books_of(conn, lane)) {
		stats_reason(conn->slot, REASON_NO_MEMORY);
		return PATH_BSDP;
	}
	if (path == PATH_AUTO)
		path = ways[tried_way(&conn->books->trial, bytes)];
	if (path == PATH_BSDP)
		stats_reason(conn->slot, REASON_GUARD_COST);
	if (path == PATH_AZSDP && thread_key_made && !pthread_getspecific(thread_key))
		pthread_setspecific(thread_key, &thread_key);
	if (path != PATH_AZSDP)
		return path;
	conn->books->keys = history_keys(send_call_site(), first->iov_base, first->iov_len);
	if (guards_pay(conn, conn->books))
		return PATH_AZSDP;
	return conn->policy == PATH_AUTO && !far_is(engine) ? ways[trial_best_before(&knowledge, bytes, AZSDP_WAY)] :
							      PATH_BSDP;
}

static const struct iovec *first_large(const struct iovec *iov, int count)
{
	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len >= settings.source_min)
			return &iov[i];
	}
	return NULL;
}

ssize_t sources_put(struct conn *conn, struct engine *engine, const struct iovec *iov, int count, size_t bytes,
		    struct announced *out)
{
	struct lane *lane = lane_of(engine);
	struct cursor at = { iov, count, 0, 0 };
	const struct iovec *first;
	bool refused = false;

	out->count = 0;
	out->bytes = 0;
	out->sunk = false;
	if (conn->books) {
		harvest(conn->books);
		/* What the peer may not fetch any more comes before this: it is copied, and the peer rung for both. */
		if (!far_is(engine) && lane->out && lane->out->first != lane->out->next)
			source_step_out(lane, NULL);
	}
	first = bytes < settings.source_min ? NULL : first_large(iov, count);
	if (!first)
		return 0;
	out->path = choose(conn, engine, bytes, first);
	if (out->path == PATH_BSDP)
		return 0;
	/* The peer's GET must not wait for ours. */
	for (int i = 0; later_active() && i < count; i++)
		later_settle(iov[i].iov_base, iov[i].iov_len);
	sources_wait_begins(engine, bytes, out);
	advance(&at, 0);
	while (at.count) {
		size_t left = at.iov->iov_len - at.skip;
		ssize_t put = put_piece(conn, lane, &at, out, &refused);

		if (put < 0)
			return put;
		if (!put || (refused && (size_t)put < left))
			break;
	}
	return (ssize_t)at.done;
}

/* Ends ---------------------------------------------------------------------------------------------------------------- */

void sources_keep(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;

	if (!engine_met(engine) || !lane_of(engine)->out || !lock_take(&engine->out, &hold))
		return;
	source_keep_all(lane_of(engine));
	lock_give(&engine->out, &hold);
}

void sources_end(struct conn *conn)
{
	if (!conn->books)
		return;
	/* Copies, and waits for whoever is in these books because of a fault. */
	guard_settle_owner(conn->books);
	pool_give(&pool, conn->books);
	conn->books = NULL;
}

/* Whatever a thread was at that does not exist here: what was in use or free is lost to the child. */
void sources_after_fork(struct conn *conn)
{
	atomic_store(&pool.lock.word, 0);
	pool.free = NULL;
	conn->books = NULL;
}

/* Receiving ----------------------------------------------------------------------------------------------------------- */

void sources_step_in(struct engine *engine, size_t bytes)
{
	struct source_in *in = engine->channel.in.in;

	if (!in || in->result || (!in->asked && bytes < ASKS_FROM))
		return;
	if (guest_sandboxed())
		source_refuse(&engine->channel.in, -EPERM);
	else
		source_step_in(&engine->channel.in);
}
