/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/sg.h"

#include <errno.h>
#include <limits.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/guest.h"
#include "preload/real.h"

#define MINE_MAX 8
#define BURST 3	   /* sends of a turn from which on the next turn is taken for a burst too */
#define LATE_MAX 4 /* expiries in a row until holding is switched off */
#define CLOCK_EVERY 16

__thread uint32_t sg_mine __attribute__((tls_model("initial-exec")));
static __thread struct conn *mine[MINE_MAX] __attribute__((tls_model("initial-exec")));

struct hold_slot sg_slots[SG_SLOTS];

enum stat_reason sg_decide(struct conn *conn, size_t bytes, uint64_t now)
{
	struct sg *sg = &conn->sg;
	uint32_t turn = atomic_load_explicit(&sg->turn, memory_order_relaxed) + 1;
	uint32_t skip = atomic_load_explicit(&sg->skip, memory_order_relaxed);
	uint64_t last = atomic_load_explicit(&sg->last_ns, memory_order_relaxed);
	bool close_by = now - last < settings.sg_hold_us * NS_PER_US / 4;

	atomic_store_explicit(&sg->turn, turn, memory_order_relaxed);
	atomic_store_explicit(&sg->last_ns, now, memory_order_relaxed);
	if (skip) {
		atomic_store_explicit(&sg->skip, skip - 1, memory_order_relaxed);
		return REASON_SG_LATE;
	}
	if (turn == 1)
		return atomic_load_explicit(&sg->last_turn, memory_order_relaxed) >= BURST ? REASON_NONE :
											     REASON_NO_BURST;
	return close_by ? REASON_NONE : REASON_NO_BURST;
}

/* What the kernel certainly takes now. An skb's overhead counts against the buffer too: half of what is free. */
static bool has_room(struct conn *conn, int fd)
{
	uint32_t info[SK_MEMINFO_VARS];
	socklen_t bytes = sizeof(info);
	int64_t need = 2 * (int64_t)settings.sg_bytes_max;

	if (atomic_load_explicit(&conn->sg.room, memory_order_relaxed) >= need)
		return true;
	if (sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, (long)info, (long)&bytes, 0) < 0)
		return false;
	atomic_store_explicit(&conn->sg.room, (int64_t)info[SK_MEMINFO_SNDBUF] - (int64_t)info[SK_MEMINFO_WMEM_QUEUED],
			      memory_order_relaxed);
	return atomic_load_explicit(&conn->sg.room, memory_order_relaxed) >= need;
}

/* Whether the connection is known to be over, so that the send has to fail right now. */
static bool is_over(int fd)
{
	struct pollfd look = { .fd = fd };

	return sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) > 0 && look.revents & POLLHUP;
}

static struct hold_slot *slot_get(struct conn *conn)
{
	static __thread uint32_t hint __attribute__((tls_model("initial-exec")));

	for (uint32_t n = 0; n < SG_SLOTS; n++) {
		uint32_t i = (hint + n) % SG_SLOTS;
		struct conn *none = NULL;

		if (atomic_load_explicit(&sg_slots[i].conn, memory_order_relaxed) ||
		    !atomic_compare_exchange_strong(&sg_slots[i].conn, &none, conn))
			continue;
		hint = i;
		return &sg_slots[i];
	}
	return NULL;
}

static bool slot_prepare(struct hold_slot *slot)
{
	if (!slot->arena)
		slot->arena = sys_map(settings.sg_bytes_max, MAP_PRIVATE);
	return slot->arena != NULL;
}

static void slot_put(struct conn *conn)
{
	struct hold_slot *slot = conn->sg.slot;

	/* Counted here and not with each send: a burst of tiny ones has no time to spare. */
	stats_add(&stats->slot[conn->slot].path[PATH_SG][STAT_PATH_CALLS], conn->sg.batch);
	stats_add(&stats->slot[conn->slot].path[PATH_SG][STAT_PATH_BYTES], conn->sg.batch_bytes);
	conn->sg.batch = 0;
	conn->sg.batch_bytes = 0;
	atomic_store_explicit(&conn->sg.held, 0, memory_order_relaxed);
	conn->sg.slot = NULL;
	atomic_store_explicit(&slot->due_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->backed_up, 0, memory_order_relaxed);
	atomic_store_explicit(&slot->conn, NULL, memory_order_release);
}

static inline void remember_mine(struct conn *conn)
{
	if (sg_mine && mine[sg_mine - 1] == conn)
		return;
	for (uint32_t i = 0; i < sg_mine; i++) {
		if (mine[i] == conn)
			return;
	}
	/* With more than MINE_MAX the flusher's deadline alone bounds the oldest one. */
	if (sg_mine == MINE_MAX)
		memmove(mine, mine + 1, sizeof(mine[0]) * (size_t)--sg_mine);
	mine[sg_mine++] = conn;
}

/* Begins to hold. Returns 0 or the reason why not. */
static enum stat_reason begin(struct conn *conn, int fd, uint64_t now)
{
	struct hold_slot *slot;

