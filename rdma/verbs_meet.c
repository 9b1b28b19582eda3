/* SPDX-License-Identifier: MIT */
/* Listening and connecting by rdma_cm: each step when its event has come. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/sys.h"
#include "rdma/verbs_internal.h"

#define RESOLVE_MS 2000
#define REASON_NOBODY_LISTENS 8 /* as the InfiniBand architecture numbers reasons to reject */
#define REASON_BY_THE_CONSUMER 28

struct verbs_listener {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_context *context;
	bool was_another; /* whom it has refused: of another version */
};

struct verbs_request {
	struct rdma_cm_id *id;
	struct verbs_offer offer;
	uint8_t reads_in, reads_out; /* what the peer asks for */
};

static struct rdma_event_channel *make_events(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();

	if (!events)
		return NULL;
	events->fd = own_keep(events->fd);
	if (fcntl(events->fd, F_SETFL, O_NONBLOCK) < 0) {
		events_close(events);
		return NULL;
	}
	return events;
}

int verbs_listen(const struct sockaddr *address, int backlog, struct verbs_listener **out)
{
	struct verbs_listener *listener = calloc(1, sizeof(*listener));
	int rc;

	if (!listener)
		return -ENOMEM;
	device_sweep();
	listener->events = make_events();
	if (!listener->events || rdma_create_id(listener->events, &listener->id, listener, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener->id, (struct sockaddr *)address) || rdma_listen(listener->id, backlog)) {
		rc = errno ? -errno : -EIO;
		verbs_listener_close(listener);
		return rc;
	}
	device_use(&listener->context, listener->id->verbs);
	*out = listener;
	return 0;
}

int verbs_listener_fd(const struct verbs_listener *listener)
{
	return listener->events->fd;
}

uint16_t verbs_listener_port(const struct verbs_listener *listener)
{
	return ntohs(rdma_get_src_port(listener->id));
}

void verbs_listener_close(struct verbs_listener *listener)
{
	device_unuse(listener->context);
	if (listener->id)
		rdma_destroy_id(listener->id);
	device_forget_gone();
	if (listener->events)
		events_close(listener->events);
	free(listener);
}

static void reject(struct rdma_cm_id *id, enum verbs_trouble why)
{
	uint8_t text[VERBS_REFUSAL_BYTES];

	verbs_refusal_write((uint8_t)why, text);
	rdma_reject(id, text, sizeof(text));
	rdma_destroy_id(id);
}

static void came_from(struct rdma_cm_id *id, uint8_t out[16])
{
	struct verbs_tuple tuple = { 0 };
	struct sockaddr *from = rdma_get_peer_addr(id);

	verbs_tuple_make(from, from, &tuple);
	memcpy(out, tuple.address[0], sizeof(tuple.address[0]));
}

/* Returns 0 with a request, or -errno: it was none, and is refused. */
static int take_request(const struct rdma_cm_event *event, struct verbs_request **out)
{
	const struct rdma_conn_param *asked = &event->param.conn;
	struct verbs_request *request = calloc(1, sizeof(*request));
	int rc = request ? verbs_offer_read(asked->private_data, asked->private_data_len, &request->offer) : -ENOMEM;

	if (rc < 0) {
		free(request);
		return rc;
	}
	request->id = event->id;
	came_from(event->id, request->offer.from);
	request->reads_in = asked->responder_resources;
	request->reads_out = asked->initiator_depth;
	*out = request;
	return 0;
}

int verbs_listener_take(struct verbs_listener *listener, struct verbs_request **out, struct verbs_offer *offer)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(listener->events, &event)) {
		enum rdma_cm_event_type type = event->event;
		struct rdma_cm_id *id = event->id;
		int rc = type == RDMA_CM_EVENT_CONNECT_REQUEST ? take_request(event, out) : 0;

		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_DEVICE_REMOVAL && id == listener->id)
			return -ENODEV;
		if (type != RDMA_CM_EVENT_CONNECT_REQUEST)
			continue;
		if (!rc) {
			*offer = (*out)->offer;
			return 0;
		}
		listener->was_another |= rc == -EPROTONOSUPPORT;
		reject(id, rc == -EPROTONOSUPPORT ? VERBS_OTHER_VERSION : VERBS_PROTOCOL);
	}
	return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

enum verbs_trouble verbs_listener_heard(const struct verbs_listener *listener)
{
	return listener->was_another ? VERBS_OTHER_VERSION : VERBS_REFUSED;
}

