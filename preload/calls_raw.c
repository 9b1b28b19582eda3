/* SPDX-License-Identifier: MIT */
/*
 * raw.h. A raw call differs from libc's: a set of signals has the kernel's size, which is given, pselect6 has both in a pair, and of
 * the time of a wait the kernel writes back what is left, also where libc keeps the program's value. That may be in memory that is
 * only read: the kernel does without then, and so does this.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/conn.h"
#include "preload/engine.h"
#include "preload/guest.h"
#include "preload/raw.h"
#include "preload/real.h"
#include "preload/watch.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#define KERNEL_SIGSET_BYTES 8

/* Whether the kernel says what a set of signals is, to which libc's begin like the kernel's. */
static bool is_sigset(long mask, long bytes)
{
	return !mask || bytes == KERNEL_SIGSET_BYTES;
}

/* A time that the kernel tells the rest of. */
struct wait_time {
	long at; /* 0: none */
	struct timespec asked;
	uint64_t begun;
};

static const struct timespec *time_begins(struct wait_time *time, long at)
{
	time->at = at;
	if (!at)
		return NULL;
	time->asked = *(const struct timespec *)at;
	time->begun = clock_now();
	return &time->asked;
}

static void time_ends(const struct wait_time *time)
{
	const struct timespec *asked = &time->asked;
	uint64_t gone, whole, left;
	struct timespec told;

	if (!time->at || !watch_time_is_valid(asked) || (!asked->tv_sec && !asked->tv_nsec))
		return;
	gone = clock_now() - time->begun;
	whole = (uint64_t)asked->tv_sec > UINT64_MAX / NS_PER_SEC - 1 ?
			UINT64_MAX :
			(uint64_t)asked->tv_sec * NS_PER_SEC + (uint64_t)asked->tv_nsec;
	left = whole > gone ? whole - gone : 0;
	told = (struct timespec){ (time_t)(left / NS_PER_SEC), (long)(left % NS_PER_SEC) };
	guest_write((void *)time->at, &told, sizeof(told));
}

static bool does_ppoll(const long *a, long *answer)
{
	struct wait_time time;

	if (!is_sigset(a[3], a[4]))
		return false;
	*answer = ppoll((struct pollfd *)a[0], (nfds_t)a[1], time_begins(&time, a[2]), (const sigset_t *)a[3]);
	time_ends(&time);
	return true;
}

static bool does_pselect(const long *a, long *answer)
{
	const long *pair = (const long *)a[5];
	struct wait_time time;

	if (pair && !is_sigset(pair[0], pair[1]))
		return false;
	*answer = pselect((int)a[0], (fd_set *)a[1], (fd_set *)a[2], (fd_set *)a[3], time_begins(&time, a[4]),
			  pair ? (const sigset_t *)pair[0] : NULL);
	time_ends(&time);
	return true;
}

#ifdef SYS_select
static bool does_select(const long *a, long *answer)
{
	struct timeval *at = (struct timeval *)a[4], time;
	bool tells = at && (at->tv_sec || at->tv_usec) && at->tv_sec >= 0 && at->tv_usec >= 0;

	if (at)
		time = *at;
	*answer = select((int)a[0], (fd_set *)a[1], (fd_set *)a[2], (fd_set *)a[3], at ? &time : NULL);
	if (tells)
		guest_write((void *)a[4], &time, sizeof(time));
	return true;
}
#endif

static bool does_epoll_pwait(const long *a, long *answer)
{
	if (!is_sigset(a[4], a[5]))
		return false;
	*answer = epoll_pwait((int)a[0], (struct epoll_event *)a[1], (int)a[2], (int)a[3], (const sigset_t *)a[4]);
	return true;
}

/* Rounded up, as the kernel never wakes early. */
static int to_ms(const struct timespec *time)
{
	return !time || time->tv_sec > INT_MAX / 1000 - 1 ?
		       -1 :
		       (int)(time->tv_sec * 1000 + (time->tv_nsec + 999999) / 1000000);
}

