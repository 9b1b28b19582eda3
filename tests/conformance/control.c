/* SPDX-License-Identifier: MIT */
/*
 * Libraries that are wrong on purpose, preloaded in the place of libzc.so: the runner has to notice each. CORPUS_FAULT says
 * which fault it is; they are chosen to be as small as a real one would be.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int fault_is(const char *name)
{
	const char *fault = getenv("CORPUS_FAULT");

	return fault && !strcmp(fault, name);
}

/* byte: one bit of each larger send. drop: the last byte of a send is never sent. extra: one byte more. */
EXPORT ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
	ssize_t rc;
	char *copy;

	if (bytes > 4096 && fault_is("byte")) {
		copy = malloc(bytes);
		memcpy(copy, data, bytes);
		copy[bytes / 2] ^= 1;
		rc = REAL(send)(fd, copy, bytes, flags);
		free(copy);
		return rc;
	}
	if (bytes > 4096 && fault_is("drop")) {
		rc = REAL(send)(fd, data, bytes - 1, flags);
		return rc == (ssize_t)bytes - 1 ? rc + 1 : rc;
	}
	return REAL(send)(fd, data, bytes, flags);
}

/* pollerr: readiness that nothing has caused. */
EXPORT int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	int ready = REAL(poll)(fds, count, timeout);

	if (ready > 0 && fault_is("pollerr"))
		fds[0].revents |= POLLERR;
	return ready;
}

/* errno: the right failure by the wrong name. */
EXPORT ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
	ssize_t rc = REAL(recv)(fd, data, bytes, flags);

	if (rc < 0 && errno == EAGAIN && fault_is("errno"))
		errno = EINTR;
	return rc;
}

/* option: a socket option of the library's own that shows. */
EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
	int rc = REAL(getsockopt)(fd, level, name, value, bytes);

	if (!rc && level == SOL_SOCKET && name == SO_ZEROCOPY && fault_is("option"))
		*(int *)value = 1;
	return rc;
}

/* descriptor: the library takes a number that the program would have had. */
EXPORT int socket(int domain, int type, int protocol)
{
	if (fault_is("descriptor"))
		(void)!dup(2);
	return REAL(socket)(domain, type, protocol);
}