void verbs_refuse(struct verbs_request *request, enum verbs_trouble why)
{
	reject(request->id, why);
	free(request);
}

static enum verbs_trouble trouble_of(int error)
{
	switch (error) {
	case -ENOMEM:
		return VERBS_MEMLOCK;
	case -EMFILE:
	case -ENOSPC:
		return VERBS_NO_QUEUE_PAIR;
	case -ENODEV:
		return VERBS_DEVICE_GONE;
	case -EPROTONOSUPPORT:
		return VERBS_IWARP;
	default:
		return VERBS_FAILED;
	}
}

static void set_timeout(struct verbs_conn *conn)
{
	uint8_t timeout = (uint8_t)conn->setup.ack_timeout;

	/* Where it is not known, the path's own time stays. */
	rdma_set_option(conn->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
}

static int accept_it(struct verbs_conn *conn, const struct verbs_request *request)
{
	uint8_t text[VERBS_ANSWER_BYTES];
	struct verbs_answer tells = { .tells = conn->setup.tells, .counts = conn->setup.counts };
	struct rdma_conn_param answer = { .private_data = text,
					  .private_data_len = sizeof(text),
					  .rnr_retry_count = 7 };
	int rc = queue_open(conn);

	if (rc < 0)
		return rc;
	answer.responder_resources = request->reads_in < conn->reads_max ? request->reads_in : (uint8_t)conn->reads_max;
	answer.initiator_depth = request->reads_out < conn->reads_max ? request->reads_out : (uint8_t)conn->reads_max;
	queue_grant(conn, &tells.grant);
	verbs_answer_write(&tells, text);
	return rdma_accept(conn->id, &answer) ? -errno : 0;
}

int verbs_admit(struct verbs_request *request, const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct rdma_event_channel *events = make_events();
	struct verbs_conn *conn = NULL;
	int rc = events ? conn_make(setup, events, &conn) : -EMFILE, held;

	if (conn && rdma_migrate_id(request->id, events))
		rc = -EIO;
	if (rc < 0 || !conn) {
		if (conn)
			verbs_close(conn);
		verbs_refuse(request, VERBS_FAILED);
		return rc;
	}
	conn->id = request->id;
	conn->id->context = conn;
	conn->accepting = true;
	conn->tuple = request->offer.tuple;
	memcpy(conn->setup.nonce, request->offer.nonce, sizeof(conn->setup.nonce));
	held = verbs_take(&conn->lock);
	set_timeout(conn);
	rc = accept_it(conn, request);
	verbs_give(&conn->lock, held);
	if (rc < 0) {
		uint8_t text[VERBS_REFUSAL_BYTES];

		verbs_refusal_write((uint8_t)trouble_of(rc), text);
		rdma_reject(conn->id, text, sizeof(text));
		verbs_close(conn);
	}
	free(request);
	if (!rc)
		*out = conn;
	return rc;
}

int verbs_connect(const struct sockaddr *from, const struct sockaddr *to, const struct verbs_tuple *tuple,
		  const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct rdma_event_channel *events;
	struct verbs_conn *conn = NULL;
	int rc;

	device_sweep();
	events = make_events();
	rc = events ? conn_make(setup, events, &conn) : -EMFILE;
	if (rc < 0 || !conn)
		return rc;
	conn->tuple = *tuple;
	if (rdma_create_id(events, &conn->id, conn, RDMA_PS_TCP) ||
	    rdma_resolve_addr(conn->id, (struct sockaddr *)from, (struct sockaddr *)to, RESOLVE_MS)) {
		rc = -errno;
		verbs_close(conn);
		return rc;
	}
	*out = conn;
	return 0;
}

static int ask(struct verbs_conn *conn)
{
	struct verbs_offer offer = { .tuple = conn->tuple };
	uint8_t text[VERBS_OFFER_BYTES];
	struct rdma_conn_param param = { .private_data = text,
					 .private_data_len = sizeof(text),
					 .retry_count = (uint8_t)conn->setup.retries,
					 .rnr_retry_count = 7 };
	int rc = queue_open(conn);

	if (rc < 0)
		return rc;
	memcpy(offer.nonce, conn->setup.nonce, sizeof(offer.nonce));
	verbs_offer_write(&offer, text);
	param.responder_resources = param.initiator_depth = (uint8_t)conn->reads_max;
	return rdma_connect(conn->id, &param) ? -errno : 0;
}

/* The accepting end is told where it may write, by which it has met. */
static void goes_on(struct verbs_conn *conn)
{
	conn->notices_left = conn->peer.receives;
	queue_learn(conn);
	if (conn_say_grant(conn) >= 0)
		atomic_store_explicit(&conn->state, VERBS_UP, memory_order_release);
}

/* The connecting end is told that it may, and where. */
static void established(struct verbs_conn *conn, const struct rdma_conn_param *answer)
{
	struct verbs_answer told;
	int rc = verbs_answer_read(answer->private_data, answer->private_data_len, conn->setup.nonce, &told);

	conn->peer = told.grant;
	if (rc < 0 || conn->peer.ring_bytes != conn->setup.out.bytes) {
		conn_break(conn, rc == -EPROTO ? VERBS_PROTOCOL : VERBS_OTHER_VERSION);
		return;
	}
	if (told.tells && conn->setup.judges) {
		conn->counts = told.counts;
		conn->judged = true;
		return;
	}
	goes_on(conn);
}

bool verbs_answered(struct verbs_conn *conn, struct counts *told)
{
	int held = verbs_take(&conn->lock);
	bool answered = conn->judged && atomic_load(&conn->state) == VERBS_OPENING;

	if (answered)
		*told = conn->counts;
	verbs_give(&conn->lock, held);
	return answered;
}

void verbs_agree(struct verbs_conn *conn, bool may)
{
	int held = verbs_take(&conn->lock);

	conn->judged = false;
	if (atomic_load(&conn->state) == VERBS_OPENING) {
		if (may)
			goes_on(conn);
		else
			conn_break(conn, VERBS_ANOTHER);
	}
	verbs_give(&conn->lock, held);
}

/* What a peer that has refused says of itself. One of another version does so in the words of its own. */
static enum verbs_trouble why_refused(const struct rdma_conn_param *told)
{
	uint8_t trouble;
	int rc = verbs_refusal_read(told->private_data, told->private_data_len, &trouble);

	if (rc < 0)
		return rc == -EPROTONOSUPPORT ? VERBS_OTHER_VERSION : VERBS_REFUSED;
	switch (trouble) {
	case VERBS_OTHER_VERSION:
		return VERBS_OTHER_VERSION;
	case VERBS_MEMLOCK:
	case VERBS_NO_QUEUE_PAIR:
	case VERBS_FAILED:
	case VERBS_DEVICE_GONE:
	case VERBS_IWARP:
		return VERBS_PEER_FAILED;
	default:
		return VERBS_REFUSED;
	}
}

static enum verbs_trouble why_rejected(const struct rdma_cm_event *event)
{
	if (event->status == REASON_BY_THE_CONSUMER)
		return why_refused(&event->param.conn);
	return event->status == REASON_NOBODY_LISTENS ? VERBS_REFUSED : VERBS_UNREACHABLE;
}

/* What failed while connecting. */
static void failed_step(struct verbs_conn *conn, struct rdma_cm_event *event)
{
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
		conn_break(conn, VERBS_NO_ROUTE);
		break;
	case RDMA_CM_EVENT_REJECTED:
		conn_break(conn, why_rejected(event));
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		conn_break(conn, VERBS_UNREACHABLE);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		conn_break(conn, VERBS_PEER_GONE);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		conn_break(conn, VERBS_DEVICE_GONE);
		break;
	default:
		break;
	}
}

void meet_step(struct verbs_conn *conn, struct rdma_cm_event *event)
{
	bool opening = atomic_load(&conn->state) == VERBS_OPENING && !conn->accepting;
	int rc = 0;

	if (opening && event->event == RDMA_CM_EVENT_ADDR_RESOLVED) {
		device_use(&conn->context, conn->id->verbs);
		set_timeout(conn);
		rc = rdma_resolve_route(conn->id, RESOLVE_MS) ? -errno : 0;
	} else if (opening && event->event == RDMA_CM_EVENT_ROUTE_RESOLVED) {
		rc = ask(conn);
	} else if (opening && event->event == RDMA_CM_EVENT_ESTABLISHED) {
		established(conn, &event->param.conn);
	} else {
		failed_step(conn, event);
	}
	if (rc < 0)
		conn_break(conn, trouble_of(rc));
}
