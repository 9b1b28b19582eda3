/* SPDX-License-Identifier: MIT */
#include "preload/far_trial.h"

#include <string.h>

#define PROBES 8		      /* rows that may be a host's */
#define ABSENT_NS (4 * FAR_COMES_NS)  /* who has not come by for so long is at work no more */
#define SETTLED_NS (2 * FAR_COMES_NS) /* all that are at work have come by */
#define ROUNDS 3
#define PAUSE_NS (200 * NS_PER_MS) /* the program did something else */
#define LOST_NS (2 * NS_PER_SEC)   /* who has not come to the end of a run until then sends no more */
#define TRYING UINT64_MAX

#define PROFILE_SENDS 32
#define TURNS_SHARE 4 /* one of so many sends that is answered makes them turns */

/*
 * What a run begins with and does not count: what is in the buffers of the way before is received, those of this one fill. TCP's
 * are the larger ones.
 */
#define LEAD_SENDS 8
#define LEAD_TURNS 4
#define LEAD_NS_MAX (60 * NS_PER_MS) /* of turns */
#define LEAD_BYTES_TCP (8u << 20)
#define LEAD_BYTES (2u << 20)
#define LEAD_NS (50 * NS_PER_MS) /* is enough, however few the bytes are */
/* What counts. */
#define RUN_UNITS 32
#define RUN_BYTES (4u << 20)
#define RUN_NS (20 * NS_PER_MS)
#define RUN_NS_MAX NS_PER_SEC /* is enough, however few the units are */
#define UNITS_MIN 4
#define IDLE_MAX 64

#define WORSE 3 /* times as much as the best one costs: the run ends */
#define WORSE_NS (10 * NS_PER_MS)
#define WORSE_TURNS 4
#define DRAIN_BYTES (4u << 20) /* a stream's, in the buffers of the way before */
#define STOPS_MAX 2

/* Hosts --------------------------------------------------------------------------------------------------------------- */

static struct far_host *row_of(struct far_hosts *hosts, uint64_t key, size_t probe)
{
	return &hosts->rows[((key ^ key >> 32) + probe) % FAR_HOSTS];
}

struct far_host *far_trial_known(struct far_hosts *hosts, uint64_t key)
{
	for (size_t i = 0; i < PROBES; i++) {
		struct far_host *row = row_of(hosts, key, i);

		if (atomic_load_explicit(&row->key, memory_order_acquire) == key)
			return row;
	}
	return NULL;
}

struct far_host *far_trial_host(struct far_hosts *hosts, uint64_t key, uint64_t now)
{
	struct far_host *oldest = far_trial_known(hosts, key);

	if (oldest) {
		atomic_store_explicit(&oldest->used_ns, now, memory_order_relaxed);
		return oldest;
	}
	for (size_t i = 0; i < PROBES; i++) {
		struct far_host *row = row_of(hosts, key, i);

		if (!oldest || atomic_load(&row->used_ns) < atomic_load(&oldest->used_ns))
			oldest = row;
	}
	atomic_store(&oldest->key, 0);
	atomic_store(&oldest->seeks_until, 0);
	atomic_store(&oldest->lately, 0);
	atomic_store(&oldest->wanted_until, 0);
	atomic_store(&oldest->work_ns, 0);
	atomic_store(&oldest->came_ns, 0);
	atomic_store(&oldest->first, 0);
	for (int class = 0; class < FAR_CLASSES; class ++) {
		struct far_finding *finding = &oldest->classes[class];

		atomic_store(&finding->best, 0);
		atomic_store(&finding->again_ns, 0);
		atomic_store(&finding->calm_ns, 0);
		atomic_store(&finding->tries, 0);
		for (int way = 0; way < FAR_WAYS; way++)
			atomic_store(&finding->cost[way], 0);
	}
	atomic_store(&oldest->used_ns, now);
	atomic_store_explicit(&oldest->key, key, memory_order_release);
	return oldest;
}

int far_trial_class(size_t bytes, uint32_t sends, uint32_t turns)
{
	int size = bytes < 4096 ? 0 : bytes < 65536 ? 1 : bytes < 524288 ? 2 : 3;

	if (!sends || !bytes)
		return FAR_NO_CLASS;
	return turns >= sends / TURNS_SHARE + (sends < TURNS_SHARE) ? FAR_SIZES + size : size;
}

static bool is_turn(int class)
{
	return class >= FAR_SIZES;
}

/* Whether somebody is at a trial, and has not been lost with it. */
static bool is_tried(const struct far_finding *finding, uint64_t now)
{
	return atomic_load_explicit(&finding->again_ns, memory_order_relaxed) == TRYING &&
	       now < atomic_load_explicit(&finding->since_ns, memory_order_relaxed) + LOST_NS;
}

