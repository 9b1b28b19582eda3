/* SPDX-License-Identifier: MIT */
/*
 * A connection and the way to wait on it: in the call itself, or with a non-blocking socket in poll() or epoll_wait().
 * Every function here goes on until all bytes have moved, whatever parts the kernel takes or gives.
 */
#ifndef ZC_TOOLS_STREAM_H
#define ZC_TOOLS_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* The call that a program makes to send; what the preload sees is what is measured. */
enum stream_call { CALL_SEND, CALL_SENDMSG, CALL_WRITE, CALL_WRITEV, CALL_RECV, CALL_READ };

struct stream {
	int fd;
	unsigned int wait; /* WAIT_BLOCKING, ... */
	int epoll;	   /* -1 unless WAIT_EPOLL */
	uint32_t interest; /* what epoll waits for at the moment */
	uint64_t reads;	   /* receiving calls that returned bytes */
};

/* Begins with a connected blocking socket. Returns 0 or -errno. Ownership: the descriptor stays the caller's. */
int stream_open(struct stream *stream, int fd, unsigned int wait);

/* Gives up what waiting needed. The descriptor stays open: it is whose it was before stream_open(). */
void stream_forget(struct stream *stream);

/* Waits until the socket can be read (POLLIN) or written (POLLOUT), or has an error. Returns 0 or -errno. */
int stream_wait(struct stream *stream, short events);

/* Leaves of a vector what is behind the first `taken` bytes. */
void stream_advance(struct iovec **iov, int *count, size_t taken);

/*
 * Sends all of the vector by the call; `iov` is used up on the way. *done gets the bytes that the kernel has taken.
 * Returns 0 or -errno.
 */
int stream_push(struct stream *stream, enum stream_call call, struct iovec *iov, int count, size_t *done);

/* Sends a buffer. */
int stream_send(struct stream *stream, const void *bytes, size_t count, size_t *done);

/*
 * Receives exactly `count` bytes. Returns 0, 1 at the peer's end of file (*done says after how many bytes), or -errno.
 */
int stream_receive(struct stream *stream, enum stream_call call, void *bytes, size_t count, size_t *done);

#endif
