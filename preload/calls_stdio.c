/* SPDX-License-Identifier: MIT */
/*
 * stdio on a connection: FILE's own reads and writes are calls inside libc that nobody can intercept. Where the bytes may be in
 * a ring the stream gets functions of ours instead (fopencookie), and keeps its descriptor's number for fileno(). Where they
 * can't, the connection is left to libc.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "preload/conn.h"
#include "preload/engine.h"
#include "preload/real.h"
#include "preload/sg.h"

static ssize_t stream_read(void *cookie, char *data, size_t bytes)
{
	return read((int)(intptr_t)cookie, data, bytes);
}

/* All of it, as libc's own does, or what was written before the error. */
static ssize_t stream_write(void *cookie, const char *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t rc = write((int)(intptr_t)cookie, data + done, bytes - done);

		if (rc < 0)
			break;
		done += (size_t)rc;
	}
	return (ssize_t)done;
}

static int stream_seek(void *cookie, off64_t *offset, int whence)
{
	errno = ESPIPE;
	return -1;
}

static int stream_close(void *cookie)
{
	return close((int)(intptr_t)cookie);
}

/* The descriptor must allow what the mode wants, and 'a' and 'e' change its flags: what fdopen does before all else. */
static bool mode_fits(int fd, const char *mode)
{
	int flags = real.fcntl(fd, F_GETFL);
	bool both = false;

	if (flags < 0)
		return false;
	for (const char *at = mode + (*mode != 0); *at && *at != ','; at++)
		both |= *at == '+';
	if ((*mode != 'r' && *mode != 'w' && *mode != 'a') ||
	    ((flags & O_ACCMODE) == O_RDONLY && (both || *mode != 'r')) ||
	    ((flags & O_ACCMODE) == O_WRONLY && (both || *mode == 'r'))) {
		errno = EINVAL;
		return false;
	}
	return *mode != 'a' || flags & O_APPEND || real.fcntl(fd, F_SETFL, flags | O_APPEND) >= 0;
}

ZC_EXPORT FILE *fdopen(int fd, const char *mode)
{
	static const cookie_io_functions_t functions = { stream_read, stream_write, stream_seek, stream_close };
	struct conn *conn = table_conn(fd);
	FILE *file;

	sg_before_wait();
	if (conn && engine_is_there(conn)) {
		if (!mode_fits(fd, mode))
			return NULL;
		file = fopencookie((void *)(intptr_t)fd, mode, functions);
		if (file)
			file->_fileno = fd;
		return file;
	}
	if (conn)
		conn_detach(conn, REASON_DETACHED); /* stdio's calls stay inside libc */
	return real.fdopen(fd, mode);
}
