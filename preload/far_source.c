/* SPDX-License-Identifier: MIT */
/*
 * Sources of a connection to another host (rdma/avail.h): what the peer may read here, and how is fetched what it announces.
 *
 * A registration lasts as long as what it is for: a source until the peer has passed it, a program's buffer until the receive
 * has its bytes. A device goes on with the pages that were there, whatever the program maps in their place later; so none is found
 * again, and nobody has to tell of memory that goes. A source that was kept stays registered, for the peer may be reading it; what
 * it reads then it does not believe.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/far_internal.h"
#include "rdma/avail.h"
#include "rdma/guard.h"

#define SILENCE_NS (500 * NS_PER_MS) /* without the end of any GET: then the peer is given up */
#define GONE_NS NS_PER_SEC	     /* for the GETs of a broken queue pair to come back */

#define ANEW 64 /* of so many choices of where bytes come to, one is to measure the dearer way anew */

enum { ASKED_FOR, AHEAD }; /* cookies of GETs */

struct far_spin far_taken = { .turn = 16 }, far_had = { .turn = 21 };

/* The place of a source is the process whose memory it is in. */
static int keeps(const struct transport_place *place, const struct transport_token *token)
{
	return place->number == (uint32_t)conn_process();
}

static void drop(const struct transport_place *place)
{
}

static const struct transport_ops remote = { .name = "verbs", .keeps = keeps, .drop = drop };

/* Sending ------------------------------------------------------------------------------------------------------------ */

static struct far_exposed *exposed_of(struct far *far, uint64_t number)
{
	return &far->exposed[number % SOURCE_SLOTS];
}

static void hide(struct far *far, struct verbs_conn *link, struct far_exposed *exposed)
{
	struct verbs_region *region = exposed->region;

	exposed->region = NULL;
	for (unsigned int i = 0; i < SOURCE_SLOTS && region; i++) {
		if (far->exposed[i].region == region)
			return;
	}
	if (region)
		far_verbs->hide(link, region);
}

static int expose(struct verbs_conn *link, const void *at, size_t bytes, struct far_exposed *out, uint32_t *key)
{
	struct verbs_remote told;
	int rc = far_verbs->expose(link, at, bytes, &told, &out->region);

	if (rc < 0) {
		out->region = NULL;
		return rc;
	}
	/* It is this one's alone, and goes with it. */
	far_verbs->invalidate(at, bytes);
	*key = told.key;
	return 0;
}

static void hide_passed(struct far *far, struct lane *lane, struct verbs_conn *link)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		if (far->exposed[i].region && source_is_passed(lane, far->exposed[i].number))
			hide(far, link, &far->exposed[i]);
	}
}

void far_hide_all(struct far *far, struct verbs_conn *link)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++)
		hide(far, link, &far->exposed[i]);
	hide(far, link, &far->area);
	hide(far, link, &far->slots);
	if (far->page)
		far_verbs->invalidate(far->page, CHANNEL_HEADER_BYTES);
}

int far_sources_open(struct conn *conn, struct engine *engine)
{
	struct lane *lane = &engine->channel.out;
	struct source_remote *told = &engine->channel.sources_out.remote;
	struct verbs_conn *link = far_link(conn);
	struct far *far = conn->far;
	int rc = 0;

	if (!link || atomic_load(&engine->far.state) != FAR_UP)
		return -ENOTCONN;
	hide_passed(far, lane, link);
	if (!far->area.region) {
		told->area = (uintptr_t)lane->area;
		rc = expose(link, lane->area, lane->area_bytes, &far->area, &told->area_key);
	}
	if (!rc && !far->slots.region) {
		told->slots = (uintptr_t)lane->sources->slot;
		rc = expose(link, lane->sources, sizeof(*lane->sources), &far->slots, &told->slots_key);
	}
	return rc;
}

/* What the same memory is exposed by already, for a source that the peer may still read there: nothing was written since. Or NULL. */
static struct far_exposed *exposed_already(struct far *far, struct lane *lane, const void *at, size_t bytes)
{
	for (unsigned int i = 0; i < SOURCE_SLOTS; i++) {
		struct far_exposed *exposed = &far->exposed[i];

		if (exposed->region && exposed->at == at && exposed->bytes == bytes &&
		    source_taken(lane, exposed->number) != SIZE_MAX)
			return exposed;
	}
	return NULL;
}

/*
 * Before Linux 6.2 the kernel asks for memory that may be written, and does not wait for a guard that lies over it: it refuses, and soft-RoCE
 * writes a line in its log. So where that was seen once it is not asked again in vain: what the peer may read there already is good for
 * this source, too, if the guard lies over all of it yet.
 */
static _Atomic bool refuses_guarded;

