/* SPDX-License-Identifier: MIT */
/*
 * Whether RDMA is better than TCP with a host, by trying, for path `auto`. A sender tries the ways by turns, some sends in a row
 * each, and what counts is what its program waits for: where sends follow sends the time from one to the next, for so many bytes;
 * where they are answered, the time from a send to the bytes that come. The best run of each way counts, as one may meet a busy
 * moment; what a run begins with, a move of the lane and the buffers of the way before, does not. RDMA has to be better by a
 * tenth, and a run that shows that it is far worse ends at once.
 *
 * What a run costs in comparison with the best way that is known is added up, and the next one begins when the connection has been
 * at work for 20 times that; so much has to be over before the first one, too, which a way that is far worse can cost. TCP is measured
 * before the connection has another way, and again in trials where that is not known.
 *
 * What came out is kept for each host and each kind of sends (a class): for a minute, twice as long each time that the same way
 * wins again, up to an hour. One connection tries a class, all go by the outcome, of the process and of those that it forks. The two ends of a
 * connection may try at the same time: the runs of the accepting end are twice as long, so that each end meets both ways of the other in
 * each of its own.
 *
 * As long as nothing is known, one connection meets at a time, and both ends have to choose the same one without a word between them: of
 * those that are at work it is the one with the smallest number, which both make of the connection's addresses. Where one end has found RDMA
 * better for what it sends it tells the other, which then meets it on each connection, whatever it sends itself.
 *
 * Pure bookkeeping; the clock is the caller's. The table has no locks: a row that is given to another host while somebody looks
 * at it costs a trial.
 */
#ifndef ZC_PRELOAD_FAR_TRIAL_H
#define ZC_PRELOAD_FAR_TRIAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/clock.h"

enum far_way { FAR_BY_TCP, FAR_BY_RING, FAR_BY_ZSDP, FAR_BY_AZSDP };
#define FAR_WAYS 4

/* Sends that follow sends, by size: below 4 KiB, 64 KiB, 512 KiB, and all above; then turns, by the same. */
#define FAR_SIZES 4
#define FAR_CLASSES (2 * FAR_SIZES)
#define FAR_NO_CLASS (-1)

#define FAR_HOSTS 64
#define FAR_CALM_FIRST (60 * NS_PER_SEC)
#define FAR_CALM_MAX (3600 * NS_PER_SEC)

/*
 * What a connection has to have moved, and for how long, before it is worth a meeting with a peer of which nothing is known; and how long
 * connections with that host have to have been at work, by what the last meeting took of a processor, at each end.
 */
#define FAR_WORTH_BYTES (1u << 20)
#define FAR_WORTH_CALLS 512u
#define FAR_WORTH_NS NS_PER_SEC
#define FAR_MEETING_SHARE 33u /* of the time is for meetings: 3 % */
#define FAR_ENDS 2u
#define FAR_SPENT_SHARE 20u /* of the time is for trials */

/* A connection at work comes by, to ask whether it is to meet, at least that often. */
#define FAR_COMES_NS (NS_PER_SEC / 2)

/*
 * For so long one connection seeks its peer (the ends may not begin at the same time, as each counts for itself how long it has been at work);
 * and, once it has met, may find out, before another one does.
 */
#define FAR_SEEK_NS (15 * NS_PER_SEC)
#define FAR_UNDECIDED_NS (600 * NS_PER_SEC)

/* Of sends of one class to one host. */
struct far_finding {
	_Atomic uint32_t best;	   /* way, plus 1; 0: not known */
	_Atomic uint64_t again_ns; /* when it is to be tried the next time; UINT64_MAX: somebody is at it */
	_Atomic uint64_t since_ns; /* he has begun a run */
	_Atomic uint64_t calm_ns;
	_Atomic uint64_t tries, cost[FAR_WAYS]; /* ns: of a turn, or for 1024 bytes; 0: not known */
};

struct far_host {
	_Atomic uint64_t key; /* 0: nobody's */
	_Atomic uint64_t used_ns;
	_Atomic uint64_t seeks_until;  /* a connection is about to meet, and to find out */
	_Atomic uint32_t lately;       /* the way that has won last, plus 1: for who does not know yet what it does */
	_Atomic uint64_t wanted_until; /* the host has found RDMA better for what it sends here */
	/* For how long connections have been at work, and when one came by last. */
	_Atomic uint64_t work_ns, came_ns;
	/* The smallest number among those that came by lately, since when it is that, and when it came last. */
	_Atomic uint64_t first, first_since, first_ns;
	struct far_finding classes[FAR_CLASSES];
};

/* What the connections of a process and its children know together. Zeroes are a beginning. */
struct far_hosts {
	struct far_host rows[FAR_HOSTS];
	_Atomic uint64_t meeting; /* ns of a processor that the last one took; 0: there was none */
};

/* Returns the row of a host, which is emptied for it if it has none. Never NULL. `key` is not 0. */
struct far_host *far_trial_host(struct far_hosts *hosts, uint64_t key, uint64_t now);

/* The same, NULL if it has none. */
struct far_host *far_trial_known(struct far_hosts *hosts, uint64_t key);

