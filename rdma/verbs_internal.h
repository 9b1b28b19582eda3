/* SPDX-License-Identifier: MIT */
/* What the files of libzc-verbs.so share. Locks: the list of connections, then a connection's, then a domain's. */
#ifndef ZC_RDMA_VERBS_INTERNAL_H
#define ZC_RDMA_VERBS_INTERNAL_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>

#include "rdma/verbs.h"
#include "rdma/verbs_cache.h"

extern struct verbs_owner verbs_owner;

/*
 * The plug-in's locks. What libibverbs and librdmacm do for a call are cancellation points of libc: a thread that ended in one would
 * leave these locks, and those of the caller, taken for ever. So there is no cancellation while one is held. Returns what
 * verbs_give() puts back.
 */
static inline int verbs_take(pthread_mutex_t *lock)
{
	int cancel;

	if (verbs_owner.enter)
		verbs_owner.enter();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(lock);
	return cancel;
}

static inline void verbs_give(pthread_mutex_t *lock, int cancel)
{
	pthread_mutex_unlock(lock);
	pthread_setcancelstate(cancel, &cancel);
	if (verbs_owner.leave)
		verbs_owner.leave();
}

/* Libraries of RDMA allocate where memory is registered and where rdma_cm has something to tell. */
static inline bool may_allocate(void)
{
	return !verbs_owner.interrupts || !verbs_owner.interrupts();
}

#define KEPT_FOR_LINES 8u /* notices, and requests of the send queue */
#define GET_PIECES 4	  /* of memory in one GET */
#define RIGHT_WRITE 1u
/* What lies in the same pages beside what the peer may reach is none of its business. */
#define RIGHT_PEER_READS (2u | VERBS_CACHE_EXACT)
#define RIGHT_PEER_WRITES (4u | VERBS_CACHE_EXACT)

/* The connections with one host by one device: a protection domain and its registrations. */
struct domain {
	struct domain *next;
	struct ibv_context *context;
	uint8_t address[16];
	uint32_t users;
	struct ibv_pd *pd;
	struct verbs_cache cache;
};

enum work_kind { WORK_OTHER, WORK_DATA, WORK_GET, WORK_FILL, WORK_CLAIM };

/* A work request that was posted to the send queue, by its number modulo the depth. */
struct work {
	enum work_kind kind;
	uint32_t pieces;
	uint64_t stream; /* DATA: the position behind it */
	uint64_t cookie;
	size_t bytes;
	struct verbs_region *region[GET_PIECES];
};

/* Where a line is sent from; one for each work request. */
struct line {
	_Alignas(LANE_LINE) uint8_t bytes[LANE_LINE];
};

struct verbs_conn {
	struct verbs_conn *next; /* in the list of all */
	pthread_mutex_t lock;
	_Atomic enum verbs_state state;
	_Atomic enum verbs_trouble trouble;
	bool accepting, heard; /* heard: the connecting end's grant has come */
	bool judged;	       /* what the answer tells awaits agree() */
	bool untold;	       /* it has broken, and rdma_cm did not take that */
	struct verbs_setup setup;
	struct verbs_tuple tuple;

	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_context *context; /* of the device, once it is known */
	struct ibv_qp *qp;	     /* NULL before it is there */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq_in, *cq_out;
	uint32_t cq_events_in, cq_events_out; /* taken and to be acknowledged */
	bool armed;			      /* for the next notice, whose event was not taken yet */
	bool resting;			      /* a thread sleeps for one: the event is its own */
	int fd;				      /* epoll of all that tells something */
	struct domain *domain;
	struct ibv_mr *mr_ring_in, *mr_ring_out, *mr_line, *mr_scrap;
	struct verbs_grant peer;
	struct counts counts; /* that the answer tells */

