/* SPDX-License-Identifier: MIT */
/*
 * Statistics: a segment that each process with TCP connections keeps, written with relaxed atomic additions and read by
 * `zc stat` while the process runs. It is a memfd named zc-stats that a reader opens as /proc/PID/fd/N (which asks for the
 * rights of a debugger, and no more), or a file in ZC_STATS_DIR that outlives the process. Nothing is created before
 * the first connection. Until then, and if it can't be had, counting goes to private memory.
 *
 * Layout: header, process counters, then slots of connections; slot 0 sums up the closed ones. A reader refuses a
 * segment whose `layout` is not its own.
 */
#ifndef ZC_COMMON_STATS_H
#define ZC_COMMON_STATS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/settings.h"

enum stat_path {
#define ZC_STAT_PATH(id, name, help) STAT_PATH_##id,
#include "common/stats.def"
	STAT_PATH_COUNT
};
enum stat_conn {
#define ZC_STAT_CONN(id, name, help) STAT_CONN_##id,
#include "common/stats.def"
	STAT_CONN_COUNT
};
enum stat_process {
#define ZC_STAT_PROCESS(id, name, help) STAT_PROCESS_##id,
#include "common/stats.def"
	STAT_PROCESS_COUNT
};
enum stat_reason {
#define ZC_REASON(id, name, help) REASON_##id,
#include "common/stats.def"
	REASON_COUNT,
	REASON_NONE = REASON_COUNT
};

/* Names and help texts in the order of the enums above. */
struct stat_row {
	const char *name;
	const char *help;
};
extern const struct stat_row stat_path_rows[STAT_PATH_COUNT];
extern const struct stat_row stat_conn_rows[STAT_CONN_COUNT];
extern const struct stat_row stat_process_rows[STAT_PROCESS_COUNT];
extern const struct stat_row stat_reason_rows[REASON_COUNT];

/* Send latencies: bucket i counts sends that took [2^i, 2^(i+1)) ns. One send in STATS_SAMPLE is timed. */
#define STATS_LATENCY_BUCKETS 32
#define STATS_SAMPLE 16

#define STATS_MEMFD_NAME "zc-stats"
#define STATS_MAGIC 0x7a63737461747331ull /* "zcstats1" */
#define STATS_SLOTS 16384
#define STATS_ADDRESS_BYTES 28 /* a sockaddr_in or sockaddr_in6 */

enum stats_state { STATS_FREE, STATS_OPEN };
enum stats_role { ROLE_SERVER, ROLE_CLIENT };

/* What path `auto` found for buffers of one class of sizes, the last time that it tried: trial.h. */
#define STATS_TRIALS 8	   /* classes: up to 128 KiB, twice as much each, and all above */
#define STATS_TRIAL_WAYS 3 /* bsdp, zsdp, azsdp */
struct stats_trial {
	_Atomic uint64_t tries;
	_Atomic uint64_t taken;			 /* way, plus 1 */
	_Atomic uint64_t cost[STATS_TRIAL_WAYS]; /* ns for 1024 bytes; 0: not known */
};

/* What it found for another host, by kinds of sends, when RDMA was compared with TCP there: far_trial.h. */
#define STATS_HOSTS 32
#define STATS_HOST_CLASSES                                                                                             \
	8 /* sends that follow sends below 4, 64, 512 KiB, and all above; then those that are answered */
#define STATS_HOST_WAYS 4 /* TCP, and over RDMA bsdp, zsdp, azsdp */
struct stats_host_trial {
	_Atomic uint64_t tries;
	_Atomic uint64_t taken;			/* way, plus 1 */
	_Atomic uint64_t cost[STATS_HOST_WAYS]; /* ns: for 1024 bytes, or of a turn; 0: not known */
};
struct stats_host {
	uint8_t address[32]; /* a sockaddr_in or sockaddr_in6, without its port */
	struct stats_host_trial trial[STATS_HOST_CLASSES];
};

struct stats_slot {
	_Atomic uint32_t state; /* enum stats_state */
	uint32_t role;		/* enum stats_role */
	uint32_t policy;	/* enum zc_path: what was chosen for the connection */
	int32_t fd;
	uint64_t opened_ns; /* CLOCK_MONOTONIC */
	uint8_t local[STATS_ADDRESS_BYTES];
	uint8_t peer[STATS_ADDRESS_BYTES];
	_Atomic uint64_t path[PATH_COUNT][STAT_PATH_COUNT];
	_Atomic uint64_t latency[PATH_COUNT][STATS_LATENCY_BUCKETS];
	_Atomic uint32_t timed; /* a bit for each path that has latencies */
	_Atomic uint64_t reason[REASON_COUNT];
	/* Written by receiving threads: away from the senders' lines. */
	_Alignas(64) _Atomic uint64_t conn[STAT_CONN_COUNT];
};

