/* SPDX-License-Identifier: MIT */
/*
 * Readiness of connections with rings. To whoever sleeps in the kernel, a doorbell in the TCP stream is the readability of the
 * ring: as long as somebody does, or may, the lane is armed after every look, and a doorbell stays where it is until the ring
 * is empty. What is left to hide is a doorbell for bytes that a receive has taken in the meantime.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/far.h"
#include "preload/guest.h"

bool engine_is_watched(const struct conn *conn, const struct engine *engine)
{
	return atomic_load(&engine->sleepers) || atomic_load(&conn->attention) > 0 ||
	       atomic_load_explicit(&conn->signals, memory_order_relaxed) ||
	       atomic_load(&engine->holders.count) > 1; /* what another process waits for is not known here */
}

/* As lane_arm(), and a peer on another host hears of it. Under the lock. */
static bool arm_lane(struct conn *conn, struct engine *engine)
{
	bool empty = lane_arm(&engine->channel.in);

	return far_is(engine) ? far_arm(conn, engine) : empty;
}

static void take_bells(struct engine *engine, int fd, uint64_t due)
{
	char bells[64];

	while (due) {
		long got = sys_call(SYS_recvfrom, fd, (long)bells, (long)(due < sizeof(bells) ? due : sizeof(bells)),
				    MSG_DONTWAIT, 0, 0);

		if (got <= 0) { /* between hosts a SWITCH counts some that have not come */
			if (far_is(engine))
				far_keep_error(engine, got);
			return;
		}
		lane_saw_bells(&engine->channel.in, (uint64_t)got);
		due -= (uint64_t)got;
	}
}

/* A look at the byte itself would use up a reset of a peer that was killed as it rang; in a sandbox it is all that is allowed for certain. */
static bool has_bytes(int fd)
{
	int bytes = 0;
	char byte;

	if (guest_sandboxed())
		return sys_call(SYS_recvfrom, fd, (long)&byte, 1, MSG_DONTWAIT | MSG_PEEK, 0, 0) == 1;
	return sys_call(SYS_ioctl, fd, FIONREAD, (long)&bytes, 0, 0, 0) >= 0 && bytes > 0;
}

/*
 * A doorbell that the peer has not counted yet may as well not get into the stream, where raw bytes may follow: it is one if
 * a byte was there while the peer was still at it.
 */
static uint64_t bells_to_take(const struct lane *in, int fd)
{
	uint64_t due = lane_bells_sure(in);

	if (due || !lane_bells_due(in))
		return due;
	if (!has_bytes(fd))
		return 0;
	return lane_bells_due(in) ? 1 : 0;
}

void engine_strip(struct conn *conn, struct engine *engine, int fd)
{
	struct lane *in = &engine->channel.in;
	uint64_t due = bells_to_take(in, fd);

	/* Armed first: a doorbell that comes now is for bytes that come now, and is not taken. */
	if (engine_is_watched(conn, engine) && !arm_lane(conn, engine))
		return;
	if (due)
		take_bells(engine, fd, due);
}

bool engine_arm(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;
	bool empty;

	if (!engine_reads(engine) || !lock_take(&engine->in, &hold))
		return true;
	far_look(conn, engine, conn_fd(conn));
	empty = arm_lane(conn, engine);
	lock_give(&engine->in, &hold);
	return empty;
}

void engine_disarm(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;

	if (!engine_met(engine) || !lock_take(&engine->in, &hold))
		return;
	/* Whoever is about to sleep counts himself, and then arms under this lock. */
	if (!engine_is_watched(conn, engine))
		atomic_store(&engine->channel.in.shared->armed, 0);
	lock_give(&engine->in, &hold);
}

/* Moves of the lane at the front of the ring are no bytes: they are taken note of. Under the lock. */
static void pass_marks(struct lane *in)
{
	size_t none;

	lane_get(in, NULL, 0, false, &none);
}

void engine_watch(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);

	if (!engine)
		return;
	engine_arm(conn, engine);
	engine_leave(conn);
}

/* Arms the lane, or the device. Under the lock. Returns whether there is something. */
static bool begin_sleep(struct conn *conn, struct engine *engine, bool polls, struct engine_sleep *sleep)
{
	*sleep = (struct engine_sleep){ conn, engine, -1, false };
	if (polls && engine_reads(engine) && far_is(engine))
		sleep->link = far_rests(conn, engine);
	if (sleep->link >= 0)
		return !lane_is_empty(&engine->channel.in);
	/* Counted before they have met, too: they may meet while this thread sleeps. */
	atomic_fetch_add(&engine->sleepers, 1);
	return engine_reads(engine) && !arm_lane(conn, engine);
}

