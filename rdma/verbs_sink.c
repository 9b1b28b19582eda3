/* SPDX-License-Identifier: MIT */
/*
 * Sinks (SinkAvail): memory of a receive that waits, which the producer fills by RDMA WRITE.
 *
 * A wait ends by itself (a signal), and then the memory is the program's. So the consumer has to be able to take it back without the producer's
 * program, which may be stopped. Each end says what it does, and then looks at the other: the producer claims the sink in a word of its own, and
 * then reads whether it was revoked; the consumer's device revokes it there, and then reads that word, one behind the other, as a reliable
 * connection keeps them. So one of them sees the other. No atomic operation is needed, which not every device has, and which none promises
 * to keep apart from what a processor does to the same word (IBV_ATOMIC_HCA).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "rdma/verbs_internal.h"

#define SINK_LINE LANE_LINE /* behind the consumer's line, and the claim behind that */
#define CLAIM_LINE (2 * LANE_LINE)

static uint64_t mixed(uint64_t hash, uint64_t word)
{
	return (hash ^ word) * 0x100000001b3ull; /* FNV-1a, by words */
}

static uint64_t check_of(const struct lane_sink *sink)
{
	uint64_t hash = mixed(0xcbf29ce484222325ull, sink->address);

	hash = mixed(hash, sink->tail);
	hash = mixed(hash, (uint64_t)sink->key << 32 | sink->bytes);
	return mixed(hash, sink->number);
}

static uint32_t key_of(const struct verbs_region *region, bool remote)
{
	const struct ibv_mr *mr = region->handle;

	return remote ? mr->rkey : mr->lkey;
}

static bool may_post(const struct verbs_conn *conn)
{
	return atomic_load_explicit(&conn->state, memory_order_relaxed) == VERBS_UP && conn_room(conn) > KEPT_FOR_LINES;
}

/* Posts `bytes` of the next line of this end's, written or read. Returns 0 or -ENOTCONN. */
static int post_line(struct verbs_conn *conn, enum ibv_wr_opcode opcode, size_t bytes, size_t at)
{
	struct ibv_sge piece = { (uintptr_t)&conn->lines[conn->posted % conn->depth], (uint32_t)bytes,
				 conn->mr_scrap->lkey };
	struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1, .opcode = opcode };

	request.wr.rdma.remote_addr = conn->peer.line + at;
	request.wr.rdma.rkey = conn->peer.line_key;
	return conn_post(conn, &request, opcode == IBV_WR_RDMA_READ);
}

static int offer(struct verbs_conn *conn, void *address, size_t bytes, uint64_t tail, uint32_t *number,
		 struct verbs_region **out)
{
	struct lane_sink *sink = (struct lane_sink *)&conn->lines[conn->posted % conn->depth];
	int rc = domain_get(conn->domain, address, bytes, RIGHT_WRITE | RIGHT_PEER_WRITES, out);

	_Static_assert(sizeof(*sink) <= LANE_LINE, "a sink has room");
	if (rc < 0)
		return rc;
	*sink = (struct lane_sink){ .address = (uintptr_t)address,
				    .tail = tail,
				    .key = key_of(*out, true),
				    .bytes = (uint32_t)bytes,
				    .number = ++conn->offered };
	sink->check = check_of(sink);
	conn->retraction = NOT_RETRACTED;
	*number = sink->number;
	conn_next_work(conn);
	rc = post_line(conn, IBV_WR_RDMA_WRITE, sizeof(*sink), SINK_LINE);
	if (rc < 0)
		domain_put(conn->domain, *out);
	return rc;
}

int verbs_offer(struct verbs_conn *conn, void *address, size_t bytes, uint64_t tail, uint32_t *number,
		struct verbs_region **out)
{
	int held = verbs_take(&conn->lock);
	int rc = conn_is_broken(conn) ? -ENOTCONN : -EAGAIN;

	bytes = bytes < UINT32_MAX ? bytes : UINT32_MAX;
	/* Under this lock the tail stays: the peer is told the one that the caller knows, or nothing. */
	if (may_post(conn) && conn->retraction != RETRACTING && atomic_load(&conn->setup.in.shared->tail) == tail)
		rc = offer(conn, address, bytes, tail, number, out);
	verbs_give(&conn->lock, held);
	return rc;
}

