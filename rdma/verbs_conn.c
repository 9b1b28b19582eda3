/* SPDX-License-Identifier: MIT */
/* The life of a connection, and what the device and rdma_cm tell about it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/sys.h"
#include "rdma/verbs_internal.h"

#define DEPTH 128u
#define RECEIVES 256u
#define READS 16u
#define ACK_TIMEOUT 14u
#define RETRIES 6u /* soft-RoCE takes 7 for ever */

/* Whoever reads a device's event may read another connection's: devices have one descriptor for all. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct verbs_conn *all;

static uint32_t or_default(uint32_t value, uint32_t standard)
{
	return value ? value : standard;
}

static bool is_lane(const struct lane *lane)
{
	return lane->shared && lane->ring && lane->bytes >= LANE_RING_MIN && lane->bytes <= LANE_RING_MAX &&
	       !(lane->bytes & (lane->bytes - 1));
}

static int set_up(struct verbs_conn *conn, const struct verbs_setup *setup)
{
	conn->setup = *setup;
	conn->depth = conn->setup.depth = or_default(setup->depth, DEPTH);
	conn->setup.receives = or_default(setup->receives, RECEIVES);
	conn->setup.reads = or_default(setup->reads, READS);
	conn->setup.ack_timeout = or_default(setup->ack_timeout, ACK_TIMEOUT);
	conn->setup.retries = or_default(setup->retries, RETRIES);
	if (!is_lane(&setup->in) || !is_lane(&setup->out) || setup->out.bytes != setup->in.bytes ||
	    conn->setup.receives < VERBS_RECEIVES_MIN || conn->setup.receives > VERBS_RECEIVES_MAX ||
	    conn->depth < 16 || conn->setup.reads > 255 || conn->setup.ack_timeout > 31 || conn->setup.retries > 7)
		return -EINVAL;
	conn->pushed = atomic_load(&setup->out.shared->tail);
	/* Of a queue pair before this one. */
	memset(&setup->out.shared->sink, 0, sizeof(setup->out.shared->sink));
	atomic_store(&setup->out.shared->claimed, 0);
	atomic_store(&conn->told_head, atomic_load(&setup->in.shared->head));
	return 0;
}

int conn_watch(struct verbs_conn *conn, int fd, enum watched what)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = what };

	return epoll_ctl(conn->fd, EPOLL_CTL_ADD, fd, &event);
}

int conn_make(const struct verbs_setup *setup, struct rdma_event_channel *events, struct verbs_conn **out)
{
	struct verbs_conn *conn = calloc(1, sizeof(*conn));
	int rc = conn ? set_up(conn, setup) : -ENOMEM, held;

	if (rc < 0)
		goto free_conn;
	rc = -ENOMEM;
	conn->work = calloc(conn->depth, sizeof(*conn->work));
	conn->ended = calloc(conn->depth, sizeof(*conn->ended));
	/* Whole pages: this memory is pinned, and what is beside it shall not be. */
	if (!conn->work || !conn->ended ||
	    posix_memalign((void **)&conn->lines, 4096, (conn->depth + 1) * sizeof(struct line)))
		goto free_all;
	conn->events = events;
	conn->fd = own_keep(epoll_create1(EPOLL_CLOEXEC));
	if (conn->fd < 0 || conn_watch(conn, events->fd, WATCHED_EVENTS) < 0) {
		rc = -errno;
		goto close_fd;
	}
	pthread_mutex_init(&conn->lock, NULL);
	held = verbs_take(&all_lock);
	conn->next = all;
	all = conn;
	verbs_give(&all_lock, held);
	*out = conn;
	return 0;
close_fd:
	if (conn->fd >= 0)
		own_close(conn->fd);
free_all:
	free(conn->lines);
	free(conn->ended);
	free(conn->work);
free_conn:
	free(conn);
	events_close(events);
	return rc;
}

void conn_break(struct verbs_conn *conn, enum verbs_trouble trouble)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	if (conn_is_broken(conn)) {
		/* What came back unused has told first. */
		if (trouble == VERBS_DEVICE_GONE)
			atomic_store(&conn->trouble, trouble);
		return;
	}
	atomic_store(&conn->trouble, trouble);
	atomic_store_explicit(&conn->state, VERBS_BROKEN, memory_order_release);
	/* From here on nothing is accepted from the peer, and all that was posted comes back; then it is settled. */
	if (conn->qp && rdma_disconnect(conn->id)) {
		ibv_modify_qp(conn->qp, &error, IBV_QP_STATE);
		conn->untold = true;
	}
}

enum verbs_state verbs_state(struct verbs_conn *conn, enum verbs_trouble *trouble)
{
	enum verbs_state state = atomic_load_explicit(&conn->state, memory_order_acquire);

	if (trouble)
		*trouble = atomic_load(&conn->trouble);
	return state;
}

int verbs_fd(const struct verbs_conn *conn)
{
	return conn->fd;
}

static void device_tells(struct verbs_conn *conn, const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_REQ_ERR:
		if (event->element.qp == conn->qp)
			conn_break(conn, VERBS_PROTOCOL);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_CQ_ERR:
		/* Of a completion queue it is not told whose, and without one a connection is deaf: all of the device go. */
		if (event->event_type == IBV_EVENT_CQ_ERR || event->element.qp == conn->qp)
			conn_break(conn, VERBS_FAILED);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		conn_break(conn, VERBS_DEVICE_GONE);
		break;
	case IBV_EVENT_PORT_ERR:
		/* It may come back in time; who only receives would never know that it has not. */
		conn_probe(conn);
		break;
	default:
		break;
	}
}

