/* SPDX-License-Identifier: MIT */
/* The sending calls: each becomes spans and flags for send_by_path, or goes to the kernel as it is. */
#define _GNU_SOURCE
#include <string.h>

#include "common/sys.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/pipe.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/share.h"
#include "preload/zerocopy.h"
#include "rdma/guard.h"

/* Calls `by_kernel` with the send counted, unless a path has taken it. */
#define SEND_COUNTED(conn, bytes, flags, by_kernel)                                                                    \
	({                                                                                                             \
		uint64_t begun_ = send_begins();                                                                       \
		__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw_ =                                     \
			engine_raw_begins((conn), (fd), (flags));                                                      \
		ssize_t sent_;                                                                                         \
		raw_.asked = (bytes);                                                                                  \
		sent_ = raw_.error ? send_result(raw_.error) : (by_kernel);                                            \
		raw_.done = sent_;                                                                                     \
		send_ends((conn), begun_, sent_);                                                                      \
		sent_;                                                                                                 \
	})

/* A large copy on a connection where `auto` compares is timed for that. */
#define SEND_COMPARED(conn, bytes, flags, by_kernel)                                                                   \
	({                                                                                                             \
		bool large_ = (bytes) >= settings.zerocopy_min && conn_active(conn);                                   \
		uint64_t cpu_ = large_ ? zerocopy_copy_begins(conn) : 0;                                               \
		ssize_t done_ = SEND_COUNTED(conn, bytes, flags, by_kernel);                                           \
		if (cpu_)                                                                                              \
			zerocopy_copy_ends(conn, cpu_, done_);                                                         \
		done_;                                                                                                 \
	})

ZC_EXPORT ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
	struct conn *conn = conn_of_socket(fd);
	struct iovec iov = { (void *)data, bytes };
	ssize_t rc;

	if (!conn) {
		sg_before_send();
		return real.send(fd, data, bytes, flags);
	}
	if (conn_active(conn)) {
		send_site = SEND_SITE();
		rc = flags & ~SEND_FLAGS ? send_special(conn, fd, flags) : send_by_path(conn, fd, &iov, 1, flags);
		if (rc != SEND_BY_KERNEL)
			return send_result(rc);
	}
	return SEND_COMPARED(conn, bytes, flags, real.send(fd, data, bytes, flags));
}

ZC_EXPORT ssize_t sendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *address,
			 socklen_t address_bytes)
{
	struct conn *conn = conn_of_socket(fd);
	struct iovec iov = { (void *)data, bytes };
	ssize_t rc;

	if (!conn) {
		sg_before_send();
		return real.sendto(fd, data, bytes, flags, address, address_bytes);
	}
	if (conn_active(conn)) {
		send_site = SEND_SITE();
		rc = flags & ~SEND_FLAGS || address ? send_special(conn, fd, flags) :
						      send_by_path(conn, fd, &iov, 1, flags);
		if (rc != SEND_BY_KERNEL)
			return send_result(rc);
	}
	return SEND_COMPARED(conn, bytes, flags, real.sendto(fd, data, bytes, flags, address, address_bytes));
}

static size_t bytes_of(const struct iovec *iov, size_t count)
{
	size_t bytes = 0;

	for (size_t i = 0; i < count && i < 1024; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

static ssize_t send_message(int fd, const struct msghdr *message, int flags, uintptr_t site)
{
	struct conn *conn = conn_of_socket(fd);
	ssize_t rc;

	if (!conn) {
		sg_before_send();
		share_passed(message);
		return real.sendmsg(fd, message, flags);
	}
	if (conn_active(conn)) {
		send_site = site;
		rc = flags & ~SEND_FLAGS || message->msg_name || message->msg_controllen || message->msg_iovlen > 1024 ?
			     send_special(conn, fd, flags) :
			     send_by_path(conn, fd, message->msg_iov, (int)message->msg_iovlen, flags);
		if (rc != SEND_BY_KERNEL)
			return send_result(rc);
	}
	return SEND_COMPARED(conn, bytes_of(message->msg_iov, message->msg_iovlen), flags,
			     real.sendmsg(fd, message, flags));
}

ZC_EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	return send_message(fd, message, flags, SEND_SITE());
}

ZC_EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
	struct conn *conn = conn_of_socket(fd);
	unsigned int done = 0;

	if (!conn) {
		sg_before_send();
		for (unsigned int i = 0; i < count && i < 1024; i++)
			share_passed(&messages[i].msg_hdr);
		return real.sendmmsg(fd, messages, count, flags);
	}
	if (!conn_active(conn) && !engine_is_there(conn)) {
		sg_before_send();
		return real.sendmmsg(fd, messages, count, flags);
	}
	while (done < count && done < 1024) {
		const struct msghdr *message = &messages[done].msg_hdr;
		ssize_t sent = send_message(fd, message, flags, SEND_SITE());

		if (sent < 0)
			return done ? (int)done : -1;
		messages[done++].msg_len = (unsigned int)sent;
		/* Behind a part of a message nothing may follow but its rest. */
		if ((size_t)sent < bytes_of(message->msg_iov, message->msg_iovlen))
			break;
	}
	return (int)done;
}

