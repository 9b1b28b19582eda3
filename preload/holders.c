/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/holders.h"

#include <errno.h>
#include <poll.h>

#include "common/sys.h"
#include "preload/guest.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define GONE 0x80000000u /* in the place of one that does not count any more; no process has such a number */

static uint64_t entry(const struct holder *holder, int process)
{
	return (uint64_t)holder->place << 32 | (uint32_t)process;
}

struct holder holders_start(struct holders *holders, int process)
{
	struct holder self = holders_expect(holders);

	holders_name(holders, &self, process);
	return self;
}

struct holder holders_expect(struct holders *holders)
{
	struct holder holder = { .counts = true, .place = atomic_fetch_add(&holders->places, 1) + 1 };

	atomic_fetch_add(&holders->count, 1);
	for (; holder.at < HOLDERS_KNOWN; holder.at++) {
		uint64_t free = 0;

		if (atomic_compare_exchange_strong(&holders->known[holder.at], &free, entry(&holder, 0)))
			break;
	}
	return holder;
}

void holders_name(struct holders *holders, const struct holder *holder, int process)
{
	uint64_t unnamed = entry(holder, 0);

	/* Not if the other one was faster; it may even have left already, and somebody else have come. */
	if (holder->counts && holder->at < HOLDERS_KNOWN)
		atomic_compare_exchange_strong(&holders->known[holder->at], &unnamed, entry(holder, process));
}

bool holders_leave(struct holders *holders, struct holder *holder)
{
	if (!holder->counts)
		return false;
	/* First marked, then out of the count: if it is killed in between, it counts for ever, but never twice less. */
	if (holder->at < HOLDERS_KNOWN)
		atomic_fetch_or(&holders->known[holder->at], GONE);
	holder->counts = false;
	return atomic_fetch_sub(&holders->count, 1) == 1;
}

void holders_return(struct holders *holders, struct holder *holder, int process)
{
	if (!holder->place) {
		*holder = holders_start(holders, process);
		return;
	}
	holder->place =
		atomic_fetch_add(&holders->places, 1) + 1; /* whoever looks at them sees that somebody has come */
	atomic_fetch_add(&holders->count, 1);
	if (holder->at < HOLDERS_KNOWN)
		atomic_store(&holders->known[holder->at], entry(holder, process));
	holder->counts = true;
}

void holders_forget(struct holders *holders, struct holder *holder)
{
	if (holder->place && holder->at < HOLDERS_KNOWN)
		atomic_store(&holders->known[holder->at], 0);
	*holder = (struct holder){ 0 };
}

/* Whether all threads of a process have ended: also if nobody has waited for it yet, when kill() still finds it. */
static bool is_dead(int process)
{
	struct pollfd look = { .events = POLLIN };
	bool dead;

	if (sys_call(SYS_kill, process, 0, 0, 0, 0, 0) == -ESRCH)
		return true;
	look.fd = (int)sys_call(SYS_pidfd_open, process, 0, 0, 0, 0, 0);
	if (look.fd < 0)
		return look.fd == -ESRCH;
	dead = sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) == 1;
	sys_call(SYS_close, look.fd, 0, 0, 0, 0, 0);
	return dead;
}

uint32_t holders_alive(struct holders *holders, const struct holder *self)
{
	bool asks = atomic_load(&holders->count) > 1 && !guest_sandboxed();

	for (int i = 0; asks && i < HOLDERS_KNOWN; i++) {
		uint64_t known = atomic_load(&holders->known[i]);
		int process = (int)(uint32_t)known;

		if (process <= 0 || (self->counts && self->at == i) || !is_dead(process))
			continue;
		/* Looked at now: whoever has other numbers has said so before its own was entered. Counted last, as in leaving. */
		if (!atomic_load(&holders->far) && atomic_compare_exchange_strong(&holders->known[i], &known, 0))
			atomic_fetch_sub(&holders->count, 1);
	}
	return atomic_load(&holders->count);
}

/* Whether the place is nobody's, or that of a process that has died, which is counted out if it has not done so itself. */
static bool is_empty(struct holders *holders, int at, bool asks)
{
	uint64_t known = atomic_load(&holders->known[at]);
	bool gone = (known & GONE) != 0, far = atomic_load(&holders->far);
	int process = (int)((uint32_t)known & ~GONE);

	if (!known || (gone && far)) /* from there nobody would ever be known to have died */
		return true;
	if (!asks || far || !process || !is_dead(process))
		return false;
	if (atomic_compare_exchange_strong(&holders->known[at], &known, 0) && !gone)
		atomic_fetch_sub(&holders->count, 1);
	return true;
}

bool holders_are_none(struct holders *holders, bool asks)
{
	for (int i = 0; i < HOLDERS_KNOWN; i++) {
		if (!is_empty(holders, i, asks && !guest_sandboxed()))
			return false;
	}
	return !atomic_load(&holders->count);
}
