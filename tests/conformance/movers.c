/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "movers.h"

#include <aio.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/sys.h"
#include "end.h"

#define PIECES 5
#define PIPE_BYTES 65536

/* Cuts the data in pieces of unequal size, an empty one among them. */
static int cut(struct iovec iov[PIECES], const void *data, size_t bytes)
{
	char *at = (char *)data;
	size_t sizes[PIECES] = { bytes / 7, bytes / 3, 0, bytes / 11 };

	sizes[PIECES - 1] = bytes - sizes[0] - sizes[1] - sizes[3];
	for (int i = 0; i < PIECES; i++) {
		iov[i] = (struct iovec){ at, sizes[i] };
		at += sizes[i];
	}
	return PIECES;
}

static ssize_t errno_result(long rc)
{
	if (rc >= 0)
		return rc;
	errno = (int)-rc;
	return -1;
}

static ssize_t send_by_send(int fd, const void *data, size_t bytes)
{
	return send(fd, data, bytes, 0);
}

static ssize_t send_by_sendto(int fd, const void *data, size_t bytes)
{
	return sendto(fd, data, bytes, MSG_NOSIGNAL, NULL, 0);
}

static ssize_t send_by_sendmsg(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)cut(iov, data, bytes) };

	return sendmsg(fd, &message, 0);
}

static ssize_t send_by_sendmmsg(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 2 } },
				       { .msg_hdr = { .msg_iov = iov + 2, .msg_iovlen = PIECES - 2 } } };
	ssize_t sum = 0;
	int rc;

	cut(iov, data, bytes);
	rc = sendmmsg(fd, messages, 2, 0);
	for (int i = 0; i < rc; i++)
		sum += messages[i].msg_len;
	/* A message cut short and followed by another would leave a hole: what came after it is not to be had back. */
	if (rc == 2 && messages[0].msg_len < iov[0].iov_len + iov[1].iov_len)
		note_wrong("sendmmsg went on after a message that was cut short");
	return rc < 0 ? -1 : sum;
}

static ssize_t send_by_write(int fd, const void *data, size_t bytes)
{
	return write(fd, data, bytes);
}

static ssize_t send_by_writev(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];

	return writev(fd, iov, cut(iov, data, bytes));
}

static ssize_t send_by_pwritev2(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];

	return pwritev2(fd, iov, cut(iov, data, bytes), -1, 0);
}

static ssize_t send_by_pwritev64v2(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];

	return pwritev64v2(fd, iov, cut(iov, data, bytes), -1, 0);
}

static int file_with(const void *data, size_t bytes)
{
	int file = (int)MUST(memfd_create("payload", MFD_CLOEXEC));

	MUST(write(file, data, bytes));
	MUST(lseek(file, 0, SEEK_SET));
	return file;
}

static ssize_t send_by_sendfile(int fd, const void *data, size_t bytes)
{
	int file = file_with(data, bytes);
	ssize_t sent = sendfile(fd, file, NULL, bytes);
	int saved = errno;

	close(file);
	errno = saved;
	return sent;
}

static ssize_t send_by_sendfile64(int fd, const void *data, size_t bytes)
{
	int file = file_with(data, bytes);
	off64_t offset = 0;
	ssize_t sent = sendfile64(fd, file, &offset, bytes);
	int saved = errno;

	if (sent >= 0 && offset != sent)
		note_wrong("sendfile64 moved %zd, its offset says %lld", sent, (long long)offset);
	close(file);
	errno = saved;
	return sent;
}

typedef long splicer(int in, int out, size_t bytes);

static long call_splice(int in, int out, size_t bytes)
{
	return splice(in, NULL, out, NULL, bytes, 0);
}

static ssize_t send_by_pipe(int fd, const void *data, size_t bytes, splicer *call)
{
	size_t some = bytes < PIPE_BYTES ? bytes : PIPE_BYTES;
	int ends[2], saved;
	ssize_t sent;

	MUST(pipe(ends));
	some = (size_t)MUST(write(ends[1], data, some));
	sent = call(ends[0], fd, some);
	saved = errno;
	close(ends[0]);
	close(ends[1]);
	errno = saved;
	return sent;
}

static ssize_t send_by_splice(int fd, const void *data, size_t bytes)
{
	return send_by_pipe(fd, data, bytes, call_splice);
}

static ssize_t send_by_syscall_write(int fd, const void *data, size_t bytes)
{
	return syscall(SYS_write, fd, data, bytes);
}

static ssize_t send_by_syscall_sendmsg(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)cut(iov, data, bytes) };

	return syscall(SYS_sendmsg, fd, &message, 0);
}

static ssize_t send_by_syscall_sendmmsg(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct mmsghdr message = { .msg_hdr = { .msg_iov = iov, .msg_iovlen = (size_t)cut(iov, data, bytes) } };

	return syscall(SYS_sendmmsg, fd, &message, 1, 0) == 1 ? (ssize_t)message.msg_len : -1;
}

