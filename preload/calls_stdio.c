/* SPDX-License-Identifier: MIT */
/*
 * stdio on a connection: FILE's own reads and writes are calls inside libc that nobody can intercept. Where the bytes may be in
 * a ring the stream gets functions of ours instead (fopencookie), and keeps its descriptor's number for fileno(). Where they
 * can't, the connection is left to libc. So is one that comes to the numbers of stdin, stdout and stderr: their streams are libc's.
 *
 * fclose() and freopen() give a number up inside libc. What the stream has not written yet leaves before that is noted, as it would
 * leave before the close.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <unistd.h>

#include "preload/conn.h"
#include "preload/engine.h"
#include "preload/evict.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/sg.h"
#include "preload/signals.h"
#include "preload/stdio.h"

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

/* No socket has a position; what the number may be after freopen() has. */
static int stream_seek(void *cookie, off64_t *offset, int whence)
{
	off64_t at = lseek64((int)(intptr_t)cookie, *offset, whence);

	if (at < 0)
		return -1;
	*offset = at;
	return 0;
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

/* What libc calls for a stream, behind its FILE: of streams with functions it is always the same. */
static const void *functions_of(const FILE *file)
{
	return *(const void *const *)(file + 1);
}

static const void *_Atomic functions_of_ours; /* NULL: there is none */

/* The program's own streams with functions have no number. */
static bool is_ours(const FILE *file)
{
	const void *functions = atomic_load_explicit(&functions_of_ours, memory_order_relaxed);

	return functions && file && file->_fileno >= 0 && functions_of(file) == functions;
}

static FILE *make_stream(int fd, const char *mode)
{
	static const cookie_io_functions_t functions = { stream_read, stream_write, stream_seek, stream_close };
	FILE *file = fopencookie((void *)(intptr_t)fd, mode, functions);

	if (!file)
		return NULL;
	file->_fileno = fd;
	atomic_store_explicit(&functions_of_ours, functions_of(file), memory_order_relaxed);
	return file;
}

ZC_EXPORT FILE *fdopen(int fd, const char *mode)
{
	struct conn *conn = table_conn(fd);

	sg_before_wait();
	if (conn && engine_is_there(conn)) {
		if (!mode_fits(fd, mode))
			return NULL;
		return make_stream(fd, mode);
	}
	if (conn)
		conn_detach(conn, REASON_DETACHED); /* stdio's calls stay inside libc */
	return real.fdopen(fd, mode);
}

/*
 * Before libc closes the number of a stream, or puts a file there. What the stream can't write it would lose then as well. Returns
 * what fflush() does.
 */
static int gives_up(FILE *file)
{
	int fd = file ? file->_fileno : -1;
	uintptr_t entry = fd < 0 ? TABLE_UNKNOWN : table_entry(fd);
	int rc, saved = errno;

	sg_before_wait();
	if (__builtin_expect(entry == TABLE_UNKNOWN || entry == TABLE_OWN, 1))
		return 0;
	rc = fflush(file);
	if (rc) {
		saved = errno;
		__fpurge(file);
	}
	conn_close(fd);
	errno = saved;
	return rc;
}

ZC_EXPORT int fclose(FILE *file)
{
	int saved, wrote = gives_up(file);
	int rc;

	saved = errno;
	rc = real.fclose(file);
	if (wrote)
		errno = saved;
	return wrote ? wrote : rc;
}

#define MODES 0x100c /* of a FILE's flags: no reads, no writes, appending */

/* freopen() of libc's does not know streams with functions (it crashes): ours go on with what is put at their number. */
static FILE *reopen(FILE *file, FILE *opened)
{
	int fd = file->_fileno, saved;
	bool done;

	fflush(file);
	__fpurge(file);
	if (!opened) {
		saved = errno;
		close(fd);
		errno = saved;
		return NULL;
	}
	done = dup3(opened->_fileno, fd, real.fcntl(opened->_fileno, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0) == fd;
	file->_flags = (file->_flags & ~MODES) | (opened->_flags & MODES);
	clearerr(file);
	saved = errno;
	fclose(opened);
	errno = saved;
	return done ? file : NULL;
}

/* Another mode for what is open can't be had of a socket. */
static FILE *open_anew(const char *path, const char *mode)
{
	if (path)
		return fopen(path, mode);
	errno = ENXIO;
	return NULL;
}

#define REOPEN_CALL(name)                                                                                              \
	ZC_EXPORT FILE *name(const char *path, const char *mode, FILE *file)                                           \
	{                                                                                                              \
		gives_up(file);                                                                                        \
		return is_ours(file) ? reopen(file, open_anew(path, mode)) : real.name(path, mode, file);              \
	}

REOPEN_CALL(freopen)
REOPEN_CALL(freopen64)

static bool has_rest(struct conn *conn)
{
	struct engine *engine = engine_enter(conn, STDIN_FILENO);
	bool has = engine && engine_reads(engine);

	if (engine)
		engine_leave(conn);
	return has;
}

/* What was unread in the ring at that moment comes before the rest of the stream, and libc's own stdin would not find it. */
static void replace_stdin(void)
{
	FILE *before = stdin, *file;

	if (!before || before->_fileno != STDIN_FILENO || before->_IO_read_ptr != before->_IO_read_end ||
	    signals_interrupt())
		return;
	file = make_stream(STDIN_FILENO, "r");
	if (!file)
		return;
	if (before->_flags & 2) /* unbuffered */
		setvbuf(file, NULL, _IONBF, 0);
	stdin = file;
}

void stdio_gets(int fd)
{
	struct conn *conn = table_conn(fd);
	int saved = errno;

	if (!conn || guest_sandboxed() || !conn_process_is_ours())
		return;
	if (engine_is_there(conn))
		evict_all_of(conn);
	conn_detach(conn, REASON_DETACHED);
	if (fd == STDIN_FILENO && has_rest(conn))
		replace_stdin();
	errno = saved;
}
