/* SPDX-License-Identifier: MIT */
/*
 * How bytes move: RDMA WRITEs with notices, and what notices say.
 *
 * Each notice takes one receive of the peer. How many are left is counted (notices_left), so that no write ever meets a
 * receive queue that is empty; the peer makes room by acknowledging in its own notices. Data leave some of them to lines,
 * and lines leave some to bare acknowledgements, so that two ends that only send can go on telling each other. An end that
 * has taken half of the notices without sending any acknowledges for that reason alone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "rdma/verbs_internal.h"

#define KEPT_FOR_TAKEN 4u
#define LAZY_WRITES 2u	/* under way, behind which small ones are collected */
#define SIGNAL_EVERY 8u /* requests, at least */
#define POLLED_AT_ONCE 16
#define TRIPS 8
#define TRIPS_LEAST 3
#define TRIPS_NS NS_PER_MS /* for one, and for as many as there are in it: this thread may be kept from looking */

/* Posting ----------------------------------------------------------------------------------------------------------- */

uint32_t conn_room(const struct verbs_conn *conn)
{
	return conn->depth - (uint32_t)(conn->posted - conn->retired);
}

struct work *conn_next_work(struct verbs_conn *conn)
{
	struct work *work = &conn->work[conn->posted % conn->depth];

	*work = (struct work){ 0 };
	return work;
}

int conn_post(struct verbs_conn *conn, struct ibv_send_wr *request, bool signal)
{
	struct ibv_send_wr *bad;
	size_t bytes = 0;

	request->wr_id = conn->posted;
	for (int i = 0; i < request->num_sge; i++)
		bytes += request->sg_list[i].length;
	if (signal || conn->posted + 1 - conn->signalled >= SIGNAL_EVERY) {
		request->send_flags |= IBV_SEND_SIGNALED;
		conn->signalled = conn->posted + 1;
	}
	if (bytes <= conn->inline_bytes && request->opcode != IBV_WR_RDMA_READ)
		request->send_flags |= IBV_SEND_INLINE;
	if (ibv_post_send(conn->qp, request, &bad)) {
		conn_break(conn, VERBS_FAILED);
		return -ENOTCONN;
	}
	conn->posted++;
	return 0;
}

/* Posts a request that the peer is told of. */
static int post_notice(struct verbs_conn *conn, struct ibv_send_wr *request, enum verbs_notice_kind kind,
		       uint32_t bytes)
{
	const struct verbs_notice notice = { kind, conn->notices_taken, bytes };
	int rc;

	request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	request->imm_data = htonl(verbs_notice_write(&notice));
	rc = conn_post(conn, request, kind == VERBS_NOTICE_DATA);
	if (rc < 0)
		return rc;
	conn->notices_taken = 0;
	conn->notices_left--;
	conn->notices_out++;
	return 0;
}

static void post_taken(struct verbs_conn *conn, bool signal)
{
	struct ibv_send_wr request = { 0 };

	conn_next_work(conn);
	if (signal)
		request.send_flags = IBV_SEND_SIGNALED;
	request.wr.rdma.remote_addr = conn->peer.line;
	request.wr.rdma.rkey = conn->peer.line_key;
	post_notice(conn, &request, VERBS_NOTICE_CREDIT, 0);
}

static void post_line(struct verbs_conn *conn)
{
	struct line *line = &conn->lines[conn->posted % conn->depth];
	struct ibv_sge piece = { (uintptr_t)line, LANE_LINE, conn->mr_scrap->lkey };
	struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1 };
	uint64_t head;

	*line = conn->next_line;
	conn_next_work(conn);
	request.wr.rdma.remote_addr = conn->peer.line;
	request.wr.rdma.rkey = conn->peer.line_key;
	request.send_flags = conn->due_solicited ? IBV_SEND_SOLICITED : 0;
	if (post_notice(conn, &request, VERBS_NOTICE_CREDIT, 0) < 0)
		return;
	conn->due_solicited = false;
	conn->told = conn->next_line;
	memcpy(&head, conn->told.bytes, sizeof(head));
	atomic_store_explicit(&conn->told_head, head, memory_order_relaxed);
	conn->credit_due = false;
}