ZC_EXPORT ssize_t write(int fd, const void *data, size_t bytes)
{
	struct conn *conn = table_conn(fd);
	struct iovec iov = { (void *)data, bytes };
	ssize_t rc;

	if (!conn) {
		sg_before_send();
		guest_writes_file(fd);
		return real.write(fd, data, bytes);
	}
	if (conn_active(conn)) {
		send_site = SEND_SITE();
		rc = send_by_path(conn, fd, &iov, 1, 0);
		if (rc != SEND_BY_KERNEL)
			return send_result(rc);
	}
	return SEND_COMPARED(conn, bytes, 0, real.write(fd, data, bytes));
}

ZC_EXPORT ssize_t writev(int fd, const struct iovec *iov, int count)
{
	struct conn *conn = table_conn(fd);
	ssize_t rc;

	if (!conn) {
		sg_before_send();
		guest_writes_file(fd);
		return real.writev(fd, iov, count);
	}
	if (conn_active(conn)) {
		send_site = SEND_SITE();
		rc = send_by_path(conn, fd, iov, count, 0);
		if (rc != SEND_BY_KERNEL)
			return send_result(rc);
	}
	return SEND_COMPARED(conn, bytes_of(iov, count > 0 ? (size_t)count : 0), 0, real.writev(fd, iov, count));
}

/* What the kernel alone serves. Returns with SEND_BY_KERNEL, or an error to be told instead. */
static ssize_t before_kernel(int fd, enum stat_reason why)
{
	struct conn *conn = table_conn(fd);
	ssize_t rc = 0;

	if (conn && conn_active(conn))
		rc = send_before_kernel(conn, fd, 0, why);
	else
		sg_before_send();
	return rc < 0 ? rc : SEND_BY_KERNEL;
}

/* The rest of the family: what is held leaves first, then the kernel does it. */
#define SEND_KERNEL_ONLY(fd, by_kernel) SEND_KERNEL_FOR(REASON_FLAGS, fd, by_kernel)
#define SEND_KERNEL_FOR(why, fd, by_kernel)                                                                            \
	({                                                                                                             \
		ssize_t rc_ = before_kernel(fd, why);                                                                  \
		struct conn *conn_ = table_conn(fd);                                                                   \
		rc_ != SEND_BY_KERNEL ? send_result(rc_) :                                                             \
		conn_		      ? SEND_COUNTED(conn_, SIZE_MAX, 0, by_kernel) :                                  \
					(by_kernel);                                                                                   \
	})

ZC_EXPORT ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	guest_writes_file(fd);
	return SEND_KERNEL_ONLY(fd, real.pwritev2(fd, iov, count, offset, flags));
}

ZC_EXPORT ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t offset, int flags)
{
	guest_writes_file(fd);
	return SEND_KERNEL_ONLY(fd, real.pwritev64v2(fd, iov, count, offset, flags));
}

/* Not for sockets: these are here for the sake of /proc/self/mem alone. */
ZC_EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	guest_writes_file(fd);
	return real.pwrite(fd, data, bytes, offset);
}

ZC_EXPORT ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
	guest_writes_file(fd);
	return real.pwrite64(fd, data, bytes, offset);
}

ZC_EXPORT ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	guest_writes_file(fd);
	return real.pwritev(fd, iov, count, offset);
}

ZC_EXPORT ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t offset)
{
	guest_writes_file(fd);
	return real.pwritev64(fd, iov, count, offset);
}

/* What the kernel moves from a file or a pipe. */
#define SEND_FILE(fd, by_kernel) count_file(fd, SEND_KERNEL_FOR(REASON_FILE, fd, by_kernel))
static ssize_t count_file(int fd, ssize_t sent)
{
	struct conn *conn = sent > 0 ? table_conn(fd) : NULL;

	if (conn)
		stats_conn(conn->slot, STAT_CONN_FILE_BYTES, (uint64_t)sent);
	return sent;
}

/* Returns ENGINE_BY_KERNEL if the ring does not take it. */
static ssize_t sendfile_by_ring(int fd, int in, off64_t *offset, size_t bytes)
{
	struct conn *conn = table_conn(fd);

	if (!conn || !engine_is_there(conn))
		return ENGINE_BY_KERNEL;
	sg_before_send();
	return engine_sendfile(conn, fd, in, offset, bytes);
}

#define SPLICE_FLAGS (SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT)

/*
 * Splicing out of a connection whose bytes may be in a ring. First there has to be room in the pipe: SPLICE_F_NONBLOCK is about that alone.
 * Before both ends have met it is counted, so that they agree on positions.
 */
static ssize_t splice_from(struct conn *from, int in, int pipe, size_t bytes, unsigned int flags, bool waits)
{
	do {
		__attribute__((cleanup(engine_raw_recv_ends))) struct engine_raw raw = { .conn = NULL };
		ssize_t rc = pipe_await_room(pipe, waits);

		if (!rc)
			rc = engine_splice(from, in, pipe, bytes);
		if (rc == ENGINE_PIPE_FULL && waits)
			continue; /* another one has filled it */
		if (rc == ENGINE_PIPE_FULL)
			rc = -EAGAIN;
		if (rc == -EDEADLK && !engine_has_met(from))
			rc = ENGINE_BY_KERNEL; /* the lock was lost: the kernel tells of the reset */
		if (rc != ENGINE_BY_KERNEL)
			return send_result(rc);
		raw = engine_raw_recv_begins(from, in);
		if (!raw.again)
			return raw.done = real.splice(in, NULL, pipe, NULL, bytes, flags);
	} while (true);
}

