/* SPDX-License-Identifier: MIT */
/*
 * The receiving calls. What is held leaves first, since the program may wait. Where the guard is mprotect, the memory that
 * the kernel is to write to is settled first, and once more if another thread guarded it in between (EFAULT).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "common/clock.h"
#include "preload/engine.h"
#include "preload/inq.h"
#include "preload/notice.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/share.h"
#include "preload/zerocopy.h"
#include "rdma/guard.h"

static inline bool settling(void)
{
	return __builtin_expect(guard_active(), 0) && guard_needs_settling();
}

static void settle_iov(const struct iovec *iov, size_t count)
{
	for (size_t i = 0; i < count && i < IOV_MAX; i++)
		guard_settle(iov[i].iov_base, iov[i].iov_len);
}

/* Calls again what failed with EFAULT while something was under guard; `settle` is run before each try. */
#define SETTLED(settle, call)                                                                                          \
	({                                                                                                             \
		__typeof__(call) got_;                                                                                 \
		bool again_ = settling();                                                                              \
		if (__builtin_expect(!again_, 1)) {                                                                    \
			got_ = (call);                                                                                 \
			again_ = __builtin_expect(got_ == (__typeof__(call))-1, 0) && errno == EFAULT && settling();   \
		} else {                                                                                               \
			got_ = (__typeof__(call))-1;                                                                   \
			errno = EFAULT;                                                                                \
		}                                                                                                      \
		for (int tries_ = 0; again_ && tries_ < 8; tries_++) {                                                 \
			settle;                                                                                        \
			got_ = (call);                                                                                 \
			again_ = got_ == (__typeof__(call))-1 && errno == EFAULT && settling();                        \
		}                                                                                                      \
		got_;                                                                                                  \
	})

/* Before any receive or wait on the connection. */
static void recv_begins(struct conn *conn, int fd)
{
	sg_before_wait();
	if (conn && __builtin_expect(atomic_load_explicit(&conn->sg.held, memory_order_relaxed) != 0, 0))
		sg_drain(conn, fd, false);
}

/*
 * After it: counts, and ends the turn. Bytes that had been accepted and then failed have used up the socket's error: the
 * program gets it where the kernel would have told it, once there is no more data.
 */
static ssize_t recv_ends(struct conn *conn, ssize_t got, int flags)
{
	int error;

	if (!conn)
		return got;
	if (__builtin_expect(got <= 0 && atomic_load_explicit(&conn->sg.error, memory_order_relaxed), 0)) {
		error = sg_take_error(conn);
		if (error && error != EPIPE) {
			errno = error;
			return -1;
		}
	}
	if (got < 0)
		return got;
	if (flags & MSG_PEEK)
		return got;
	conn_counts();
	stats_conn(conn->slot, STAT_CONN_RECV_CALLS, 1);
	stats_conn(conn->slot, STAT_CONN_RECV_BYTES, (uint64_t)got);
	if (conn_active(conn))
		sg_turn_ends(conn);
	return got;
}

/* What a ring can do; all else is the kernel's. */
#define RING_FLAGS (MSG_PEEK | MSG_DONTWAIT | MSG_WAITALL | MSG_TRUNC | MSG_CMSG_CLOEXEC | MSG_NOSIGNAL)

static bool may_be_in_ring(struct conn *conn, int flags)
{
	return conn && engine_is_there(conn) && !(flags & ~RING_FLAGS);
}

/* By the ring, unless its lock turns out to be lost (engine_lost): then the kernel tells of the reset. */
static ssize_t receive_by_ring(struct conn *conn, int fd, const struct iovec *iov, int count, int flags)
{
	bool stays = (flags & (MSG_PEEK | MSG_WAITALL)) == (MSG_PEEK | MSG_WAITALL);
	ssize_t got = __builtin_expect(stays, 0) ? engine_peek_all(conn, fd, iov, count, flags) :
						   engine_recv(conn, fd, iov, count, flags);

	return __builtin_expect(got == -EDEADLK, 0) && !engine_has_met(conn) ? ENGINE_BY_KERNEL : got;
}

