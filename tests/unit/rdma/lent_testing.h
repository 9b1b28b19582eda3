/* SPDX-License-Identifier: MIT */
/* Memory that is lent under guard: its reader comes by address, and has a copy of each page before that changes or goes. */
#ifndef ZC_TESTS_LENT_TESTING_H
#define ZC_TESTS_LENT_TESTING_H

#include "guard_testing.h"

#define LENT_MAX (1 << 20)

struct reader {
	struct guard_record *record;
	unsigned char *start;
	size_t bytes, copied;
	unsigned char copy[LENT_MAX];
};

/* It is the kernel that orders this after the writes before the send: the thread sanitizer can't know. */
__attribute__((no_sanitize_thread)) static void take_copy(void *arg, struct guard_record *record, const void *page,
							  size_t bytes)
{
	struct reader *reader = arg;
	const volatile unsigned char *from = page;
	size_t at = (size_t)((const unsigned char *)page - reader->start);

	for (size_t i = 0; i < bytes; i++)
		((volatile unsigned char *)reader->copy)[at + i] = from[i];
	reader->copied += bytes;
	errno = EBADMSG; /* the program must not see it */
}

static const struct guard_owner_ops lent_ops = { .take_copy = take_copy };

/* Lends whole pages. */
static void lend(struct reader *reader, unsigned char *start, size_t bytes)
{
	catch_segv();
	memset(reader, 0, sizeof(*reader));
	reader->start = start;
	reader->bytes = bytes;
	assert_int_equal(guard_protect(start, bytes, &lent_ops, reader, &reader->record), 0);
	assert_true(guard_lends());
}

/* All of it was copied, once, and was pattern 1. Ends the record. */
static void check_read(struct reader *reader)
{
	assert_int_equal(reader->copied, reader->bytes);
	assert_int_equal(differing(reader->copy, reader->bytes, 1), 0);
	guard_release(reader->record);
	assert_false(guard_active());
}

#endif
