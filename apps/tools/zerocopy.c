/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/zerocopy.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "apps/tools/option.h"

int zerocopy_open(const struct stream *stream)
{
	int on = 1;

	return setsockopt(stream->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) ? -errno : 0;
}

static bool is_notice(const struct cmsghdr *control)
{
	return (control->cmsg_level == SOL_IP && control->cmsg_type == IP_RECVERR) ||
	       (control->cmsg_level == SOL_IPV6 && control->cmsg_type == IPV6_RECVERR);
}

/* Takes one message of the error queue. Returns 0, -EAGAIN when there is none, or another -errno. */
static int harvest(int fd, struct zerocopy *state)
{
	char space[256];
	struct msghdr message = { .msg_control = space, .msg_controllen = sizeof(space) };
	struct sock_extended_err notice;

	if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
		return errno == EINTR ? 0 : -errno;
	for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
		uint32_t sends;

		if (!is_notice(at))
			continue;
		memcpy(&notice, CMSG_DATA(at), sizeof(notice));
		if (notice.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
			continue;
		/* Inclusive, and the counter wraps. */
		sends = notice.ee_data - notice.ee_info + 1;
		state->completed += sends;
		if (notice.ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
			state->copied += sends;
	}
	return 0;
}

/* Waits for the error queue: poll tells of it unasked. Returns 0 or -errno. */
static int await(int fd)
{
	struct pollfd waiting = { .fd = fd };
	int code = 0;
	socklen_t bytes = sizeof(code);

	if (poll(&waiting, 1, -1) < 0)
		return errno == EINTR ? 0 : -errno;
	if (!(waiting.revents & POLLHUP))
		return 0;
	/* Both sides are shut: POLLHUP stays, so poll waits for nothing any more. */
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
	return code ? -code : -ECONNRESET;
}

static int settle_one(struct stream *stream, struct zerocopy *state)
{
	int rc = harvest(stream->fd, state);

	if (rc != -EAGAIN)
		return rc;
	rc = await(stream->fd);
	if (!rc)
		return 0;
	/* What came in between the look and the wait. */
	return harvest(stream->fd, state) ? rc : 0;
}

int zerocopy_settle(struct stream *stream, struct zerocopy *state)
{
	int rc = 0;

	while (!rc && state->completed < state->sends)
		rc = settle_one(stream, state);
	return rc;
}

/* The kernel is out of memory for pinning: completions give some back; with none due this part goes as a copy. */
static int relieve(struct stream *stream, struct zerocopy *state, int *flags)
{
	if (state->completed < state->sends)
		return settle_one(stream, state);
	*flags = 0;
	return 0;
}

int zerocopy_push(struct stream *stream, struct zerocopy *state, struct iovec *iov, int count, size_t *done)
{
	int flags = MSG_ZEROCOPY;
	int rc = 0;

	*done = 0;
	while (count && !rc) {
		struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)count };
		ssize_t taken = sendmsg(stream->fd, &message, flags);

		if (taken < 0) {
			if (errno == ENOBUFS && flags)
				rc = relieve(stream, state, &flags);
			else if (errno == EAGAIN && stream->wait != WAIT_BLOCKING)
				rc = stream_wait(stream, POLLOUT);
			else if (errno != EINTR)
				rc = -errno;
			continue;
		}
		state->sends += flags == MSG_ZEROCOPY;
		flags = MSG_ZEROCOPY;
		*done += (size_t)taken;
		stream_advance(&iov, &count, (size_t)taken);
	}
	return rc;
}