/* The call as the program made it, counted for the engine. met: it has to ask the engine once more. */
#define BY_KERNEL(conn, fd, flags, settle, call, met)                                                                  \
	({                                                                                                             \
		__attribute__((cleanup(engine_raw_recv_ends))) struct engine_raw raw_ =                                \
			may_be_in_ring((conn), (flags)) ? engine_raw_recv_begins((conn), (fd)) :                       \
							  (struct engine_raw){ 0 };                                    \
		ssize_t done_ = 0;                                                                                     \
		(met) = raw_.again;                                                                                    \
		if (!raw_.again)                                                                                       \
			done_ = SETTLED(settle, call);                                                                 \
		raw_.done = (flags)&MSG_PEEK ? 0 : done_;                                                              \
		done_;                                                                                                 \
	})

/* *ringed tells whether the engine has done it: then nothing but the data is written. */
#define RECEIVED(conn, fd, iov, count, flags, settle, call, ringed)                                                    \
	({                                                                                                             \
		bool met_;                                                                                             \
		ssize_t rc_;                                                                                           \
		recv_begins(conn, fd);                                                                                 \
		do {                                                                                                   \
			met_ = false;                                                                                  \
			rc_ = ENGINE_BY_KERNEL;                                                                        \
			if (__builtin_expect(may_be_in_ring((conn), (flags)), 0) && !engine_is_passed_by(conn))        \
				rc_ = receive_by_ring((conn), (fd), (iov), (count), (flags));                          \
			*(ringed) = rc_ != ENGINE_BY_KERNEL;                                                           \
			rc_ = *(ringed) ? send_result(rc_) : BY_KERNEL(conn, fd, flags, settle, call, met_);           \
		} while (__builtin_expect(met_, 0));                                                                   \
		recv_ends(conn, rc_, flags);                                                                           \
	})

/* The program reads the error queue itself: it must not meet our notices there. */
static ssize_t recv_error_queue(struct conn *conn, int fd, struct msghdr *message, int flags)
{
	struct msghdr given = *message;
	struct lock_hold hold;
	ssize_t got;
	bool theirs;

	if (conn_active(conn) && conn->zerocopy.next)
		zerocopy_harvest_now(conn);
	for (;;) {
		got = real.recvmsg(fd, message, flags);
		if (got < 0 || !conn->zerocopy.next || !lock_take(&conn->lock, &hold))
			return got;
		theirs = notice_for_program(conn, message);
		lock_give(&conn->lock, &hold);
		if (theirs)
			return got;
		*message = given;
	}
}

/* The same of a call that asks for no control messages, by which alone notices are told apart. */
static ssize_t recvfrom_error_queue(struct conn *conn, int fd, struct iovec *iov, int flags, struct sockaddr *address,
				    socklen_t *address_bytes)
{
	char control[256] __attribute__((aligned(8)));
	struct msghdr message = { .msg_name = address_bytes ? address : NULL,
				  .msg_namelen = address_bytes ? *address_bytes : 0,
				  .msg_iov = iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t got = recv_error_queue(conn, fd, &message, flags);

	if (got >= 0 && address && address_bytes)
		*address_bytes = message.msg_namelen;
	return got;
}

ZC_EXPORT ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
	struct conn *conn = conn_of_socket(fd);
	struct iovec iov = { data, bytes };
	bool ringed;

	if (conn && flags & MSG_ERRQUEUE)
		return recvfrom_error_queue(conn, fd, &iov, flags, NULL, NULL);
	return RECEIVED(conn, fd, &iov, 1, flags, guard_settle(data, bytes), real.recv(fd, data, bytes, flags),
			&ringed);
}

ZC_EXPORT ssize_t __recv_chk(int fd, void *data, size_t bytes, size_t room, int flags)
{
	return bytes > room ? real.__recv_chk(fd, data, bytes, room, flags) : recv(fd, data, bytes, flags);
}

