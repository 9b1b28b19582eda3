/* SPDX-License-Identifier: MIT */
/* What far_cases sends and receives: bytes that their places in the stream tell, checked when they come. Whatever goes wrong ends the process. */
#ifndef ZC_TESTS_FAR_STREAM_H
#define ZC_TESTS_FAR_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PART 20000 /* bytes of a call at most */

/* What the one behind `fd` has sent and received so far; and whether it is in a call of which it does not know yet what it did. */
struct stream {
	int fd;
	uint64_t sent, received;
	bool sends, receives;
};

/* Ends the process with 1, unless it is `right`. */
void check(bool right, const char *what);

/* The byte at a place of any stream. */
uint8_t byte_at(uint64_t at);

/* By a pipe: go on. */
void tell(const int pipe[2]);
void await(const int pipe[2]);

/* Returns bytes that were taken: with MSG_DONTWAIT among the flags it may be fewer. */
size_t put(struct stream *stream, size_t bytes, int flags);
void take(struct stream *stream, size_t bytes);
void expect_end(struct stream *stream);

#endif
