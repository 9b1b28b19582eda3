/* SPDX-License-Identifier: MIT */
/*
 * libibverbs and librdmacm by hand, for both ends in one process: the plug-in's own files run above them. What is posted is carried out at once, in
 * order, by the thread that posts; keys, bounds and rights are checked, as a device does.
 */
#ifndef ZC_TESTS_FABRIC_TESTING_H
#define ZC_TESTS_FABRIC_TESTING_H

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "rdma/channel.h"
#include "rdma/verbs_internal.h"

#define QUEUE 1024
#define REGIONS 256
#define RING 65536u

struct fabric_cq {
	struct ibv_cq cq;
	struct ibv_wc done[QUEUE];
	uint32_t head, tail;
};

struct fabric_qp {
	struct ibv_qp qp;
	struct fabric_qp *peer;
	struct fabric_cq *send, *recv;
	uint32_t receives_first, receives_end;
	bool broken;
};

static struct {
	pthread_mutex_t lock; /* of the queues */
	struct ibv_context *context;
	struct {
		uintptr_t start, end;
		int access;
	} region[REGIONS]; /* by key, minus 1 */
} fabric = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Queues ------------------------------------------------------------------------------------------------------------ */

static void complete(struct fabric_cq *cq, struct ibv_wc done)
{
	assert_true(cq->tail - cq->head < QUEUE);
	cq->done[cq->tail++ % QUEUE] = done;
}

static void break_qp(struct fabric_qp *qp)
{
	qp->broken = true;
	for (; qp->receives_first != qp->receives_end; qp->receives_first++)
		complete(qp->recv, (struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR });
}

static bool allows(uint32_t key, uint64_t at, size_t bytes, int access)
{
	return key && key <= REGIONS && (fabric.region[key - 1].access & access) == access &&
	       fabric.region[key - 1].start <= at && at + bytes <= fabric.region[key - 1].end;
}

/* As a device does: others may read the same words, or write them. */
static void carry(uint64_t to, uint64_t from, size_t bytes)
{
	for (; bytes >= 8 && !((to | from) & 7); to += 8, from += 8, bytes -= 8)
		__atomic_store_n((uint64_t *)(uintptr_t)to,
				 __atomic_load_n((uint64_t *)(uintptr_t)from, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

static enum ibv_wc_status run(struct fabric_qp *qp, const struct ibv_send_wr *wr)
{
	bool reads = wr->opcode == IBV_WR_RDMA_READ;
	uint64_t there = wr->wr.rdma.remote_addr;

	if (qp->broken)
		return IBV_WC_WR_FLUSH_ERR;
	if (!qp->peer || qp->peer->broken)
		return IBV_WC_RETRY_EXC_ERR;
	if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && qp->peer->receives_first == qp->peer->receives_end)
		return IBV_WC_RNR_RETRY_EXC_ERR;
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *here = &wr->sg_list[i];

		if (!(wr->send_flags & IBV_SEND_INLINE) &&
		    !allows(here->lkey, here->addr, here->length, reads ? IBV_ACCESS_LOCAL_WRITE : 0))
			return IBV_WC_LOC_PROT_ERR;
		if (!allows(wr->wr.rdma.rkey, there, here->length,
			    reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE))
			return IBV_WC_REM_ACCESS_ERR;
		carry(reads ? here->addr : there, reads ? there : here->addr, here->length);
		there += here->length;
	}
	/* Each is carried out behind those before it. */
	atomic_thread_fence(memory_order_seq_cst);
	if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		qp->peer->receives_first++;
		complete(qp->peer->recv,
			 (struct ibv_wc){ .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .imm_data = wr->imm_data });
	}
	return IBV_WC_SUCCESS;
}

static int post_send(struct ibv_qp *to, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fabric_qp *qp = (struct fabric_qp *)to;
	enum ibv_wc_status status;

	pthread_mutex_lock(&fabric.lock);
	status = run(qp, wr);
	if (status || wr->send_flags & IBV_SEND_SIGNALED)
		complete(qp->send, (struct ibv_wc){ .wr_id = wr->wr_id, .status = status });
	if (status && !qp->broken)
		break_qp(qp);
	pthread_mutex_unlock(&fabric.lock);
	return 0;
}

static int post_recv(struct ibv_qp *to, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	pthread_mutex_lock(&fabric.lock);
	((struct fabric_qp *)to)->receives_end++;
	pthread_mutex_unlock(&fabric.lock);
	return 0;
}

static int poll_cq(struct ibv_cq *of, int max, struct ibv_wc *out)
{
	struct fabric_cq *cq = (struct fabric_cq *)of;
	int count = 0;

	pthread_mutex_lock(&fabric.lock);
	while (count < max && cq->head != cq->tail)
		out[count++] = cq->done[cq->head++ % QUEUE];
	pthread_mutex_unlock(&fabric.lock);
	return count;
}

