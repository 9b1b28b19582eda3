/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: what a peer over verbs sends by rdma_cm, as its first message, and as 32 bits with each of its writes. The
 * input's first byte chooses the message. What is accepted is in bounds, and written again is the same.
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/lane.h"
#include "rdma/verbs_wire.h"

static void must(bool holds)
{
	if (!holds)
		abort();
}

static void offer(const uint8_t *bytes, size_t count)
{
	uint8_t again[VERBS_OFFER_BYTES];
	struct verbs_offer got;

	if (verbs_offer_read(bytes, count, &got))
		return;
	verbs_offer_write(&got, again);
	must(count >= sizeof(again) && !memcmp(again, bytes, sizeof(again)));
}

static void grant(const uint8_t *bytes, size_t count)
{
	static const uint8_t nonce[VERBS_NONCE_BYTES];
	uint8_t again[VERBS_GRANT_BYTES];
	struct verbs_grant got;

	if (verbs_grant_read(bytes, count, nonce, &got))
		return;
	must(got.ring_bytes >= LANE_RING_MIN && got.ring_bytes <= LANE_RING_MAX &&
	     !(got.ring_bytes & (got.ring_bytes - 1)));
	must(got.ring && got.ring <= UINT64_MAX - got.ring_bytes && got.line <= UINT64_MAX - LANE_LINE);
	must(got.receives >= VERBS_RECEIVES_MIN && got.receives <= VERBS_RECEIVES_MAX);
	verbs_grant_write(&got, again);
	must(count >= sizeof(again) && !memcmp(again, bytes, sizeof(again)));
}

static void answer(const uint8_t *bytes, size_t count)
{
	static const uint8_t nonce[VERBS_NONCE_BYTES];
	const struct counts own = { .at = 1 };
	uint8_t again[VERBS_ANSWER_BYTES];
	struct verbs_answer got;

	if (verbs_answer_read(bytes, count, nonce, &got))
		return;
	verbs_answer_write(&got, again);
	must(count >= sizeof(again) && !memcmp(again, bytes, got.tells ? sizeof(again) : VERBS_GRANT_BYTES));
	counts_compare(&own, &own, &got.counts, 1);
}

static void notice(const uint8_t *bytes, size_t count)
{
	struct verbs_notice got;
	uint32_t word;

	if (count < sizeof(word))
		return;
	memcpy(&word, bytes, sizeof(word));
	if (verbs_notice_read(word, &got))
		return;
	must(got.bytes <= LANE_RING_MAX && got.taken <= VERBS_RECEIVES_MAX);
	must(verbs_notice_write(&got) == word);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	uint8_t *alone, trouble;

	if (!count)
		return 0;
	/* So that reading behind the end is noticed. */
	alone = malloc(count > 1 ? count - 1 : 1);
	must(alone);
	memcpy(alone, bytes + 1, count - 1);
	switch (bytes[0] % 4) {
	case 0:
		offer(alone, count - 1);
		break;
	case 1:
		grant(alone, count - 1);
		answer(alone, count - 1);
		break;
	case 2:
		notice(alone, count - 1);
		break;
	default:
		verbs_refusal_read(alone, count - 1, &trouble);
	}
	free(alone);
	return 0;
}
