/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/far_compare.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/far_internal.h"

#define SETTLE_NS NS_PER_SEC
#define SETTLE_SHARE 2		  /* of the time that it took to find out: the accepting end takes twice as long */
#define REST_NS (30 * NS_PER_SEC) /* twice as long each time */
#define RECEIVER_SHARE 8 /* of a connection that receives so much more often, the peer has to know what is better */

static struct far_hosts own_hosts, *hosts = &own_hosts;
_Static_assert(FAR_CLASSES == STATS_HOST_CLASSES && FAR_WAYS == STATS_HOST_WAYS, "what statistics have room for");

void far_compare_start(void)
{
	struct far_hosts *shared;

	if (settings.transport != TRANSPORT_AUTO)
		return;
	shared = sys_map(sizeof(*shared), MAP_SHARED);
	if (shared)
		hosts = shared;
}

/* FNV-1a of what both ends call it. */
static uint64_t number_of(const struct verbs_tuple *tuple)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (int end = 0; end < 2; end++) {
		for (size_t i = 0; i < sizeof(tuple->address[end]); i++)
			hash = (hash ^ tuple->address[end][i]) * 0x100000001b3ull;
		hash = (hash ^ tuple->port[end]) * 0x100000001b3ull;
	}
	return hash ? hash : 1;
}

bool far_compare_is_vain(const struct sockaddr_storage *peer)
{
	const struct far_host *host = far_trial_known(hosts, choose_peer_key((const struct sockaddr *)peer));

	return host && far_trial_is_vain(host, clock_now());
}

enum far_pays far_compare_pays(struct engine *engine)
{
	struct far_part *far = &engine->far;
	uint32_t receives = far->receives, sends = far->sends, turns = receives < sends ? receives : sends;
	uint64_t now = clock_now();
	struct far_moved moved = { .bytes = engine->sent + engine->received,
				   .calls = atomic_load(&engine->calls),
				   .after = far_trial_after(hosts, settings.rdma_after_ms * NS_PER_MS),
				   .class = FAR_NO_CLASS };
	struct verbs_tuple tuple;
	enum far_pays pays;

	if (!far->begun) {
		far->begun = now;
		far->number = far_tuple(engine, &tuple) ? number_of(&tuple) : 1;
	}
	moved.number = far->number;
	moved.ns = now - far->begun;
	far->pace = moved.ns > FAR_COMES_NS ? (uint32_t)(moved.calls * FAR_COMES_NS / moved.ns) : 0;
	if (now < far->rests_until)
		return FAR_PAYS_LATER;
	if (receives / RECEIVER_SHARE <= sends)
		moved.class = far_trial_class(far->largest, sends, turns);
	far->compares = true;
	pays = far_trial_pays(far_trial_host(hosts, far->host, now), &moved, now);
	atomic_store(&far->seeks, pays == FAR_PAYS_TO_SEE);
	if (pays < FAR_PAYS)
		return pays;
	log_trace("is to meet a peer on another host after %u calls", moved.calls);
	return FAR_PAYS;
}

bool far_compare_rests(struct engine *engine)
{
	struct far_part *far = &engine->far;

	if (!far->compares || far->vain == FAR_VAIN_MAX)
		return false;
	far->rests_until = clock_now() + (REST_NS << far->vain++);
	return true;
}

void far_compare_met(struct engine *engine, uint64_t spent)
{
	far_trial_again(&engine->far.trial);
	if (spent)
		atomic_store(&hosts->meeting, spent);
	if (atomic_load(&engine->far.seeks)) {
		uint64_t now = clock_now();

		far_trial_has_met(far_trial_host(hosts, engine->far.host, now), now);
	}
}

void far_compare_seeks_no_more(struct engine *engine)
{
	struct far_host *host =
		atomic_exchange(&engine->far.seeks, false) ? far_trial_known(hosts, engine->far.host) : NULL;

	if (host)
		far_trial_seeks_no_more(host);
}

void far_compare_is_told(struct engine *engine, enum lane_use use)
{
	struct far_host *host;
	uint64_t now;

	if (!engine->far.compares || use == LANE_USE_UNKNOWN)
		return;
	now = clock_now();
	host = far_trial_host(hosts, engine->far.host, now);
	if (use == LANE_USE_RING)
		far_trial_is_wanted(host, now);
	else if (engine->far.peer_wants)
		far_trial_is_wanted_no_more(host);
	engine->far.peer_wants = use == LANE_USE_RING;
	if (!atomic_exchange(&engine->far.seeks, false))
		return;
	if (use == LANE_USE_RING)
		far_trial_seeks_no_more(host);
	else
		far_trial_found_for_us(host, now);
}

/* What a trial has found, for who wants to know why. */
static void tell(const struct engine *engine, const struct far_host *host, int class)
{
	struct stats_host *told = &stats->host[engine->far.host % STATS_HOSTS];
	const struct far_finding *finding = &host->classes[class];
	struct sockaddr_storage peer = engine->names.peer;

	if (peer.ss_family == AF_INET)
		((struct sockaddr_in *)&peer)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&peer)->sin6_port = 0;
	if (memcmp(told->address, &peer, sizeof(told->address)) != 0) {
		memset((void *)told->trial, 0, sizeof(told->trial));
		memcpy(told->address, &peer, sizeof(told->address));
	}
	log_info("RDMA was compared with TCP: %llu ns by TCP, %llu by a ring",
		 (unsigned long long)atomic_load(&finding->cost[FAR_BY_TCP]),
		 (unsigned long long)atomic_load(&finding->cost[FAR_BY_RING]));
	for (int way = 0; way < FAR_WAYS; way++)
		atomic_store(&told->trial[class].cost[way], atomic_load(&finding->cost[way]));
	atomic_store(&told->trial[class].taken, atomic_load(&finding->best));
	atomic_store(&told->trial[class].tries, atomic_load(&finding->tries));
}

