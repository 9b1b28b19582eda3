/* SPDX-License-Identifier: MIT */
/*
 * The ways in which a program can change memory that it has sent. Each way prepares a buffer, which is then sent, and changes
 * it afterwards. The sending program knows nothing of libzc.
 */
#ifndef ZC_TESTS_MUTATE_H
#define ZC_TESTS_MUTATE_H

#include <stdbool.h>
#include <stddef.h>

#define SEED_SENT 1
#define SEED_AFTER 2

/* What is being changed. */
struct target {
	unsigned char *buffer; /* of SEED_SENT when it is sent */
	size_t bytes;
	int socket;
	int memory;	      /* a descriptor that a way may use */
	unsigned char *alias; /* the same memory at another address, where a way has that */
};

struct way {
	const char *name;
	/* Allocates target->buffer of target->bytes. NULL: private anonymous memory from mmap. */
	void (*prepare)(struct target *target);
	/* Changes it. May end the process. */
	void (*mutate)(struct target *target);
	/* Without a guard the change would always be seen by the receiver. */
	bool seen_unguarded;
	/* Memory that zerocopy has to leave to a copy. */
	bool copied;
};

extern const struct way ways[];
extern const size_t way_count;

void fill(unsigned char *bytes, size_t count, unsigned int seed);
unsigned char pattern(size_t at, unsigned int seed);

/* Ends the process with a message if a step of a test fails. */
#define must(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			failed(#condition, __FILE__, __LINE__);                                                        \
	} while (0)
_Noreturn void failed(const char *what, const char *file, int line);

#endif
