/* SPDX-License-Identifier: MIT */
/*
 * What a case of the corpus is written with. A case is one function that runs in two processes, the server end and the
 * client end, each started by its own exec so that it may have libzc.so preloaded or not. The ends go through their steps by
 * words on a control channel, never by time, and write down what they see: each call's result and errno, bytes, readiness.
 * The runner (runner.c) compares what was written down, line by line, with a run in which neither end was preloaded.
 *
 * The transcript is shared memory: writing a line makes no system call, so that nothing that a case observes is moved by it.
 *
 * A case writes down only what TCP and POSIX fix. Left out, here and in all cases: how many bytes a non-blocking or
 * interrupted send takes, how many a receive without MSG_WAITALL returns of a stream, and so how often either was called.
 */
#ifndef ZC_CONFORMANCE_END_H
#define ZC_CONFORMANCE_END_H

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>

struct end {
	bool server;
	int control;	  /* SOCK_SEQPACKET to the other end */
	int fd;		  /* the connection, -1 before meet() */
	const char *name; /* of the case, for exec */
};

typedef void case_function(struct end *end, long argument);

/* One case: `run` is the same function in both ends. */
struct corpus_case {
	const char *name;
	case_function *run;
	long argument;
};
extern const struct corpus_case corpus_cases[];
extern const size_t corpus_case_count;

/* The transcript ---------------------------------------------------------------------------------------------------- */

void transcript_open(int fd);

/* Writes down one line. Keeps errno. Threads: any, but the case has to fix the order. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes down what must not be, in any mode: the runner fails a run with such a line even if all modes agree. */
void note_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* This end has both ends of a connection, too: the library, where it is here, is at both, and they may meet. */
void note_pair(void);

#define EXPECT(condition)                                                                                              \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			note_wrong("%s:%d: not so: %s (errno %s)", __func__, __LINE__, #condition, errno_name(errno)); \
	} while (0)

/* Makes a call, writes down text, result and errno, and returns the result; errno is kept. */
#define CALL(call)                                                                                                     \
	({                                                                                                             \
		long result_;                                                                                          \
		errno = 0;                                                                                             \
		result_ = (long)(call);                                                                                \
		note_result(#call, result_);                                                                           \
		result_;                                                                                               \
	})
void note_result(const char *call, long result);

/* For set-up that has to succeed: the end dies with a WRONG line otherwise. Returns the result. */
#define MUST(call)                                                                                                     \
	({                                                                                                             \
		long must_ = (long)(call);                                                                             \
		if (must_ == -1)                                                                                       \
			die("%s:%d: %s: %s", __func__, __LINE__, #call, errno_name(errno));                            \
		must_;                                                                                                 \
	})
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

const char *errno_name(int error);

/* Names of POLL* or EPOLL* bits (they share their values), such as "IN|RDHUP"; in one of a few static buffers. */
const char *event_names(uint32_t events);

/* Control: the other end's word is waited for, any other word is a mistake of the case. ------------------------------ */

void tell(struct end *end, const char *word);
void await(struct end *end, const char *word);
void tell_number(struct end *end, long number);
long await_number(struct end *end);

/* Both ends meet here: neither goes on before the other has come. */
void meet_at(struct end *end, const char *word);

/* Connections --------------------------------------------------------------------------------------------------------- */

/*
 * Where the server end listens and the client end connects to: loopback, unless CORPUS_ADDRESSES=IPV4,IPV6 names others of this
 * machine. addresses_choose() comes first, in each process; it ends a process whose CORPUS_ADDRESSES is no such thing.
 */
struct addresses {
	char ipv4[INET_ADDRSTRLEN], ipv6[INET6_ADDRSTRLEN];
	char mapped[INET6_ADDRSTRLEN]; /* the IPv4 one, as IPv6 says it */
};
extern struct addresses addresses;
void addresses_choose(void);

/* Connects the two ends over IPv4. end->fd is the connection in both. */
void meet(struct end *end);

/* The same with small socket buffers on both sides, so that a stalled receiver is felt soon. */
void meet_small(struct end *end);

/* Goes there and back until a connection is on whatever path it will take. */
void get_going(struct end *end);
void meet_and_go(struct end *end);

/* The server's part where the client connects by itself, to the number that it is told; the listening socket stays. */
void accept_one(struct end *end);

/* A listening socket on a free port of the address ("127.0.0.1", "::1"); *port gets the port. */
int listen_on(const char *address, int *port);
int connect_to(const char *address, int port);
socklen_t address_of(const char *text, int port, struct sockaddr_storage *out);

/* Payload: byte `position` of stream `seed`; printable, so that stdio's formats can carry it. ------------------------- */

void pattern_fill(void *data, size_t bytes, unsigned int seed, uint64_t position);

/* Returns true and notes nothing if all is as sent; else notes WRONG with the first difference. */
bool pattern_check(const void *data, size_t bytes, unsigned int seed, uint64_t position);

/* Sends all, by send(), whatever the mode of the socket (waits by poll). */
void give(int fd, const void *data, size_t bytes);
void give_pattern(int fd, size_t bytes, unsigned int seed, uint64_t position);

/* Receives exactly `bytes` by recv() and checks them; notes "took N". Returns what came if the stream ended before. */
size_t take_pattern(int fd, size_t bytes, unsigned int seed, uint64_t position);

/* The same without a note, for amounts that TCP leaves open. */
void take_quietly(int fd, size_t bytes, unsigned int seed, uint64_t position);

/* Receives until end of file or error, checking; notes the total and how it ended. */
void take_to_end(int fd, unsigned int seed, uint64_t position);

/* Waits until bytes are there to be read (poll), so that what a test looks at has arrived. Waits for `count` of them. */
void await_bytes(int fd, int count);

/* Looks by poll with timeout 0 and notes what is there. */
void note_poll(int fd, short events);

/* Takes the error that the socket has, and notes it. */
void note_error(int fd);

/* Takes the notices of the program's own MSG_ZEROCOPY sends, which have the numbers from 0 to `last`, and notes that. */
void take_notices(int fd, uint32_t last);

void set_nonblocking(int fd, bool on);
void set_buffers(int fd, int bytes);

/* Bytes that the kernel has taken from this end so far, asked for behind the library's back. */
uint64_t kernel_taken(int fd);

/* The state of the connection, such as TCP_CLOSE, in the same way. */
int kernel_state(int fd);

/* Duplicates fd, more often than the library keeps account of, and closes all numbers but the last, which is returned. */
int keep_last_number(int fd);

/* A descriptor in a message over a Unix socket. */
void pass_descriptor(int over, int fd);
int take_descriptor(int over);

/* Waits for a child and notes how it ended. */
void reap(int child);

/* Runs this program again as the same end of the case, with `stage` > 0 in the environment: see stage(). */
void exec_stage(struct end *end, int next);
int stage(void);

#endif