/* What is to be told without data. */
static void say_due(struct verbs_conn *conn)
{
	if (atomic_load_explicit(&conn->state, memory_order_relaxed) != VERBS_UP || !conn_room(conn))
		return;
	if (conn->credit_due && conn->notices_left > KEPT_FOR_TAKEN)
		post_line(conn);
	else if (conn->notices_taken >= conn->setup.receives / 2 && conn->notices_left)
		post_taken(conn, false);
}

void conn_probe(struct verbs_conn *conn)
{
	if (atomic_load(&conn->state) == VERBS_UP && conn_room(conn) && conn->notices_left)
		post_taken(conn, true);
}

int conn_say_grant(struct verbs_conn *conn)
{
	struct line *line = &conn->lines[0];
	struct ibv_sge piece = { (uintptr_t)line, VERBS_GRANT_BYTES, conn->mr_scrap->lkey };
	struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct verbs_grant grant;

	_Static_assert(VERBS_GRANT_BYTES <= sizeof(struct line), "a grant has room");
	queue_grant(conn, &grant);
	verbs_grant_write(&grant, line->bytes);
	conn_next_work(conn);
	conn->notices_left--;
	conn->notices_out++;
	return conn_post(conn, &request, true);
}

/* One contiguous piece of the ring, here and there. */
static int post_piece(struct verbs_conn *conn, uint64_t from, uint32_t bytes, uint64_t stream, uint32_t all,
		      unsigned int how)
{
	uint32_t at = (uint32_t)from & (conn->setup.out.bytes - 1);
	struct ibv_sge piece = { (uintptr_t)conn->setup.out.ring + at, bytes, conn->mr_ring_out->lkey };
	struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct work *work = conn_next_work(conn);

	request.wr.rdma.remote_addr = conn->peer.ring + at;
	request.wr.rdma.rkey = conn->peer.ring_key;
	if (!all)
		return conn_post(conn, &request, false);
	request.send_flags = how & VERBS_SOLICITED ? IBV_SEND_SOLICITED : 0;
	work->kind = WORK_DATA;
	work->stream = stream;
	work->bytes = all;
	return post_notice(conn, &request, VERBS_NOTICE_DATA, all);
}

/* All that was put since the last time, as one. */
static int post_data(struct verbs_conn *conn, uint64_t tail, unsigned int how)
{
	uint64_t stream = atomic_load_explicit(&conn->setup.out.shared->sent, memory_order_relaxed);
	uint32_t all = (uint32_t)(tail - conn->pushed);

	while (conn->pushed != tail) {
		uint64_t left = tail - conn->pushed;
		uint64_t to_end = conn->setup.out.bytes - (conn->pushed & (conn->setup.out.bytes - 1));
		uint64_t bytes = left < to_end ? left : to_end;
		int rc;

		bytes = bytes < conn->message_bytes_max ? bytes : conn->message_bytes_max;
		rc = post_piece(conn, conn->pushed, (uint32_t)bytes, stream, bytes == left ? all : 0, how);
		if (rc < 0)
			return rc;
		conn->pushed += bytes;
	}
	conn->data_under_way++;
	conn->written = stream;
	return 0;
}

static uint32_t pieces_at_most(const struct verbs_conn *conn)
{
	return (uint32_t)(conn->setup.out.bytes / conn->message_bytes_max) + 2;
}

