/* SPDX-License-Identifier: MIT */
/*
 * The measuring end: one session with a server. It starts its workers, as threads or as processes; each connects and
 * warms up, then all begin at the same moment and are timed until each has the server's verdict.
 */
#ifndef ZC_TOOLS_CLIENT_H
#define ZC_TOOLS_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "apps/tools/tool.h"

/* What a worker leaves behind; in memory that processes share. */
struct slot {
	_Atomic uint64_t moved; /* messages so far, warm-up and all: a standstill is noticed by it */
	uint64_t began_ns;
	uint64_t ended_ns;
	struct cpu cpu; /* of the worker's process, if it has one of its own */
	struct outcome outcome;
};

struct worker {
	struct client *client;
	uint32_t index;
	struct slot *slot;
	struct outcome *outcome; /* the slot's */
	void *state;		 /* the tool's own */
	int gate;		 /* the worker's end of what it is started by, and the main thread's */
	int gate_main;
	pthread_t thread;
	pid_t process;
	bool is_running;
};

struct client {
	const struct tool *tool;
	const void *values;
	const struct shared_options *shared;
	const char *host;
	uint64_t port;
	uint32_t workers;
	bool as_processes;
	int (*prepare)(struct worker *worker);	/* connects and warms up; returns 0 or -errno with the fault set */
	int (*measure)(struct worker *worker);	/* up to the verdict; the same */
	void (*dispose)(struct worker *worker); /* frees the state, after either */

	/* The rest is client.c's. */
	uint64_t session_id;
	int control;
	struct worker *worker;
	struct slot *slots;
	pthread_mutex_t lock; /* guards the descriptors */
	int *fds;
	size_t fd_count;
	bool given_up;
};

struct results {
	struct outcome total;
	double seconds;
	struct cpu cpu;
	json_t *peer; /* the server's RESULT */
	bool verified;
	char first_wrong[200];
};

/* What a tool may add to the JSON, and how it begins what it prints without --json -. */
struct client_face {
	void (*extend)(const struct client *client, json_t *json); /* or NULL */
	void (*print)(const struct client *client, const struct results *results);
};

/* Runs the session, reports, and returns the exit status. */
int client_main(struct client *client, const struct client_face *face);

/* Opens data connection `index` of the session. Returns 0 or -errno with the worker's fault set. */
int worker_connect(struct worker *worker, uint32_t index, struct stream *stream);

/* Shuts the sending side down and receives the verdict. Returns 0 or -errno with the worker's fault set. */
int worker_end(struct worker *worker, struct stream *stream, struct verdict *verdict);

static inline void worker_moved(struct worker *worker)
{
	atomic_fetch_add_explicit(&worker->slot->moved, 1, memory_order_relaxed);
}

#endif
