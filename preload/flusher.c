/* SPDX-License-Identifier: MIT */
/*
 * The flusher: the thread that hands over what sg holds when its time is up, when a buffer that was full after all has room
 * again, and after close. It exists from the first hold on, blocks all signals, and sleeps for good when nothing is held.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/room.h"
#include "common/sys.h"
#include "common/thread.h"
#include "preload/gate.h"
#include "preload/sg.h"

#define STACK_BYTES (64 * 1024)
#define ADOPTED_MAX 16
#define IDLE_ROUNDS 8  /* rounds without anything held before it sleeps for good */
#define FINISH_MS 1000 /* longest time that an exit waits for adopted bytes */

enum { ABSENT, STARTING, RUNNING, FAILED };

struct adopted {
	_Atomic int fd; /* + 1; 0: free; -1: being filled */
	uint8_t *memory;
	size_t from, bytes;
};

static _Atomic int state;
static _Atomic int wake_fd = -1;
static _Atomic bool asleep;
static struct adopted adopted[ADOPTED_MAX];

static void drop(struct adopted *entry)
{
	sys_call(SYS_close, atomic_load(&entry->fd) - 1, 0, 0, 0, 0, 0);
	sys_call(SYS_munmap, (long)entry->memory, (long)settings.sg_bytes_max, 0, 0, 0, 0);
	atomic_store(&entry->fd, 0);
}

static void push_adopted(struct adopted *entry)
{
	int fd = atomic_load(&entry->fd) - 1;
	long taken = sys_call(SYS_sendto, fd, (long)(entry->memory + entry->from), (long)entry->bytes,
			      MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);

	if (taken == -EAGAIN || taken == -EINTR || taken == -ENOBUFS || taken == -ENOMEM)
		return;
	if (taken >= 0 && (size_t)taken < entry->bytes) {
		entry->from += (size_t)taken;
		entry->bytes -= (size_t)taken;
		return;
	}
	drop(entry);
}

bool flusher_adopt(int fd, uint8_t *memory, size_t bytes)
{
	long copy = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, SYS_FD_HIGH, 0, 0, 0);

	for (int i = 0; copy >= 0 && i < ADOPTED_MAX; i++) {
		int none = 0;

		if (!atomic_compare_exchange_strong(&adopted[i].fd, &none, -1))
			continue;
		adopted[i].memory = memory;
		adopted[i].from = 0;
		adopted[i].bytes = bytes;
		atomic_store(&adopted[i].fd, (int)copy + 1);
		flusher_kick();
		return true;
	}
	if (copy >= 0)
		sys_call(SYS_close, copy, 0, 0, 0, 0, 0);
	return false;
}

void flusher_finish(void)
{
	uint64_t until = clock_now() + FINISH_MS * NS_PER_MS;

	for (int i = 0; i < ADOPTED_MAX; i++) {
		while (atomic_load(&adopted[i].fd) > 0 && clock_now() < until) {
			struct pollfd wait = { .fd = atomic_load(&adopted[i].fd) - 1, .events = POLLOUT };

			sys_call(SYS_poll, (long)&wait, 1, FINISH_MS, 0, 0, 0);
			if (atomic_load(&state) != RUNNING)
				push_adopted(&adopted[i]);
		}
	}
}

/* Hands over what is due in one slot. Returns when the slot wants to be looked at again, UINT64_MAX for not by time. */
static uint64_t serve(struct hold_slot *slot, uint64_t now)
{
	struct conn *conn = atomic_load(&slot->conn);
	uint64_t due = atomic_load(&slot->due_ns);
	struct lock_hold hold;

	if (!conn)
		return UINT64_MAX;
	if (atomic_load(&slot->backed_up) > 0 || due > now)
		return atomic_load(&slot->backed_up) > 0 ? UINT64_MAX : due;
	if (!lock_take(&conn->lock, &hold))
		return due;
	if (conn->sg.slot == slot && atomic_load(&slot->due_ns) <= now) {
		sg_expired(conn);
		sg_flush(conn);
	}
	lock_give(&conn->lock, &hold);
	return UINT64_MAX;
}

static void serve_backed_up(struct hold_slot *slot)
{
	struct conn *conn = atomic_load(&slot->conn);
	struct lock_hold hold;

	if (!conn || !lock_take(&conn->lock, &hold))
		return;
	if (conn->sg.slot == slot) {
		atomic_store(&slot->backed_up, 0);
		sg_flush(conn);
	}
	lock_give(&conn->lock, &hold);
}

/* What the flusher waits for in one round. */
struct round {
	struct pollfd fds[1 + SG_SLOTS + ADOPTED_MAX];
	int slot_of[1 + SG_SLOTS + ADOPTED_MAX];
	int count;
	bool busy;
	uint64_t next;
};

static void await(struct round *round, int fd, int slot, short events)
{
	round->fds[round->count] = (struct pollfd){ .fd = fd, .events = events };
	round->slot_of[round->count++] = slot;
}