static bool shares_exposed(struct conn *conn, struct engine *engine, struct far_exposed *out, const void *at,
			   size_t bytes)
{
	struct far_exposed *other = guard_active() ? exposed_already(conn->far, &engine->channel.out, at, bytes) : NULL;

	if (!other || !guard_holds(at, bytes))
		return false;
	out->region = other->region;
	out->key = other->key;
	return true;
}

int far_expose(struct conn *conn, struct engine *engine, const void *at, size_t bytes)
{
	struct far_exposed *exposed = exposed_of(conn->far, engine->channel.sources_out.next);
	struct verbs_conn *link = far_link(conn);
	int rc = 0;

	if (!link)
		return -ENOTCONN;
	hide_passed(conn->far, &engine->channel.out, link);
	/* The peer says what is passed, and may have taken it back in between. */
	hide(conn->far, link, exposed);
	if (!atomic_load_explicit(&refuses_guarded, memory_order_relaxed) ||
	    !shares_exposed(conn, engine, exposed, at, bytes))
		rc = expose(link, at, bytes, exposed, &exposed->key);
	if (rc == -EFAULT && guard_active()) {
		atomic_store(&refuses_guarded, true);
		rc = 0;
		if (!shares_exposed(conn, engine, exposed, at, bytes)) { /* the guard of a source over a part of it */
			guard_settle(at, bytes);
			rc = expose(link, at, bytes, exposed, &exposed->key);
		}
	}
	exposed->at = at;
	exposed->bytes = bytes;
	return rc;
}

int far_announce(struct conn *conn, struct engine *engine, const void *at, size_t bytes, bool *sunk, uint64_t *number)
{
	struct far_exposed *exposed = exposed_of(conn->far, engine->channel.sources_out.next);
	struct verbs_conn *link = far_link(conn);
	uint32_t sink = 0;
	int rc;

	/* Behind that the record must follow: so there has to be room for it. */
	*sunk = *sunk && link && source_room(&engine->channel.out) >= bytes &&
		!far_verbs->fill(link, at, bytes, exposed->region, &sink);
	rc = source_announce_remote(&engine->channel.out, at, bytes, exposed->key, sink, number);
	if (rc < 0)
		return rc;
	exposed->number = *number;
	far_push(conn, engine); /* so that the peer fetches it while the next is prepared */
	return 0;
}

void far_unexpose(struct conn *conn, struct engine *engine)
{
	struct verbs_conn *link = far_link(conn);

	if (link)
		hide(conn->far, link, exposed_of(conn->far, engine->channel.sources_out.next));
}

enum stat_reason far_source_reason(int error)
{
	return error == -ENOBUFS  ? REASON_SOURCES_FULL :
	       error == -ENOMEM	  ? REASON_RDMA_MEMLOCK :
	       error == -ENOTCONN ? REASON_RDMA_BROKEN :
				    REASON_RDMA_MEMORY;
}

void far_sources_serve(struct conn *conn, struct engine *engine)
{
	struct lane *lane = &engine->channel.out;
	struct verbs_conn *link = far_link(conn);

	if (!lane->out || engine->far.kept)
		return;
	if (link && atomic_load(&engine->far.state) == FAR_UP) {
		hide_passed(conn->far, lane, link);
		return;
	}
	/* Nobody fetches any more: what was announced is sent again from where it is kept. */
	source_keep_all(lane);
	if (link)
		far_hide_all(conn->far, link);
	engine->far.kept = true;
}

/* What moves when the peer takes something. */
static uint64_t progress(const struct lane *lane)
{
	return atomic_load_explicit(&lane->shared->head, memory_order_relaxed) +
	       atomic_load_explicit(&lane->shared->received, memory_order_relaxed);
}

bool far_waits_for_peer(struct conn *conn, const struct lane *lane, struct far_patience *patience)
{
	uint64_t now = clock_now(), there = progress(lane);

	if (!patience->since || there != patience->at) {
		patience->since = now;
		patience->at = there;
	}
	if (now > patience->until || now - patience->since >= (patience->waits ? patience->quiet_ns : FAR_LOOKS_NS) ||
	    atomic_load(&atomic_load(&conn->engine)->far.state) != FAR_UP)
		return false;
	if (!far_wait_looks(&patience->wait, &far_taken, now - patience->since))
		far_sleep(conn, 1);
	return true;
}

void far_has_waited(const struct far_patience *patience, bool all)
{
	far_wait_ends(&patience->wait, &far_taken, all, clock_now());
}

/* Receiving ---------------------------------------------------------------------------------------------------------- */

/* GETs under way. */
struct fetch {
	struct conn *conn;
	struct engine *engine;
	struct verbs_conn *link;
	unsigned int under_way;
	bool broken;
	int error;	/* of a post */
	uint64_t moved; /* ns: the last that was posted, or ended */
	struct far_wait wait;
};

