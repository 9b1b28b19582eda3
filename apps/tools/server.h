/* SPDX-License-Identifier: MIT */
/*
 * The serving end: listens, keeps sessions, gives each data connection a thread, and ends after --sessions of them or on
 * SIGINT or SIGTERM.
 */
#ifndef ZC_TOOLS_SERVER_H
#define ZC_TOOLS_SERVER_H

#include <pthread.h>

#include "apps/tools/tool.h"

/* A data connection, owned by its thread. */
struct connection {
	const void *values; /* the session's, as the client told them */
	const struct shared_options *shared;
	struct session *session;
	uint32_t index; /* the client's number for it */
	uint64_t session_id;
	struct stream stream;
	struct outcome *outcome; /* measured messages only */
	struct connection *next;
};

/* A place that the tool may keep something in for all connections of a session; the lock guards it. */
struct session_share {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	void *state;
};
struct session_share *session_share(struct connection *connection);

/* Serves until the end. `values` are those of the command line. Returns the exit status. */
int server_run(const struct tool *tool, const struct shared_options *shared, uint64_t port);

#endif