ssize_t verbs_push(struct verbs_conn *conn, unsigned int how)
{
	bool lazily = how & VERBS_LAZILY;
	/* What wakes the peer makes room: it may have taken none of those before, and is to. */
	uint32_t kept = how & VERBS_SOLICITED ? KEPT_FOR_TAKEN : KEPT_FOR_LINES;
	uint64_t tail = atomic_load_explicit(&conn->setup.out.shared->tail, memory_order_relaxed);
	ssize_t rc = -ENOTCONN;
	int held = verbs_take(&conn->lock);

	if (tail - conn->pushed &&
	    (conn_room(conn) < conn->depth / 2 || lazily || conn->notices_left <= KEPT_FOR_LINES))
		conn_poll(conn);
	if (atomic_load_explicit(&conn->state, memory_order_relaxed) == VERBS_UP) {
		if (tail != conn->pushed && tail - conn->pushed <= conn->setup.out.bytes &&
		    conn_room(conn) >= pieces_at_most(conn) + KEPT_FOR_LINES && conn->notices_left > kept &&
		    (!lazily || conn->data_under_way < LAZY_WRITES))
			post_data(conn, tail, how);
		rc = (ssize_t)(tail - conn->pushed);
	}
	if (conn_is_broken(conn))
		rc = -ENOTCONN;
	verbs_give(&conn->lock, held);
	return rc;
}

int verbs_credit(struct verbs_conn *conn, unsigned int how)
{
	struct lane_shared *shared = conn->setup.in.shared;
	uint64_t head = atomic_load_explicit(&shared->head, memory_order_relaxed);
	int rc = -ENOTCONN, held;

	_Static_assert(offsetof(struct lane_shared, head) == LANE_LINE &&
			       offsetof(struct lane_shared, sink) == 2 * LANE_LINE &&
			       offsetof(struct lane_shared, claimed) == 3 * LANE_LINE,
		       "the consumer's lines, and the one that it reads, lie in a row");
	if (!(how & VERBS_NOW) &&
	    head - atomic_load_explicit(&conn->told_head, memory_order_relaxed) < conn->setup.in.bytes / 4)
		return conn_is_broken(conn) ? -ENOTCONN : 0;
	held = verbs_take(&conn->lock);
	if (atomic_load_explicit(&conn->state, memory_order_relaxed) == VERBS_UP) {
		memcpy(&conn->next_line, &shared->head, LANE_LINE);
		conn->credit_due = memcmp(&conn->next_line, &conn->told, LANE_LINE);
		conn->due_solicited |= conn->credit_due && how & VERBS_SOLICITED;
		say_due(conn);
		rc = conn_is_broken(conn) ? -ENOTCONN : conn->credit_due ? -EAGAIN : 0;
	}
	verbs_give(&conn->lock, held);
	return rc;
}

/* Completions ------------------------------------------------------------------------------------------------------- */

static enum verbs_trouble trouble_of(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
		return VERBS_SILENCE;
	case IBV_WC_WR_FLUSH_ERR:
		return VERBS_PEER_GONE;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_REM_OP_ERR:
		return VERBS_NO_ACCESS; /* it may just be ending, its memory first */
	case IBV_WC_LOC_LEN_ERR:
		return VERBS_PROTOCOL;
	default:
		return VERBS_FAILED;
	}
}

static void end_get(struct verbs_conn *conn, struct work *work, int error)
{
	conn->ended[(conn->ended_first + conn->ended_count++) % conn->depth] =
		(struct verbs_got){ work->cookie, work->bytes, error };
	for (uint32_t i = 0; i < work->pieces; i++)
		domain_put(conn->domain, work->region[i]);
	work->pieces = 0;
	conn->gets_under_way--;
	conn->found |= VERBS_GOT;
}

/* All requests before `end` have ended well, but for the last one if there is an error. */
static void retire(struct verbs_conn *conn, uint64_t end, int error)
{
	while (conn->retired < end) {
		struct work *work = &conn->work[conn->retired++ % conn->depth];
		int its = conn->retired == end ? error : 0;

		if (work->kind == WORK_DATA) {
			conn->data_under_way--;
			if (!its)
				conn->delivered = work->stream;
		} else if (work->kind == WORK_GET) {
			end_get(conn, work, its);
		} else if (work->kind == WORK_FILL) {
			domain_put(conn->domain, work->region[0]);
			work->pieces = 0;
		} else if (work->kind == WORK_CLAIM && !its) {
			memcpy(&conn->claimed, conn->lines[(conn->retired - 1) % conn->depth].bytes,
			       sizeof(conn->claimed));
			conn->retraction = RETRACTED;
		}
	}
	conn->found |= VERBS_SENT;
}

