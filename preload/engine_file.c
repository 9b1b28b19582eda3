/* SPDX-License-Identifier: MIT */
/* sendfile() of a connection whose lane is on the ring: the file is read straight into it. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>

#include "common/sys.h"
#include "preload/engine_join.h"
#include "preload/engine_out.h"
#include "preload/far.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/send.h"

/* A call of the program: what it wants, and where the next byte is; NULL: where the file is. */
struct file {
	int fd;
	off64_t *offset;
	size_t bytes;
};

static bool is_regular(int fd)
{
	struct stat status;

	return !sys_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) && S_ISREG(status.st_mode);
}

static long read_at(const struct file *file, void *to, size_t bytes, size_t done)
{
	if (!file->offset)
		return sys_call(SYS_read, file->fd, (long)to, (long)bytes, 0, 0, 0);
	return sys_call(SYS_pread64, file->fd, (long)to, (long)bytes, *file->offset + (long)done, 0, 0);
}

/* Returns bytes, 0 at the end of the file, or -errno; *full: there was no room for the rest. */
static ssize_t put_file(struct conn *far, int fd, struct lane *lane, const struct file *file, bool *full)
{
	struct patience patience = { .bytes = file->bytes, .far = far, .waits = far && conn_waits(fd, 0) };
	size_t done = 0;

	*full = false;
	while (done < file->bytes) {
		size_t left = file->bytes - done;
		void *to;
		ssize_t room = lane_space(lane, left, &to);
		long got;

		if (room < 0)
			return room;
		if ((size_t)room < left && room < ROOM_STEP) {
			*full = !engine_has_patience(lane, &patience);
			if (*full && !room)
				break;
			if (!*full)
				continue;
		}
		got = read_at(file, to, (size_t)room, done);
		if (got <= 0)
			return done ? (ssize_t)done : got;
		lane_filled(lane, (size_t)got);
		done += (size_t)got;
	}
	return (ssize_t)done;
}

/* Returns as engine_put_ends. Under the lock. */
static ssize_t put(struct conn *conn, struct engine *engine, int fd, const struct file *file, bool *full)
{
	ssize_t put, done;

	if (far_is(engine) && far_is_between(engine))
		return ENGINE_BY_KERNEL; /* another thread has just moved the lane; 0 would be the end of the file */
	if (!engine_put_begins(conn, engine, fd, SIZE_MAX))
		return ENGINE_BY_KERNEL;
	put = put_file(far_is(engine) ? conn : NULL, fd, &engine->channel.out, file, full);
	if (put < 0 && put != -EPROTO)
		return ENGINE_BY_KERNEL; /* which says why */
	if (!put)
		return 0;
	done = engine_put_ends(conn, engine, fd, put, *full ? file->bytes : (size_t)(put < 0 ? 0 : put));
	if (!file->offset && put > 0 && done < put) /* taken back, or the kernel's answer is an error */
		sys_call(SYS_lseek, file->fd, (done < 0 ? 0 : done) - put, SEEK_CUR, 0, 0, 0);
	if (done < 0)
		return done;
	if (file->offset)
		*file->offset += done;
	*full |= done < put;
	return done;
}

/* A lane to another host is moved in sight of the byte that comes next. Returns 0 or -errno. */
static int before_far(struct conn *conn, struct engine *engine, int fd, const struct file *file)
{
	long at = file->offset ? *file->offset : sys_call(SYS_lseek, file->fd, 0, SEEK_CUR, 0, 0, 0);
	uint8_t first;

	if (sys_call(SYS_pread64, file->fd, (long)&first, 1, at, 0, 0) != 1)
		return 0;
	return far_before_send(conn, engine, fd, (struct far_first){ first, file->bytes }, 0);
}

/* The rest, as the program's own call would. */
static ssize_t send_rest(struct conn *conn, int fd, const struct file *file, ssize_t done)
{
	__attribute__((cleanup(engine_raw_ends))) struct engine_raw raw = engine_raw_begins(conn, fd, 0);

	raw.done = raw.error ? -1 : real.sendfile64(fd, file->fd, file->offset, file->bytes - (size_t)done);
	if (raw.done < 0)
		return done ? done : raw.error ? raw.error : -errno;
	stats_sent(conn->slot, PATH_COPY, (uint64_t)raw.done, 1);
	return done + raw.done;
}

ssize_t engine_sendfile(struct conn *conn, int fd, int in, off64_t *offset, size_t bytes)
{
	struct engine *engine = guest_sandboxed() ? NULL : engine_enter(conn, fd);
	struct file file = { in, offset, bytes };
	ssize_t done = ENGINE_BY_KERNEL;
	struct lock_hold hold;
	bool full = false;

	if (!engine)
		return ENGINE_BY_KERNEL;
	if (atomic_load_explicit(&engine->state, memory_order_relaxed) == ENGINE_APART)
		engine_step(conn, engine, fd);
	if (engine_met(engine) && bytes && is_regular(in)) {
		engine_may_be_cancelled(conn);
		done = far_is(engine) ? before_far(conn, engine, fd, &file) : 0;
		if (!done && lock_take(&engine->out, &hold)) {
			done = put(conn, engine, fd, &file, &full);
			if (done >= 0)
				join_count(conn, PATH_BSDP, (uint64_t)done);
			lock_give(&engine->out, &hold);
		}
	}
	engine_leave(conn);
	if (done < 0)
		return send_tells(done, 0);
	return full ? send_rest(conn, fd, &file, done) : done;
}
