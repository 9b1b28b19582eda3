/* SPDX-License-Identifier: MIT */
/* What an engine keeps of a peer on another host (far.h). */
#ifndef ZC_PRELOAD_FAR_PART_H
#define ZC_PRELOAD_FAR_PART_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preload/far_trial.h"
#include "rdma/lane.h"

enum far_state {
	FAR_NONE,   /* the peer is on this host, or there is no RDMA here, or no peer that has it */
	FAR_APART,  /* may be reached by RDMA */
	FAR_UP,	    /* there is a queue pair */
	FAR_BROKEN, /* there was one: each lane goes back to TCP by itself */
};

enum far_out {
	FAR_OUT_FREE,	/* as the lane says */
	FAR_OUT_ENTERS, /* a TAKEOVER is put and not answered */
	FAR_OUT_LEAVES, /* a SWITCH is put and not answered */
	FAR_OUT_OWES,	/* FAR_GO, or behind a break FAR_RESUME and what follows, is still to be sent */
};

#define FAR_FRAME_BYTES                                                                                                \
	17 /* FAR_RESUME: its code, and two positions, little endian: of what follows, and of what was owed at the time */

/* A part of the engine, shared over fork like it. */
struct far_part {
	_Atomic int state;  /* enum far_state */
	_Atomic int error;  /* of the socket, used up by a call of ours; 0: none */
	_Atomic int seeker; /* the process that tries to reach the peer; 0: none */
	/* Of path `auto` (far_compare.h); the counts are of before it has met. */
	bool compares;
	_Atomic int way;	/* enum far_way: of the present send */
	uint64_t host;		/* what its peer's is called there */
	uint64_t begun;		/* ns */
	uint64_t number;	/* the same at both ends (far_trial.h) */
	uint32_t pace;		/* calls, in FAR_COMES_NS; 0: not known */
	_Atomic bool seeks;	/* is to meet, or has met, to find out */
	uint32_t vain;		/* times that its peer was sought in vain, */
	uint64_t rests_until;	/* ns: and not before that again */
	uint32_t sends;		/* under the lock `out` */
	size_t largest;		/* of these */
	struct far_trial trial; /* under the lock `out` */
	uint32_t receives;	/* under the lock `in` */
	_Atomic bool
		settles; /* TCP is better: when the queue pair has gone, and both lanes rest, they end, and none follows */
	/* Since when TCP is known to be better for what is sent, and nothing has come by the ring; 0: it is not. Under the lock `out`. */
	uint64_t lost_at, lost_head;
	/* Another queue pair after one that has broken (far_again.c). */
	_Atomic bool over;		 /* there is to be none: a lane was left for good, or TCP is better */
	_Atomic uint64_t again_at;	 /* ns: the agent has nothing to do before */
	_Atomic uint64_t seek_at;	 /* ns: nothing is looked for before */
	_Atomic uint64_t pause_ns;	 /* behind the last break or try */
	_Atomic uint64_t break_pause_ns; /* behind the last break */
	_Atomic uint64_t up_at;		 /* ns: since when there was the last one */
	_Atomic uint32_t trip_ns;	 /* how long a write takes to its peer and back, at least; 0: not known */
	uint32_t meeting;		 /* number of the last request; the agent's */
	_Atomic uint32_t ended;		 /* queue pairs that are closed, or about to be */
	/* Under the lock `out`. */
	enum far_out out;
	uint64_t confirm;	  /* ring position that the peer has to have seen */
	uint64_t since;		  /* ns: since when it is waited for */
	_Atomic uint32_t rung;	  /* of the peer's `waits`: answered by a doorbell */
	uint64_t entry, entry_at; /* behind the last TAKEOVER: ring position, and the stream's */
	uint64_t resend_at;	  /* OWES: stream position of the next byte */
	uint64_t resend_to;
	uint64_t void_at; /* where a TAKEOVER that has not happened was */
	uint64_t left_at; /* where the last SWITCH was */
	bool was_void, has_left;
	_Atomic bool lingers; /* the agent has what was owed, and goes on with it: nothing may follow */
	bool kept;	      /* the queue pair has broken, and no source is in the program's memory */
	uint8_t frame[FAR_FRAME_BYTES];
	uint32_t frame_left;
	/* Under the lock `in`. */
	_Atomic uint64_t looked; /* ring position up to which the moves are known */
	uint64_t entered;	 /* behind the last TAKEOVER; nothing is behind it as long as the ring ends there */
	uint64_t armed_at, armed_bells; /* what was known when it was told last that somebody waits */
	uint32_t told;			/* of reader, raw and use */
	enum lane_use peer_use;		/* as heard last */
	bool peer_wants;	/* has found RDMA better, and not told otherwise since, be it at a trial again */
	uint32_t told_passed;	/* sources */
	_Atomic bool fetches;	/* what was taken last was announced */
	uint32_t sinks_in_vain; /* in a row, of those that were offered */
	uint32_t sink_pause;	/* waits before the next one is */
	uint64_t told_end;	/* the head, when the lane was last on TCP */
	_Atomic bool
		quiet; /* the TCP stream had nothing, and no doorbell is asked for: the kernel tells of what comes there */
	bool owes_word; /* that a move is known */
	bool word_out;	/* of the last TAKEOVER: the peer may have heard that it is known */
	uint64_t left;	/* behind the last SWITCH; 0: none that was not passed */
	uint32_t left_bells;
	bool expects;	      /* behind a SWITCH: FAR_GO or FAR_RESUME is next in the stream */
	uint64_t skip;	      /* bytes of the stream that are here already */
	_Atomic bool partial; /* of what is to come by TCP and is no data, a part is there */
	uint64_t owed;	      /* stream position up to which the peer has promised to send by TCP */
	bool elsewhere;	      /* a program that was executed has the socket, too: what it takes is not counted */
	_Atomic bool
		nonsense; /* the peer has sent what can't be, or what is here can't be told: the connection is over */
};

/* Whether bytes are counted also behind a break: there may be another queue pair. */
static inline bool far_part_counts(const struct far_part *far)
{
	return atomic_load_explicit(&far->state, memory_order_relaxed) >= FAR_UP &&
	       !atomic_load_explicit(&far->over, memory_order_relaxed);
}

/* Whether what the peer has promised to send by TCP is not here yet: an end before that is none. */
static inline bool far_part_is_owed(const struct far_part *far, const struct lane *in)
{
	return far->owed && atomic_load_explicit(&far->state, memory_order_relaxed) >= FAR_UP &&
	       atomic_load_explicit(&in->shared->received, memory_order_relaxed) < far->owed;
}

#endif