/* What the peer hears of the use that a ring is of for what this end sends. */
static void says(struct conn *conn, struct lane_shared *in, enum lane_use use)
{
	if (atomic_load_explicit(&in->use, memory_order_relaxed) == use)
		return;
	atomic_store(&in->use, (uint16_t)use);
	if (use == LANE_USE_UNKNOWN)
		return;
	atomic_store(&conn->far->tells, true);
	far_kick();
}

/* Once the peer has said that it has no use for it either; or, of one that does not compare, has had its time to. */
static void may_settle(struct conn *conn, struct engine *engine, uint64_t now)
{
	struct far_part *far = &engine->far;
	const struct lane_shared *out = engine->channel.out.shared;
	struct lane_shared *in = engine->channel.in.shared;
	uint64_t head = atomic_load(&in->head), calm;

	says(conn, in, LANE_USE_NONE);
	if (!far->lost_at || head != far->lost_head || atomic_load(&in->from_ring) || atomic_load(&out->on_ring)) {
		far->lost_at = now;
		far->lost_head = head;
		return;
	}
	calm = SETTLE_SHARE * (far->lost_at - atomic_load(&far->up_at));
	calm = atomic_load(&out->use) == LANE_USE_NONE ? 0 : calm > SETTLE_NS ? calm : SETTLE_NS;
	if (now - far->lost_at > calm && !atomic_exchange(&conn->far->unwanted, true))
		far_kick();
}

/*
 * Of sends that are answered both go the same way. One that comes by TCP keeps the other end at both, and where many share a few processors
 * what this end gains by RDMA others lose, which it does not see.
 */
static bool has_lost(const struct engine *engine, const struct far_host *host, uint64_t now)
{
	const struct far_trial *trial = &engine->far.trial;

	return far_trial_has_lost(trial, host, now) ||
	       (atomic_load_explicit(&engine->channel.out.shared->use, memory_order_relaxed) == LANE_USE_NONE &&
		far_trial_has_turns(trial));
}

enum far_way far_compare_way(struct conn *conn, struct engine *engine, size_t bytes)
{
	struct far_trial *trial = &engine->far.trial;
	struct far *far = conn->far;
	struct far_host *host;
	struct far_send send;
	enum far_way way;
	int tried;

	if (!engine->far.compares)
		return FAR_BY_RING;
	if (!far || atomic_load(&engine->far.state) != FAR_UP) {
		atomic_store(&engine->far.way, FAR_BY_TCP);
		return FAR_BY_TCP;
	}
	send = (struct far_send){ .bytes = bytes,
				  .at = atomic_load(&engine->channel.out.shared->sent),
				  .ring_at = engine->ring_bytes,
				  .fetches = bytes >= (size_t)settings.source_min,
				  .now = clock_now() };
	host = far_trial_host(hosts, engine->far.host, send.now);
	tried = trial->tries - 1;
	trial->accepts = engine->role == ROLE_SERVER;
	way = far_trial_next(trial, host, &send);
	if (tried >= 0 && !trial->tries) {
		tell(engine, host, tried);
		far_compare_seeks_no_more(engine);
	}
	if (has_lost(engine, host, send.now)) {
		way = FAR_BY_TCP;
		stats_reason(conn->slot, REASON_RDMA_SLOWER);
		may_settle(conn, engine, send.now);
	} else {
		engine->far.lost_at = 0;
		says(conn, engine->channel.in.shared,
		     far_trial_has_won(trial, host, send.now) ? LANE_USE_RING : LANE_USE_UNKNOWN);
	}
	atomic_store_explicit(&engine->far.way, way, memory_order_relaxed);
	return way;
}

void far_compare_came_there(struct conn *conn)
{
	struct engine *engine = atomic_load(&conn->engine);

	if (engine && far_trial_asks(&engine->far.trial))
		far_trial_came(&engine->far.trial, clock_now());
}

void far_compare_sent_there(struct engine *engine, size_t bytes, uint64_t begun)
{
	struct far_part *far = &engine->far;
	const struct far_send send = { .bytes = bytes, .at = engine->sent - bytes, .now = begun };

	far->sends++;
	far->largest = bytes > far->largest ? bytes : far->largest;
	if (begun) {
		far->trial.accepts = engine->role == ROLE_SERVER;
		far_trial_before(&far->trial, &send);
	}
}

/* One that hardly sends may receive by either. */
bool far_compare_needs_none(const struct engine *engine)
{
	const struct far_host *host;

	if (!engine->far.compares || atomic_load(&engine->channel.out.shared->use) != LANE_USE_NONE)
		return false;
	host = far_trial_known(hosts, engine->far.host);
	return host && (!engine->far.trial.class || has_lost(engine, host, clock_now()));
}
