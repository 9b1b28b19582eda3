/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/tools/option.h"

int stream_open(struct stream *stream, int fd, unsigned int wait)
{
	struct epoll_event event = { .events = EPOLLIN };
	int flags = wait == WAIT_BLOCKING ? 0 : O_NONBLOCK;

	*stream = (struct stream){ .fd = fd, .wait = wait, .epoll = -1, .interest = EPOLLIN };
	if (fcntl(fd, F_SETFL, flags) < 0)
		return -errno;
	if (wait != WAIT_EPOLL)
		return 0;
	stream->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (stream->epoll >= 0 && !epoll_ctl(stream->epoll, EPOLL_CTL_ADD, fd, &event))
		return 0;
	flags = -errno;
	stream_forget(stream);
	return flags;
}

void stream_forget(struct stream *stream)
{
	if (stream->epoll >= 0)
		close(stream->epoll);
	stream->epoll = -1;
}

static int wait_epoll(struct stream *stream, uint32_t events)
{
	struct epoll_event event = { .events = events };
	int rc;

	if (events != stream->interest && epoll_ctl(stream->epoll, EPOLL_CTL_MOD, stream->fd, &event))
		return -errno;
	stream->interest = events;
	do
		rc = epoll_wait(stream->epoll, &event, 1, -1);
	while (rc < 0 && errno == EINTR);
	return rc < 0 ? -errno : 0;
}

int stream_wait(struct stream *stream, short events)
{
	struct pollfd waiting = { .fd = stream->fd, .events = events };
	int rc;

	if (stream->wait == WAIT_EPOLL)
		return wait_epoll(stream, events == POLLIN ? EPOLLIN : EPOLLOUT);
	do
		rc = poll(&waiting, 1, -1);
	while (rc < 0 && errno == EINTR);
	return rc < 0 ? -errno : 0;
}

static ssize_t call_once(int fd, enum stream_call call, struct iovec *iov, int count)
{
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)count };

	switch (call) {
	case CALL_SEND:
		return send(fd, iov->iov_base, iov->iov_len, 0);
	case CALL_SENDMSG:
		return sendmsg(fd, &message, 0);
	case CALL_WRITE:
		return write(fd, iov->iov_base, iov->iov_len);
	case CALL_WRITEV:
		return writev(fd, iov, count);
	case CALL_RECV:
		return recv(fd, iov->iov_base, iov->iov_len, 0);
	case CALL_READ:
		return read(fd, iov->iov_base, iov->iov_len);
	}
	return -1;
}

/* Returns whether the call is to be made again, after waiting where that is due; otherwise *rc is -errno. */
static bool again(struct stream *stream, short events, int *rc)
{
	if (errno == EINTR)
		return true;
	*rc = -errno;
	/* A blocking socket says EAGAIN only when a timeout was set on it; none is. */
	if ((errno != EAGAIN && errno != EWOULDBLOCK) || stream->wait == WAIT_BLOCKING)
		return false;
	*rc = stream_wait(stream, events);
	return !*rc;
}

void stream_advance(struct iovec **iov, int *count, size_t taken)
{
	for (; *count && taken >= (*iov)->iov_len; ++*iov, --*count)
		taken -= (*iov)->iov_len;
	if (*count) {
		(*iov)->iov_base = (char *)(*iov)->iov_base + taken;
		(*iov)->iov_len -= taken;
	}
}

int stream_push(struct stream *stream, enum stream_call call, struct iovec *iov, int count, size_t *done)
{
	int rc = 0;

	*done = 0;
	while (count) {
		ssize_t taken = call_once(stream->fd, call, iov, count);

		if (taken < 0) {
			if (again(stream, POLLOUT, &rc))
				continue;
			return rc;
		}
		*done += (size_t)taken;
		stream_advance(&iov, &count, (size_t)taken);
	}
	return 0;
}

int stream_send(struct stream *stream, const void *bytes, size_t count, size_t *done)
{
	struct iovec iov = { (void *)bytes, count };

	return stream_push(stream, CALL_SEND, &iov, 1, done);
}

int stream_receive(struct stream *stream, enum stream_call call, void *bytes, size_t count, size_t *done)
{
	int rc = 0;

	*done = 0;
	while (*done < count) {
		struct iovec iov = { (char *)bytes + *done, count - *done };
		ssize_t got = call_once(stream->fd, call, &iov, 1);

		if (!got)
			return 1;
		if (got < 0 && !again(stream, POLLIN, &rc))
			return rc;
		if (got > 0) {
			*done += (size_t)got;
			stream->reads++;
		}
	}
	return 0;
}
