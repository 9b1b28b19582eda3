/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/verbs_wire.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "rdma/lane.h"

enum kind { KIND_OFFER = 'o', KIND_GRANT = 'g', KIND_REFUSAL = 'r' };

/* The first four bytes of each message. */
static void write_head(uint8_t *out, enum kind kind)
{
	out[0] = 'z';
	out[1] = 'c';
	out[2] = VERBS_WIRE_VERSION;
	out[3] = (uint8_t)kind;
}

static int read_head(const uint8_t *bytes, size_t count, enum kind kind, size_t least)
{
	if (!bytes || count < 4 || bytes[0] != 'z' || bytes[1] != 'c')
		return -EPROTO;
	if (bytes[2] != VERBS_WIRE_VERSION)
		return -EPROTONOSUPPORT;
	return bytes[3] == kind && count >= least ? 0 : -EPROTO;
}

static void put32(uint8_t *at, uint32_t value)
{
	value = htobe32(value);
	memcpy(at, &value, sizeof(value));
}

static void put64(uint8_t *at, uint64_t value)
{
	value = htobe64(value);
	memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return be32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return be64toh(value);
}

static int tuple_end(const struct sockaddr *from, uint8_t address[16], uint16_t *port)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
	const struct sockaddr_in *four = (const struct sockaddr_in *)from;

	if (from->sa_family == AF_INET6) {
		memcpy(address, &six->sin6_addr, 16);
		*port = six->sin6_port;
		return 0;
	}
	if (from->sa_family != AF_INET)
		return -EAFNOSUPPORT;
	memset(address, 0, 10);
	memset(address + 10, 0xff, 2);
	memcpy(address + 12, &four->sin_addr, 4);
	*port = four->sin_port;
	return 0;
}

int verbs_tuple_make(const struct sockaddr *connecting, const struct sockaddr *accepting, struct verbs_tuple *out)
{
	int rc = tuple_end(connecting, out->address[0], &out->port[0]);

	return rc < 0 ? rc : tuple_end(accepting, out->address[1], &out->port[1]);
}

void verbs_nonce_number(uint8_t nonce[VERBS_NONCE_BYTES], uint32_t number)
{
	put32(nonce, number);
}

uint32_t verbs_nonce_read(const uint8_t nonce[VERBS_NONCE_BYTES])
{
	uint32_t number = get32(nonce);

	return number <= VERBS_MEETINGS_MAX ? number : 0;
}

void verbs_offer_write(const struct verbs_offer *offer, uint8_t out[VERBS_OFFER_BYTES])
{
	write_head(out, KIND_OFFER);
	memcpy(out + 4, offer->tuple.address, 32);
	memcpy(out + 36, offer->tuple.port, 4);
	memcpy(out + 40, offer->nonce, VERBS_NONCE_BYTES);
}

int verbs_offer_read(const void *bytes, size_t count, struct verbs_offer *out)
{
	const uint8_t *from = bytes;
	int rc = read_head(from, count, KIND_OFFER, VERBS_OFFER_BYTES);

	if (rc < 0)
		return rc;
	memset(out, 0, sizeof(*out));
	memcpy(out->tuple.address, from + 4, 32);
	memcpy(out->tuple.port, from + 36, 4);
	memcpy(out->nonce, from + 40, VERBS_NONCE_BYTES);
	return out->tuple.port[0] && out->tuple.port[1] ? 0 : -EPROTO;
}

void verbs_grant_write(const struct verbs_grant *grant, uint8_t out[VERBS_GRANT_BYTES])
{
	write_head(out, KIND_GRANT);
	put32(out + 4, (uint32_t)__builtin_ctz(grant->ring_bytes) << 16 | grant->receives);
	put32(out + 8, grant->ring_key);
	put32(out + 12, grant->line_key);
	put64(out + 16, grant->ring);
	put64(out + 24, grant->line);
	memcpy(out + 32, grant->nonce, VERBS_NONCE_BYTES);
}

