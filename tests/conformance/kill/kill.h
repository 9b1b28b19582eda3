/* SPDX-License-Identifier: MIT */
/*
 * One run: two programs stream over one connection, and one of them is killed at some moment. All that is random comes from
 * the run's seed, but for what the scheduler makes of it.
 *
 * The ends run in processes that two servers fork, each with the library from its start; what they and the judge tell each
 * other without the connection is on a board in shared memory, which outlives whoever is killed.
 */
#ifndef ZC_TESTS_KILL_H
#define ZC_TESTS_KILL_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum end { SENDER, RECEIVER, NOBODY };

enum send_style { SEND_BLOCKING, SEND_POLL, SEND_VECTOR, SEND_STYLES };
enum receive_style { RECEIVE_BLOCKING, RECEIVE_POLL, RECEIVE_EPOLL, RECEIVE_WAITALL, RECEIVE_STYLES };

#define ROUNDS_MAX 12
#define MESSAGES_MAX 24
#define MESSAGE_BYTES_MAX (512 * 1024)
#define CONFIRM_BYTES 8
#define DEATH_NS_MAX (1 << 20)

/* What a seed makes of a run. */
struct plan {
	uint64_t seed;
	enum end victim;    /* NOBODY: a run to its good end */
	enum end connects;  /* the other one accepts */
	unsigned int death; /* the victim's step in which its time begins */
	uint32_t death_ns;
	unsigned int rounds; /* a message and an answer each, so that the ends meet */
	unsigned int messages;
	uint32_t bytes[ROUNDS_MAX + MESSAGES_MAX];
	enum send_style send;
	enum receive_style receive;
	bool confirms;	 /* the receiver answers the end of file with the number of bytes */
	bool half_close; /* shutdown() before that */
	bool lazy;	 /* the receiver pauses now and then */
	bool hasty;	 /* the sender does not */
};

void plan_make(struct plan *plan, uint64_t seed);

/* The next number of a sequence. */
uint64_t random_next(uint64_t *state);

/* What an end has come to. */
struct outcome {
	_Atomic int pid;
	_Atomic uint32_t step; /* of its life: 0 connect, then a round or message each, the last is the end */
	_Atomic bool ended;
	_Atomic int error; /* that ended the stream; 0: the end of file (receiver), all was sent (sender) */
	char doing[24];	   /* what was under way then */
};

struct board {
	struct plan plan;
	struct in_addr address; /* of the end that listens */
	_Atomic uint32_t port;
	_Atomic bool accepted;	    /* the connection, by the end that listens */
	_Atomic bool dead;	    /* the victim is gone */
	_Atomic uint64_t attempted; /* bytes of sends that have begun */
	_Atomic uint64_t completed; /* bytes that sends have returned */
	_Atomic uint64_t certain;   /* of those, what `sg` certainly does not hold any more */
	_Atomic uint64_t arrived;   /* bytes received, all of them right */
	_Atomic bool different;	    /* there was a wrong one behind these */
	_Atomic bool never_told;    /* the sender went on for long after its peer's death */
	_Atomic uint64_t confirmed; /* what the receiver has answered, + 1; 0: nothing */
	struct outcome end[2];
};

/* What servers and ends tell the judge; one write each. */
struct message {
	enum { LISTENS, ENDED } what;
	enum end end;
	pid_t pid;
	int status; /* of wait */
};

/* A server: forks an end for each byte that comes by `control`, until there are no more. */
int serve(enum end end, struct board *board, int control, int messages);

/* An end's life. Returns its exit status. */
int live(enum end end, struct board *board, int messages);

/* The stream: the byte at each place. `table` is made once. */
void stream_make(void);
const unsigned char *stream_at(uint64_t seed, uint64_t at, size_t *bytes);

/*
 * Namespaces of our own, with an empty /tmp and /dev/shm, so that what is left behind can be seen; the network stays as it is where
 * the ends are to meet on it. Returns whether.
 */
bool isolate(bool network);
/*
 * Before that: a library that is in /tmp keeps its place when that is another one; a sanitizer's has to be known by its name. Returns
 * the text for LD_PRELOAD, NULL (errno) if one can't be opened. Ownership: the caller's.
 */
char *hold_libraries(char *list);
/* Return what is left in there, or in a directory, besides `known`; 0 for nothing; tell on standard error. */
int litter_in(const char *path, const char *known);
int litter(const char *known, bool network);

/*
 * Whether the kernel has left the end that connected to the port alone: connected to a socket that does not exist. Linux does not
 * reset a connection whose handshake ends while the process that listens is killed (also without any library; about one in 4000
 * such deaths), and whoever waits for its bytes waits for ever.
 */
bool is_half_open(uint32_t port);

/* What the statistics of a process say, and then they are gone. */
struct use {
	uint64_t meetings, takeovers, switches, ring, announced, fetched;
};
struct use use_take(const char *dir, pid_t pid);

#endif
