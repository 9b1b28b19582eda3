/* SPDX-License-Identifier: MIT */
/*
 * The transport between hosts: reliable connections over verbs (libibverbs, librdmacm; any device, RoCE v2 or InfiniBand). It is
 * a plug-in, libzc-verbs.so, so that who has no device needs none of these libraries: dlopen() it, take the one symbol,
 * compare its version. No function waits, but for what the kernel does to make and end objects.
 *
 * A connection moves the bytes of two lanes (lane.h) that its owner has put together at *each* end in memory of its own: share, ring
 * mapped twice. A producer calls lane_put() and then push(): an RDMA WRITE from its ring to the same place of the
 * peer's, with 32 bits of notice, by which the consumer's end moves the tail; its lane_get() works on as on one host. credit()
 * writes the consumer's line back, so that lane_room() and lane_take_over() at the producer's end know. Doorbells are none: whoever is
 * about to sleep arms its own completion queue, and each notice is a completion; nobody has to know of the other's sleep, and the TCP
 * stream carries raw bytes alone (`bells` stays 0; lane_must_ring() is never asked). That is also why TAKEOVER is safe
 * here although `intent` and `raw` are not seen by the other end in time: when all raw bytes are received, nothing is left
 * in the TCP stream that a receive under way could take.
 *
 * A producer's ring keeps what is not confirmed. When the connection breaks, positions() says what each end has, once it is
 * settled, and verbs_replay() reads the rest. A SWITCH must be delivered (positions) before the first raw byte follows it, or
 * that byte could overtake ring bytes that the queue pair has lost.
 *
 * GET: RDMA READ from memory that the peer exposed, into any memory of the own process, several at a time. Registrations
 * are cached (verbs_cache.h) for each peer's address separately, with a protection domain of its own: what one host may read,
 * another may not. Tell invalidate() before memory is unmapped or replaced.
 *
 * Threads: all calls for a connection may come from several threads; push() under the producer's lock and credit() under the
 * consumer's, as for the lanes themselves. After fork a connection is the parent's alone; the child calls nothing, not even close().
 *
 * Descriptors that it makes have their numbers from its owner.
 */
#ifndef ZC_RDMA_VERBS_H
#define ZC_RDMA_VERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "rdma/lane.h"
#include "rdma/verbs_wire.h"

#define VERBS_LIBRARY "libzc-verbs.so"
#define VERBS_SYMBOL "zc_verbs" /* a struct verbs_table */
#define VERBS_DEVICES "/sys/class/infiniband"
#define VERBS_TABLE_VERSION 14u

/* Why there is no connection, or no longer one. */
#define VERBS_TROUBLES(TROUBLE)                                                                                        \
	TROUBLE(VERBS_FINE, "no trouble")                                                                              \
	TROUBLE(VERBS_NO_DEVICE, "there is no RDMA device")                                                            \
	TROUBLE(VERBS_NO_RIGHT, "RDMA devices may not be opened (/dev/infiniband)")                                    \
	TROUBLE(VERBS_NO_PORT, "no port of an RDMA device is active")                                                  \
	TROUBLE(VERBS_NO_GID, "no active port has a GID: its interface needs an address")                              \
	TROUBLE(VERBS_MEMLOCK, "too little memory may be locked: raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=)")     \
	TROUBLE(VERBS_NO_QUEUE_PAIR, "the device has no queue pair left")                                              \
	TROUBLE(VERBS_NO_ROUTE, "no RDMA device leads to the address")                                                 \
	TROUBLE(VERBS_UNREACHABLE, "the peer's RDMA device does not answer")                                           \
	TROUBLE(VERBS_REFUSED, "the peer does not take connections over RDMA there")                                   \
	TROUBLE(VERBS_OTHER_VERSION, "the peer speaks another version, or has another ZC_RING_BYTES")                  \
	TROUBLE(VERBS_PROTOCOL, "the peer has sent nonsense, or gone where it may not")                                \
	TROUBLE(VERBS_PEER_GONE, "the peer has disconnected")                                                          \
	TROUBLE(VERBS_NO_ACCESS, "the peer's memory is gone, or not what was granted")                                 \
	TROUBLE(VERBS_SILENCE, "the peer's device has stopped answering")                                              \
	TROUBLE(VERBS_DEVICE_GONE, "the RDMA device is gone")                                                          \
	TROUBLE(VERBS_ANOTHER, "who answers has another connection: a packet filter has changed addresses or ports")   \
	TROUBLE(VERBS_IWARP, "the device knows no RDMA WRITE with immediate data (iWARP)")                             \
	TROUBLE(VERBS_FAILED, "the RDMA device or its driver has failed")                                              \
	TROUBLE(VERBS_PEER_FAILED,                                                                                     \
		"the peer is at a limit (RLIMIT_MEMLOCK, queue pairs, descriptors) or its device failed")