	/* Send queue: numbers of work requests. */
	uint32_t depth, inline_bytes, reads_max, get_pieces;
	size_t message_bytes_max;
	uint64_t posted, retired, signalled;
	uint32_t data_under_way, gets_under_way;
	struct work *work;
	struct line *lines;	     /* `depth` of them, then one for the first message that comes */
	uint64_t pushed;	     /* position of the ring */
	uint64_t written, delivered; /* positions of the stream */

	/* Notices */
	uint32_t receives;	/* posted work requests of the receive queue */
	uint32_t notices_left;	/* that the peer has room for */
	uint32_t notices_out;	/* that the peer has not acknowledged */
	uint32_t notices_taken; /* that were not acknowledged to the peer */
	bool credit_due;	/* could not be told */
	bool due_solicited;	/* and is to wake the peer */
	struct line told;	/* of the consumer's line */
	_Atomic uint64_t told_head;
	struct line next_line; /* to be told, with credit_due */

	/* Sinks (verbs_sink.c) */
	uint32_t offered; /* the number of the last one */
	uint32_t filled;  /* of the peer's that was filled last */
	enum { NOT_RETRACTED, RETRACTING, RETRACTED } retraction;
	uint64_t claimed; /* RETRACTED: what the peer has said */

	/* GETs that have ended */
	struct verbs_got *ended;
	uint32_t ended_first, ended_count;
	unsigned int found; /* VERBS_ bits for the next poll() */
};

/* verbs_device.c */
int verbs_devices(struct verbs_device *out, int max, enum verbs_trouble *trouble, size_t *memlock);
const char *verbs_tell(enum verbs_trouble trouble);
void verbs_set_budget(size_t bytes);
void verbs_set_owner(const struct verbs_owner *owner);
void verbs_environment_use(const struct verbs_owner *owner);

/* Takes a descriptor that was just opened out of the program's way, and tells its owner. Returns its number from here on. */
int own_keep(int fd);
void own_drop(int fd);
void own_close(int fd);
void events_close(struct rdma_event_channel *events);
int verbs_expose(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_remote *remote,
		 struct verbs_region **out);
int verbs_reserve(struct verbs_conn *conn, const void *address, size_t bytes, bool spares, struct verbs_region **out);
void verbs_hide(struct verbs_conn *conn, struct verbs_region *region);
unsigned int verbs_invalidate(const void *address, size_t bytes);
uint64_t verbs_registration_ns(size_t bytes);

/* Of no use to a connection: notices are RDMA WRITEs with immediate data. */
bool device_is_iwarp(const struct ibv_device *device);

/*
 * The devices that librdmacm has opened, which it never closes as long as they are there. *used is NULL, or `context`, which NULL stands
 * for no device; device_unuse() when the id is destroyed. Out of the program's way go its descriptors, before they are used
 * for anything else: the program counts on the lowest free number.
 */
void device_use(struct ibv_context **used, struct ibv_context *context);
void device_unuse(struct ibv_context *context);

/*
 * Lets go of devices that are no longer there and have no user: some drivers wait for that before they let one come again. Behind the last id of one
 * librdmacm closes it: device_forget_gone() takes note of that.
 */
void device_sweep(void);
void device_forget_gone(void);
int domain_open(struct ibv_context *context, const uint8_t address[16], struct domain **out);
void domain_close(struct domain *domain);
int domain_get(struct domain *domain, const void *address, size_t bytes, uint32_t rights, struct verbs_region **out);
void domain_put(struct domain *domain, struct verbs_region *region);
void domain_share(struct domain *domain, struct verbs_region *region); /* one more domain_put() to come */

/* verbs_queue.c: the queue pair of a connection and its memory. */
int queue_open(struct verbs_conn *conn);
void queue_close(struct verbs_conn *conn);
void queue_learn(struct verbs_conn *conn);
void queue_grant(const struct verbs_conn *conn, struct verbs_grant *out);