static void poll_out(struct verbs_conn *conn)
{
	struct ibv_wc done[POLLED_AT_ONCE];
	int count;

	do {
		count = conn->posted != conn->retired ? ibv_poll_cq(conn->cq_out, POLLED_AT_ONCE, done) : 0;
		for (int i = 0; i < count; i++) {
			int error = done[i].status == IBV_WC_SUCCESS	    ? 0 :
				    done[i].status == IBV_WC_WR_FLUSH_ERR   ? -ENOTCONN :
				    done[i].status == IBV_WC_REM_ACCESS_ERR ? -EACCES :
									      -EIO;

			if (done[i].status != IBV_WC_SUCCESS)
				conn_break(conn, trouble_of(done[i].status));
			retire(conn, done[i].wr_id + 1, error);
		}
	} while (count == POLLED_AT_ONCE);
	if (count < 0)
		conn_break(conn, VERBS_FAILED);
}

int conn_receive(struct verbs_conn *conn)
{
	/* Any of them may be the one that the peer's grant comes to; only the first one is. */
	struct ibv_sge piece = { (uintptr_t)&conn->lines[conn->depth], LANE_LINE, conn->mr_scrap->lkey };
	struct ibv_recv_wr request = { .sg_list = &piece, .num_sge = conn->accepting && !conn->heard }, *bad;
	int rc = ibv_post_recv(conn->qp, &request, &bad);

	if (rc)
		return -rc;
	conn->receives++;
	return 0;
}

static void hear_grant(struct verbs_conn *conn, uint32_t bytes)
{
	const struct line *line = &conn->lines[conn->depth];
	int rc = -EPROTO;

	if (conn->accepting && !conn->heard && bytes <= LANE_LINE)
		rc = verbs_grant_read(line->bytes, bytes, conn->setup.nonce, &conn->peer);
	if (rc < 0 || conn->peer.ring_bytes != conn->setup.out.bytes) {
		conn_break(conn, rc == -EPROTO ? VERBS_PROTOCOL : VERBS_OTHER_VERSION);
		return;
	}
	conn->heard = true;
	conn->notices_left = conn->peer.receives;
	queue_learn(conn);
	atomic_store_explicit(&conn->state, VERBS_UP, memory_order_release);
	conn->found |= VERBS_OUT;
}

static void hear_notice(struct verbs_conn *conn, uint32_t word)
{
	struct lane *lane = &conn->setup.in;
	uint64_t tail = atomic_load_explicit(&lane->shared->tail, memory_order_relaxed);
	uint64_t head = atomic_load_explicit(&lane->shared->head, memory_order_acquire);
	struct verbs_notice notice;

	if (verbs_notice_read(word, &notice) < 0 || notice.taken > conn->notices_out ||
	    tail - head + notice.bytes > lane->bytes || (conn->accepting && !conn->heard)) {
		conn_break(conn, VERBS_PROTOCOL);
		return;
	}
	conn->notices_out -= notice.taken;
	conn->notices_left += notice.taken;
	if (notice.bytes)
		atomic_store(&lane->shared->tail, tail + notice.bytes);
	conn->found |= (notice.bytes ? VERBS_IN : VERBS_OUT) | (notice.taken ? VERBS_OUT : 0);
}