/* Whether what was found still holds. While somebody tries anew it does. */
static bool holds(const struct far_finding *finding, uint64_t now)
{
	uint64_t again = atomic_load_explicit(&finding->again_ns, memory_order_relaxed);

	return atomic_load_explicit(&finding->best, memory_order_relaxed) &&
	       (again == TRYING ? is_tried(finding, now) : now < again);
}

static bool prefers_tcp(const struct far_finding *finding, uint64_t now)
{
	return holds(finding, now) && atomic_load_explicit(&finding->best, memory_order_relaxed) == FAR_BY_TCP + 1;
}

static bool prefers_rdma(const struct far_finding *finding)
{
	return atomic_load_explicit(&finding->best, memory_order_relaxed) > FAR_BY_TCP + 1;
}

static bool is_wanted(const struct far_host *host, uint64_t now)
{
	return now < atomic_load_explicit(&host->wanted_until, memory_order_relaxed);
}

bool far_trial_is_vain(const struct far_host *host, uint64_t now)
{
	bool streams = false, turns = false;

	if (is_wanted(host, now))
		return false;
	for (int class = 0; class < FAR_CLASSES; class ++) {
		const struct far_finding *finding = &host->classes[class];
		bool tcp = prefers_tcp(finding, now);

		if (prefers_rdma(finding))
			return false;
		streams |= tcp && !is_turn(class);
		turns |= tcp && is_turn(class);
	}
	return streams && turns;
}

uint64_t far_trial_after(const struct far_hosts *hosts, uint64_t first_ns)
{
	uint64_t meeting = atomic_load_explicit(&hosts->meeting, memory_order_relaxed);

	return meeting ? FAR_MEETING_SHARE * FAR_ENDS * meeting : first_ns;
}

/* A connection comes by. Returns for how long connections with the host have been at work, whose pauses do not count. */
static uint64_t works(struct far_host *host, uint64_t now)
{
	uint64_t before = atomic_exchange(&host->came_ns, now);

	if (before && now > before && now - before < ABSENT_NS)
		return atomic_fetch_add(&host->work_ns, now - before) + (now - before);
	return atomic_load(&host->work_ns);
}

/* Whether it is the connection that the other end chooses, too. */
static bool is_first(struct far_host *host, uint64_t number, uint64_t now)
{
	uint64_t first = atomic_load(&host->first);
	uint64_t came = atomic_load(&host->first_ns);
	bool absent = now > came && now - came > ABSENT_NS;

	if (first && first < number && !absent)
		return false;
	if (first != number || absent) {
		atomic_store(&host->first, number);
		atomic_store(&host->first_since, now);
	}
	atomic_store(&host->first_ns, now);
	return now - atomic_load(&host->first_since) >= SETTLED_NS;
}

void far_trial_has_met(struct far_host *host, uint64_t now)
{
	atomic_store(&host->seeks_until, now + FAR_UNDECIDED_NS);
}

void far_trial_seeks_no_more(struct far_host *host)
{
	atomic_store(&host->seeks_until, 0);
}

void far_trial_is_wanted(struct far_host *host, uint64_t now)
{
	atomic_store(&host->wanted_until, now + FAR_CALM_MAX);
}

void far_trial_is_wanted_no_more(struct far_host *host)
{
	atomic_store(&host->wanted_until, 0);
}

void far_trial_found_for_us(struct far_host *host, uint64_t now)
{
	atomic_store(&host->seeks_until, now + FAR_CALM_FIRST);
}

enum far_pays far_trial_pays(struct far_host *host, const struct far_moved *moved, uint64_t now)
{
	const struct far_finding *finding = moved->class == FAR_NO_CLASS ? NULL : &host->classes[moved->class];
	uint64_t until = atomic_load(&host->seeks_until), work_ns = works(host, now);
	bool first;

	if (is_wanted(host, now) || (finding ? prefers_rdma(finding) : atomic_load(&host->lately) > FAR_BY_TCP + 1))
		return FAR_PAYS;
	if ((moved->bytes < FAR_WORTH_BYTES && moved->calls < FAR_WORTH_CALLS) || moved->ns < FAR_WORTH_NS)
		return FAR_PAYS_LATER;
	first = is_first(host, moved->number, now);
	if (work_ns < moved->after)
		return FAR_PAYS_LATER;
	if (finding && prefers_tcp(finding, now))
		return FAR_PAYS_NOT;
	/* It may have met by then, and tries. */
	if (now < until || (finding && is_tried(finding, now)))
		return FAR_PAYS_LATER;
	if (!first)
		return FAR_PAYS_LATER;
	return atomic_compare_exchange_strong(&host->seeks_until, &until, now + FAR_SEEK_NS) ? FAR_PAYS_TO_SEE :
											       FAR_PAYS_LATER;
}

