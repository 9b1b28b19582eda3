/* SPDX-License-Identifier: MIT */
/* Messages between the ends over verbs: what is written is read, and nothing else is. tests/fuzz/verbs.c goes on from here. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "rdma/lane.h"
#include "rdma/verbs_wire.h"

static struct verbs_offer an_offer(void)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_port = htons(40001) };
	struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
	struct verbs_offer offer = { .nonce = "0123456789abcde" };

	inet_pton(AF_INET, "10.9.0.1", &from.sin_addr);
	inet_pton(AF_INET6, "fd09::2", &to.sin6_addr);
	assert_int_equal(verbs_tuple_make((struct sockaddr *)&from, (struct sockaddr *)&to, &offer.tuple), 0);
	return offer;
}

static struct verbs_grant a_grant(void)
{
	struct verbs_grant grant = { .ring = 0x7f0000001000,
				     .line = 0x7f0000000040,
				     .ring_key = 0x01020304,
				     .line_key = 0x05060708,
				     .ring_bytes = 1u << 20,
				     .receives = 256 };

	memcpy(grant.nonce, an_offer().nonce, sizeof(grant.nonce));
	return grant;
}

static void offer_is_read_as_written(void **state)
{
	struct verbs_offer offer = an_offer(), got;
	uint8_t bytes[VERBS_OFFER_BYTES];

	verbs_offer_write(&offer, bytes);
	assert_int_equal(verbs_offer_read(bytes, sizeof(bytes), &got), 0);
	assert_memory_equal(&got, &offer, sizeof(got));
	assert_memory_equal(got.tuple.address[0], "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x09\x00\x01", 16);
}

static void number_of_a_meeting_is_read_as_written(void **state)
{
	uint8_t nonce[VERBS_NONCE_BYTES] = "0123456789abcde";

	verbs_nonce_number(nonce, VERBS_MEETINGS_MAX);
	assert_int_equal(verbs_nonce_read(nonce), VERBS_MEETINGS_MAX);
	assert_memory_equal(nonce + 4, "456789abcde", 12);
	verbs_nonce_number(nonce, VERBS_MEETINGS_MAX + 1);
	assert_int_equal(verbs_nonce_read(nonce), 0);
}

static void offer_that_is_none_is_refused(void **state)
{
	struct verbs_offer offer = an_offer(), got;
	uint8_t bytes[VERBS_OFFER_BYTES];

	verbs_offer_write(&offer, bytes);
	assert_int_equal(verbs_offer_read(NULL, 0, &got), -EPROTO);
	for (size_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(verbs_offer_read(bytes, i, &got), -EPROTO);
	bytes[2]++;
	assert_int_equal(verbs_offer_read(bytes, sizeof(bytes), &got), -EPROTONOSUPPORT);
	bytes[2]--;
	bytes[3] = 'g';
	assert_int_equal(verbs_offer_read(bytes, sizeof(bytes), &got), -EPROTO);
	offer.tuple.port[1] = 0;
	verbs_offer_write(&offer, bytes);
	assert_int_equal(verbs_offer_read(bytes, sizeof(bytes), &got), -EPROTO);
}

static void tuple_of_another_family_is_refused(void **state)
{
	struct sockaddr unix_name = { .sa_family = AF_UNIX };
	struct verbs_tuple tuple;

	assert_int_equal(verbs_tuple_make(&unix_name, &unix_name, &tuple), -EAFNOSUPPORT);
}

static void grant_is_read_as_written(void **state)
{
	struct verbs_grant grant = a_grant(), got;
	uint8_t bytes[196] = { 0 };

	verbs_grant_write(&grant, bytes);
	assert_int_equal(verbs_grant_read(bytes, sizeof(bytes), grant.nonce, &got), 0);
	assert_memory_equal(&got, &grant, sizeof(got));
}

static void must_refuse(struct verbs_grant grant)
{
	uint8_t bytes[VERBS_GRANT_BYTES];
	struct verbs_grant got;

	verbs_grant_write(&grant, bytes);
	assert_int_equal(verbs_grant_read(bytes, sizeof(bytes), an_offer().nonce, &got), -EPROTO);
}

static void grant_that_cannot_be_is_refused(void **state)
{
	struct verbs_grant grant = a_grant();

	grant.nonce[0]++;
	must_refuse(grant);
	grant = a_grant();
	grant.ring_bytes = LANE_RING_MIN / 2;
	must_refuse(grant);
	grant.ring_bytes = LANE_RING_MAX * 2;
	must_refuse(grant);
	grant = a_grant();
	grant.ring = UINT64_MAX - 15;
	must_refuse(grant);
	grant.ring = 0x7f0000001008;
	must_refuse(grant);
	grant = a_grant();
	grant.line = UINT64_MAX - 7;
	must_refuse(grant);
	grant = a_grant();
	grant.receives = VERBS_RECEIVES_MIN - 1;
	must_refuse(grant);
	grant.receives = VERBS_RECEIVES_MAX + 1;
	must_refuse(grant);
}

static void answer_is_read_as_written(void **state)
{
	struct verbs_answer answer = { .grant = a_grant() }, got;
	uint8_t bytes[196] = { 0 };

	verbs_answer_write(&answer, bytes);
	assert_int_equal(verbs_answer_read(bytes, sizeof(bytes), answer.grant.nonce, &got), 0);
	assert_memory_equal(&got.grant, &answer.grant, sizeof(got.grant));
	assert_false(got.tells);
	answer.tells = true;
	answer.counts = (struct counts){ .open_ns = 1ull << 40,
					 .sent = 2ull << 40,
					 .acked = 3ull << 40,
					 .received = 4ull << 40,
					 .sent_ms = 5u << 20,
					 .received_ms = 6u << 20 };
	verbs_answer_write(&answer, bytes);
	assert_int_equal(verbs_answer_read(bytes, sizeof(bytes), answer.grant.nonce, &got), 0);
	assert_true(got.tells);
	assert_memory_equal(&got.counts, &answer.counts, sizeof(got.counts));
}

static void answer_that_cannot_be_is_refused(void **state)
{
	struct verbs_answer answer = { .grant = a_grant(), .tells = true }, got;
	uint8_t bytes[VERBS_ANSWER_BYTES];

	verbs_answer_write(&answer, bytes);
	assert_int_equal(verbs_answer_read(bytes, sizeof(bytes) - 1, answer.grant.nonce, &got), -EPROTO);
	bytes[VERBS_GRANT_BYTES]++;
	assert_int_equal(verbs_answer_read(bytes, sizeof(bytes), answer.grant.nonce, &got), -EPROTO);
	answer.grant.nonce[0]++;
	verbs_answer_write(&answer, bytes);
	assert_int_equal(verbs_answer_read(bytes, sizeof(bytes), a_grant().nonce, &got), -EPROTO);
}

static void refusal_is_read_as_written(void **state)
{
	uint8_t bytes[VERBS_REFUSAL_BYTES], trouble;

	verbs_refusal_write(7, bytes);
	assert_int_equal(verbs_refusal_read(bytes, sizeof(bytes), &trouble), 0);
	assert_int_equal(trouble, 7);
	assert_int_equal(verbs_refusal_read(bytes, sizeof(bytes) - 1, &trouble), -EPROTO);
}

static void notice_is_read_as_written(void **state)
{
	const struct verbs_notice notices[] = {
		{ VERBS_NOTICE_DATA, 0, 16 },
		{ VERBS_NOTICE_DATA, VERBS_RECEIVES_MAX, LANE_RING_MAX },
		{ VERBS_NOTICE_CREDIT, 0, 0 },
		{ VERBS_NOTICE_CREDIT, VERBS_RECEIVES_MAX, 0 },
	};

	for (size_t i = 0; i < sizeof(notices) / sizeof(*notices); i++) {
		struct verbs_notice got;

		assert_int_equal(verbs_notice_read(verbs_notice_write(&notices[i]), &got), 0);
		assert_memory_equal(&got, &notices[i], sizeof(got));
	}
}

static void notice_that_cannot_be_is_refused(void **state)
{
	struct verbs_notice got;

	assert_int_equal(verbs_notice_read(0, &got), -EPROTO);
	assert_int_equal(verbs_notice_read(1u << 31 | 1, &got), -EPROTO);
	assert_int_equal(verbs_notice_read(LANE_RING_MAX / 16 + 1, &got), -EPROTO);
	assert_int_equal(verbs_notice_read((VERBS_RECEIVES_MAX + 1) << 20 | 1, &got), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(offer_is_read_as_written),
		cmocka_unit_test(offer_that_is_none_is_refused),
		cmocka_unit_test(number_of_a_meeting_is_read_as_written),
		cmocka_unit_test(tuple_of_another_family_is_refused),
		cmocka_unit_test(grant_is_read_as_written),
		cmocka_unit_test(grant_that_cannot_be_is_refused),
		cmocka_unit_test(answer_is_read_as_written),
		cmocka_unit_test(answer_that_cannot_be_is_refused),
		cmocka_unit_test(refusal_is_read_as_written),
		cmocka_unit_test(notice_is_read_as_written),
		cmocka_unit_test(notice_that_cannot_be_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