static ssize_t send_by_syscall_pwritev2(int fd, const void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	int count = cut(iov, data, bytes);

	return syscall(SYS_pwritev2, fd, iov, count, -1L, -1L, 0);
}

static long raw_splice(int in, int out, size_t bytes)
{
	return syscall(SYS_splice, in, NULL, out, NULL, bytes, 0);
}

static ssize_t send_by_syscall_splice(int fd, const void *data, size_t bytes)
{
	return send_by_pipe(fd, data, bytes, raw_splice);
}

/* libc's other public names. */
extern ssize_t __send(int fd, const void *data, size_t bytes, int flags);
extern ssize_t __write(int fd, const void *data, size_t bytes);
extern ssize_t __read(int fd, void *data, size_t bytes);

static ssize_t send_by_alias(int fd, const void *data, size_t bytes)
{
	return bytes % 2 ? __send(fd, data, bytes, 0) : __write(fd, data, bytes);
}

static ssize_t take_by_alias(int fd, void *data, size_t bytes)
{
	return __read(fd, data, bytes);
}

/* Past libc altogether, as a runtime with system calls of its own does. */
static ssize_t send_by_trap(int fd, const void *data, size_t bytes)
{
	return errno_result(sys_call(SYS_sendto, fd, (long)data, (long)bytes, 0, 0, 0));
}

static ssize_t send_by_dprintf(int fd, const void *data, size_t bytes)
{
	return dprintf(fd, "%.*s", (int)bytes, (const char *)data);
}

static int call_vdprintf(int fd, const char *format, ...)
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = vdprintf(fd, format, list);
	va_end(list);
	return rc;
}

static ssize_t send_by_vdprintf(int fd, const void *data, size_t bytes)
{
	return call_vdprintf(fd, "%.*s", (int)bytes, (const char *)data);
}

static ssize_t send_through_stdio(int fd, const void *data, size_t bytes, int buffering)
{
	FILE *file = fdopen(dup(fd), "w");
	size_t sent;

	if (!file)
		die("fdopen: %s", errno_name(errno));
	setvbuf(file, NULL, buffering, BUFSIZ);
	sent = fwrite(data, 1, bytes, file);
	return fclose(file) ? -1 : (ssize_t)sent;
}

static ssize_t send_by_stdio(int fd, const void *data, size_t bytes)
{
	return send_through_stdio(fd, data, bytes, _IOFBF);
}

static ssize_t send_by_stdio_unbuffered(int fd, const void *data, size_t bytes)
{
	return send_through_stdio(fd, data, bytes, _IONBF);
}

static ssize_t await_aio(struct aiocb *block)
{
	const struct aiocb *const list[] = { block };
	int error;

	while ((error = aio_error(block)) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	if (error) {
		errno = error;
		return -1;
	}
	return aio_return(block);
}

static ssize_t send_by_aio(int fd, const void *data, size_t bytes)
{
	struct aiocb block = { .aio_fildes = fd, .aio_buf = (void *)data, .aio_nbytes = bytes };

	return aio_write(&block) ? -1 : await_aio(&block);
}

static ssize_t take_by_recv(int fd, void *data, size_t bytes)
{
	return recv(fd, data, bytes, 0);
}

static ssize_t take_by_recvfrom(int fd, void *data, size_t bytes)
{
	struct sockaddr_storage from = { .ss_family = 77 };
	socklen_t from_bytes = sizeof(from);
	ssize_t got = recvfrom(fd, data, bytes, 0, (struct sockaddr *)&from, &from_bytes);

	/* TCP leaves the address alone and says that it is empty. */
	if (got >= 0 && (from_bytes || from.ss_family != 77))
		note_wrong("recvfrom set an address of %u bytes, family %u", from_bytes, from.ss_family);
	return got;
}

static ssize_t take_by_recvmsg(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)cut(iov, data, bytes), .msg_flags = 77 };
	ssize_t got = recvmsg(fd, &message, 0);

	if (got >= 0 && (message.msg_flags || message.msg_controllen || message.msg_namelen))
		note_wrong("recvmsg: flags %#x, control %zu", (unsigned int)message.msg_flags, message.msg_controllen);
	return got;
}

static ssize_t take_by_recvmmsg(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = iov, .msg_iovlen = PIECES } } };

	cut(iov, data, bytes);
	/* One message only: a second would go on where the first left off, wherever that was. */
	return recvmmsg(fd, messages, 1, MSG_WAITFORONE, NULL) < 0 ? -1 : (ssize_t)messages[0].msg_len;
}

static ssize_t take_by_read(int fd, void *data, size_t bytes)
{
	return read(fd, data, bytes);
}

static ssize_t take_by_readv(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];

	return readv(fd, iov, cut(iov, data, bytes));
}