/* A trial ------------------------------------------------------------------------------------------------------------- */

/* What the best way that is known needs for so many bytes, or turns. */
static uint64_t best_ns(const struct far_trial *trial, int class, uint64_t bytes, uint64_t turns)
{
	return is_turn(class) ? trial->cost[trial->best] * turns : trial->cost[trial->best] * bytes / 1024;
}

/* Whether the connection has been at work for long enough, in comparison with what a run may cost. */
static bool affords(const struct far_trial *trial, int class, uint64_t now)
{
	uint64_t risk = best_ns(trial, class, DRAIN_BYTES + 8 * trial->size, WORSE * WORSE_TURNS) + WORSE_NS;

	return now - trial->begun_ns >= FAR_SPENT_SHARE * (trial->spent + risk);
}

static void start_run(struct far_trial *trial, enum far_way way)
{
	trial->way = way;
	trial->all_ns = trial->all_bytes = trial->ns = trial->bytes = 0;
	trial->all_sends = trial->all_turns = trial->run_sends = trial->run_turns = trial->idle = 0;
}

static bool knows_base(const struct far_trial *trial, int class)
{
	return trial->base && trial->base_class == class + 1;
}

/* Returns false when all runs are done. */
static bool begin_run(struct far_trial *trial, struct far_finding *finding, uint64_t now)
{
	for (; trial->run < ROUNDS * trial->ways; trial->run++) {
		enum far_way way = trial->run % trial->ways;

		if (trial->stopped[way] >= STOPS_MAX || (way == FAR_BY_TCP && knows_base(trial, trial->tries - 1)))
			continue;
		trial->waits =
			way != trial->best && (!trial->cost[trial->best] || !affords(trial, trial->tries - 1, now));
		start_run(trial, trial->waits ? trial->best : way);
		atomic_store(&finding->since_ns, now);
		trial->run += !trial->waits;
		return true;
	}
	return false;
}

/* Takes it on to try, if it is time and nobody else does. */
static bool claim(struct far_trial *trial, struct far_host *host, int class, const struct far_send *send)
{
	struct far_finding *finding = &host->classes[class];
	uint64_t when = atomic_load_explicit(&finding->again_ns, memory_order_relaxed);
	uint32_t best = atomic_load(&finding->best);

	if (trial->barren || (when == TRYING ? is_tried(finding, send->now) : send->now < when))
		return false;
	/* Before it is claimed: whoever finds it claimed looks how long. */
	atomic_store(&finding->since_ns, send->now);
	if (when != TRYING && !atomic_compare_exchange_strong(&finding->again_ns, &when, TRYING))
		return false;
	trial->tries = class + 1;
	trial->run = 0;
	trial->ways = send->fetches ? FAR_WAYS : FAR_BY_RING + 1;
	trial->best = best && best <= trial->ways ? best - 1 : FAR_BY_TCP;
	memset(trial->cost, 0, sizeof(trial->cost));
	memset(trial->stopped, 0, sizeof(trial->stopped));
	trial->cost[FAR_BY_TCP] = knows_base(trial, class) ? trial->base : 0;
	return begin_run(trial, finding, send->now);
}

/* Each has to be better than those before it by a tenth. */
static enum far_way best_of(const uint64_t *cost, unsigned int ways)
{
	enum far_way best = FAR_BY_TCP;

	for (unsigned int way = 1; way < ways; way++) {
		if (cost[way] && cost[way] < cost[best] - cost[best] / 10)
			best = way;
	}
	return best;
}

static void release(struct far_trial *trial, struct far_host *host, uint64_t now)
{
	atomic_store(&host->classes[trial->tries - 1].again_ns, now);
	trial->tries = 0;
}

static void conclude(struct far_trial *trial, struct far_host *host, uint64_t now)
{
	struct far_finding *finding = &host->classes[trial->tries - 1];
	uint32_t best = best_of(trial->cost, trial->ways) + 1;
	uint64_t calm = atomic_load(&finding->calm_ns);

	if (!trial->cost[FAR_BY_RING] || !trial->cost[FAR_BY_TCP]) {
		trial->barren = true;
		release(trial, host, now);
		return;
	}
	calm = atomic_load(&finding->best) == best && calm ? 2 * calm : FAR_CALM_FIRST;
	calm = calm < FAR_CALM_MAX ? calm : FAR_CALM_MAX;
	for (int way = 0; way < FAR_WAYS; way++)
		atomic_store(&finding->cost[way], trial->cost[way]);
	atomic_fetch_add(&finding->tries, 1);
	atomic_store(&finding->best, best);
	atomic_store(&host->lately, best);
	atomic_store(&finding->calm_ns, calm);
	atomic_store(&finding->again_ns, now + calm);
	trial->tries = 0;
}