#define VERBS_TROUBLE_NAME(name, text) name,
enum verbs_trouble { VERBS_TROUBLES(VERBS_TROUBLE_NAME) VERBS_TROUBLE_COUNT };

enum verbs_state { VERBS_OPENING, VERBS_UP, VERBS_BROKEN };

/* What poll() has found. */
#define VERBS_IN 1u   /* the lane in has more, or its tail has moved */
#define VERBS_OUT 2u  /* the peer has told what it has consumed, or that more notices may come: there may be room */
#define VERBS_GOT 4u  /* a GET has ended */
#define VERBS_SENT 8u /* requests have ended: the device has room, `delivered` has moved */

/* How something is to be told. */
#define VERBS_LAZILY 16u    /* together with what comes */
#define VERBS_NOW 32u	    /* even if it is little */
#define VERBS_SOLICITED 64u /* it wakes a peer that has armed for such notices alone */
#define VERBS_BEHIND 128u   /* a GET that does not begin before those posted earlier have ended (a fence) */

struct verbs_device {
	char name[64];
	uint32_t ports, ports_active;
	uint32_t gids; /* of the active ports */
	uint32_t queue_pairs;
	uint32_t reads_out, reads_in; /* RDMA READs under way, as asking and as answering end */
	bool on_demand;		      /* says that pages need not be pinned; not made use of (decision 0029) */
};

/*
 * What a connection is made of; zeroes are defaults. The lanes are copied, their memory is the caller's until close(). They are empty, at
 * both ends at the same ring position.
 */
struct verbs_setup {
	struct lane out, in;
	uint32_t depth;			  /* work requests under way (128) */
	uint32_t receives;		  /* notices under way from the peer (256) */
	uint32_t reads;			  /* GETs under way (16), as far as both devices allow it */
	uint32_t ack_timeout;		  /* 4.096 us << this, until a packet is sent again (14: 67 ms) */
	uint32_t retries;		  /* of that, up to 7; some devices take 7 for ever (6) */
	uint8_t nonce[VERBS_NONCE_BYTES]; /* connect(): of the offer. admit() has it already */
	bool tells;			  /* admit(): the answer tells `counts` */
	struct counts counts;
	bool judges; /* connect(): what the answer tells is asked for by answered() */
};

struct verbs_positions {
	uint64_t sent;	    /* stream position of the lane out: what the program has sent */
	uint64_t written;   /* handed to the device */
	uint64_t delivered; /* the peer's device has them in the peer's ring: at least */
	uint64_t confirmed; /* the peer's program has received them, as it has told: at least */
	uint64_t received;  /* stream position of the lane in: what the own program has received */
	bool settled; /* the connection is broken, and nothing more comes in: the lane in, and where GETs go, are final */
};

/* Where a GET reads. */
struct verbs_remote {
	uint64_t address;
	uint32_t key;
};

struct verbs_got {
	uint64_t cookie;
	size_t bytes;
	int error; /* 0 or -errno: -ENOTCONN (it was under way when the connection broke), -EACCES, -EIO */
};

struct verbs_conn;
struct verbs_listener;
struct verbs_request;
struct verbs_region;

/* Whose process it is. NULL: nobody wants to know. */
struct verbs_owner {
	/*
	 * Of each descriptor that the plug-in and its libraries keep: returns its number from here on, or -1, and then it is closed (NULL: from
	 * SYS_FD_HIGH on); before it is closed; and one that becomes another descriptor of what `fd` is (NULL: dup3()).
	 */
	int (*keep)(int fd);
	void (*drop)(int fd);
	void (*put)(int fd, int number);
	/*
	 * Before a thread takes a lock of the plug-in's, and when it has given it back: a signal's handler in between, which may send on
	 * the same connection, would wait for its own thread.
	 */
	void (*enter)(void), (*leave)(void);
	/* Whether the thread may be in the middle of malloc(), in a signal's handler: then nothing is registered, and nothing given up. */
	bool (*interrupts)(void);
	/*
	 * What the libraries are to read of the environment, which the program may change at any time: the owner's, for good. And where the
	 * owner's libc has its own: a namespace's libc is another.
	 */
	char **environment, ***program_environment;
};