ZC_EXPORT ssize_t recvfrom(int fd, void *data, size_t bytes, int flags, struct sockaddr *address,
			   socklen_t *address_bytes)
{
	struct conn *conn = conn_of_socket(fd);
	struct iovec iov = { data, bytes };
	bool ringed;
	ssize_t got;

	if (conn && flags & MSG_ERRQUEUE)
		return recvfrom_error_queue(conn, fd, &iov, flags, address, address_bytes);
	got = RECEIVED(conn, fd, &iov, 1, flags, guard_settle(data, bytes),
		       real.recvfrom(fd, data, bytes, flags, address, address_bytes), &ringed);
	if (__builtin_expect(ringed, 0) && got >= 0 && address && address_bytes)
		*address_bytes = 0; /* as the kernel's TCP has it */
	return got;
}

ZC_EXPORT ssize_t __recvfrom_chk(int fd, void *data, size_t bytes, size_t room, int flags, struct sockaddr *address,
				 socklen_t *address_bytes)
{
	return bytes > room ? real.__recvfrom_chk(fd, data, bytes, room, flags, address, address_bytes) :
			      recvfrom(fd, data, bytes, flags, address, address_bytes);
}

ZC_EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	struct conn *conn = conn_of_socket(fd);
	size_t room = message->msg_controllen;
	bool ringed;
	ssize_t got;

	if (conn && flags & MSG_ERRQUEUE)
		return recv_error_queue(conn, fd, message, flags);
	if (__builtin_expect(message->msg_iovlen > IOV_MAX, 0))
		return real.recvmsg(fd, message, flags); /* which refuses it */
	got = RECEIVED(conn, fd, message->msg_iov, (int)message->msg_iovlen, flags,
		       settle_iov(message->msg_iov, message->msg_iovlen), real.recvmsg(fd, message, flags), &ringed);
	if (__builtin_expect(ringed, 0) && got >= 0) {
		message->msg_namelen = 0;
		message->msg_controllen = 0;
		message->msg_flags = flags & MSG_CMSG_CLOEXEC; /* the kernel tells that one */
		if (__builtin_expect(atomic_load_explicit(&inq_ever, memory_order_relaxed), 0))
			inq_tell(conn, fd, message, room);
	}
	if (got >= 0 && !conn)
		share_received(message);
	return got;
}

static void settle_messages(struct mmsghdr *messages, unsigned int count)
{
	for (unsigned int i = 0; i < count && i < IOV_MAX; i++)
		settle_iov(messages[i].msg_hdr.msg_iov, messages[i].msg_hdr.msg_iovlen);
}

/* Puts what is left of `given`. Returns whether that is nothing. */
static bool time_runs_out(const struct timespec *given, uint64_t begun, struct timespec *left)
{
	uint64_t gone = clock_now() - begun;

	left->tv_sec = given->tv_sec - (time_t)(gone / NS_PER_SEC);
	left->tv_nsec = given->tv_nsec - (long)(gone % NS_PER_SEC);
	if (left->tv_nsec < 0) {
		left->tv_sec--;
		left->tv_nsec += NS_PER_SEC;
	}
	if (left->tv_sec < 0)
		*left = (struct timespec){ 0 };
	return !left->tv_sec && !left->tv_nsec;
}

/* An error behind messages that were received is told by the next call; what that would meet by itself is not kept. */
static void keep_error(struct conn *conn, int error)
{
	if (error != EAGAIN && error != EINTR && error != EFAULT)
		atomic_store(&conn->sg.error, error);
}

/* One by one, as the kernel does. */
static int recv_messages(struct conn *conn, int fd, struct mmsghdr *messages, unsigned int count, int flags,
			 struct timespec *timeout)
{
	struct timespec given = timeout ? *timeout : (struct timespec){ 0 };
	uint64_t begun = clock_now();
	unsigned int done = 0;