static uint64_t cost_of(int class, uint64_t ns, uint64_t bytes, uint32_t turns)
{
	uint64_t units = is_turn(class) ? (uint64_t)turns * 1024 : bytes;

	return units ? ns * 1024 / units : 0;
}

/* Whether what was done since the run has begun does not tell of the way yet. */
static bool leads(const struct far_trial *trial, int class)
{
	uint64_t bytes = trial->way == FAR_BY_TCP ? LEAD_BYTES_TCP : LEAD_BYTES;

	if (is_turn(class))
		return trial->all_turns < LEAD_TURNS;
	return trial->all_bytes < bytes && (trial->all_sends < LEAD_SENDS || trial->all_ns < LEAD_NS);
}

/* The send before this one has taken so long, and so many bytes. */
static void book(struct far_trial *trial, int class, uint64_t ns, uint64_t bytes, bool answered)
{
	bool counts = !leads(trial, class);

	if (!trial->all_sends++) { /* it has moved the lane */
		trial->spent += trial->way == trial->best ? 0 : ns;
		return;
	}
	trial->all_ns += ns;
	trial->all_bytes += bytes;
	trial->all_turns += answered;
	if (!counts)
		return;
	trial->ns += ns;
	trial->bytes += bytes;
	trial->run_sends++;
	trial->run_turns += answered;
}

static bool has_enough(const struct far_trial *trial, int class)
{
	uint32_t units = is_turn(class) ? trial->run_turns : trial->run_sends;
	uint32_t wanted = is_turn(class) && trial->accepts ? 2 * RUN_UNITS : RUN_UNITS;

	if (units < UNITS_MIN)
		return false;
	if (trial->all_ns >= RUN_NS_MAX)
		return true;
	if (is_turn(class))
		return units >= wanted;
	return trial->bytes >= RUN_BYTES || (units >= wanted && trial->ns >= RUN_NS);
}

/*
 * Whether it shows already that this way is far worse than the best. Turns are slow until both ends have found out where the other's come
 * from and look for them there, so those that lead a run count only if it is never over with them.
 */
static bool is_worse(const struct far_trial *trial, int class)
{
	if (trial->way == trial->best || !trial->cost[trial->best])
		return false;
	if (!is_turn(class))
		return trial->all_ns >= WORSE_NS && trial->all_ns > WORSE * best_ns(trial, class, trial->all_bytes, 0) +
									    best_ns(trial, class, DRAIN_BYTES, 0);
	if (trial->run_turns < WORSE_TURNS)
		return trial->all_ns >= LEAD_NS_MAX;
	return trial->ns >= WORSE_NS && trial->ns > WORSE * best_ns(trial, class, 0, trial->run_turns);
}

static void end_run(struct far_trial *trial, int class, bool early)
{
	bool counted = !early || (is_turn(class) && trial->run_turns >= WORSE_TURNS);
	uint64_t cost = counted ? cost_of(class, trial->ns, trial->bytes, trial->run_turns) :
				  cost_of(class, trial->all_ns, trial->all_bytes, trial->all_turns);
	uint64_t *known = &trial->cost[trial->way];
	uint64_t right = best_ns(trial, class, trial->all_bytes, trial->all_turns);

	if (early && !cost) /* not one in all that time */
		cost = trial->all_ns;
	if (trial->way != trial->best && trial->all_ns > right)
		trial->spent += trial->all_ns - right;
	trial->stopped[trial->way] += early;
	if (!cost || (trial->waits && *known) || (*known && *known <= cost))
		return;
	*known = cost;
	if (trial->cost[trial->best] > cost)
		trial->best = trial->way;
}

/* The send before this one, which has begun at trial->last_ns, is over. Returns the time that its program has waited for it. */
static uint64_t waited(const struct far_trial *trial, int class, const struct far_send *send, uint64_t came)
{
	uint64_t until = is_turn(class) && came ? came : send->now;

	return until > trial->last_ns ? until - trial->last_ns : 0;
}