/* Says that it is revoked, and asks behind that whether it is claimed. */
static int revoke(struct verbs_conn *conn, uint32_t number)
{
	uint64_t revoked = number;
	int rc;

	memcpy(conn->lines[conn->posted % conn->depth].bytes, &revoked, sizeof(revoked));
	conn_next_work(conn);
	rc = post_line(conn, IBV_WR_RDMA_WRITE, sizeof(revoked), SINK_LINE + offsetof(struct lane_sink, revoked));
	if (rc < 0)
		return rc;
	conn_next_work(conn)->kind = WORK_CLAIM;
	rc = post_line(conn, IBV_WR_RDMA_READ, sizeof(revoked), CLAIM_LINE);
	conn->retraction = RETRACTING;
	return rc < 0 ? rc : -EAGAIN;
}

int verbs_retract(struct verbs_conn *conn, uint32_t number)
{
	int held = verbs_take(&conn->lock), rc = -EAGAIN;

	conn_poll(conn);
	if (conn_is_broken(conn))
		rc = -ENOTCONN;
	else if (conn->retraction == RETRACTED)
		rc = conn->claimed == number;
	else if (conn->retraction == NOT_RETRACTED && may_post(conn))
		rc = revoke(conn, number);
	verbs_give(&conn->lock, held);
	return rc;
}

/* A device may be at it. */
static void copy_sink(const struct lane_sink *from, struct lane_sink *out)
{
	const uint64_t *words = (const uint64_t *)from;
	uint64_t *copy = (uint64_t *)out;

	_Static_assert(sizeof(*from) % sizeof(*words) == 0, "it is so many words");
	for (size_t i = 0; i < sizeof(*from) / sizeof(*words); i++)
		copy[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
}

/* What the peer offers for what is put next. Returns whether it does. */
static bool read_sink(const struct verbs_conn *conn, struct lane_sink *out)
{
	const struct lane *lane = &conn->setup.out;

	copy_sink(&lane->shared->sink, out);
	return out->number && out->number != conn->filled && out->bytes && check_of(out) == out->check &&
	       atomic_load(&lane->shared->sink.revoked) != out->number &&
	       out->tail == atomic_load_explicit(&lane->shared->tail, memory_order_relaxed) &&
	       atomic_load_explicit(&lane->shared->on_ring, memory_order_relaxed);
}

size_t verbs_sink(struct verbs_conn *conn)
{
	struct lane_sink sink;
	size_t bytes = 0;
	int held;

	if (!__atomic_load_n(&conn->setup.out.shared->sink.number, __ATOMIC_RELAXED))
		return 0;
	held = verbs_take(&conn->lock);
	if (may_post(conn) && read_sink(conn, &sink))
		bytes = sink.bytes < conn->message_bytes_max ? sink.bytes : conn->message_bytes_max;
	verbs_give(&conn->lock, held);
	return bytes;
}

/* Returns whether the consumer lets it be filled with so much: then it waits for that. */
static bool claim(struct verbs_conn *conn, size_t bytes, struct lane_sink *out)
{
	struct lane_shared *shared = conn->setup.out.shared;
	struct lane_sink again;

	if (!read_sink(conn, out) || bytes > out->bytes)
		return false;
	atomic_store(&shared->claimed, out->number);
	atomic_thread_fence(memory_order_seq_cst);
	if (read_sink(conn, &again) && again.number == out->number)
		return true;
	atomic_store(&shared->claimed, 0); /* should it have read the claim: the record that comes names no sink */
	return false;
}

int verbs_fill(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_region *region,
	       uint32_t *number)
{
	struct ibv_sge piece = { (uintptr_t)address, (uint32_t)bytes, key_of(region, false) };
	struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct lane_sink sink;
	int held = verbs_take(&conn->lock), rc = -EAGAIN;

	if (may_post(conn) && bytes <= conn->message_bytes_max && claim(conn, bytes, &sink)) {
		struct work *work = conn_next_work(conn);

		conn->filled = sink.number;
		work->kind = WORK_FILL;
		work->region[0] = region;
		work->pieces = 1;
		domain_share(conn->domain, region);
		request.wr.rdma.remote_addr = sink.address;
		request.wr.rdma.rkey = sink.key;
		rc = conn_post(conn, &request, false);
		if (rc < 0) {
			domain_put(conn->domain, region);
			work->pieces = 0;
		}
		*number = sink.number;
	}
	verbs_give(&conn->lock, held);
	return rc;
}
