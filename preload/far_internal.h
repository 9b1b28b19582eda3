/* SPDX-License-Identifier: MIT */
/* What the files of far.h share. Locks: an engine's before the agent's. */
#ifndef ZC_PRELOAD_FAR_INTERNAL_H
#define ZC_PRELOAD_FAR_INTERNAL_H

#include "preload/far.h"
#include "rdma/counts.h"
#include "rdma/verbs.h"

/* Of lane.codes. */
#define FAR_CODE_BELL(codes) ((uint8_t)(codes))
#define FAR_CODE_GO(codes) ((uint8_t)((codes) >> 8))
#define FAR_CODE_RESUME(codes) ((uint8_t)((codes) >> 16))

#define FAR_ANSWER_NS (50 * NS_PER_MS)	 /* for the peer's word; then it is given up */
#define FAR_ANSWERS_NS (450 * NS_PER_MS) /* in addition, while it has other words */

#define FAR_AREA_BYTES                                                                                                 \
	(2u << 20) /* of a lane: so much may be announced at a time; what is registered counts against a limit */

/* Memory that the peer may read. */
struct far_exposed {
	struct verbs_region *region; /* NULL: none; two sources of the same memory may share one */
	uint64_t number;	     /* of the source */
	const void *at;		     /* its memory */
	size_t bytes;
	uint32_t key;
};

/* What one process has of a connection's queue pair. Made by the agent, used under the engine's locks. */
struct far {
	struct far *next; /* among those to be buried */
	struct conn *conn;
	struct verbs_conn *_Atomic link; /* of the lanes */
	_Atomic uint32_t users;		 /* threads that may be at it without a lock of the engine's */
	struct verbs_conn *opening;	 /* the agent's: of the meeting under way */
	struct verbs_conn *former;	 /* the agent's: to be closed when nobody is at it */
	struct verbs_listener *listener;
	struct channel channel; /* for the next queue pair; once there were two, what the lanes do not use */
	struct channel ended;	/* what they used, to be buried */
	_Atomic bool asked;	/* by a data call: to be reached */
	bool adopted;		/* the lanes' sources are another process's yet */
	_Atomic bool
		tells; /* the agent is to look at the lanes: the peer is to hear what this end's line says, or somebody was at them */
	_Atomic bool unwanted;	    /* the queue pair: path `auto` has no use for it */
	_Atomic bool stuck;	    /* bytes are put that the device did not take: the agent pushes */
	_Atomic bool rests;	    /* a thread of the program sleeps by the device's descriptor */
	_Atomic bool used;	    /* has done so, or has waited otherwise, since the agent looked */
	_Atomic bool enters;	    /* the lane out has moved to the ring since the agent looked */
	_Atomic bool left;	    /* by the agent, to the program: the agent is not armed */
	struct verbs_conn *resting; /* of the thread that rests */
	/* Under the lock `in`, and the agent's when it is buried: */
	struct verbs_region *reserved; /* the area of the lane in, for what is fetched ahead, or copied from there */
	void *reserved_at;	       /* its memory, also when it could not be had; NULL: none was asked for */
	unsigned int ahead;	       /* GETs of that under way */
	struct {
		struct verbs_region *region; /* NULL: none */
		const void *owner;	     /* the receive */
		void *at;
		size_t bytes;
		uint32_t number;
		uint64_t tail; /* of the ring: nothing is written to it any more once that has moved */
	} sink;		       /* of a receive that waits, offered to the peer */
	/* Under the lock `out`, and the agent's when it is buried: */
	struct far_exposed exposed[SOURCE_SLOTS], area, slots;
	void *page; /* where the slots are; before they begin: NULL */
	/* The agent's, once it has been asked for: */
	uint64_t asks; /* the host, until the first meeting has come to an end; or 0 */
	uint32_t tries;
	uint32_t places;	 /* of the engine's holders, when the meeting under way began */
	uint64_t since;		 /* ns: of the present try */
	uint64_t spent;		 /* ns of a processor: what meetings have taken, since it last met */
	struct counts counted;	 /* what the kernel counted of the TCP connection when the present try began */
	uint32_t waits;		 /* the peer's, at the last look */
	bool was_used;		 /* between the last two ticks */
	_Atomic bool follows;	 /* what comes by TCP is looked at as it comes (far_follows()) */
	uint64_t restless_since; /* ns: it has asked for a doorbell */
};

extern const struct verbs_table *far_verbs; /* NULL until the agent has it */

/*
 * Around what is done to the queue pair without one of the engine's locks: the agent closes none meanwhile, and the next one does not
 * come before that. far_hold() may return NULL; either way far_release() follows.
 */
static inline struct verbs_conn *far_hold(struct far *far)
{
	atomic_fetch_add(&far->users, 1);
	return atomic_load(&far->link);
}

static inline void far_release(struct far *far)
{
	atomic_fetch_sub(&far->users, 1);
}

/* Under one of the engine's locks. */
static inline struct verbs_conn *far_link(const struct conn *conn)
{
	return conn->far ? atomic_load_explicit(&conn->far->link, memory_order_acquire) : NULL;
}

/* Nothing is fetched ahead any more, and nothing offered. Under the lock `in`, or buried. */
void far_reserves_nothing(struct far *far, struct verbs_conn *link);
void far_offers_nothing(struct far *far, struct verbs_conn *link);

/*
 * Finds out whether the queue pair has broken, and then waits until nothing comes from it any more. Under one of the engine's locks, or
 * held. Returns whether it is up.
 */
bool far_is_up(struct conn *conn, struct engine *engine);

