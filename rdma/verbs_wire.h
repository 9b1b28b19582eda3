/* SPDX-License-Identifier: MIT */
/*
 * What the two ends of a connection over verbs say to each other besides the bytes of their lanes, and how it is read: the
 * parsers take bytes, believe nothing, and know no device.
 *
 *	offer	connecting end, with its request (rdma_cm leaves 56 bytes there, and all are used)
 *	grant	connecting end with its first message: where the other may write, and how much
 *	answer	accepting end: its grant, and what the kernel counts of its TCP connection, if anything may have changed that on the way
 *	refusal	accepting end, instead
 *	notice	32 bits that come with every RDMA WRITE that the other end has to know of
 *
 * Numbers are in network order. A message of another version begins with the same four bytes.
 */
#ifndef ZC_RDMA_VERBS_WIRE_H
#define ZC_RDMA_VERBS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdma/counts.h"

#ifndef VERBS_WIRE_VERSION /* tests have an end of another version */
#define VERBS_WIRE_VERSION 8u
#endif
#define VERBS_OFFER_BYTES 56u
#define VERBS_GRANT_BYTES 48u
#define VERBS_ANSWER_BYTES 92u
#define VERBS_REFUSAL_BYTES 8u
#define VERBS_NONCE_BYTES 16u
#define VERBS_MEETINGS_MAX 0xffffffu
#define VERBS_RECEIVES_MIN 32u
#define VERBS_RECEIVES_MAX 1023u /* as many can be acknowledged in one notice */

/* A TCP connection, the connecting end first. IPv4 is written as IPv6 has it (::ffff:a.b.c.d); ports in network order. */
struct verbs_tuple {
	uint8_t address[2][16];
	uint16_t port[2];
};

struct verbs_offer {
	struct verbs_tuple tuple;
	uint8_t nonce[VERBS_NONCE_BYTES]; /* begins with the number of the meeting */
	uint8_t from[16]; /* not a part of it: the address that the request came from, as rdma_cm tells */
};

/* What an end lets the other write to, by RDMA. */
struct verbs_grant {
	uint8_t nonce[VERBS_NONCE_BYTES]; /* of the offer */
	uint64_t ring;			  /* address of the ring that the other end fills, mapped once */
	uint64_t
		line; /* address of the consumer's lines that the other end keeps up to date, and of one that it may read */
	uint32_t ring_key, line_key;
	uint32_t ring_bytes; /* power of two */
	uint32_t receives;   /* notices that may be under way */
};

struct verbs_answer {
	struct verbs_grant grant;
	bool tells; /* what follows; `at` of it is not told */
	struct counts counts;
};

enum verbs_notice_kind {
	VERBS_NOTICE_DATA,   /* the ring goes on by so many bytes */
	VERBS_NOTICE_CREDIT, /* the consumer's line is new, or there is nothing but the acknowledgement */
};

struct verbs_notice {
	enum verbs_notice_kind kind;
	uint32_t taken; /* notices that were taken since the last time; makes room for as many */
	uint32_t bytes; /* of DATA: multiple of 16 */
};

#define VERBS_NOTICE_UNIT 16u
#define VERBS_NOTICE_BYTES_MAX (0xfffffu * VERBS_NOTICE_UNIT)

/* Fills in a tuple. Returns 0, or -EAFNOSUPPORT. */
int verbs_tuple_make(const struct sockaddr *connecting, const struct sockaddr *accepting, struct verbs_tuple *out);

/*
 * A connection may meet several times, one queue pair after the other: each request has a number of its own, from 1 to
 * VERBS_MEETINGS_MAX, higher than those before it. 0: it is none.
 */
void verbs_nonce_number(uint8_t nonce[VERBS_NONCE_BYTES], uint32_t number);
uint32_t verbs_nonce_read(const uint8_t nonce[VERBS_NONCE_BYTES]);

void verbs_offer_write(const struct verbs_offer *offer, uint8_t out[VERBS_OFFER_BYTES]);
void verbs_grant_write(const struct verbs_grant *grant, uint8_t out[VERBS_GRANT_BYTES]);
void verbs_answer_write(const struct verbs_answer *answer, uint8_t out[VERBS_ANSWER_BYTES]);
void verbs_refusal_write(uint8_t trouble, uint8_t out[VERBS_REFUSAL_BYTES]);

/*
 * Read what has come; more bytes than needed are no error (rdma_cm fills up with zeroes). Return 0, -EPROTONOSUPPORT (another
 * version) or -EPROTO.
 */
int verbs_offer_read(const void *bytes, size_t count, struct verbs_offer *out);
int verbs_grant_read(const void *bytes, size_t count, const uint8_t nonce[VERBS_NONCE_BYTES], struct verbs_grant *out);
int verbs_answer_read(const void *bytes, size_t count, const uint8_t nonce[VERBS_NONCE_BYTES],
		      struct verbs_answer *out);
int verbs_refusal_read(const void *bytes, size_t count, uint8_t *trouble);

uint32_t verbs_notice_write(const struct verbs_notice *notice);
int verbs_notice_read(uint32_t word, struct verbs_notice *out);

#endif