	if (given.tv_sec < 0 || given.tv_nsec < 0 || given.tv_nsec >= (long)NS_PER_SEC) {
		errno = EINVAL;
		return -1;
	}
	while (done < count && done < IOV_MAX) {
		ssize_t got = recvmsg(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);

		if (got < 0 && !done)
			return -1;
		if (got < 0) {
			keep_error(conn, errno);
			break;
		}
		messages[done++].msg_len = (unsigned int)got;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (timeout && time_runs_out(&given, begun, timeout))
			break;
	}
	return (int)done;
}

ZC_EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout)
{
	struct conn *conn = conn_of_socket(fd);
	int got;

	if (conn && (engine_is_there(conn) || flags & MSG_ERRQUEUE))
		return recv_messages(conn, fd, messages, count, flags, timeout);
	recv_begins(conn, fd);
	got = SETTLED(settle_messages(messages, count), real.recvmmsg(fd, messages, count, flags, timeout));
	for (int i = 0; i < got; i++) {
		if (conn)
			recv_ends(conn, messages[i].msg_len, flags);
		else
			share_received(&messages[i].msg_hdr);
	}
	return got > 0 ? got : (int)recv_ends(conn, got, MSG_PEEK);
}

ZC_EXPORT ssize_t read(int fd, void *data, size_t bytes)
{
	struct conn *conn = table_conn(fd);
	struct iovec iov = { data, bytes };
	bool ringed;

	/* A read of nothing asks nothing. */
	if (__builtin_expect(!bytes, 0))
		return real.read(fd, data, bytes);
	return RECEIVED(conn, fd, &iov, 1, 0, guard_settle(data, bytes), real.read(fd, data, bytes), &ringed);
}

ZC_EXPORT ssize_t __read_chk(int fd, void *data, size_t bytes, size_t room)
{
	return bytes > room ? real.__read_chk(fd, data, bytes, room) : read(fd, data, bytes);
}

/* A read of nothing asks nothing, of whatever socket; and of too many parts is refused. */
static bool asks_nothing(const struct iovec *iov, int count)
{
	if (count < 0 || count > IOV_MAX)
		return true;
	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len)
			return false;
	}
	return true;
}

ZC_EXPORT ssize_t readv(int fd, const struct iovec *iov, int count)
{
	struct conn *conn = table_conn(fd);
	bool ringed;

	if (__builtin_expect(conn && asks_nothing(iov, count), 0))
		return real.readv(fd, iov, count);
	return RECEIVED(conn, fd, iov, count, 0, settle_iov(iov, (size_t)count), real.readv(fd, iov, count), &ringed);
}

/* Of those that the kernel knows, only this one is about a socket; others may be refused. */
#define READ_FLAGS (RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND)

/* Whether flags and position are such as the kernel refuses on a socket, whose bytes may be in a ring. */
static bool kernel_refuses(const struct conn *conn, off64_t offset, int flags)
{
	return conn && engine_is_there(conn) && (offset != -1 || flags & ~READ_FLAGS);
}

/* It may be one that a newer kernel takes, and that would read from the stream what is no data. */
static ssize_t refuse(int fd, const struct iovec *iov, int count, off64_t offset, int flags)
{
	if (offset != -1)
		return real.preadv64v2(fd, iov, count, offset, flags);
	errno = EOPNOTSUPP;
	return -1;
}

ZC_EXPORT ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	struct conn *conn = table_conn(fd);
	int waits = flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
	bool ringed;

	if (kernel_refuses(conn, offset, flags))
		return refuse(fd, iov, count, offset, flags);
	if (__builtin_expect(conn && asks_nothing(iov, count), 0))
		return real.preadv2(fd, iov, count, offset, flags);
	return RECEIVED(conn, fd, iov, count, waits, settle_iov(iov, (size_t)count),
			real.preadv2(fd, iov, count, offset, flags), &ringed);
}