static ssize_t take_by_preadv2(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];

	return preadv2(fd, iov, cut(iov, data, bytes), -1, 0);
}

static ssize_t take_by_preadv64v2(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];

	return preadv64v2(fd, iov, cut(iov, data, bytes), -1, 0);
}

static ssize_t take_by_pipe(int fd, void *data, size_t bytes, splicer *call)
{
	size_t some = bytes < PIPE_BYTES ? bytes : PIPE_BYTES;
	int ends[2], saved, there;
	ssize_t got;

	MUST(pipe(ends));
	got = call(fd, ends[1], some);
	saved = errno;
	MUST(ioctl(ends[0], FIONREAD, &there));
	if (there != (got > 0 ? got : 0))
		note_wrong("splice said %zd, the pipe has %d", got, there);
	if (got > 0 && read(ends[0], data, (size_t)got) != got)
		note_wrong("splice said %zd, the pipe has less", got);
	close(ends[0]);
	close(ends[1]);
	errno = saved;
	return got;
}

static ssize_t take_by_splice(int fd, void *data, size_t bytes)
{
	return take_by_pipe(fd, data, bytes, call_splice);
}

static ssize_t take_by_syscall_splice(int fd, void *data, size_t bytes)
{
	return take_by_pipe(fd, data, bytes, raw_splice);
}

static ssize_t take_by_syscall_recvmmsg(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	struct mmsghdr message = { .msg_hdr = { .msg_iov = iov, .msg_iovlen = (size_t)cut(iov, data, bytes) } };

	return syscall(SYS_recvmmsg, fd, &message, 1, 0, NULL) == 1 ? (ssize_t)message.msg_len : -1;
}

static ssize_t take_by_syscall_preadv2(int fd, void *data, size_t bytes)
{
	struct iovec iov[PIECES];
	int count = cut(iov, data, bytes);

	return syscall(SYS_preadv2, fd, iov, count, -1L, -1L, 0);
}

static ssize_t take_by_syscall_read(int fd, void *data, size_t bytes)
{
	return syscall(SYS_read, fd, data, bytes);
}

static ssize_t take_by_syscall_recvfrom(int fd, void *data, size_t bytes)
{
	return syscall(SYS_recvfrom, fd, data, bytes, 0, NULL, NULL);
}

static ssize_t take_by_trap(int fd, void *data, size_t bytes)
{
	return errno_result(sys_call(SYS_read, fd, (long)data, (long)bytes, 0, 0, 0));
}

/* Looks at the bytes before taking them: both must be the same. */
static ssize_t take_by_peek_first(int fd, void *data, size_t bytes)
{
	ssize_t seen = recv(fd, data, bytes, MSG_PEEK);
	char *copy = seen > 0 ? malloc((size_t)seen) : NULL;
	ssize_t got;

	if (!copy)
		return seen;
	memcpy(copy, data, (size_t)seen);
	got = recv(fd, data, (size_t)seen, 0);
	if (got != seen || memcmp(copy, data, (size_t)got) != 0)
		note_wrong("peeked %zd, then took %zd or others", seen, got);
	free(copy);
	return got;
}

static ssize_t take_by_waitall(int fd, void *data, size_t bytes)
{
	ssize_t got = recv(fd, data, bytes, MSG_WAITALL);

	if (got != (ssize_t)bytes)
		note_wrong("MSG_WAITALL: %zd of %zu", got, bytes);
	return got;
}

static ssize_t take_through_stdio(int fd, void *data, size_t bytes, int buffering)
{
	FILE *file = fdopen(dup(fd), "r");
	size_t got;

	if (!file)
		die("fdopen: %s", errno_name(errno));
	setvbuf(file, NULL, buffering, BUFSIZ);
	got = fread(data, 1, bytes, file);
	fclose(file);
	return (ssize_t)got;
}

static ssize_t take_by_stdio(int fd, void *data, size_t bytes)
{
	return take_through_stdio(fd, data, bytes, _IOFBF);
}

static ssize_t take_by_stdio_unbuffered(int fd, void *data, size_t bytes)
{
	return take_through_stdio(fd, data, bytes, _IONBF);
}

static ssize_t take_by_aio(int fd, void *data, size_t bytes)
{
	struct aiocb block = { .aio_fildes = fd, .aio_buf = data, .aio_nbytes = bytes };

	return aio_read(&block) ? -1 : await_aio(&block);
}

const struct sender senders[SENDER_COUNT] = {
#define SENDER(name) { #name, false, send_by_##name },
#define SENDER_BLOCKING(name) { #name, true, send_by_##name },
#include "movers.def"
};

const struct receiver receivers[RECEIVER_COUNT] = {
#define RECEIVER(name) { #name, false, false, take_by_##name },
#define RECEIVER_BLOCKING(name) { #name, true, false, take_by_##name },
#define RECEIVER_UNSEEN(name) { #name, false, true, take_by_##name },
#include "movers.def"
};