static void reap(struct fetch *fetch)
{
	struct far *far = fetch->conn->far;
	struct verbs_got got;

	far_verbs->poll(fetch->link);
	while (far_verbs->got(fetch->link, &got)) {
		if (got.cookie == AHEAD)
			far->ahead--;
		else
			fetch->under_way--;
		fetch->moved = clock_now();
		fetch->broken |= got.error != 0; /* whatever it was, the queue pair does not outlive it */
	}
}

/* Waits a moment for the end of one. */
static void wait_for_end(struct fetch *fetch)
{
	uint64_t quiet;

	reap(fetch);
	quiet = clock_now() - fetch->moved;
	if (quiet > SILENCE_NS && !fetch->broken) {
		log_info("a peer on another host does not answer READs");
		far_verbs->give_up(fetch->link);
		fetch->broken = true;
		fetch->moved = clock_now();
	}
	if (far_wait_looks(&fetch->wait, &far_had, quiet))
		return;
	if (fetch->broken)
		sys_call(SYS_poll, 0, 0, 1, 0, 0, 0); /* a broken one's descriptor is readable for ever */
	else
		far_sleep(fetch->conn, 1);
}

/* One request for all that goes into one. Returns as verbs_get(). */
static ssize_t post_part(struct fetch *fetch, const struct avail_get *get, size_t done, uint64_t cookie)
{
	const struct verbs_remote from = { get->address + done, get->key };

	return far_verbs->get(fetch->link, &from, get->bytes - done, get->iov, get->count, get->skip + done,
			      get->behind && !done ? VERBS_BEHIND : 0, cookie);
}

static void post(struct fetch *fetch, const struct avail_get *get)
{
	size_t done = 0;

	while (done < get->bytes && !fetch->error && !fetch->broken) {
		ssize_t rc = post_part(fetch, get, done, ASKED_FOR);

		if (rc > 0) {
			done += (size_t)rc;
			fetch->under_way++;
			fetch->moved = clock_now();
		} else if (rc == -EAGAIN) {
			wait_for_end(fetch);
		} else {
			fetch->error = rc < 0 ? (int)rc : -EFAULT;
		}
	}
}

static bool is_reserved(const struct far *far, const void *at)
{
	return far->reserved && (uintptr_t)at - (uintptr_t)far->reserved_at < FAR_AREA_BYTES;
}

/* No registration of the program's memory is found again. */
static void forget(const struct far *far, const struct avail_get *get)
{
	size_t skip = get->skip, left = get->bytes;

	for (int i = 0; i < get->count && left && !get->own && !is_reserved(far, get->iov->iov_base); i++) {
		size_t part = get->iov[i].iov_len > skip ? get->iov[i].iov_len - skip : 0;

		part = part < left ? part : left;
		if (part)
			far_verbs->invalidate((char *)get->iov[i].iov_base + skip, part);
		skip = part ? 0 : skip - get->iov[i].iov_len;
		left -= part;
	}
}

/* Returns whether there is a queue pair. */
static bool begin_fetch(struct conn *conn, struct fetch *out)
{
	*out = (struct fetch){ .conn = conn,
			       .engine = atomic_load(&conn->engine),
			       .link = far_link(conn),
			       .moved = clock_now() };
	return out->link && atomic_load(&out->engine->far.state) == FAR_UP;
}

static int fetch_all(void *context, const struct avail_get *gets, int count)
{
	struct conn *conn = context;
	struct fetch fetch;

	if (!begin_fetch(conn, &fetch))
		return -ENOTCONN;
	fetch.wait.begun = fetch.moved;
	for (int i = 0; i < count; i++)
		fetch.wait.bytes += gets[i].bytes;
	for (int i = 0; i < count; i++)
		post(&fetch, &gets[i]);
	while (fetch.under_way && !(fetch.broken && clock_now() - fetch.moved > GONE_NS))
		wait_for_end(&fetch);
	far_wait_ends(&fetch.wait, &far_had, !fetch.broken && !fetch.error, clock_now());
	for (int i = 0; i < count; i++)
		forget(conn->far, &gets[i]);
	/* If one is under way yet, the queue pair does not settle, and the connection is reset. */
	if (!fetch.broken && fetch.error != -ENOTCONN)
		return fetch.error;
	far_is_up(conn, fetch.engine);
	return -ENOTCONN;
}

/* The lane's own area, all of which is registered once. `asked`: by the program. Returns whether it is. */
static bool reserve(struct far *far, struct verbs_conn *link, const struct iovec *area, bool asked)
{
	if (far->reserved || (far->reserved_at && !asked))
		return far->reserved;
	far->reserved_at = area->iov_base;
	/* Else it is a saving, which must not be at the cost of others' sources, and is tried once. */
	if (far_verbs->reserve(link, area->iov_base, area->iov_len, !asked, &far->reserved) < 0)
		far->reserved = NULL;
	return far->reserved;
}