/* verbs_meet.c: listening and connecting. */
int verbs_listen(const struct sockaddr *address, int backlog, struct verbs_listener **out);
int verbs_listener_fd(const struct verbs_listener *listener);
uint16_t verbs_listener_port(const struct verbs_listener *listener);
int verbs_listener_take(struct verbs_listener *listener, struct verbs_request **out, struct verbs_offer *offer);
enum verbs_trouble verbs_listener_heard(const struct verbs_listener *listener);
void verbs_listener_close(struct verbs_listener *listener);
int verbs_admit(struct verbs_request *request, const struct verbs_setup *setup, struct verbs_conn **out);
void verbs_refuse(struct verbs_request *request, enum verbs_trouble why);
int verbs_connect(const struct sockaddr *from, const struct sockaddr *to, const struct verbs_tuple *tuple,
		  const struct verbs_setup *setup, struct verbs_conn **out);
bool verbs_answered(struct verbs_conn *conn, struct counts *told);
void verbs_agree(struct verbs_conn *conn, bool may);

/* verbs_conn.c: what happens to a connection. */
int conn_make(const struct verbs_setup *setup, struct rdma_event_channel *events, struct verbs_conn **out);
enum watched { WATCHED_EVENTS, WATCHED_COMPLETIONS, WATCHED_DEVICE, WATCHED_COUNT };
int conn_watch(struct verbs_conn *conn, int fd, enum watched what);
void conn_break(struct verbs_conn *conn, enum verbs_trouble trouble);
void meet_step(struct verbs_conn *conn, struct rdma_cm_event *event);
enum verbs_state verbs_state(struct verbs_conn *conn, enum verbs_trouble *trouble);
int verbs_fd(const struct verbs_conn *conn);
int verbs_woke(struct verbs_conn *conn);
int verbs_rest(struct verbs_conn *conn);
void verbs_rise(struct verbs_conn *conn, bool told);
void verbs_give_up(struct verbs_conn *conn);
void verbs_tell_broken(struct verbs_conn *conn);
void verbs_close(struct verbs_conn *conn);

/* verbs_move.c: the data path. Those with conn_ are called under the connection's lock. */
uint32_t conn_room(const struct verbs_conn *conn); /* requests that may be posted */
struct work *conn_next_work(struct verbs_conn *conn);
/* Posts a request whose work was filled in. Returns 0 or -ENOTCONN. */
int conn_post(struct verbs_conn *conn, struct ibv_send_wr *request, bool signal);
int verbs_poll(struct verbs_conn *conn);
ssize_t verbs_push(struct verbs_conn *conn, unsigned int how);
int verbs_credit(struct verbs_conn *conn, unsigned int how);
bool verbs_flushed(struct verbs_conn *conn);
bool verbs_arm(struct verbs_conn *conn, unsigned int what);
int conn_arm(struct verbs_conn *conn);
void verbs_positions(struct verbs_conn *conn, struct verbs_positions *out);
uint32_t verbs_trip(struct verbs_conn *conn);
void conn_poll(struct verbs_conn *conn);
int conn_receive(struct verbs_conn *conn);
int conn_say_grant(struct verbs_conn *conn);
void conn_probe(struct verbs_conn *conn);

/* verbs_get.c */
ssize_t verbs_get(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
		  int count, size_t skip, unsigned int how, uint64_t cookie);
int verbs_got(struct verbs_conn *conn, struct verbs_got *out);
int verbs_gets(struct verbs_conn *conn);

/* verbs_sink.c */
int verbs_offer(struct verbs_conn *conn, void *address, size_t bytes, uint64_t tail, uint32_t *number,
		struct verbs_region **out);
int verbs_retract(struct verbs_conn *conn, uint32_t number);
size_t verbs_sink(struct verbs_conn *conn);
int verbs_fill(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_region *region,
	       uint32_t *number);

static inline bool conn_is_broken(const struct verbs_conn *conn)
{
	return atomic_load_explicit(&conn->state, memory_order_acquire) == VERBS_BROKEN;
}

#endif