/* Returns the class of sends of at most so many bytes, of which `turns` of `sends` were answered. FAR_NO_CLASS without any. */
int far_trial_class(size_t bytes, uint32_t sends, uint32_t turns);

enum far_pays {
	FAR_PAYS_NOT,	/* TCP is better there, for these */
	FAR_PAYS_LATER, /* another connection finds out, or this one has not moved enough */
	FAR_PAYS,	/* RDMA is known to be better, here or there */
	FAR_PAYS_TO_SEE /* it finds out */
};

/* What a connection has moved that has not met. */
struct far_moved {
	uint64_t bytes;
	uint32_t calls;
	uint64_t ns;	 /* for how long */
	uint64_t number; /* the connection's, not 0 */
	uint64_t after;	 /* ns: with that host, connections have to be at work for so long before one meets */
	int class;	 /* as far as it can be told */
};

/* Returns the time for struct far_moved, as the last meeting was; `first_ns` as long as there was none. */
uint64_t far_trial_after(const struct far_hosts *hosts, uint64_t first_ns);

/* Whether a connection is to meet. A connection at work asks at least every FAR_COMES_NS. */
enum far_pays far_trial_pays(struct far_host *host, const struct far_moved *moved, uint64_t now);

/* The connection that sought its peer has met it. And: it knows what is better, or has not met, or is over: another one may. */
void far_trial_has_met(struct far_host *host, uint64_t now);
void far_trial_seeks_no_more(struct far_host *host);

/* The host tells that it has found RDMA better for what it sends here; that it is not any more. */
void far_trial_is_wanted(struct far_host *host, uint64_t now);
void far_trial_is_wanted_no_more(struct far_host *host);

/* The one that has met hears that it is not: nobody asks the host for a while who does not know better. */
void far_trial_found_for_us(struct far_host *host, uint64_t now);

/* Whether TCP is known to be better for whatever a connection does: it need not be looked at. */
bool far_trial_is_vain(const struct far_host *host, uint64_t now);

/* What one connection tries, under its lock `out` but for `came_ns`. Zeroes are a beginning. */
struct far_trial {
	bool accepts;	/* the accepting end: set by the caller */
	int base_class; /* plus 1; 0: none: of what TCP alone was measured to cost, before there was another way */
	uint64_t base;	/* that; 0: not known */
	bool barren;	/* its lane does not get to the ring: it tries nothing any more */
	/* What it does, from windows of sends */
	int class, next_class; /* plus 1; 0: not known */
	uint32_t sends, turns;
	size_t largest, size; /* of the present window, and of the last one */
	/* the send before this one */
	uint64_t last_ns;		/* 0: none */
	uint64_t last_at, last_ring_at; /* stream position; bytes that went by the ring */
	_Atomic uint64_t came_ns;	/* when the program got the first bytes since; 0: it has not */
	/* the trial */
	int tries;	   /* class, plus 1; 0: none */
	unsigned int run;  /* the next one */
	unsigned int ways; /* that it tries */
	enum far_way way;  /* of the present run */
	bool waits;	   /* it is none of the trial's: the next one is not to be afforded yet */
	enum far_way best; /* as far as is known */
	uint64_t cost[FAR_WAYS];
	uint32_t stopped[FAR_WAYS]; /* runs that were ended early */
	uint64_t spent;		    /* ns, in comparison with the best */
	uint64_t begun_ns;	    /* the connection's first send */
	/* the present run: all of it, and what counts */
	uint64_t all_ns, all_bytes, ns, bytes;
	uint32_t all_sends, all_turns, run_sends, run_turns;
	uint32_t idle; /* sends that did not get to the ring */
};

/* A send that begins. */
struct far_send {
	size_t bytes;
	uint64_t at;	  /* stream position */
	uint64_t ring_at; /* bytes of the stream so far that went by the ring */
	bool fetches;	  /* its bytes may be announced */
	uint64_t now;	  /* ns */
};

/*
 * A send of a connection that has no queue pair yet. What TCP takes then, it is compared with: with one, it takes more, for both ends watch
 * that, too.
 */
void far_trial_before(struct far_trial *trial, const struct far_send *send);

/* There is a queue pair now, the first one or another: no trial is under way. */
void far_trial_again(struct far_trial *trial);

/* Returns the way that the send takes. */
enum far_way far_trial_next(struct far_trial *trial, struct far_host *host, const struct far_send *send);

/* The program has received bytes, at `now`. */
static inline void far_trial_came(struct far_trial *trial, uint64_t now)
{
	atomic_store_explicit(&trial->came_ns, now, memory_order_relaxed);
}

/* Whether far_trial_came() is to be called. */
static inline bool far_trial_asks(const struct far_trial *trial)
{
	return !atomic_load_explicit(&trial->came_ns, memory_order_relaxed);
}

/* Whether the connection's sends are answered, and it is not at a trial. */
bool far_trial_has_turns(const struct far_trial *trial);

/* Whether the connection's sends are of a class that goes by RDMA. */
bool far_trial_has_won(const struct far_trial *trial, const struct far_host *host, uint64_t now);

/* Whether the connection's sends are of a class that goes by TCP, for a while yet. */
bool far_trial_has_lost(const struct far_trial *trial, const struct far_host *host, uint64_t now);

#endif