/*
 * A registration for each receive costs what pinning its pages and the device's tables do; a copy from the area costs a copy. What both cost
 * here is measured as they are made, and the dearer one is taken once in a while, so that a figure of a bad moment does not last. Registering the
 * area has to pay, too: a connection that fetches little never does.
 */
static bool by_area(void *context, const struct iovec *area, size_t bytes, uint64_t copy_ns)
{
	static _Atomic uint32_t choices;
	struct conn *conn = context;
	uint64_t registration_ns;
	struct fetch fetch;
	bool cheaper;

	if (!begin_fetch(conn, &fetch) || fetch.engine->channel.sources_in.fetched < area->iov_len)
		return false;
	registration_ns = far_verbs->registration_ns(bytes);
	cheaper = copy_ns < registration_ns;
	if (registration_ns && copy_ns &&
	    atomic_fetch_add_explicit(&choices, 1, memory_order_relaxed) % ANEW == ANEW - 1)
		cheaper = !cheaper;
	return cheaper && reserve(conn->far, fetch.link, area, settings.recv_async);
}

/* Ahead: into the lane's own area. */
static int room_ahead(void *context, const struct iovec *area)
{
	struct conn *conn = context;
	struct fetch fetch;

	if (!begin_fetch(conn, &fetch))
		return 0;
	if (!reserve(conn->far, fetch.link, area, true)) {
		stats_reason(conn->slot, REASON_NO_RECV_ASYNC);
		return 0;
	}
	return far_verbs->gets(fetch.link);
}

static int begin_ahead(void *context, const struct avail_get *gets, int count)
{
	struct conn *conn = context;
	struct far *far = conn->far;
	struct fetch fetch;

	if (!begin_fetch(conn, &fetch))
		return -ENOTCONN;
	for (int i = 0; i < count; i++) {
		for (size_t done = 0; done < gets[i].bytes;) {
			ssize_t rc = post_part(&fetch, &gets[i], done, AHEAD);

			if (rc <= 0)
				return rc < 0 ? (int)rc : -EFAULT;
			done += (size_t)rc;
			far->ahead++;
		}
	}
	return 0;
}

static int begun_ahead(void *context, bool waits)
{
	struct conn *conn = context;
	struct fetch fetch;

	if (!begin_fetch(conn, &fetch))
		return -ENOTCONN;
	reap(&fetch);
	while (waits && conn->far->ahead && !(fetch.broken && clock_now() - fetch.moved > GONE_NS))
		wait_for_end(&fetch);
	if (fetch.broken) {
		far_is_up(conn, fetch.engine);
		return -ENOTCONN;
	}
	far_took_notices(conn, fetch.engine, false);
	return conn->far->ahead ? 1 : 0;
}

void far_reserves_nothing(struct far *far, struct verbs_conn *link)
{
	if (far->reserved)
		far_verbs->hide(link, far->reserved);
	if (far->reserved_at)
		far_verbs->invalidate(far->reserved_at, FAR_AREA_BYTES);
	far->reserved = NULL;
	far->reserved_at = NULL;
	far->ahead = 0;
	far_offers_nothing(far, link);
}

static void give_up(void *context)
{
	struct conn *conn = context;

	far_give_up(conn, atomic_load(&conn->engine));
}

static const struct avail_ops fetches = { fetch_all, room_ahead, begin_ahead, begun_ahead, give_up, by_area };

void far_fetch_there(struct conn *conn, struct engine *engine)
{
	if (far_link(conn))
		far_fetch(conn, engine);
}

bool far_fetch(struct conn *conn, struct engine *engine)
{
	int rc = engine->channel.in.in ? avail_fetch_all(&engine->channel.in) : 0;

	if (rc < 0 && rc != -ENOTCONN)
		far_give_up(conn, engine);
	return !rc;
}

/* Both ---------------------------------------------------------------------------------------------------------------- */

void far_sources_again(struct conn *conn, struct engine *engine)
{
	struct channel *channel = &engine->channel;

	conn->far->page = channel->header;
	source_out_again(&channel->sources_out);
	source_in_again(&channel->sources_in);
}

void far_sources_begin(struct conn *conn, struct engine *engine)
{
	struct channel *channel = &engine->channel;

	conn->far->page = channel->header;
	channel->in.area_bytes = FAR_AREA_BYTES;
	channel->out.area_bytes = FAR_AREA_BYTES;
	source_out_open_remote(&channel->sources_out, &remote,
			       (struct transport_place){ .number = (uint32_t)conn_process() });
	source_in_open_remote(&channel->sources_in, &fetches, conn);
	channel->sources_in.ahead = settings.recv_async;
	channel->out.out = &channel->sources_out;
	channel->in.in = &channel->sources_in;
}