struct verbs_table {
	uint32_t version, bytes; /* VERBS_TABLE_VERSION, sizeof(struct verbs_table) */

	/*
	 * Looks at the devices. Returns how many there are, of which up to `max` are described; *trouble is why none of them is
	 * of use, or VERBS_FINE; *memlock the limit of locked memory (SIZE_MAX: none, or not for this thread).
	 */
	int (*devices)(struct verbs_device *out, int max, enum verbs_trouble *trouble, size_t *memlock);
	/* Returns a sentence. */
	const char *(*tell)(enum verbs_trouble trouble);
	/* Limits the memory that caches hold registered; by default a part of what may be locked. */
	void (*set_budget)(size_t bytes);
	/* Before anything is opened. */
	void (*set_owner)(const struct verbs_owner *owner);

	/*
	 * Listens on an address and port in RDMA's own space of TCP ports; port 0 chooses. Ownership: listener_close(). Returns 0
	 * or -errno. listener_fd() is readable when listener_take() has a request, with its offer; it answers -EAGAIN if there is
	 * none. Ownership: a request ends by admit() or refuse(). listener_heard(): why those were refused that it has kept to itself,
	 * VERBS_REFUSED if nobody was.
	 */
	int (*listen)(const struct sockaddr *address, int backlog, struct verbs_listener **out);
	int (*listener_fd)(const struct verbs_listener *listener);
	uint16_t (*listener_port)(const struct verbs_listener *listener);
	int (*listener_take)(struct verbs_listener *listener, struct verbs_request **out, struct verbs_offer *offer);
	enum verbs_trouble (*listener_heard)(const struct verbs_listener *listener);
	void (*listener_close)(struct verbs_listener *listener);
	int (*admit)(struct verbs_request *request, const struct verbs_setup *setup, struct verbs_conn **out);
	void (*refuse)(struct verbs_request *request, enum verbs_trouble why);

	/*
	 * Begins to connect; woke() goes on whenever fd() is readable, until state() is no longer VERBS_OPENING. `from` may be NULL.
	 * The tuple is of the TCP connection. Ownership: close().
	 */
	int (*connect)(const struct sockaddr *from, const struct sockaddr *to, const struct verbs_tuple *tuple,
		       const struct verbs_setup *setup, struct verbs_conn **out);
	enum verbs_state (*state)(struct verbs_conn *conn, enum verbs_trouble *trouble);
	/*
	 * Whether an answer has come that tells what the kernel counts of the TCP connection at the end that has sent it. Then the meeting goes on by
	 * agree(): the two may be of one connection, or may not, and then it ends.
	 */
	bool (*answered)(struct verbs_conn *conn, struct counts *told);
	void (*agree)(struct verbs_conn *conn, bool may);
	/* Readable (for poll, select, epoll) when something has happened since arm(), or to the connection itself. */
	int (*fd)(const struct verbs_conn *conn);
	/* To be called when fd() was readable. Returns as poll(). */
	int (*woke)(struct verbs_conn *conn);

	/* Takes what has come; makes no system call if nothing has. Returns VERBS_ bits, or -ENOTCONN (broken, and nothing new). */
	int (*poll)(struct verbs_conn *conn);
	/*
	 * Hands what was put into the lane out to the device. VERBS_LAZILY: while some writes are under way the rest may stay, to go
	 * in one with what comes; the caller pushes again. Returns bytes of the ring that stay (push again after VERBS_OUT or VERBS_SENT),
	 * or -ENOTCONN.
	 */
	ssize_t (*push)(struct verbs_conn *conn, unsigned int how);
	/*
	 * Tells the producer what was consumed, if that is a quarter of the ring, or with VERBS_NOW if there is anything new (before
	 * sleeping, say). Returns 0, -EAGAIN (it was not possible now; poll() makes up for it) or -ENOTCONN.
	 */
	int (*credit)(struct verbs_conn *conn, unsigned int how);
	/*
	 * Whether the peer's device has taken all that was posted, and told so, or the connection is broken; to be asked again after
	 * VERBS_SENT. What was told before a close() is lost otherwise.
	 */
	bool (*flushed)(struct verbs_conn *conn);
	/*
	 * Before sleeping until one of `what` is found; VERBS_SOLICITED in place of VERBS_IN and VERBS_OUT: until a notice comes that
	 * the peer has so told, whatever else has come. Returns true to sleep, false: poll() has something now.
	 */
	bool (*arm)(struct verbs_conn *conn, unsigned int what);
	/*
	 * A thread's sleep for the lane in, by fd(): as arm(VERBS_IN | VERBS_OUT), and until rise() what fd() tells of notices is there for
	 * this thread, whoever calls woke(). Returns 0: look at the lane once more, then sleep; -EBUSY (another thread does) or -ENOTCONN.
	 * rise() ends it; told: fd() was readable.
	 */
	int (*rest)(struct verbs_conn *conn);
	void (*rise)(struct verbs_conn *conn, bool told);
	void (*positions)(struct verbs_conn *conn, struct verbs_positions *out);
	/*
	 * Writes nothing to the peer, a few times, and looks all the time until its device has acknowledged that; takes three milliseconds at most.
	 * Returns the shortest time in ns, or 0. For a connection that is up, and that nothing has been put into.
	 */
	uint32_t (*trip)(struct verbs_conn *conn);

