/* SPDX-License-Identifier: MIT */
/* GETs: RDMA READs into any memory of the process. */
#define _GNU_SOURCE
#include <errno.h>

#include "rdma/verbs_internal.h"

/* The part of iov behind `skip`, in registered pieces. Returns bytes or -errno if there is not even the first. */
static ssize_t gather(struct verbs_conn *conn, struct work *work, struct ibv_sge *pieces, const struct iovec *iov,
		      int count, size_t skip)
{
	size_t want = work->bytes, done = 0;

	for (int i = 0; i < count && done < want && work->pieces < conn->get_pieces; i++) {
		size_t part = iov[i].iov_len > skip ? iov[i].iov_len - skip : 0;
		uint8_t *at = (uint8_t *)iov[i].iov_base + skip;
		int rc;

		skip = part ? 0 : skip - iov[i].iov_len;
		if (!part)
			continue;
		part = part < want - done ? part : want - done;
		rc = domain_get(conn->domain, at, part, RIGHT_WRITE, &work->region[work->pieces]);
		if (rc < 0)
			return done ? (ssize_t)done : rc;
		pieces[work->pieces] = (struct ibv_sge){ (uintptr_t)at, (uint32_t)part,
							 ((struct ibv_mr *)work->region[work->pieces]->handle)->lkey };
		work->pieces++;
		done += part;
	}
	return (ssize_t)done;
}

static ssize_t post_get(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
			int count, size_t skip, unsigned int how, uint64_t cookie)
{
	struct ibv_sge pieces[GET_PIECES] = { 0 };
	struct ibv_send_wr request = { .sg_list = pieces, .opcode = IBV_WR_RDMA_READ };
	struct work *work = conn_next_work(conn);
	ssize_t got;
	int rc = 0;

	work->bytes = bytes < conn->message_bytes_max ? bytes : conn->message_bytes_max;
	got = gather(conn, work, pieces, iov, count, skip);
	if (got > 0) {
		work->kind = WORK_GET;
		work->cookie = cookie;
		work->bytes = (size_t)got;
		request.num_sge = (int)work->pieces;
		request.send_flags = how & VERBS_BEHIND ? IBV_SEND_FENCE : 0;
		request.wr.rdma.remote_addr = from->address;
		request.wr.rdma.rkey = from->key;
		rc = conn_post(conn, &request, true);
	}
	if (got > 0 && !rc) {
		conn->gets_under_way++;
		return got;
	}
	for (uint32_t i = 0; i < work->pieces; i++)
		domain_put(conn->domain, work->region[i]);
	work->pieces = 0;
	return rc < 0 ? rc : got;
}

/* How many more may be under way. */
static uint32_t gets_left(const struct verbs_conn *conn)
{
	uint32_t used = conn->gets_under_way + conn->ended_count, left = conn->depth > used ? conn->depth - used : 0;
	uint32_t reads = conn->reads_max > conn->gets_under_way ? conn->reads_max - conn->gets_under_way : 0;
	uint32_t requests = conn_room(conn) > KEPT_FOR_LINES ? conn_room(conn) - KEPT_FOR_LINES : 0;

	left = left < reads ? left : reads;
	return left < requests ? left : requests;
}

int verbs_gets(struct verbs_conn *conn)
{
	int held = verbs_take(&conn->lock);
	int left = atomic_load_explicit(&conn->state, memory_order_relaxed) == VERBS_UP ? (int)gets_left(conn) : 0;

	verbs_give(&conn->lock, held);
	return left;
}

ssize_t verbs_get(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
		  int count, size_t skip, unsigned int how, uint64_t cookie)
{
	ssize_t rc;
	int held = verbs_take(&conn->lock);

	if (atomic_load_explicit(&conn->state, memory_order_relaxed) != VERBS_UP)
		rc = conn_is_broken(conn) ? -ENOTCONN : -EAGAIN;
	else if (!gets_left(conn))
		rc = -EAGAIN;
	else
		rc = post_get(conn, from, bytes, iov, count, skip, how, cookie);
	verbs_give(&conn->lock, held);
	return rc;
}

int verbs_got(struct verbs_conn *conn, struct verbs_got *out)
{
	int rc = 0;
	int held = verbs_take(&conn->lock);

	if (conn->ended_count) {
		*out = conn->ended[conn->ended_first];
		conn->ended_first = (conn->ended_first + 1) % conn->depth;
		conn->ended_count--;
		rc = 1;
	}
	verbs_give(&conn->lock, held);
	return rc;
}
