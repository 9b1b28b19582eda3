/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/sys.h"
#include "preload/guest.h"
#include "preload/lock.h"
#include "preload/real.h"
#include "preload/signals.h"

bool pipe_takes(int fd, bool *waits)
{
	struct stat status;
	long flags;

	if (sys_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0 || !S_ISFIFO(status.st_mode))
		return false;
	flags = sys_call(SYS_fcntl, fd, F_GETFL, 0, 0, 0, 0);
	*waits = !(flags & O_NONBLOCK);
	return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

int pipe_await_room(int fd, bool waits)
{
	struct pollfd room = { .fd = fd, .events = POLLOUT };
	uint32_t ran = signals_run, ended = signals_end_calls;
	int rc;

	while ((rc = real.poll(&room, 1, waits ? -1 : 0)) < 0) {
		/* As a splice() goes on behind a handler with SA_RESTART. One that nobody has counted may be another. */
		if (errno != EINTR || signals_end_calls != ended || signals_run == ran)
			return -errno;
		ran = signals_run;
	}
	if (!rc)
		return -EAGAIN;
	if (!(room.revents & POLLERR))
		return 0;
	sys_call(SYS_tgkill, getpid(), lock_self(), SIGPIPE, 0, 0, 0);
	return -EPIPE;
}

/* Where the kernel can't be told not to wait: as long as a pipe has any room, it has room for PIPE_BUF. */
static long put_in_steps(int fd, const char *data, size_t bytes)
{
	struct pollfd room = { .fd = fd, .events = POLLOUT };
	size_t done = 0;

	while (done < bytes) {
		size_t step = bytes - done < PIPE_BUF ? bytes - done : PIPE_BUF;
		long rc = sys_call(SYS_poll, (long)&room, 1, 0, 0, 0, 0);

		rc = rc > 0 ? sys_call(SYS_write, fd, (long)(data + done), (long)step, 0, 0, 0) : rc ? rc : -EAGAIN;
		if (rc <= 0)
			return done ? (long)done : rc;
		done += (size_t)rc;
	}
	return (long)done;
}

long pipe_put(int fd, const char *data, size_t bytes)
{
	struct iovec iov = { (char *)data, bytes };
	long rc = -EOPNOTSUPP;

	if (!guest_sandboxed())
		rc = sys_call(SYS_pwritev2, fd, (long)&iov, 1, -1, -1, RWF_NOWAIT);
	return rc == -EOPNOTSUPP || rc == -ENOSYS || rc == -EINVAL ? put_in_steps(fd, data, bytes) : rc;
}
