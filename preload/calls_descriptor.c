/* SPDX-License-Identifier: MIT */
/*
 * What makes, copies and ends descriptors. The library's own stay out of the program's hands: to close, close_range and
 * dup2 they are not open.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/sys.h"
#include "preload/before.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/spare.h"
#include "preload/stdio.h"
#include "preload/watch.h"

/* Before fd is closed or replaced. Signal-safe, errno kept. */
static void closing(int fd)
{
	sg_before_wait();
	if (table_entry(fd) != TABLE_UNKNOWN) {
		int saved = errno;

		conn_close(fd);
		errno = saved;
	}
}

ZC_EXPORT int close(int fd)
{
	if (__builtin_expect(table_is_own(fd), 0)) {
		errno = EBADF;
		return -1;
	}
	closing(fd);
	return real.close(fd);
}

static void closing_range(unsigned int first, unsigned int last)
{
	for (unsigned int fd = first; fd <= last && fd < table_size; fd++) {
		uintptr_t entry = table_entry((int)fd);

		if (entry != TABLE_UNKNOWN && entry != TABLE_OWN)
			closing((int)fd);
	}
}

/* The highest descriptor that the table has to be looked through for. */
static unsigned int table_end(unsigned int last)
{
	struct rlimit limit;

	if (guest_sandboxed() || sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0) < 0)
		return last;
	return limit.rlim_max && last >= limit.rlim_max ? (unsigned int)limit.rlim_max - 1 : last;
}

/* Closes a range around the library's own descriptors. */
static int close_around(unsigned int first, unsigned int last, int flags)
{
	int own;

	while ((own = first <= INT_MAX ? table_own_next((int)first) : -1) >= 0 && (unsigned int)own <= last) {
		if ((unsigned int)own > first && real.close_range(first, (unsigned int)own - 1, flags) < 0)
			return -1;
		first = (unsigned int)own + 1;
	}
	return first <= last ? real.close_range(first, last, flags) : 0;
}

ZC_EXPORT int close_range(unsigned int first, unsigned int last, int flags)
{
	sg_before_wait();
	if (first > last || flags & ~(int)(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE))
		return real.close_range(first, last, flags);
	if (!(flags & CLOSE_RANGE_CLOEXEC))
		closing_range(first, table_end(last));
	return close_around(first, last, flags);
}

ZC_EXPORT void closefrom(int first)
{
	unsigned int from = first < 0 ? 0 : (unsigned int)first;

	sg_before_wait();
	closing_range(from, table_end(UINT_MAX));
	if (table_own_next((int)from) < 0 || close_around(from, UINT_MAX, 0) < 0)
		real.closefrom(first);
}

/* After a call has made `to` what `fd` is. */
static void duplicated(int fd, int to)
{
	conn_dup(fd, to);
	if (!table_conn(fd) && !table_set(fd))
		before_dup(fd, to);
	if (__builtin_expect(to <= STDERR_FILENO, 0))
		stdio_gets(to);
}

ZC_EXPORT int dup(int fd)
{
	int to = table_is_own(fd) ? -1 : SPARE_CALL(real.dup(fd));

	sg_before_wait();
	if (to >= 0) {
		closing(to);
		duplicated(fd, to);
	}
	return to;
}

/* Returns whether `to` may be replaced. */
static bool replaces(int fd, int to)
{
	sg_before_wait();
	if (table_is_own(to) || table_is_own(fd)) {
		errno = table_is_own(fd) ? EBADF : EBUSY;
		return false;
	}
	return true;
}

static bool is_open(int fd)
{
	return guest_sandboxed() || sys_call(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0) >= 0;
}

ZC_EXPORT int dup2(int fd, int to)
{
	int rc;

	if (!replaces(fd, to))
		return -1;
	if (fd != to && is_open(fd))
		closing(to);
	rc = real.dup2(fd, to);
	if (rc >= 0 && fd != to)
		duplicated(fd, to);
	return rc;
}

ZC_EXPORT int dup3(int fd, int to, int flags)
{
	int rc;

	if (!replaces(fd, to))
		return -1;
	if (fd != to && !(flags & ~O_CLOEXEC) && is_open(fd))
		closing(to);
	rc = real.dup3(fd, to, flags);
	if (rc >= 0)
		duplicated(fd, to);
	return rc;
}

/* The program wants SIGIO. */
static void raises_signals(struct conn *conn, int fd)
{
	if (conn)
		before_raises(conn, fd);
	else
		before_notes(BEFORE_SIGNALS);
}

static bool duplicates(int command)
{
	return command == F_DUPFD || command == F_DUPFD_CLOEXEC;
}

static int after_fcntl(int fd, int command, long argument, int rc)
{
	struct conn *conn = table_conn(fd);

	if (rc < 0)
		return rc;
	if (duplicates(command)) {
		closing(rc);
		duplicated(fd, rc);
	} else if (conn && command == F_SETFD && !(argument & FD_CLOEXEC)) {
		conn->handed = true;
	} else if (command == F_SETFL && argument & O_ASYNC) {
		raises_signals(conn, fd);
	}
	return rc;
}

#define FCNTL_CALL(name)                                                                                               \
	ZC_EXPORT int name(int fd, int command, ...)                                                                   \
	{                                                                                                              \
		va_list list;                                                                                          \
		long argument;                                                                                         \
		int rc, tries = 0;                                                                                     \
                                                                                                                       \
		va_start(list, command);                                                                               \
		argument = va_arg(list, long);                                                                         \
		va_end(list);                                                                                          \
		real_resolve();                                                                                        \
		sg_before_wait();                                                                                      \
		do {                                                                                                   \
			rc = real.name(fd, command, argument);                                                         \
		} while (rc < 0 && duplicates(command) && spare_again(rc, tries++));                                   \
		return after_fcntl(fd, command, argument, rc);                                                         \
	}

FCNTL_CALL(fcntl)
FCNTL_CALL(fcntl64)

ZC_EXPORT int ioctl(int fd, unsigned long request, ...)
{
	struct conn *conn = table_conn(fd);
	va_list list;
	void *argument;
	int rc;

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	real_resolve();
	sg_before_wait();
	if (conn && request == FIONCLEX)
		conn->handed = true;
	if (request == FIOASYNC)
		raises_signals(conn, fd);
	if (conn && request == FIONREAD && engine_unread(conn, fd, argument))
		return 0;
	rc = real.ioctl(fd, request, argument);
	if (!rc && conn && request == SIOCATMARK && *(int *)argument && engine_is_before_raw(conn, fd))
		*(int *)argument = 0;
	return rc;
}

/* Libc's makes its own system call. */
ZC_EXPORT int sockatmark(int fd)
{
	int at;

	return ioctl(fd, SIOCATMARK, &at) < 0 ? -1 : at;
}