/* Goes on with the trial: the send before this one is over. */
static void go_on(struct far_trial *trial, struct far_host *host, const struct far_send *send, uint64_t came)
{
	int class = trial->tries - 1;
	uint64_t ns = waited(trial, class, send, came);
	bool early;

	if (trial->way != FAR_BY_TCP && send->ring_at == trial->last_ring_at)
		trial->idle++;
	else if (ns <= PAUSE_NS && send->at >= trial->last_at)
		book(trial, class, ns, send->at - trial->last_at, came != 0);
	early = is_worse(trial, class);
	if (!early && !has_enough(trial, class) && trial->idle < IDLE_MAX)
		return;
	if (trial->idle < IDLE_MAX)
		end_run(trial, class, early);
	else if (trial->waits)
		trial->run = ROUNDS * trial->ways;
	else
		trial->stopped[trial->way] = STOPS_MAX;
	if (!begin_run(trial, &host->classes[class], send->now))
		conclude(trial, host, send->now);
}

/* What the connection does: one odd window changes nothing. */
static void learn(struct far_trial *trial, size_t bytes, bool answered)
{
	int class;

	trial->turns += answered;
	if (bytes > trial->largest)
		trial->largest = bytes;
	if (++trial->sends < PROFILE_SENDS)
		return;
	class = far_trial_class(trial->largest, trial->sends, trial->turns) + 1;
	if (!trial->class || class == trial->next_class)
		trial->class = class;
	trial->next_class = class;
	trial->size = trial->largest;
	trial->sends = trial->turns = 0;
	trial->largest = 0;
}

static void remember(struct far_trial *trial, const struct far_send *send)
{
	trial->last_ns = send->now;
	trial->last_at = send->at;
	trial->last_ring_at = send->ring_at;
	atomic_store_explicit(&trial->came_ns, 0, memory_order_relaxed);
}

/* Returns when bytes have come since the last send, or 0. */
static uint64_t begin_send(struct far_trial *trial, const struct far_send *send)
{
	uint64_t came = atomic_load_explicit(&trial->came_ns, memory_order_relaxed);

	if (!trial->begun_ns)
		trial->begun_ns = send->now;
	learn(trial, send->bytes, came && trial->last_ns);
	return came;
}

void far_trial_before(struct far_trial *trial, const struct far_send *send)
{
	uint64_t came = begin_send(trial, send), ns, cost;
	int class = trial->class - 1;

	if (trial->class != trial->base_class) {
		trial->base_class = trial->class;
		trial->base = 0;
		start_run(trial, FAR_BY_TCP);
	} else if (trial->class) {
		ns = waited(trial, class, send, came);
		if (ns <= PAUSE_NS && send->at >= trial->last_at)
			book(trial, class, ns, send->at - trial->last_at, came != 0);
		if (has_enough(trial, class)) {
			cost = cost_of(class, trial->ns, trial->bytes, trial->run_turns);
			trial->base = cost && (!trial->base || cost < trial->base) ? cost : trial->base;
			start_run(trial, FAR_BY_TCP);
		}
	}
	remember(trial, send);
}

void far_trial_again(struct far_trial *trial)
{
	*trial = (struct far_trial){ .class = trial->class,
				     .next_class = trial->next_class,
				     .size = trial->size,
				     .base_class = trial->base_class,
				     .base = trial->base,
				     .begun_ns = trial->begun_ns,
				     .spent = trial->spent };
}

enum far_way far_trial_next(struct far_trial *trial, struct far_host *host, const struct far_send *send)
{
	uint64_t came = begin_send(trial, send);
	uint32_t best;

	if (trial->tries && trial->tries != trial->class)
		release(trial, host, send->now);
	if (trial->tries)
		go_on(trial, host, send, came);
	remember(trial, send);
	if (trial->class && (trial->tries || claim(trial, host, trial->class - 1, send)))
		return trial->way;
	best = atomic_load_explicit(trial->class ? &host->classes[trial->class - 1].best : &host->lately,
				    memory_order_relaxed);
	return best ? best - 1 : FAR_BY_TCP;
}

bool far_trial_has_turns(const struct far_trial *trial)
{
	return !trial->tries && trial->class && is_turn(trial->class - 1);
}

bool far_trial_has_won(const struct far_trial *trial, const struct far_host *host, uint64_t now)
{
	return !trial->tries && trial->class && holds(&host->classes[trial->class - 1], now) &&
	       prefers_rdma(&host->classes[trial->class - 1]);
}

bool far_trial_has_lost(const struct far_trial *trial, const struct far_host *host, uint64_t now)
{
	return !trial->tries && trial->class && prefers_tcp(&host->classes[trial->class - 1], now);
}