ZC_EXPORT ssize_t preadv64v2(int fd, const struct iovec *iov, int count, off64_t offset, int flags)
{
	struct conn *conn = table_conn(fd);
	int waits = flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
	bool ringed;

	if (kernel_refuses(conn, offset, flags))
		return refuse(fd, iov, count, offset, flags);
	if (__builtin_expect(conn && asks_nothing(iov, count), 0))
		return real.preadv64v2(fd, iov, count, offset, flags);
	return RECEIVED(conn, fd, iov, count, waits, settle_iov(iov, (size_t)count),
			real.preadv64v2(fd, iov, count, offset, flags), &ringed);
}

/* Not for sockets, but the kernel writes to the program's memory, and a disk may take its time. */
#define FILLED(settle, call)                                                                                           \
	({                                                                                                             \
		sg_before_wait();                                                                                      \
		SETTLED(settle, call);                                                                                 \
	})

ZC_EXPORT ssize_t preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
	return FILLED(settle_iov(iov, (size_t)count), real.preadv(fd, iov, count, offset));
}

ZC_EXPORT ssize_t preadv64(int fd, const struct iovec *iov, int count, off64_t offset)
{
	return FILLED(settle_iov(iov, (size_t)count), real.preadv64(fd, iov, count, offset));
}

ZC_EXPORT ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
	return FILLED(guard_settle(data, bytes), real.pread(fd, data, bytes, offset));
}

ZC_EXPORT ssize_t pread64(int fd, void *data, size_t bytes, off64_t offset)
{
	return FILLED(guard_settle(data, bytes), real.pread64(fd, data, bytes, offset));
}

ZC_EXPORT ssize_t __pread_chk(int fd, void *data, size_t bytes, off_t offset, size_t room)
{
	return bytes > room ? real.__pread_chk(fd, data, bytes, offset, room) : pread(fd, data, bytes, offset);
}

ZC_EXPORT ssize_t __pread64_chk(int fd, void *data, size_t bytes, off64_t offset, size_t room)
{
	return bytes > room ? real.__pread64_chk(fd, data, bytes, offset, room) : pread64(fd, data, bytes, offset);
}

/* stdio reads large amounts straight into the program's memory, by calls inside libc; it can't be asked twice. */
static void before_fread(const void *data, size_t size, size_t count)
{
	size_t bytes;

	sg_before_wait();
	if (settling() && !__builtin_mul_overflow(size, count, &bytes))
		guard_settle(data, bytes);
}

ZC_EXPORT size_t fread(void *data, size_t size, size_t count, FILE *file)
{
	before_fread(data, size, count);
	return real.fread(data, size, count, file);
}

ZC_EXPORT size_t fread_unlocked(void *data, size_t size, size_t count, FILE *file)
{
	before_fread(data, size, count);
	return real.fread_unlocked(data, size, count, file);
}

ZC_EXPORT size_t __fread_chk(void *data, size_t room, size_t size, size_t count, FILE *file)
{
	before_fread(data, size, count);
	return real.__fread_chk(data, room, size, count, file);
}

ZC_EXPORT size_t __fread_unlocked_chk(void *data, size_t room, size_t size, size_t count, FILE *file)
{
	before_fread(data, size, count);
	return real.__fread_unlocked_chk(data, room, size, count, file);
}

ZC_EXPORT ssize_t getrandom(void *data, size_t bytes, unsigned int flags)
{
	return FILLED(guard_settle(data, bytes), real.getrandom(data, bytes, flags));
}

ZC_EXPORT ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
				   const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
	return FILLED(settle_iov(local, local_count),
		      real.process_vm_readv(pid, local, local_count, remote, remote_count, flags));
}

/* Into the program itself: into another process it changes nothing here, and that one's guard holds by itself. */
ZC_EXPORT ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
				    const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
	return FILLED(settle_iov(remote, pid == getpid() ? remote_count : 0),
		      real.process_vm_writev(pid, local, local_count, remote, remote_count, flags));
}