static void look(struct round *round)
{
	uint64_t now = clock_now();

	round->count = 0;
	round->busy = false;
	round->next = UINT64_MAX;
	await(round, atomic_load(&wake_fd), -1, POLLIN);
	for (int i = 0; i < SG_SLOTS; i++) {
		uint64_t next = serve(&sg_slots[i], now);
		int backed_up = atomic_load(&sg_slots[i].backed_up);

		round->next = next < round->next ? next : round->next;
		round->busy |= atomic_load(&sg_slots[i].conn) != NULL;
		if (backed_up > 0)
			await(round, backed_up - 1, i, POLLOUT);
	}
	for (int i = 0; i < ADOPTED_MAX; i++) {
		if (atomic_load(&adopted[i].fd) > 0)
			await(round, atomic_load(&adopted[i].fd) - 1, SG_SLOTS + i, POLLOUT);
	}
}

static void wait_round(struct round *round, uint64_t until)
{
	uint64_t now = clock_now();
	uint64_t rest = until > now ? until - now : 0;
	struct timespec time = { (time_t)(rest / NS_PER_SEC), (long)(rest % NS_PER_SEC) };
	uint64_t drained;

	if (sys_call(SYS_ppoll, (long)round->fds, round->count, until == UINT64_MAX ? 0 : (long)&time, 0, 8, 0) <= 0)
		return;
	if (round->fds[0].revents)
		sys_call(SYS_read, round->fds[0].fd, (long)&drained, sizeof(drained), 0, 0, 0);
	for (int i = 1; i < round->count; i++) {
		int slot = round->slot_of[i];

		if (!round->fds[i].revents)
			continue;
		if (slot < SG_SLOTS)
			serve_backed_up(&sg_slots[slot]);
		else
			push_adopted(&adopted[slot - SG_SLOTS]);
	}
}

static void *flusher_run(void *unused)
{
	struct round round;
	int quiet = 0;

	sys_call(SYS_prctl, PR_SET_TIMERSLACK, 1, 0, 0, 0, 0);
	for (;;) {
		look(&round);
		quiet = round.busy ? 0 : quiet + 1;
		if (round.next != UINT64_MAX || quiet < IDLE_ROUNDS) {
			uint64_t tick = clock_now() + settings.sg_hold_us * NS_PER_US;

			wait_round(&round, round.next < tick ? round.next : tick);
			continue;
		}
		/* Announce the sleep, then look once more: who held in between either sees the flag or is seen. */
		atomic_store(&asleep, true);
		look(&round);
		if (round.next == UINT64_MAX)
			wait_round(&round, UINT64_MAX);
		atomic_store(&asleep, false);
		quiet = 0;
	}
	return unused;
}

bool flusher_ready(void)
{
	int now = atomic_load_explicit(&state, memory_order_acquire);
	int saved = errno, rc;
	long fd;

	if (now == RUNNING)
		return true;
	if (now != ABSENT || !atomic_compare_exchange_strong(&state, &now, STARTING))
		return false;
	fd = room_for_own() ? sys_call(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0) : -EMFILE;
	if (fd < 0)
		goto fail;
	atomic_store(&wake_fd, sys_fd_raise((int)fd));
	table_own_add(atomic_load(&wake_fd));
	gate_enter(); /* libc's locks for stacks: a child of a fork past libc would find them taken for ever */
	rc = thread_start(flusher_run, NULL, STACK_BYTES);
	gate_leave();
	if (rc)
		goto close_fd;
	atomic_store_explicit(&state, RUNNING, memory_order_release);
	errno = saved;
	return true;
close_fd:
	table_own_add(-1);
	sys_call(SYS_close, atomic_exchange(&wake_fd, -1), 0, 0, 0, 0, 0);
fail:
	atomic_store(&state, FAILED);
	log_warn("sg holds nothing: no thread or descriptor for its deadline");
	errno = saved;
	return false;
}

void flusher_kick(void)
{
	static const uint64_t one = 1;

	if (atomic_load(&asleep))
		sys_call(SYS_write, atomic_load(&wake_fd), (long)&one, sizeof(one), 0, 0, 0);
}

void flusher_after_fork(void)
{
	int fd = atomic_exchange(&wake_fd, -1);

	for (int i = 0; i < SG_SLOTS; i++) {
		atomic_store(&sg_slots[i].conn, NULL);
		atomic_store(&sg_slots[i].due_ns, 0);
		atomic_store(&sg_slots[i].backed_up, 0);
	}
	for (int i = 0; i < ADOPTED_MAX; i++) {
		if (atomic_load(&adopted[i].fd) > 0)
			drop(&adopted[i]); /* the parent sends them */
		atomic_store(&adopted[i].fd, 0);
	}
	if (fd >= 0) {
		table_own_add(-1);
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	}
	atomic_store(&asleep, false);
	if (atomic_load(&state) != FAILED)
		atomic_store(&state, ABSENT);
}