int verbs_grant_read(const void *bytes, size_t count, const uint8_t nonce[VERBS_NONCE_BYTES], struct verbs_grant *out)
{
	const uint8_t *from = bytes;
	int rc = read_head(from, count, KIND_GRANT, VERBS_GRANT_BYTES);
	uint32_t sizes;

	if (rc < 0)
		return rc;
	sizes = get32(from + 4);
	if (sizes >> 16 > 31)
		return -EPROTO;
	*out = (struct verbs_grant){ .ring = get64(from + 16),
				     .line = get64(from + 24),
				     .ring_key = get32(from + 8),
				     .line_key = get32(from + 12),
				     .ring_bytes = 1u << (sizes >> 16),
				     .receives = sizes & 0xffff };
	memcpy(out->nonce, from + 32, VERBS_NONCE_BYTES);
	if (memcmp(out->nonce, nonce, VERBS_NONCE_BYTES) || out->ring_bytes < LANE_RING_MIN ||
	    out->ring_bytes > LANE_RING_MAX || out->receives < VERBS_RECEIVES_MIN ||
	    out->receives > VERBS_RECEIVES_MAX || !out->ring || !out->line || out->ring + out->ring_bytes < out->ring ||
	    out->line + LANE_LINE < out->line || out->ring % VERBS_NOTICE_UNIT || out->line % sizeof(uint64_t))
		return -EPROTO;
	return 0;
}

void verbs_answer_write(const struct verbs_answer *answer, uint8_t out[VERBS_ANSWER_BYTES])
{
	const struct counts *counts = &answer->counts;

	verbs_grant_write(&answer->grant, out);
	memset(out + VERBS_GRANT_BYTES, 0, VERBS_ANSWER_BYTES - VERBS_GRANT_BYTES);
	if (!answer->tells)
		return;
	put32(out + 48, 1);
	put64(out + 52, counts->open_ns);
	put64(out + 60, counts->sent);
	put64(out + 68, counts->acked);
	put64(out + 76, counts->received);
	put32(out + 84, counts->sent_ms);
	put32(out + 88, counts->received_ms);
}

int verbs_answer_read(const void *bytes, size_t count, const uint8_t nonce[VERBS_NONCE_BYTES], struct verbs_answer *out)
{
	const uint8_t *from = bytes;
	int rc;

	memset(out, 0, sizeof(*out));
	rc = verbs_grant_read(bytes, count, nonce, &out->grant);
	if (rc < 0)
		return rc;
	if (count < VERBS_ANSWER_BYTES || get32(from + 48) > 1)
		return -EPROTO;
	out->tells = get32(from + 48);
	if (out->tells)
		out->counts = (struct counts){ .open_ns = get64(from + 52),
					       .sent = get64(from + 60),
					       .acked = get64(from + 68),
					       .received = get64(from + 76),
					       .sent_ms = get32(from + 84),
					       .received_ms = get32(from + 88) };
	return 0;
}

void verbs_refusal_write(uint8_t trouble, uint8_t out[VERBS_REFUSAL_BYTES])
{
	memset(out, 0, VERBS_REFUSAL_BYTES);
	write_head(out, KIND_REFUSAL);
	out[4] = trouble;
}

int verbs_refusal_read(const void *bytes, size_t count, uint8_t *trouble)
{
	const uint8_t *from = bytes;
	int rc = read_head(from, count, KIND_REFUSAL, VERBS_REFUSAL_BYTES);

	if (!rc)
		*trouble = from[4];
	return rc;
}

/* bit 31: kind, bits 30 to 20: taken, bits 19 to 0: units of DATA. */
uint32_t verbs_notice_write(const struct verbs_notice *notice)
{
	return (uint32_t)notice->kind << 31 | notice->taken << 20 | notice->bytes / VERBS_NOTICE_UNIT;
}

int verbs_notice_read(uint32_t word, struct verbs_notice *out)
{
	*out = (struct verbs_notice){ .kind = word >> 31 ? VERBS_NOTICE_CREDIT : VERBS_NOTICE_DATA,
				      .taken = word >> 20 & 0x7ff,
				      .bytes = (word & 0xfffff) * VERBS_NOTICE_UNIT };
	if (out->taken > VERBS_RECEIVES_MAX || (out->kind == VERBS_NOTICE_DATA) != !!out->bytes ||
	    out->bytes > LANE_RING_MAX)
		return -EPROTO;
	return 0;
}
