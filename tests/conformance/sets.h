/* SPDX-License-Identifier: MIT */
/* One descriptor in select()'s sets, as poll() would be asked and answer. */
#ifndef ZC_TESTS_SETS_H
#define ZC_TESTS_SETS_H

#include <poll.h>
#include <sys/select.h>

struct sets {
	fd_set in, out, except;
};

static inline void fill_sets(struct sets *sets, int fd, short events)
{
	FD_ZERO(&sets->in);
	FD_ZERO(&sets->out);
	FD_ZERO(&sets->except);
	if (events & POLLIN)
		FD_SET(fd, &sets->in);
	if (events & POLLOUT)
		FD_SET(fd, &sets->out);
	if (events & POLLPRI)
		FD_SET(fd, &sets->except);
}

static inline int read_sets(const struct sets *sets, int fd, long ready)
{
	if (ready <= 0)
		return 0;
	return (FD_ISSET(fd, &sets->in) ? POLLIN : 0) | (FD_ISSET(fd, &sets->out) ? POLLOUT : 0) |
	       (FD_ISSET(fd, &sets->except) ? POLLPRI : 0);
}

#endif