/* Who makes this call by number may do so because his libc does not have it. */
static bool does_epoll_pwait2(const long *a, long *answer)
{
	const struct timespec *time = (const struct timespec *)a[3];

	if (!is_sigset(a[4], a[5]))
		return false;
	*answer = epoll_pwait2((int)a[0], (struct epoll_event *)a[1], (int)a[2], time, (const sigset_t *)a[4]);
	if (*answer < 0 && errno == ENOSYS && (!time || watch_time_is_valid(time)))
		*answer = epoll_pwait((int)a[0], (struct epoll_event *)a[1], (int)a[2], to_ms(time),
				      (const sigset_t *)a[4]);
	return true;
}

static bool waits(long number, const long *a, long *answer)
{
	if (!choose_moves)
		return false;
	switch (number) {
	case SYS_ppoll:
		return does_ppoll(a, answer);
	case SYS_pselect6:
		return does_pselect(a, answer);
#ifdef SYS_select
	case SYS_select:
		return does_select(a, answer);
#endif
	case SYS_epoll_pwait:
		return does_epoll_pwait(a, answer);
	case SYS_epoll_pwait2:
		return does_epoll_pwait2(a, answer);
	default:
		return false;
	}
}

/* Whether bytes of it may be in a ring, or held. */
static bool has_path(long fd)
{
	struct conn *conn = table_conn((int)fd);

	return conn && (engine_is_there(conn) || conn_active(conn));
}

static bool moves(long number, const long *a, long *answer)
{
	switch (number) {
	case SYS_splice:
		if (!has_path(a[0]) && !has_path(a[2]))
			return false;
		*answer = splice((int)a[0], (off64_t *)a[1], (int)a[2], (off64_t *)a[3], (size_t)a[4],
				 (unsigned int)a[5]);
		return true;
	case SYS_recvmmsg:
		if (!has_path(a[0]))
			return false;
		*answer = recvmmsg((int)a[0], (struct mmsghdr *)a[1], (unsigned int)a[2], (int)a[3],
				   (struct timespec *)a[4]);
		return true;
	case SYS_sendmmsg:
		if (!has_path(a[0]))
			return false;
		*answer = sendmmsg((int)a[0], (struct mmsghdr *)a[1], (unsigned int)a[2], (int)a[3]);
		return true;
	case SYS_sendfile:
		if (!has_path(a[0]) && !has_path(a[1]))
			return false;
		*answer = sendfile64((int)a[0], (int)a[1], (off64_t *)a[2], (size_t)a[3]);
		return true;
	case SYS_preadv2: /* a[4] is the offset's upper half where that does not fit into a[3] */
		if (!has_path(a[0]))
			return false;
		*answer = preadv64v2((int)a[0], (const struct iovec *)a[1], (int)a[2], a[3], (int)a[5]);
		return true;
	case SYS_pwritev2:
		if (!has_path(a[0]))
			return false;
		*answer = pwritev64v2((int)a[0], (const struct iovec *)a[1], (int)a[2], a[3], (int)a[5]);
		return true;
	default:
		return false;
	}
}

/* Of fcntl's commands those that concern us: libc makes others of some. */
static bool does_fcntl(const long *a, long *answer)
{
	if (a[1] != F_DUPFD && a[1] != F_DUPFD_CLOEXEC && a[1] != F_SETFD && a[1] != F_SETFL)
		return false;
	*answer = fcntl((int)a[0], (int)a[1], a[2]);
	return true;
}

static bool changes(long number, const long *a, long *answer)
{
	switch (number) {
	case SYS_fcntl:
		return does_fcntl(a, answer);
	case SYS_ioctl:
		if (!table_conn((int)a[0]))
			return false;
		*answer = ioctl((int)a[0], (unsigned long)a[1], a[2]);
		return true;
	case SYS_epoll_ctl:
		*answer = epoll_ctl((int)a[0], (int)a[1], (int)a[2], (struct epoll_event *)a[3]);
		return true;
	case SYS_epoll_create1:
		*answer = epoll_create1((int)a[0]);
		return true;
#ifdef SYS_epoll_create
	case SYS_epoll_create:
		*answer = epoll_create((int)a[0]);
		return true;
#endif
	case SYS_io_uring_setup: /* many programs only try it, where it is not allowed */
		*answer = real.syscall(number, a[0], a[1]);
		if (*answer >= 0)
			guest_uses_io_uring();
		return true;
	default:
		return false;
	}
}

bool raw_does(long number, const long *a, long *answer)
{
	return changes(number, a, answer) || moves(number, a, answer) || waits(number, a, answer);
}