static void read_device(struct ibv_context *context)
{
	struct ibv_async_event event;
	int held = verbs_take(&all_lock);

	while (!ibv_get_async_event(context, &event)) {
		for (struct verbs_conn *conn = all; conn; conn = conn->next) {
			int inner = verbs_take(&conn->lock);

			if (conn->qp && conn->id->verbs == context)
				device_tells(conn, &event);
			verbs_give(&conn->lock, inner);
		}
		ibv_ack_async_event(&event);
	}
	verbs_give(&all_lock, held);
}

/* Takes one event. Returns whether there was one. */
static bool read_completion(struct verbs_conn *conn)
{
	struct ibv_cq *cq;
	void *context;

	if (!conn->channel || ibv_get_cq_event(conn->channel, &cq, &context))
		return false;
	if (cq == conn->cq_in) {
		conn->cq_events_in++;
		conn->armed = false;
	} else {
		conn->cq_events_out++;
	}
	return true;
}

static void read_events(struct verbs_conn *conn)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(conn->events, &event)) {
		meet_step(conn, event);
		rdma_ack_cm_event(event);
	}
}

int verbs_woke(struct verbs_conn *conn)
{
	struct epoll_event ready[WATCHED_COUNT];
	struct ibv_context *context = NULL;
	int held = verbs_take(&conn->lock), count = epoll_wait(conn->fd, ready, WATCHED_COUNT, 0);

	for (int i = 0; i < count; i++) {
		if (ready[i].data.u32 == WATCHED_EVENTS && !may_allocate())
			continue; /* it stays, for the next who looks */
		if (ready[i].data.u32 == WATCHED_EVENTS)
			read_events(conn);
		else if (ready[i].data.u32 == WATCHED_COMPLETIONS)
			while (!conn->resting && read_completion(conn))
				;
		else
			context = conn->qp ? conn->id->verbs : NULL;
	}
	verbs_give(&conn->lock, held);
	if (context)
		read_device(context);
	return verbs_poll(conn);
}

int verbs_rest(struct verbs_conn *conn)
{
	int rc = 0, held = verbs_take(&conn->lock);

	if (conn->resting)
		rc = -EBUSY;
	else if (conn->qp && !conn_is_broken(conn) && conn_arm(conn) < 0)
		conn_break(conn, VERBS_FAILED);
	conn_poll(conn);
	if (!rc && (!conn->qp || conn_is_broken(conn)))
		rc = -ENOTCONN;
	if (!rc)
		conn->resting = true;
	verbs_give(&conn->lock, held);
	return rc;
}

void verbs_rise(struct verbs_conn *conn, bool told)
{
	bool by_other;
	int held = verbs_take(&conn->lock);

	by_other = told && !read_completion(conn);
	conn->resting = false;
	verbs_give(&conn->lock, held);
	if (by_other)
		verbs_woke(conn);
}

void verbs_positions(struct verbs_conn *conn, struct verbs_positions *out)
{
	uint64_t confirmed;
	int held = verbs_take(&conn->lock);

	conn_poll(conn);
	confirmed = atomic_load(&conn->setup.out.shared->received);
	*out = (struct verbs_positions){ .sent = atomic_load(&conn->setup.out.shared->sent),
					 .written = conn->written,
					 .delivered = conn->delivered,
					 .confirmed = confirmed,
					 .received = atomic_load(&conn->setup.in.shared->received),
					 .settled = conn_is_broken(conn) &&
						    (!conn->qp || (!conn->receives && !conn->gets_under_way)) };
	out->confirmed = out->confirmed < out->sent ? out->confirmed : out->sent;
	out->delivered = out->delivered > out->confirmed ? out->delivered : out->confirmed;
	verbs_give(&conn->lock, held);
}

void verbs_give_up(struct verbs_conn *conn)
{
	int held = verbs_take(&conn->lock);

	conn_break(conn, VERBS_PEER_GONE);
	verbs_give(&conn->lock, held);
}

/*
 * The kernel takes rdma_cm's words only with the credentials that its descriptor was opened with (ib_safe_file_access()), but tells the
 * peer as well when the descriptor is closed. Its number stays: rdma_cm goes on to use it.
 */
static void end_channel(struct verbs_conn *conn)
{
	int number = conn->events->fd;

	epoll_ctl(conn->fd, EPOLL_CTL_DEL, number, NULL);
	dup3(conn->fd, number, O_CLOEXEC);
}

void verbs_tell_broken(struct verbs_conn *conn)
{
	int held = verbs_take(&conn->lock);

	if (conn->untold && rdma_disconnect(conn->id) && errno == EACCES)
		end_channel(conn);
	conn->untold = false;
	verbs_give(&conn->lock, held);
}

void verbs_close(struct verbs_conn *conn)
{
	struct verbs_conn **at = &all;
	bool was_broken = conn_is_broken(conn);
	int held = verbs_take(&all_lock);

	while (*at != conn)
		at = &(*at)->next;
	*at = conn->next;
	verbs_give(&all_lock, held);
	verbs_give_up(conn);
	queue_close(conn);
	device_unuse(conn->context);
	if (was_broken)
		device_sweep(); /* that may be why */
	if (conn->id)
		rdma_destroy_id(conn->id);
	device_forget_gone();
	events_close(conn->events);
	own_close(conn->fd);
	pthread_mutex_destroy(&conn->lock);
	free(conn->lines);
	free(conn->ended);
	free(conn->work);
	free(conn);
}