	if (guest_sandboxed() || atomic_load_explicit(&guest_ending, memory_order_relaxed))
		return REASON_SECCOMP;
	if (!conn_is_same(conn, fd))
		return REASON_DETACHED;
	if (!has_room(conn, fd) || is_over(fd))
		return REASON_SG_BACKED_UP;
	if (!flusher_ready())
		return REASON_NO_MEMORY;
	slot = slot_get(conn);
	if (!slot)
		return REASON_NO_MEMORY;
	conn->sg.slot = slot;
	if (!slot_prepare(slot)) {
		slot_put(conn);
		return REASON_NO_MEMORY;
	}
	atomic_store(&slot->due_ns, now + settings.sg_hold_us * NS_PER_US);
	flusher_kick();
	return REASON_NONE;
}

/* Hands what is held, followed by iov, to the kernel. Returns how many bytes it took, or -errno. */
static ssize_t hand_over(struct conn *conn, int fd, const struct iovec *iov, int count)
{
	struct iovec all[1 + SG_SPANS_MAX];
	struct msghdr message = { .msg_iov = all, .msg_iovlen = 1 + (size_t)count };
	ssize_t taken;

	all[0].iov_base = conn->sg.slot->arena;
	all[0].iov_len = atomic_load_explicit(&conn->sg.held, memory_order_relaxed);
	if (count)
		memcpy(all + 1, iov, sizeof(*iov) * (size_t)count);
	taken = sys_call(SYS_sendmsg, fd, (long)&message, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0, 0);
	stats_add(&stats->slot[conn->slot].path[PATH_SG][STAT_PATH_SYSCALLS], 1);
	if (taken ==
	    -ENOTSOCK) /* the number was reused behind our back: do what the program's own write would have done */
		taken = sys_call(SYS_writev, fd, (long)all, 1 + count, 0, 0, 0);
	if (taken > 0)
		sg_sent(conn, (size_t)taken);
	return taken;
}

/* Books the result of hand_over. Returns the bytes taken beyond what was held, or -EAGAIN when some of that stays. */
static ssize_t settle_held(struct conn *conn, ssize_t taken)
{
	struct sg *sg = &conn->sg;
	uint32_t held = atomic_load_explicit(&sg->held, memory_order_relaxed);

	stats_conn(conn->slot, STAT_CONN_SG_FLUSHES, 1);
	if (taken >= (ssize_t)held) {
		slot_put(conn);
		return taken - (ssize_t)held;
	}
	if (taken > 0) {
		memmove(sg->slot->arena, sg->slot->arena + taken, held - (size_t)taken);
		atomic_store_explicit(&sg->held, held - (uint32_t)taken, memory_order_relaxed);
	}
	if (taken >= 0 || taken == -EAGAIN || taken == -ENOBUFS || taken == -ENOMEM || taken == -EINTR) {
		atomic_store(&sg->slot->backed_up, conn_fd(conn) + 1);
		flusher_kick();
		return -EAGAIN;
	}
	atomic_store(&sg->error, (int)-taken);
	slot_put(conn);
	return 0;
}

int sg_flush(struct conn *conn)
{
	ssize_t rc;

	if (!conn->sg.slot)
		return 0;
	rc = settle_held(conn, hand_over(conn, conn_fd(conn), NULL, 0));
	return rc < 0 ? (int)rc : 0;
}

/* Copies a send behind what is held. */
static inline void append(struct conn *conn, const void *data, size_t bytes)
{
	uint32_t held = atomic_load_explicit(&conn->sg.held, memory_order_relaxed);

	memcpy(conn->sg.slot->arena + held, data, bytes);
	atomic_store_explicit(&conn->sg.held, held + (uint32_t)bytes, memory_order_relaxed);
	conn->sg.batch_bytes += bytes;
}

ssize_t sg_hold(struct conn *conn, int fd, const struct iovec *iov, int count, size_t bytes, uint64_t now)
{
	struct sg *sg = &conn->sg;
	enum stat_reason why;
	ssize_t taken, rc;

	if (!sg->slot) {
		if (now == SG_NOW_OR_NEVER)
			return -EAGAIN;
		why = begin(conn, fd, now);
		if (why != REASON_NONE) {
			stats_reason(conn->slot, why);
			return -EAGAIN;
		}
	}
	remember_mine(conn);
	if (atomic_load_explicit(&sg->held, memory_order_relaxed) + bytes <= settings.sg_bytes_max &&
	    now < atomic_load_explicit(&sg->slot->due_ns, memory_order_relaxed)) {
		for (int i = 0; i < count; i++)
			append(conn, iov[i].iov_base, iov[i].iov_len);
		sg->batch++;
		return (ssize_t)bytes;
	}
	atomic_store_explicit(&sg->late, 0, memory_order_relaxed);
	taken = hand_over(conn, fd, iov, count);
	if (taken == -EFAULT) { /* of this send, which the kernel is to tell: what is held was good */
		rc = settle_held(conn, hand_over(conn, fd, NULL, 0));
		return rc < 0 ? rc : -EAGAIN;
	}
	taken = settle_held(conn, taken);
	if (taken > 0)
		stats_sent(conn->slot, PATH_SG, (uint64_t)taken, 0);
	return taken;
}

