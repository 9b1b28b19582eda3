/* SPDX-License-Identifier: MIT */
/*
 * The rendezvous of the two ends of a connection on one host, without a daemon, without waiting, and with nothing left behind.
 *
 * After connect, the connecting end listens on an abstract Unix socket named after the connection's 4-tuple (abstract names
 * belong to the network namespace and vanish with their socket). The accepting end connects to that name in its first data
 * call, hands over a channel's memfd, and goes on over TCP; the connecting end picks it up in one of its next calls and
 * answers with the channel's nonce. Every step is non-blocking; whatever fails, the connection stays on TCP.
 *
 * Each end proves that it owns the other end of this very connection: the kernel tells who sits behind the Unix socket
 * (SO_PEERCRED) and who owns the TCP socket of the opposite direction (sock_diag); the two must be one user. So nobody
 * but the peer's own user, who could as well trace the peer, can step between.
 */
#ifndef ZC_RDMA_MEET_H
#define ZC_RDMA_MEET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "rdma/channel.h"

/* The connection, by its two addresses as the own end sees them (getsockname, getpeername). */
struct meet_names {
	struct sockaddr_storage local, peer;
	uint64_t space; /* the network namespace, by its socket's word; 0 before Linux 5.14 */
};

/* Returns a socket's network namespace: the addresses of one are not those of another, and a thread may be in neither. */
uint64_t meet_space(int fd);

/* Returns whether the peer's address belongs to this host as far as its form tells (loopback or the own address). */
int meet_is_local(const struct meet_names *names);

/*
 * Accepting end: returns whether a packet filter has changed where the connection goes to (REDIRECT, DNAT; SO_ORIGINAL_DST). Its other
 * end then knows it by another name, and somebody else's may have this one.
 */
int meet_is_redirected(const struct meet_names *names, int fd);

/* Returns whether a packet filter has seen the connection here: it may have changed its addresses and ports. */
bool meet_is_tracked(const struct meet_names *names, int fd);

/*
 * Accepting end: asks whether the socket that has its peer's name is its peer. Returns 0 where no packet filter has seen the connection,
 * -EXDEV where one has sent it here (meet_is_redirected), and otherwise as meet_counts_agree: nothing tells that the port of
 * its client was changed (SNAT), and another's client may have the port that it has now.
 */
int meet_is_peer(const struct meet_names *names, int fd);

/*
 * Asks the kernel at both sockets how much has gone each way and when (TCP_INFO; the other's by sock_diag). Returns 0 if they may be
 * each other's, -EXDEV if they can't be (one has more than the other has sent), -EAGAIN if the times differ (of others, or
 * the machine was slow: ask later), or another -errno. Others that began at the same time, within two of the kernel's
 * ticks, and have sent and received the same since are not told apart.
 */
int meet_counts_agree(const struct meet_names *names, int fd);

/*
 * Connecting end: offers to meet. Returns a descriptor that listens, or -errno (-EADDRINUSE: the name is squatted).
 * Ownership: the caller closes it when the channel is there, or when the connection ends.
 */
int meet_offer(const struct meet_names *names);

/*
 * Accepting end: reaches whoever offers. Returns a descriptor for meet_give, -ECONNREFUSED (the peer does not offer: it has no
 * zc), -EPERM (the one who offers does not own the other end), or another -errno. Ownership: the caller closes it.
 */
int meet_reach(const struct meet_names *names);

/*
 * Hands a channel over to who was reached. Returns 0, -EAGAIN (he has not let us in yet: once more, when he has made another
 * call) or another -errno.
 */
int meet_give(int reached, const struct channel *channel);

/* Returns the process behind a rendezvous' socket by the kernel's word, in our numbers; 0 if it is not to be seen from here. */
pid_t meet_process(int reached);

/*
 * Connecting end: picks up a channel if one is there. Returns 0 with the channel mapped, -EAGAIN (nobody has come yet, or has
 * brought nothing yet), -EPERM or -EPROTO (somebody came who may not, or with nonsense: he is gone, the offer stands), or
 * another -errno. *visitor is kept by the caller, -1 at first: who has come and has not spoken; closed with the offer.
 */
int meet_pick_up(const struct meet_names *names, int offer, int *visitor, struct channel *out);

/*
 * Asks the kernel who owns the TCP socket whose local and peer addresses are those of `names` swapped. Returns 0 with the
 * user, -ENOENT if there is none in this network namespace, or another -errno.
 */
int meet_owner(const struct meet_names *names, uid_t *out);

/*
 * Writes down which connection this is, the same at both ends and for no other connection on this host: both addresses and
 * the network namespace, as the socket fd tells it.
 */
void meet_identity(const struct meet_names *names, enum channel_end end, int fd, uint8_t out[TRANSPORT_IDENTITY_BYTES]);

#endif