/* One that has come well. What came before the connection broke counts. */
static void hear(struct verbs_conn *conn, const struct ibv_wc *done)
{
	conn->notices_taken++;
	if (done->opcode == IBV_WC_RECV)
		hear_grant(conn, done->byte_len);
	else if (done->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
		hear_notice(conn, ntohl(done->imm_data));
	else
		conn_break(conn, VERBS_PROTOCOL);
	if (!conn_is_broken(conn) && conn_receive(conn) < 0)
		conn_break(conn, VERBS_FAILED);
}

/* A receive that comes back unused tells no reason; a request that has failed does. */
static void flushed(struct verbs_conn *conn, enum ibv_wc_status status)
{
	if (!conn_is_broken(conn))
		poll_out(conn);
	conn_break(conn, trouble_of(status));
}

static void poll_in(struct verbs_conn *conn)
{
	struct ibv_wc done[POLLED_AT_ONCE];
	int count;

	do {
		count = ibv_poll_cq(conn->cq_in, POLLED_AT_ONCE, done);
		for (int i = 0; i < count; i++) {
			conn->receives--;
			if (done[i].status == IBV_WC_SUCCESS)
				hear(conn, &done[i]);
			else
				flushed(conn, done[i].status);
		}
	} while (count == POLLED_AT_ONCE);
	if (count < 0)
		conn_break(conn, VERBS_FAILED);
}

void conn_poll(struct verbs_conn *conn)
{
	if (!conn->qp)
		return;
	poll_in(conn);
	poll_out(conn);
	say_due(conn);
}

int verbs_poll(struct verbs_conn *conn)
{
	unsigned int found;
	int held = verbs_take(&conn->lock);

	conn_poll(conn);
	found = conn->found;
	conn->found = 0;
	verbs_give(&conn->lock, held);
	return found ? (int)found : conn_is_broken(conn) ? -ENOTCONN : 0;
}

/* Before an event is taken there is no use in asking for the next. */
int conn_arm(struct verbs_conn *conn)
{
	if (!conn->armed && ibv_req_notify_cq(conn->cq_in, 0))
		return -1;
	conn->armed = true;
	return 0;
}

bool verbs_arm(struct verbs_conn *conn, unsigned int what)
{
	bool sleeps;
	int held = verbs_take(&conn->lock);

	if (conn->qp && !conn_is_broken(conn) &&
	    ((what & VERBS_SOLICITED ? !conn->armed && ibv_req_notify_cq(conn->cq_in, 1) : conn_arm(conn)) ||
	     ((what & (VERBS_GOT | VERBS_SENT)) && ibv_req_notify_cq(conn->cq_out, 0))))
		conn_break(conn, VERBS_FAILED);
	conn_poll(conn);
	/* What is found here and now will come with no event, whatever it is. */
	sleeps = !(conn->found & (what & VERBS_SOLICITED ? ~0u : what)) && !conn_is_broken(conn);
	verbs_give(&conn->lock, held);
	return sleeps;
}

bool verbs_flushed(struct verbs_conn *conn)
{
	bool done;
	int held = verbs_take(&conn->lock);

	conn_poll(conn);
	done = !conn->credit_due && conn->posted == conn->retired;
	if (!done && conn->signalled != conn->posted)
		conn_probe(conn); /* the last ones tell nothing by themselves */
	done |= atomic_load_explicit(&conn->state, memory_order_relaxed) != VERBS_UP;
	verbs_give(&conn->lock, held);
	return done;
}

uint32_t verbs_trip(struct verbs_conn *conn)
{
	uint64_t begin = clock_now(), now = begin;
	uint32_t shortest = 0;
	int held = verbs_take(&conn->lock);

	/* What is under way: the accepting end has just sent its grant. */
	while (conn->posted != conn->retired && !conn_is_broken(conn) && now - begin < TRIPS_NS) {
		conn_poll(conn);
		now = clock_now();
	}
	begin = now;
	for (int i = 0; i < TRIPS && (i < TRIPS_LEAST || now - begin < TRIPS_NS) && conn->posted == conn->retired;
	     i++) {
		struct ibv_send_wr request = { .opcode = IBV_WR_RDMA_WRITE,
					       .wr.rdma = { conn->peer.line, conn->peer.line_key } };
		uint64_t end = conn->posted + 1, posted_at = clock_now();

		conn_next_work(conn);
		if (atomic_load(&conn->state) != VERBS_UP || conn_post(conn, &request, true) < 0)
			break;
		do {
			conn_poll(conn);
			now = clock_now();
		} while (conn->retired < end && !conn_is_broken(conn) && now - posted_at < TRIPS_NS);
		if (conn->retired >= end && !conn_is_broken(conn) && (!shortest || now - posted_at < shortest))
			shortest = (uint32_t)(now - posted_at);
	}
	verbs_give(&conn->lock, held);
	return shortest;
}