struct stats_segment {
	_Atomic uint64_t magic; /* STATS_MAGIC, written last */
	uint64_t layout;	/* stats_layout() of the writer */
	uint64_t bytes;		/* of the whole segment */
	int32_t pid;
	uint32_t slots;	     /* STATS_SLOTS */
	uint64_t started_ns; /* CLOCK_MONOTONIC */
	char program[64];    /* program_invocation_short_name, cut */
	char version[16];
	_Atomic uint64_t process[STAT_PROCESS_COUNT];
	_Atomic uint32_t slots_used; /* slots below this number have been used */
	struct stats_trial trial[STATS_TRIALS];
	struct stats_host host[STATS_HOSTS];
	_Alignas(64) struct stats_slot slot[STATS_SLOTS];
};

/* Returns a number that differs when any list or struct above does. */
uint64_t stats_layout(void);

/* The writer's side ------------------------------------------------------------------------------------------------- */

extern struct stats_segment *stats; /* never NULL after stats_start(); private memory until stats_publish() */

/* Reserves private memory for the counters (address space; nothing is touched). Returns 0 or -ENOMEM. */
int stats_start(void);

/* Makes the segment visible to readers, once; cheap when done. Threads: any; a second one waits for the first. */
void stats_publish(void);

/*
 * In the child of a fork: counting goes on privately from zero, with all slots free, published anew by the next
 * stats_publish().
 */
void stats_after_fork(void);

/* Then, for each connection that the child has from its parent, which may have closed its own already. */
void stats_slot_keep(uint32_t slot, enum stats_role role, enum zc_path policy, int fd);

/* This is the child of a fork with connections of its parent, and nothing that it counts on them is visible yet. */
extern _Atomic bool stats_inherited;

/* Returns a slot number for a new connection; 0, the sum, when all are taken. */
uint32_t stats_slot_open(enum stats_role role, enum zc_path policy, int fd);

/* Adds the slot to the sum of closed connections and frees it. */
void stats_slot_close(uint32_t slot);

/* Notes both ends of a connection: the beginnings of socket addresses. */
void stats_slot_name(uint32_t slot, const void *local, const void *peer);

/*
 * The program needs the descriptor that keeps the segment open: `zc stat` does not find it without, unless it is a file. Returns
 * that one, which is the caller's to close, -1 if there is none.
 */
int stats_hide(void);

/* Returns the descriptor that keeps the segment open, -1 if none: callers keep it out of the guest's hands. */
int stats_descriptor(void);

static inline void stats_add(_Atomic uint64_t *counter, uint64_t value)
{
	atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static inline void stats_process(enum stat_process id, uint64_t value)
{
	stats_add(&stats->process[id], value);
}

static inline void stats_conn(uint32_t slot, enum stat_conn id, uint64_t value)
{
	stats_add(&stats->slot[slot].conn[id], value);
}

static inline void stats_reason(uint32_t slot, enum stat_reason id)
{
	stats_add(&stats->slot[slot].reason[id], 1);
}

/* Counts one send of `bytes` by `path` that took `calls` system calls. */
static inline void stats_sent(uint32_t slot, enum zc_path path, uint64_t bytes, uint64_t calls)
{
	_Atomic uint64_t *row = stats->slot[slot].path[path];

	stats_add(&row[STAT_PATH_CALLS], 1);
	stats_add(&row[STAT_PATH_BYTES], bytes);
	if (calls)
		stats_add(&row[STAT_PATH_SYSCALLS], calls);
}

/* The same of a send without a system call, where nobody else counts for that slot and path at the same time. */
static inline void stats_sent_alone(uint32_t slot, enum zc_path path, uint64_t bytes)
{
	_Atomic uint64_t *row = stats->slot[slot].path[path];
	uint64_t calls = atomic_load_explicit(&row[STAT_PATH_CALLS], memory_order_relaxed);
	uint64_t before = atomic_load_explicit(&row[STAT_PATH_BYTES], memory_order_relaxed);

	atomic_store_explicit(&row[STAT_PATH_CALLS], calls + 1, memory_order_relaxed);
	atomic_store_explicit(&row[STAT_PATH_BYTES], before + bytes, memory_order_relaxed);
}

static inline void stats_latency(uint32_t slot, enum zc_path path, uint64_t ns)
{
	unsigned int bucket = ns ? 63u - (unsigned int)__builtin_clzll(ns) : 0;
	struct stats_slot *to = &stats->slot[slot];

	stats_add(&to->latency[path][bucket < STATS_LATENCY_BUCKETS ? bucket : STATS_LATENCY_BUCKETS - 1], 1);
	atomic_fetch_or_explicit(&to->timed, 1u << path, memory_order_release);
}

/* The reader's side ------------------------------------------------------------------------------------------------- */

/*
 * Maps a segment read-only from an open descriptor. Returns 0, -EPROTO (not a segment, or torn), -EPROTONOSUPPORT (of
 * another version) or another -errno. Ownership: the caller unmaps with stats_unmap().
 */
int stats_map(int fd, const struct stats_segment **out);

/*
 * As stats_map(), but takes a copy of the slots in use: it neither changes nor can be cut short (SIGBUS) while it is looked
 * at. For segments of processes that are not trusted.
 */
int stats_read(int fd, const struct stats_segment **out);
void stats_unmap(const struct stats_segment *segment);

#endif