	/*
	 * GET of up to `bytes` into iov from its byte `skip` on; how: 0 or VERBS_BEHIND. Returns how many are under way by this call, -EAGAIN (as many as
	 * allowed are), -ENOMEM (too little may be locked, or the thread is interrupted), -EFAULT (iov is not there), -ENOTCONN. poll() tells VERBS_GOT, and then
	 * got() returns 1 with the next one that has ended, else 0. The memory must stay until then.
	 */
	ssize_t (*get)(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
		       int count, size_t skip, unsigned int how, uint64_t cookie);
	int (*got)(struct verbs_conn *conn, struct verbs_got *out);
	/* Returns how many GETs more may be under way now. */
	int (*gets)(struct verbs_conn *conn);
	/* What it costs in this process to register so much memory and to forget it again, by measurement, in ns; 0: none was yet. */
	uint64_t (*registration_ns)(size_t bytes);
	/*
	 * Registers memory that many GETs read into, so that none of them has to; `spares`: only as long as half of what may be registered is left
	 * for others, else -ENOMEM. Ownership: hide().
	 */
	int (*reserve)(struct verbs_conn *conn, const void *address, size_t bytes, bool spares,
		       struct verbs_region **out);
	/*
	 * SinkAvail: offers memory of a receive that waits to the producer, for what it puts at `tail`, the end of the ring,
	 * which has nothing. Tells a number, another one each time. Returns 0, -EAGAIN (not now, or the end has moved), -ENOMEM,
	 * -EFAULT, -ENOTCONN. Ownership: hide(), once nothing is written there any more: the ring's end has moved, retract()
	 * has returned 0, or the connection is broken and settled.
	 */
	int (*offer)(struct verbs_conn *conn, void *address, size_t bytes, uint64_t tail, uint32_t *number,
		     struct verbs_region **out);
	/*
	 * Takes the last offer back, without asking the producer's process: to be called again, with poll() in between, while it returns -EAGAIN. Then 0:
	 * nothing comes any more; 1: the producer fills it, and its record comes; or -ENOTCONN.
	 */
	int (*retract)(struct verbs_conn *conn, uint32_t number);
	/* Producer: how many bytes the consumer offers to take at the end of the ring; 0: it does not. */
	size_t (*sink)(struct verbs_conn *conn);
	/*
	 * Fills it with memory that lies in an exposed region, and stays as it is until it is delivered (positions()): a record that names the number
	 * has to follow, the next that is put. Returns 0 or -EAGAIN: there is none any more.
	 */
	int (*fill)(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_region *region,
		    uint32_t *number);
	/* Lets the peer's host read memory. Ownership: hide(), which does not yet keep the peer from reading (the cache does). */
	int (*expose)(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_remote *remote,
		      struct verbs_region **out);
	void (*hide)(struct verbs_conn *conn, struct verbs_region *region);
	/* The program unmaps or replaces memory. Returns how many GETs or exposures are under way there all the same. */
	unsigned int (*invalidate)(const void *address, size_t bytes);

	/* Breaks a connection that the peer has given up, as it has told in another way: who only receives may never notice. */
	void (*give_up)(struct verbs_conn *conn);
	/*
	 * Tells the peer that the connection is broken, if whoever broke it could not: a child of vfork may not speak to rdma_cm, nor may a
	 * program that has changed its user. Not to be called by such a child: this ends what its parent has.
	 */
	void (*tell_broken)(struct verbs_conn *conn);
	/* Ends a connection; what is under way is lost. */
	void (*close)(struct verbs_conn *conn);
};

#endif
