/* SPDX-License-Identifier: MIT */
/*
 * The ways in which a program can change memory that it has sent. Each way prepares a buffer, which is then sent, and changes
 * it afterwards. The sending program knows nothing of libzc, but that it looks into its own statistics.
 */
#ifndef ZC_TESTS_MUTATE_H
#define ZC_TESTS_MUTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/settings.h"

#define BYTES (1024 * 1024) /* in the send that counts */
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

/* What a change does where nothing guards the memory. */
enum unguarded {
	UNSEEN,	     /* nothing that a receiver would always see */
	SEEN,	     /* all paths: other bytes arrive */
	SEEN_PINNED, /* of pages that the kernel holds alone: what is fetched by address is copied in time, or gone */
};

/* What a receiver gets that fetches the bytes from the sender's memory. */
enum fetched {
	WHOLE, /* all of it, then the end of file */
	CUT, /* the memory is gone, and nobody could know in time: the right bytes up to some place, then ECONNRESET */
	WRONG, /* other bytes are in its place, and nobody can know: what the program does here by itself is not for this path */
};

struct way {
	const char *name;
	/* Allocates target->buffer of target->bytes. NULL: private anonymous memory from mmap. */
	void (*prepare)(struct target *target);
	/* Changes it. May end the process. */
	void (*mutate)(struct target *target);
	enum unguarded unguarded;
	/* Memory that has to be left to a copy. */
	bool copied;
	enum fetched fetched;
};

extern const struct way ways[];
extern const size_t way_count;

/* What the sender writes into the report pipe after its send; the pipe's end says that the change is over. */
struct report {
	int64_t taken;	/* bytes, by send() */
	int64_t before; /* bytes that had taken the path already */
};

/* What the receiver tells the judge. */
struct result {
	struct report report; /* taken < 0: the sender ended before its send */
	int64_t arrived;
	int64_t different; /* of those that arrived */
	int error;	   /* that the stream ended with; 0: end of file */
};

/*
 * The two ends, each a process of its own. `announced`: both have the library, and its paths announce memory that the other
 * end fetches; then they first exchange messages until that is in use.
 */
int sender(const struct way *way, int port, int report, bool announced);
int receiver(int listener, int report, int result, bool announced);

/* Returns how many bytes the statistics in `dir` say of a path; -1 if the process has left none. */
int64_t bytes_by(const char *dir, int pid, enum zc_path path);

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