/* Since Linux 5.12 a sendfile() to a pipe is one, and takes a socket. */
static bool is_splice(int fd, int in, const void *offset, size_t bytes, bool *waits)
{
	struct conn *from = table_conn(in);

	return from && engine_is_there(from) && bytes && !offset && pipe_takes(fd, waits);
}

ZC_EXPORT ssize_t sendfile64(int fd, int in, off64_t *offset, size_t bytes)
{
	ssize_t rc = sendfile_by_ring(fd, in, offset, bytes);
	bool waits;

	if (rc != ENGINE_BY_KERNEL)
		return send_result(rc);
	if (is_splice(fd, in, offset, bytes, &waits))
		return splice_from(table_conn(in), in, fd, bytes, 0, waits);
	return SEND_FILE(fd, real.sendfile64(fd, in, offset, bytes));
}

ZC_EXPORT ssize_t sendfile(int fd, int in, off_t *offset, size_t bytes)
{
	return sendfile64(fd, in, (off64_t *)offset, bytes);
}

ZC_EXPORT ssize_t splice(int in, off64_t *in_offset, int fd, off64_t *out_offset, size_t bytes, unsigned int flags)
{
	struct conn *from = table_conn(in);
	bool waits;

	if (!table_conn(fd))
		before_kernel(in, REASON_NONE);
	if (!out_offset && !(flags & ~SPLICE_FLAGS) && is_splice(fd, in, in_offset, bytes, &waits))
		return splice_from(from, in, fd, bytes, flags, waits && !(flags & SPLICE_F_NONBLOCK));
	return SEND_FILE(fd, real.splice(in, in_offset, fd, out_offset, bytes, flags));
}

ZC_EXPORT int vdprintf(int fd, const char *format, va_list list)
{
	return (int)SEND_KERNEL_ONLY(fd, real.vdprintf(fd, format, list));
}

ZC_EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = vdprintf(fd, format, list);
	va_end(list);
	return rc;
}

ZC_EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list list)
{
	return (int)SEND_KERNEL_ONLY(fd, real.__vdprintf_chk(fd, flag, format, list));
}

ZC_EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = __vdprintf_chk(fd, flag, format, list);
	va_end(list);
	return rc;
}

/*
 * A thread of libc's own will use the descriptor: plain calls from here on. Returns false with EAGAIN if it could not find what
 * it is to read: bytes are unread in a ring. A program then reads by itself, as it must when the kernel has no room.
 */
static bool leave_to_libc(int fd, bool reads)
{
	struct conn *conn = table_conn(fd);

	sg_before_send();
	if (!conn)
		return true;
	if (!reads)
		engine_pin(conn, fd);
	else if (!engine_retire(conn, fd)) {
		errno = EAGAIN;
		return false;
	}
	conn_detach(conn, REASON_DETACHED);
	return true;
}

ZC_EXPORT int aio_write(struct aiocb *block)
{
	leave_to_libc(block->aio_fildes, false);
	return real.aio_write(block);
}

ZC_EXPORT int aio_write64(struct aiocb64 *block)
{
	leave_to_libc(block->aio_fildes, false);
	return real.aio_write64(block);
}

ZC_EXPORT int aio_read(struct aiocb *block)
{
	if (!leave_to_libc(block->aio_fildes, true))
		return -1;
	guard_settle((const void *)block->aio_buf, block->aio_nbytes);
	return real.aio_read(block);
}

ZC_EXPORT int aio_read64(struct aiocb64 *block)
{
	if (!leave_to_libc(block->aio_fildes, true))
		return -1;
	guard_settle((const void *)block->aio_buf, block->aio_nbytes);
	return real.aio_read64(block);
}

ZC_EXPORT int lio_listio(int mode, struct aiocb *const *list, int count, struct sigevent *event)
{
	for (int i = 0; i < count; i++) {
		if (!list[i])
			continue;
		if (!leave_to_libc(list[i]->aio_fildes, list[i]->aio_lio_opcode == LIO_READ))
			return -1;
		guard_settle((const void *)list[i]->aio_buf, list[i]->aio_nbytes);
	}
	return real.lio_listio(mode, list, count, event);
}

ZC_EXPORT int lio_listio64(int mode, struct aiocb64 *const *list, int count, struct sigevent *event)
{
	for (int i = 0; i < count; i++) {
		if (!list[i])
			continue;
		if (!leave_to_libc(list[i]->aio_fildes, list[i]->aio_lio_opcode == LIO_READ))
			return -1;
		guard_settle((const void *)list[i]->aio_buf, list[i]->aio_nbytes);
	}
	return real.lio_listio64(mode, list, count, event);
}
