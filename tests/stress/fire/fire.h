/* SPDX-License-Identifier: MIT */
/*
 * Upgrade and return under fire. Three preloaded processes (server, client, helper) exchange streams whose every byte follows
 * from a seed, while the connections change hands (fork, exec, posix_spawn, SCM_RIGHTS) and other threads fork and execute. A
 * driver that is not preloaded starts them, and looks at what they leave behind.
 *
 * A session is one connection: phases of three steps. In the first both ends stream; then the client gives the server one byte,
 * and the server one back. Who has received the last byte before his own turn knows that nothing is under way to him: these are
 * the moments at which a descriptor may be passed on by SCM_RIGHTS. All else may happen in the middle of a stream.
 *
 * What moves lanes: streams fill rings, which are small, and then what the kernel takes, which is little, too; and in most first
 * steps both ends take turns, so that each has seen the last SWITCH when the other sends again, by calls of which the kernel
 * alone serves some.
 */
#ifndef ZC_FIRE_H
#define ZC_FIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FIRE_THREADS 8
#define FIRE_PHASES_MAX 4
#define FIRE_STEPS_MAX (3 * FIRE_PHASES_MAX)
#define FIRE_BLOCK_MAX (300u << 10) /* bytes of one send or receive */
#define FIRE_KERNEL_BYTES 65536	    /* of the kernel's buffers */
#define FIRE_STALL_MS 60000	    /* a wait this long on one host is a hang, however busy the machine is */

enum side { SIDE_CLIENT, SIDE_SERVER };

enum event {
	EVENT_NONE,
	EVENT_FORK,	 /* a forked child goes on */
	EVENT_FORK_BACK, /* for one step only */
	EVENT_EXEC,	 /* a forked child executes this program again, which goes on */
	EVENT_SPAWN,	 /* the same by posix_spawn */
	EVENT_PASS,	 /* another of the three processes goes on */
	EVENT_COUNT,
};

/* What both ends know of a session from its seed and number. */
struct plan {
	unsigned int steps;
	uint64_t key[2];		     /* by the side that sends */
	uint64_t until[2][FIRE_STEPS_MAX];   /* positions at which a step ends */
	enum event event[2][FIRE_STEPS_MAX]; /* what a side does in a step */
	uint64_t at[2][FIRE_STEPS_MAX];	     /* once it has sent and received so much */
	uint64_t turn[2][FIRE_STEPS_MAX];    /* bytes that a side sends in one turn; 0: there are none, both stream */
	uint64_t most[FIRE_STEPS_MAX];	     /* bytes of one send */
	bool closes;			     /* the client ends it by close(), not by shutdown() */
};

/* Where one end of a session stands: all that whoever goes on with it needs. */
struct state {
	uint64_t seed;
	uint64_t sent, received;
	uint32_t number;
	uint32_t fired; /* a bit for each step: its event is behind us */
	uint32_t drawn; /* of the local choices */
	uint8_t side, step, handed;
	bool zerocopy; /* the program's own MSG_ZEROCOPY is allowed on the socket */
};

/* Random numbers: splitmix64. */
uint64_t fire_mix(uint64_t x);
uint64_t fire_draw(uint64_t *random);
uint64_t fire_below(uint64_t *random, uint64_t bound);
size_t fire_size(uint64_t *random, size_t most); /* 1 to most, each magnitude as likely as the others */

/* stream.c: the bytes. */
void stream_fill(uint64_t key, uint64_t position, uint8_t *data, size_t bytes);
ssize_t stream_compare(uint64_t key, uint64_t position, const uint8_t *data,
		       size_t bytes); /* -1, or the first that differs */

/* move.c: one call that sends or receives, drawn at random. Return bytes, 0 at the end, or -errno (-EAGAIN in time). */
ssize_t move_out(struct state *state, const struct plan *plan, int fd, size_t most, bool wait, uint64_t *random);
ssize_t move_in(struct state *state, const struct plan *plan, int fd, size_t most, bool wait, uint64_t *random);
void move_notices(int fd);

/* session.c */
void plan_make(struct plan *plan, uint64_t seed, uint32_t number);
bool plan_has_turns(uint64_t seed, uint32_t number);

/* Goes on with a session to its end. Returns 0, or -1 after it has told what is wrong. Ownership: closes fd. */
int session_run(struct state *state, int fd);

/* As session_run, but for the step that it is in, with the descriptor left open. */
int session_step(struct state *state, int fd);
int session_wrong(const struct state *state, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* handover.c: somebody else goes on. Returns HANDOVER_BACK if the caller is to go on, or the session's result. */
#define HANDOVER_BACK 1
int handover(struct state *state, int fd, enum event event, uint64_t *random);
int handover_serve(
	const char *name); /* adopts what other processes pass, in threads of its own. Returns 0 or -errno. */
int handover_resume(const char *state, const char *fd,
		    const char *directory); /* the main function of an executed program */
void handover_close_others(int keep, int also);
extern char handover_directory[64];
extern char handover_program[256];
extern _Atomic int sessions_live;

/*
 * A fork before both ends have met leaves a connection without rings. So whoever forks gives those that are at it a moment, mostly;
 * the child has none.
 */
extern _Atomic int meetings_live;
void meetings_wait(uint64_t *random);

/* noise.c: threads that fork, execute and duplicate, until told to stop. */
void noise_start(uint64_t seed);
void noise_stop(void);

/* process.c: the three processes' main function. */
int process_run(int argc, char **argv);

/* census.c: what a process holds. */
struct census {
	int descriptors, sockets, memfds, maps, threads;
};
void census_take(struct census *census);
bool census_exceeds(const struct census *now, const struct census *then);
void census_print(const char *who, const struct census *census);

#endif