bool sg_join(struct conn *conn, int fd, const void *data, size_t bytes)
{
	struct sg *sg = &conn->sg;
	struct lock_hold hold;
	bool joins;

	if (bytes - 1 >= settings.sg_send_max || !conn_enter(conn, fd, &hold))
		return false;
	/* Every CLOCK_EVERY-th takes the long way, which looks at the clock; the flusher sees to the rest. */
	joins = sg->slot && sg->batch % CLOCK_EVERY &&
		atomic_load_explicit(&sg->held, memory_order_relaxed) + bytes <= settings.sg_bytes_max &&
		!atomic_load_explicit(&sg->slot->backed_up, memory_order_relaxed);
	if (joins) {
		remember_mine(conn);
		append(conn, data, bytes);
		sg->batch++;
		atomic_store_explicit(&sg->turn, atomic_load_explicit(&sg->turn, memory_order_relaxed) + 1,
				      memory_order_relaxed);
	}
	conn_leave(conn, &hold);
	return joins;
}

void sg_flush_mine(bool turn_ends)
{
	struct conn *now[MINE_MAX];
	struct lock_hold hold;
	uint32_t count;

	unseen_settle();
	count = sg_mine;
	/* Copied first: a signal handler may send, and wait, in between. */
	memcpy(now, mine, sizeof(mine[0]) * count);
	sg_mine = 0;
	for (uint32_t i = 0; i < count; i++) {
		struct conn *conn = now[i];

		if (!lock_take(&conn->lock, &hold))
			continue;
		sg_flush(conn);
		if (turn_ends)
			sg_turn_ends(conn);
		atomic_store_explicit(&conn->sg.late, 0, memory_order_relaxed);
		lock_give(&conn->lock, &hold);
	}
}

void sg_flush_all(void)
{
	struct lock_hold hold;

	/*
	 * A child of vfork has its parent's memory, but not the descriptors that other threads have opened or closed since: there
	 * a number may be another connection. The bytes are the parent's, which goes on sending them.
	 */
	if (!conn_process_is_ours())
		return;
	for (int i = 0; i < SG_SLOTS; i++) {
		struct conn *conn = atomic_load(&sg_slots[i].conn);

		if (!conn || !lock_take(&conn->lock, &hold))
			continue;
		sg_flush(conn);
		lock_give(&conn->lock, &hold);
	}
}

int sg_drain(struct conn *conn, int fd, bool may_wait)
{
	struct pollfd wait = { .fd = fd, .events = POLLOUT };
	struct lock_hold hold;
	uint64_t cookie = 0;
	int rc;

	for (;;) {
		if (!conn_enter(conn, fd, &hold))
			return cookie ? -EBADF : 0;
		rc = cookie && conn->cookie != cookie ? -EBADF : sg_flush(conn);
		cookie = conn->cookie;
		conn_leave(conn, &hold);
		if (rc != -EAGAIN || !may_wait)
			return rc;
		if (real.poll(&wait, 1, -1) < 0)
			return -errno;
	}
}

void sg_expired(struct conn *conn)
{
	struct sg *sg = &conn->sg;
	uint32_t late = atomic_load_explicit(&sg->late, memory_order_relaxed) + 1;

	stats_conn(conn->slot, STAT_CONN_SG_EXPIRED, 1);
	if (sg->batch >= BURST)
		return; /* it paid */
	atomic_store_explicit(&sg->late, late, memory_order_relaxed);
	if (late >= LATE_MAX) {
		uint32_t shift = late - LATE_MAX < 6 ? late - LATE_MAX : 6;

		atomic_store_explicit(&sg->skip, 64u << shift, memory_order_relaxed);
	}
	atomic_store_explicit(&sg->last_turn, 0, memory_order_relaxed);
}

void sg_close(struct conn *conn, int fd)
{
	struct pollfd wait = { .fd = fd, .events = POLLOUT };
	struct hold_slot *slot = conn->sg.slot;

	if (!slot || !sg_flush(conn))
		return;
	/* Rare: the kernel's buffer shrank. A duplicate keeps the socket until its bytes are gone; the flusher closes it. */
	if (flusher_adopt(fd, slot->arena, atomic_load(&conn->sg.held))) {
		slot->arena = NULL;
		slot_put(conn);
		return;
	}
	while (sg_flush(conn) == -EAGAIN)
		sys_call(SYS_poll, (long)&wait, 1, -1, 0, 0, 0);
}

void sg_after_fork(struct conn *conn)
{
	conn->sg.slot = NULL;
	atomic_store(&conn->sg.held, 0);
	sg_mine = 0;
}
