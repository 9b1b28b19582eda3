/* SPDX-License-Identifier: MIT */
/*
 * The transports of the engine, each a table of operations: how a receiver fetches bytes from where a sender has announced
 * them (GET). Both ends must have proved first that the receiver can, and that it reaches the very process that announces.
 *
 * The proof, which every GET repeats: the receiver draws a challenge; the sender keeps a token in its own memory, that is the
 * challenge and the identity of the connection that *it* has; the receiver reads the token there. So nobody can have a
 * receiver fetch from a process that does not talk to it, be it by a wrong process number, by one that was reused since, by
 * bytes that happen to be known, or by passing a challenge on to a third process. Only processes of one user do it: for any
 * other, the receiver might be allowed to read and yet be made to wait for pages that never come.
 *
 * `cma` (cma.c) reads by process_vm_readv and completes at once. A transport with a device completes later: get() answers
 * -EINPROGRESS and poll() tells.
 */
#ifndef ZC_RDMA_TRANSPORT_H
#define ZC_RDMA_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define TRANSPORT_CHALLENGE_BYTES 16
#define TRANSPORT_IDENTITY_BYTES 48

/* What the receiver expects to find in the sender's memory. */
struct transport_token {
	uint8_t challenge[TRANSPORT_CHALLENGE_BYTES];
	uint8_t identity[TRANSPORT_IDENTITY_BYTES]; /* of the connection, the same for both ends */
};

/* Where a token is, as the sender tells it: the address in its memory, and its number (cma: of the process). */
struct transport_place {
	uint64_t token;
	uint32_t number;
};

/* The receiver's way to one sender; zeroes but for `hint` at first. Trusted: never in memory that the peer can write. */
struct transport_reach {
	struct transport_place proved; /* the last place that was */
	pid_t hint;    /* the process behind the rendezvous, in this process's own numbers; 0: not known */
	pid_t process; /* the one that was proved */
};

/* A GET: `bytes` from `address` of the sender into iov, from its byte `skip` on. */
struct transport_get {
	uint64_t address;
	size_t bytes;
	const struct iovec *iov;
	int count;
	size_t skip;
};

struct transport_ops {
	const char *name;
	/* Sender: keeps a token where the receiver can read it. Returns 0 or -errno. Ownership: drop() in the same process. */
	int (*keep)(const struct transport_token *token, struct transport_place *out);
	/* Sender: whether it is this process that keeps the token: not so in the child of a fork. */
	int (*keeps)(const struct transport_place *place, const struct transport_token *token);
	void (*drop)(const struct transport_place *place);
	/*
	 * Receiver: reads the token. Returns 0; -EACCES (the sender is another user's), -EPERM (the kernel refuses: Yama, a
	 * process that is not dumpable, a user namespace), -ESRCH (no such process to be seen from here), -ENOSYS,
	 * -ESTALE (there is no such token).
	 */
	int (*prove)(struct transport_reach *reach, const struct transport_place *place,
		     const struct transport_token *token);
	/*
	 * Receiver: fetches from a place that was proved. Returns bytes, at least 1, fewer where memory ends; -EFAULT (the
	 * receiver's own memory), -ENXIO (the sender's memory), -EINPROGRESS, or an error of prove().
	 */
	ssize_t (*get)(struct transport_reach *reach, const struct transport_place *place,
		       const struct transport_token *token, const struct transport_get *get);
	/* Receiver: asks for the end of the GET that is in progress. Returns as get(); -EINVAL if none is. */
	ssize_t (*poll)(struct transport_reach *reach);
};

extern const struct transport_ops transport_cma;

#endif
