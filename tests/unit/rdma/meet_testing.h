/* SPDX-License-Identifier: MIT */
/* What the tests of the rendezvous share: both ends of a real connection, other users, and a count of descriptors. */
#ifndef ZC_TESTS_MEET_TESTING_H
#define ZC_TESTS_MEET_TESTING_H

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "rdma/meet.h"

#define NOBODY 65534
#define RING 65536u

static int ends[2];
static struct meet_names connecting, accepting;

static void names_of(int fd, struct meet_names *out)
{
	socklen_t bytes = sizeof(out->local);

	assert_int_equal(getsockname(fd, (struct sockaddr *)&out->local, &bytes), 0);
	bytes = sizeof(out->peer);
	assert_int_equal(getpeername(fd, (struct sockaddr *)&out->peer, &bytes), 0);
}

/* Connects ends[0] to ends[1]: from to_family to a listener of family. */
static int connect_by(int family, int to_family)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_storage at;
	socklen_t bytes = sizeof(at);
	int listener = socket(family, SOCK_STREAM, 0), off = 0;

	if (family == AF_INET6 && to_family == AF_INET) {
		six.sin6_addr = in6addr_any;
		setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	}
	if (bind(listener, family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six,
		 family == AF_INET ? sizeof(four) : sizeof(six)) ||
	    listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &bytes))
		return -1;
	if (to_family == AF_INET) {
		four.sin_port = ((struct sockaddr_in *)&at)->sin_port; /* at the same place in both */
		memcpy(&at, &four, sizeof(four));
		bytes = sizeof(four);
	}
	ends[0] = socket(to_family, SOCK_STREAM, 0);
	if (connect(ends[0], (struct sockaddr *)&at, bytes))
		return -1;
	ends[1] = accept(listener, NULL, NULL);
	close(listener);
	names_of(ends[0], &connecting);
	names_of(ends[1], &accepting);
	return 0;
}

static inline int connect_ends(void **state)
{
	return connect_by(AF_INET, AF_INET);
}

static int close_ends(void **state)
{
	close(ends[0]);
	close(ends[1]);
	return 0;
}

/* The accepting end's part, whole; `offer` lets it in, if it is one. */
static inline int meet_hand_over(const struct meet_names *names, const struct channel *channel, int offer, int *visitor)
{
	int reached = meet_reach(names), rc;
	struct channel none;

	if (reached < 0)
		return reached;
	if (offer >= 0)
		assert_int_equal(meet_pick_up(&connecting, offer, visitor, &none), -EAGAIN);
	rc = meet_give(reached, channel);
	close(reached);
	return rc;
}

static inline int exit_status(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline bool become_nobody(void)
{
	return !setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY);
}

/* Runs `act` as another user in a child that owns nothing of the connection, as an impostor would. Returns its exit status. */
static inline int as_nobody(int (*act)(void))
{
	pid_t child = fork();

	if (!child) {
		close(ends[0]);
		close(ends[1]);
		_exit(become_nobody() ? act() : 99);
	}
	return exit_status(child);
}

static inline int hand_over_as_impostor(void)
{
	struct channel made;
	int rc = channel_make(&made, RING);

	if (!rc)
		rc = meet_hand_over(&accepting, &made, -1, NULL);
	return rc != 0 && rc != -EAGAIN;
}

static inline int open_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

#endif
