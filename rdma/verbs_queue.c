/* SPDX-License-Identifier: MIT */
/* The queue pair of a connection, and the memory that the device and the peer may use for it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>

#include "common/sys.h"
#include "rdma/verbs_internal.h"

#define INLINE_BYTES 128u /* a small send with its head, if the device has that much */

/* What stands for the peer's host. */
static void host_of(const struct sockaddr *from, uint8_t out[16])
{
	struct verbs_tuple tuple = { 0 };

	verbs_tuple_make(from, from, &tuple);
	memcpy(out, tuple.address[0], 16);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static int open_limits(struct verbs_conn *conn)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;

	if (device_is_iwarp(conn->id->verbs->device))
		return -EPROTONOSUPPORT;
	if (ibv_query_device(conn->id->verbs, &device) || ibv_query_port(conn->id->verbs, conn->id->port_num, &port))
		return -EIO;
	if (conn->setup.receives + 1 > (uint32_t)device.max_qp_wr || conn->depth > (uint32_t)device.max_qp_wr ||
	    conn->setup.receives > (uint32_t)device.max_cqe)
		return -EMFILE;
	conn->reads_max =
		least(conn->setup.reads, least((uint32_t)device.max_qp_init_rd_atom, (uint32_t)device.max_qp_rd_atom));
	conn->get_pieces = least(GET_PIECES, least((uint32_t)device.max_sge, (uint32_t)device.max_sge_rd));
	conn->get_pieces = conn->get_pieces ? conn->get_pieces : 1;
	conn->message_bytes_max = port.max_msg_sz & ~(VERBS_NOTICE_UNIT - 1);
	return 0;
}

static int open_completions(struct verbs_conn *conn)
{
	struct ibv_context *context = conn->id->verbs;

	conn->channel = ibv_create_comp_channel(context);
	if (!conn->channel)
		return -errno;
	conn->channel->fd = own_keep(conn->channel->fd);
	conn->cq_in = ibv_create_cq(context, (int)conn->setup.receives + 1, conn, conn->channel, 0);
	conn->cq_out = conn->cq_in ? ibv_create_cq(context, (int)conn->depth + 1, conn, conn->channel, 0) : NULL;
	if (!conn->cq_out)
		return -errno;
	if (fcntl(conn->channel->fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(context->async_fd, F_SETFL, O_NONBLOCK) < 0 ||
	    conn_watch(conn, conn->channel->fd, WATCHED_COMPLETIONS) < 0 ||
	    conn_watch(conn, context->async_fd, WATCHED_DEVICE) < 0)
		return -errno;
	return 0;
}

static int open_pair(struct verbs_conn *conn)
{
	struct ibv_qp_init_attr attributes = { .qp_context = conn,
					       .send_cq = conn->cq_out,
					       .recv_cq = conn->cq_in,
					       .qp_type = IBV_QPT_RC };
	/* Devices refuse what they do not have of this. */
	const uint32_t tries[] = { INLINE_BYTES, LANE_LINE, 0 };
	int rc = -1;

	for (size_t i = 0; i < sizeof(tries) / sizeof(*tries) && rc < 0; i++) {
		attributes.cap = (struct ibv_qp_cap){ .max_send_wr = conn->depth,
						      .max_recv_wr = conn->setup.receives,
						      .max_send_sge = conn->get_pieces,
						      .max_recv_sge = 1,
						      .max_inline_data = tries[i] };
		rc = rdma_create_qp(conn->id, conn->domain->pd, &attributes);
	}
	if (rc < 0)
		return -errno;
	conn->inline_bytes = attributes.cap.max_inline_data;
	conn->qp = conn->id->qp;
	return 0;
}

/* The peer may write its share of the ring that it fills, and its lines (lane_shared from `head` on), and read the one behind them: nothing else. */
static int open_memory(struct verbs_conn *conn)
{
	const int peer_writes = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	const struct verbs_setup *setup = &conn->setup;
	struct ibv_pd *pd = conn->domain->pd;

	conn->mr_ring_in = ibv_reg_mr(pd, setup->in.ring, setup->in.bytes, peer_writes);
	conn->mr_ring_out = conn->mr_ring_in ? ibv_reg_mr(pd, setup->out.ring, setup->out.bytes, 0) : NULL;
	conn->mr_line = conn->mr_ring_out ? ibv_reg_mr(pd, &setup->out.shared->head, 3 * LANE_LINE,
						       peer_writes | IBV_ACCESS_REMOTE_READ) :
					    NULL;
	conn->mr_scrap = conn->mr_line ? ibv_reg_mr(pd, conn->lines, (conn->depth + 1) * sizeof(struct line),
						    IBV_ACCESS_LOCAL_WRITE) :
					 NULL;
	return conn->mr_scrap ? 0 : -errno;
}

int queue_open(struct verbs_conn *conn)
{
	uint8_t host[16];
	int rc = open_limits(conn);

	device_use(&conn->context, conn->id->verbs);
	if (rc < 0)
		return rc;
	host_of(rdma_get_peer_addr(conn->id), host);
	rc = domain_open(conn->id->verbs, host, &conn->domain);
	if (rc >= 0)
		rc = open_completions(conn);
	if (rc >= 0)
		rc = open_pair(conn);
	if (rc >= 0)
		rc = open_memory(conn);
	for (uint32_t i = 0; rc >= 0 && i < conn->setup.receives; i++)
		rc = conn_receive(conn);
	return rc;
}

void queue_learn(struct verbs_conn *conn)
{
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr attributes = { 0 };

	/* As rdma_cm has agreed with the peer. */
	if (!ibv_query_qp(conn->qp, &attributes, IBV_QP_MAX_QP_RD_ATOMIC, &made))
		conn->reads_max = least(conn->reads_max, attributes.max_rd_atomic);
}

void queue_grant(const struct verbs_conn *conn, struct verbs_grant *out)
{
	*out = (struct verbs_grant){ .ring = (uintptr_t)conn->setup.in.ring,
				     .line = (uintptr_t)&conn->setup.out.shared->head,
				     .ring_key = conn->mr_ring_in->rkey,
				     .line_key = conn->mr_line->rkey,
				     .ring_bytes = conn->setup.in.bytes,
				     .receives = conn->setup.receives };
	memcpy(out->nonce, conn->setup.nonce, sizeof(out->nonce));
}

void queue_close(struct verbs_conn *conn)
{
	struct ibv_mr *regions[] = { conn->mr_ring_in, conn->mr_ring_out, conn->mr_line, conn->mr_scrap };

	/* First: behind this, the device writes no more to anything. */
	if (conn->qp)
		rdma_destroy_qp(conn->id);
	conn->qp = NULL;
	for (uint64_t number = conn->retired; number < conn->posted; number++) {
		struct work *work = &conn->work[number % conn->depth];

		for (uint32_t i = 0; i < work->pieces; i++)
			domain_put(conn->domain, work->region[i]);
	}
	conn->retired = conn->posted;
	if (conn->cq_in) {
		ibv_ack_cq_events(conn->cq_in, conn->cq_events_in);
		ibv_destroy_cq(conn->cq_in);
	}
	if (conn->cq_out) {
		ibv_ack_cq_events(conn->cq_out, conn->cq_events_out);
		ibv_destroy_cq(conn->cq_out);
	}
	if (conn->channel) {
		own_drop(conn->channel->fd);
		ibv_destroy_comp_channel(conn->channel);
	}
	for (size_t i = 0; i < sizeof(regions) / sizeof(*regions); i++) {
		if (regions[i])
			ibv_dereg_mr(regions[i]);
	}
	if (conn->domain)
		domain_close(conn->domain);
}
