/* SPDX-License-Identifier: MIT */
/* Sessions of a server, shared by the listening part (server.c) and the connections (session.c). */
#ifndef ZC_TOOLS_SESSION_H
#define ZC_TOOLS_SESSION_H

#include <stdatomic.h>

#include "apps/tools/server.h"

/* A connection of any kind: listed, so that the server's end can shut it down. */
struct link {
	int fd;
	struct server *server;
	struct link *next;
};

struct session {
	uint64_t id;
	struct server *server;
	void *values;
	struct connection *connections;
	struct outcome total;
	struct cpu before;
	struct cpu cpu;
	uint64_t began_ns;
	uint64_t ended_ns;
	bool aborted; /* breaks that follow are of our own making */
	struct session_share share;
	struct session *next;
};

struct server {
	const struct tool *tool;
	const struct shared_options *shared;
	pthread_mutex_t lock; /* guards everything below, and the lists of the sessions */
	pthread_cond_t changed;
	struct link *links;
	struct session *sessions;
	uint64_t taken; /* sessions that were accepted, that are over, and of these failed */
	uint64_t finished;
	uint64_t failed;
	int finished_event; /* eventfd */
	atomic_bool stopping;
	json_t *reports;
};

/* Serves one accepted connection, whatever it turns out to be. The descriptor stays the caller's. */
void session_accept(struct server *server, int fd);

#endif