bool engine_sleeps(struct conn *conn, int fd, bool polls, struct engine_sleep *sleep)
{
	struct engine *engine = engine_enter(conn, fd);
	struct lock_hold hold;
	bool ready = false;

	if (!engine)
		return false;
	if (!lock_take(&engine->in, &hold)) {
		engine_leave(conn);
		return false;
	}
	if (engine_reads(engine)) {
		far_look_quickly(conn, engine, fd);
		pass_marks(&engine->channel.in);
		far_look_quickly(conn, engine, fd); /* behind a move there is something else in the stream */
	}
	ready = begin_sleep(conn, engine, polls, sleep);
	lock_give(&engine->in, &hold);
	return ready;
}

int engine_rests(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;
	int link = -1;

	if (!engine_reads(engine) || !lock_take(&engine->in, &hold))
		return -1;
	far_look_quickly(conn, engine, conn_fd(conn));
	pass_marks(&engine->channel.in);
	if (engine_reads(engine))
		link = far_rests(conn, engine);
	lock_give(&engine->in, &hold);
	return link;
}

void engine_wakes(struct engine_sleep *sleep)
{
	if (!sleep->conn)
		return;
	if (sleep->link >= 0)
		far_rises(sleep->conn, sleep->engine, sleep->told);
	else
		atomic_fetch_sub(&sleep->engine->sleepers, 1);
	engine_leave(sleep->conn);
	sleep->conn = NULL;
}

/*
 * With an empty ring. The end of the stream is the program's to see, whatever is due: a peer that was killed while it rang never
 * counts that doorbell.
 */
static bool has_doorbells_alone(const struct engine *engine, int fd)
{
	const struct lane *in = &engine->channel.in;
	struct pollfd look = { .fd = fd, .events = POLLIN | POLLRDHUP };

	if (sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) != 1)
		return true;
	return !(look.revents & (POLLRDHUP | POLLHUP | POLLERR)) && (lane_bells_due(in) || far_is_control(engine));
}

enum engine_ready engine_look(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);
	enum engine_ready ready = ENGINE_NOT_OURS;
	struct lock_hold hold;

	if (!engine)
		return ENGINE_NOT_OURS;
	if (engine_reads(engine) && lock_take(&engine->in, &hold)) {
		struct lane *in = &engine->channel.in;

		atomic_store(&engine->kernel_told, true);
		far_look(conn, engine, fd);
		pass_marks(in);
		far_look_quickly(conn, engine, fd);
		engine_strip(conn, engine, fd);
		if (!lane_is_empty(in))
			ready = ENGINE_READABLE;
		else if (has_doorbells_alone(engine, fd))
			ready = far_has_part(engine) ? ENGINE_PART : ENGINE_SPURIOUS;
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
	return ready;
}

/* How many of the bytes in the stream are data. */
static int data_of(struct engine *engine, int fd, int raw)
{
	uint64_t due;

	if (far_is(engine))
		return (int)far_data_there(engine, fd, (size_t)raw);
	due = lane_bells_due(&engine->channel.in);
	return due < (uint64_t)raw ? raw - (int)due : 0;
}

bool engine_is_before_raw(struct conn *conn, int fd)
{
	struct engine *engine = engine_enter(conn, fd);
	bool is;

	if (!engine)
		return false;
	is = engine_met(engine) && lane_unread(&engine->channel.in) > 0;
	engine_leave(conn);
	return is;
}

bool engine_unread(struct conn *conn, int fd, int *out)
{
	struct engine *engine = engine_enter(conn, fd);
	struct lock_hold hold;
	bool known = false;

	if (!engine)
		return false;
	if (engine_reads(engine) && lock_take(&engine->in, &hold)) {
		struct lane *in = &engine->channel.in;
		int raw = 0;

		far_look(conn, engine, fd);
		pass_marks(in);
		far_look(conn, engine, fd);
		if (far_is(engine))
			far_fetch_there(conn, engine);
		if (sys_call(SYS_ioctl, fd, FIONREAD, (long)&raw, 0, 0, 0) >= 0) {
			known = true;
			raw = data_of(engine, fd, raw);
			raw = lane_raw_max(in) < (size_t)raw ? (int)lane_raw_max(in) : raw;
			*out = raw + (int)lane_unread(in);
		}
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
	return known;
}
