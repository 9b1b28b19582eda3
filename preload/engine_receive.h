/* SPDX-License-Identifier: MIT */
/* A receive of the program's on a connection that has an engine, between the files that take (engine_recv.c) and wait. */
#ifndef ZC_PRELOAD_ENGINE_RECEIVE_H
#define ZC_PRELOAD_ENGINE_RECEIVE_H

#include "preload/engine.h"

/* A receive of the program under way. */
struct receive {
	struct conn *conn;
	struct engine *engine;
	int fd, flags;
	struct iovec *iov; /* what is left to be filled */
	int count;
	size_t left, done;
	bool interrupted; /* by a signal, while it span */
	bool discard;	  /* MSG_TRUNC: bytes are counted and thrown away */
	bool splices;	  /* they go to a pipe; discard is set as well, for they go to no memory of the program's */
	bool has_looked;  /* for raw bytes; or is to wait for some without that */
	bool later;	  /* it may return before its bytes are there */
	bool found_cut;	  /* the stream ended where it should not, at the last look */
	bool rests_not;	  /* it sleeps by the socket alone */
	bool by_ring;	  /* came what it has taken last */
	bool offers;	  /* its memory to the peer's device */
	bool asked;	  /* whether the socket is one that waits: poll, unlike a receive, would wait in any case */
	bool slept;	  /* by the socket, in the kernel's own receive */
	unsigned int nothing;
	uint64_t waits_since; /* ns: it had to wait for the first time */
	int pipe, pipe_error; /* of splices; -errno, of what it took last */
};

/* There was nothing (engine_recv_wait.c). Returns 1 to look again, or what the receive ends with. */
ssize_t engine_wait_for_more(struct receive *receive);

#endif