/* The agent is to look when the descriptor is readable, the first time. */
void far_watch(struct far *far, int fd);
void far_unwatch(int fd);

/* A thread of the program has taken an event from the device, or notices alone; looks: and now looks what came to the ring. */
void far_took_event(struct conn *conn, const struct engine *engine);
void far_took_notices(struct conn *conn, const struct engine *engine, bool looks);

/*
 * For the agent: whether the program's threads take what comes, and it need not: then the lane is left to them (far->left). And: whether it looks
 * after those soon.
 */
bool far_leaves_to_program(struct conn *conn, struct engine *engine, struct far *far);
bool far_agent_ticks(void);

/* What has come to the ring: of far_look(). Returns false if the queue pair has broken. Under the lock `in`. */
bool far_look_at_ring(struct conn *conn, struct engine *engine);

/* The agent's steps: a connection to be reached; somebody may have come to an offer; the queue pair is opening. */
bool far_loads_anew(void); /* in the child of a fork: returns whether the plug-in can be loaded */
void far_try_to_reach(struct conn *conn, struct engine *engine, struct far *far);
void far_take_visitor(struct conn *conn, struct engine *engine, struct far *far);
void far_meet_step(struct conn *conn, struct engine *engine, struct far *far);
void far_drop_meeting(struct far *far);

/* What is open for a meeting of a connection that has decided to do without. */
void far_drop_meeting_if_over(const struct engine *engine, struct far *far);
void far_drop_all(struct far *far);

/*
 * far_open.c: the plug-in and what opens its descriptors (verbs.h), the agent's alone. goes_on: fd() was readable. A device is open once a
 * meeting has come to be, until one comes to nothing, or a queue pair breaks. What it takes is booked to far->spent. From begin() on exit()
 * waits for what is inside of the gate; opens(), asked there, tells whether it has not begun: nothing is to be opened any more.
 */
void far_open_begin(void);
bool far_opens(void);
bool far_load(void);
bool far_open_plug_in(void);
int far_open_listener(struct far *far, const struct sockaddr *address, struct verbs_listener **out);
int far_open_conn(struct far *far, const struct sockaddr *from, const struct sockaddr *to,
		  const struct verbs_tuple *tuple, const struct verbs_setup *setup, struct verbs_conn **out);
int far_open_admitted(struct far *far, struct verbs_request *request, const struct verbs_setup *setup,
		      struct verbs_conn **out);
void far_open_goes_on(struct far *far);
void far_device_is_open(bool open);

/* Both locks of an engine, or neither. */
struct far_both {
	struct lock_hold in, out;
};
bool far_take_both(struct engine *engine, struct far_both *both);
void far_give_both(struct engine *engine, struct far_both *both);

/* A meeting has come to nothing: it stays on TCP for good, or, behind a break, is tried again later. */
void far_fails(struct conn *conn, struct engine *engine, enum verbs_trouble trouble);

/* The connection as both ends name it; the connecting end of TCP is the one that listens here. Returns false for what is neither IPv4 nor IPv6. */
bool far_tuple(const struct engine *engine, struct verbs_tuple *out);

/* Listens for the peer, or asks it, as the role is. */
void far_seek(struct conn *conn, struct engine *engine, struct far *far);

/*
 * far_again.c. The agent's, under the lock `in`. What the queue pair has brought comes once more by TCP, as the peer may not know, and a program that
 * has all of it makes no call: takes what is there of that, for which the peer would have no room. Returns whether more may come.
 */
bool far_follows(struct conn *conn, struct engine *engine);

/*
 * far_again.c. The queue pair has just broken: when there may be another one. The agent's steps: it is unwanted, and given up; it is time to
 * look for one; that was in vain; and, under both locks, whether nothing of the last one is left, and the lanes go to the memory that
 * was prepared.
 */
void far_has_broken(struct conn *conn, struct engine *engine, enum verbs_trouble why);
void far_settles(struct conn *conn, struct engine *engine);
void far_try_again(struct conn *conn, struct engine *engine, struct far *far);
void far_was_in_vain(struct conn *conn, struct engine *engine);
bool far_may_again(struct conn *conn, struct engine *engine);
void far_take_lanes(struct engine *engine, struct far *far);

/* A data call: the agent is to look for another queue pair, if it is time. */
void far_asks_again(struct conn *conn, struct engine *engine);

/* The lanes begin to have sources. Under both locks. */
void far_sources_begin(struct conn *conn, struct engine *engine);
void far_sources_again(struct conn *conn, struct engine *engine);

/*
 * What the peer has passed, it may no longer read; where it can't any more, because the queue pair has broken, all is kept. Under the
 * lock `out`.
 */
void far_sources_serve(struct conn *conn, struct engine *engine);
void far_hide_all(struct far *far, struct verbs_conn *link);

/* This process's waits: of sends, until the peer has what they announced, and of receives, until they have theirs. */
extern struct far_spin far_taken, far_had;

/* Brings all that is announced here, to this end's own memory. Under the lock `in`. Returns false: the queue pair has broken. */
bool far_fetch(struct conn *conn, struct engine *engine);

/* Hands what was put to the device. Returns false if some of it stays. Under the lock `out`. */
bool far_hands_over(struct conn *conn, struct engine *engine);

/* A step of the sender's, for the agent. Under the lock `out`. */
void far_step_out(struct conn *conn, struct engine *engine, int fd);

/* What a control byte or a frame adds to the TCP stream counts as doorbells. Returns bytes that the kernel took, or -errno. */
long far_send_control(struct engine *engine, int fd, const uint8_t *bytes, size_t count);

#endif