static int req_notify(struct ibv_cq *of, int solicited)
{
	return 0;
}

/* libibverbs -------------------------------------------------------------------------------------------------------- */

#undef ibv_reg_mr
#undef ibv_query_port

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));
	uint32_t key = 0;

	pthread_mutex_lock(&fabric.lock);
	while (fabric.region[key].end)
		assert_true(++key < REGIONS);
	fabric.region[key].start = (uintptr_t)at;
	fabric.region[key].end = (uintptr_t)at + bytes;
	fabric.region[key].access = access;
	pthread_mutex_unlock(&fabric.lock);
	mr->lkey = mr->rkey = key + 1;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&fabric.lock);
	memset(&fabric.region[mr->lkey - 1], 0, sizeof(fabric.region[0]));
	pthread_mutex_unlock(&fabric.lock);
	free(mr);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	return calloc(1, sizeof(struct ibv_pd));
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *its, struct ibv_comp_channel *channel,
			     int vector)
{
	struct fabric_cq *cq = calloc(1, sizeof(*cq));

	cq->cq.context = context;
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **its)
{
	return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
	*out = (struct ibv_device_attr){ .max_qp_wr = QUEUE,
					 .max_cqe = QUEUE,
					 .max_qp_rd_atom = 16,
					 .max_qp_init_rd_atom = 16,
					 .max_sge = 4,
					 .max_sge_rd = 4 };
	return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *out)
{
	((struct ibv_port_attr *)out)->max_msg_sz = 1u << 23;
	return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *out)
{
	return -1;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *out, int mask, struct ibv_qp_init_attr *made)
{
	return -1;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *to, int mask)
{
	pthread_mutex_lock(&fabric.lock);
	break_qp((struct fabric_qp *)qp);
	pthread_mutex_unlock(&fabric.lock);
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	return NULL;
}

/* librdmacm --------------------------------------------------------------------------------------------------------- */

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *wanted)
{
	struct fabric_qp *qp = calloc(1, sizeof(*qp));

	qp->qp.context = id->verbs;
	qp->send = (struct fabric_cq *)wanted->send_cq;
	qp->recv = (struct fabric_cq *)wanted->recv_cq;
	id->qp = &qp->qp;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct fabric_qp *qp = (struct fabric_qp *)id->qp;

	if (qp->peer)
		qp->peer->peer = NULL;
	free(qp);
	id->qp = NULL;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	return ibv_modify_qp(id->qp, NULL, 0);
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct rdma_event_channel *events = calloc(1, sizeof(*events));

	events->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return events;
}

void rdma_destroy_event_channel(struct rdma_event_channel *events)
{
	close(events->fd);
	free(events);
}

int rdma_get_cm_event(struct rdma_event_channel *events, struct rdma_cm_event **out)
{
	return -1;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	return 0;
}

/* Files of the plug-in that are not here. */
void meet_step(struct verbs_conn *conn, struct rdma_cm_event *event)
{
}

void verbs_environment_use(const struct verbs_owner *owner)
{
}

/* Both ends ----------------------------------------------------------------------------------------------------------- */

static struct ibv_context *open_fabric(const struct ibv_device *device)
{
	struct ibv_context *context = calloc(1, sizeof(*context));

	context->ops = (struct ibv_context_ops){ ._compat_query_device = NULL };
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify;
	context->device = (struct ibv_device *)device;
	context->cmd_fd = eventfd(0, EFD_CLOEXEC);
	context->async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return context;
}

static struct verbs_conn *open_end(struct ibv_context *context, struct channel *channel)
{
	struct rdma_cm_id *id = calloc(1, sizeof(*id));
	struct verbs_conn *conn;
	struct verbs_setup setup;

	assert_int_equal(channel_make(channel, RING), 0);
	setup = (struct verbs_setup){ .out = channel->out, .in = channel->in };
	id->verbs = context;
	id->port_num = 1;
	id->route.addr.dst_addr.sa_family = AF_INET;
	assert_int_equal(conn_make(&setup, rdma_create_event_channel(), &conn), 0);
	conn->id = id;
	assert_int_equal(queue_open(conn), 0);
	return conn;
}

static void join(struct verbs_conn *ends[2])
{
	for (int end = 0; end < 2; end++) {
		queue_grant(ends[1 - end], &ends[end]->peer);
		ends[end]->notices_left = ends[end]->peer.receives;
		((struct fabric_qp *)ends[end]->qp)->peer = (struct fabric_qp *)ends[1 - end]->qp;
		atomic_store(&ends[end]->state, VERBS_UP);
	}
}

#endif
