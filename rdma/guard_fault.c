/* SPDX-License-Identifier: MIT */
/*
 * What happens when a guarded page is written to, or is to be given back at once: the owners are asked for a bounded time
 * (block-on-write), then the page is taken away from them (copy-on-write).
 *
 * An owner may go away as soon as its last record is released, so guard_release() waits for a call of the owner's poll()
 * that runs on another thread (a "visit"); poll() never waits, hence nobody waits in a circle.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <ucontext.h>

#include "common/clock.h"
#include "common/settings.h"
#include "rdma/guard_internal.h"

#define RUN_PAGES_MAX 64

/* A call of an owner's poll() that is running. */
struct visit {
	void *owner;
	int thread;
	struct visit *next;
};
static struct visit *visits;

static bool is_visited(void *owner, int self)
{
	bool others = false;

	for (struct visit *visit = visits; visit; visit = visit->next) {
		if (visit->owner != owner)
			continue;
		if (visit->thread == self)
			return false;
		others = true;
	}
	return others;
}

/*
 * Waits until no other thread is in poll() of this owner. With the lock, which it gives away meanwhile. Who is in it himself does not
 * wait: another that is, and releases what it has found, would wait for him.
 */
void guard_visits_wait(void *owner)
{
	int self;

	if (!visits)
		return;
	self = (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	while (is_visited(owner, self)) {
		guard_lock_give();
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		guard_lock_take();
	}
}

void guard_visits_forget(void)
{
	visits = NULL;
}

/* Taking pages away ---------------------------------------------------------------------------------------------------- */

struct taking {
	uintptr_t start;
	uintptr_t end;
	bool pinned;
};

static void take_for_owner(struct guard_cover *cover, void *arg)
{
	struct taking *taking = arg;
	struct guard_record *record = cover->record;
	uintptr_t start = cover->start > taking->start ? cover->start : taking->start;
	uintptr_t end = cover->end < taking->end ? cover->end : taking->end;

	atomic_store(&record->taken, true);
	if (record->ops && record->ops->take_copy)
		record->ops->take_copy(record->owner, record, (const void *)start, end - start);
	else
		taking->pinned = true;
}

/* Takes [start, end) away from all records that cover it. */
static void take(uintptr_t start, uintptr_t end)
{
	struct taking taking = { start, end, false };
	struct guard_cover *cover;

	cover_each(start, end, take_for_owner, &taking);
	guard_count(STAT_PROCESS_FAULT_COPIES, (end - start) >> GUARD_PAGE_SHIFT);
	if (taking.pinned)
		atomic_load(&guard_backend_now)->take(start, end);
	else
		atomic_load(&guard_backend_now)->unprotect(start, end);
	while ((cover = cover_find(start, end))) {
		uintptr_t lost = end;

		/* Out of memory for the books: what can't be booked is taken as well. Fresh pages do no record harm. */
		if (cover_cut(cover, start, end, &lost))
			atomic_load(&guard_backend_now)->take(end, lost);
	}
}

void guard_take(uintptr_t start, uintptr_t end)
{
	struct guard_cover *cover;

	while ((cover = cover_find(start, end)))
		take(cover->start > start ? cover->start : start, cover->end < end ? cover->end : end);
}

static uintptr_t page_of(const void *address)
{
	return (uintptr_t)address & ~(GUARD_PAGE - 1);
}

static uintptr_t page_behind(const void *start, size_t bytes)
{
	uintptr_t end = (uintptr_t)start + bytes;

	if (end < (uintptr_t)start || end > UINTPTR_MAX - GUARD_PAGE)
		return UINTPTR_MAX & ~(GUARD_PAGE - 1);
	return (end + GUARD_PAGE - 1) & ~(GUARD_PAGE - 1);
}

void guard_settle(const void *start, size_t bytes)
{
	uintptr_t from = page_of(start), to = page_behind(start, bytes);
	uint64_t mask;

	if (!bytes || !guard_active())
		return;
	mask = guard_lock();
	if (cover_find(from, to))
		guard_count(STAT_PROCESS_SETTLES, 1);
	guard_take(from, to);
	guard_unlock(mask);
}

void guard_settle_owner(void *owner)
{
	uint64_t mask = guard_lock();
	struct guard_record *next;

	for (struct guard_record *record = guard_all; record; record = record->next)
		while (record->owner == owner && record->covers)
			take(record->covers->start, record->covers->end);
	guard_visits_wait(owner);
	for (struct guard_record *record = guard_all; record; record = next) {
		next = record->next;
		if (record->owner == owner)
			record_free(record);
	}
	guard_unlock(mask);
}

static void find_lent(struct guard_cover *cover, void *arg)
{
	struct guard_cover **found = arg;

	if (record_is_lent(cover->record))
		*found = cover;
}

/* Has the owner copy [start, end) of the cover, and ends it there. Other records may cover these pages yet. */
static void take_lent(struct guard_cover *cover, uintptr_t start, uintptr_t end)
{
	struct guard_record *record = cover->record;
	uintptr_t lost = end;

	atomic_store(&record->taken, true);
	record->ops->take_copy(record->owner, record, (const void *)start, end - start);
	/* Out of memory for the books: what can't be booked is copied as well. */
	if (cover_cut(cover, start, end, &lost))
		record->ops->take_copy(record->owner, record, (const void *)end, lost - end);
	guard_free_uncovered(start, lost);
	guard_count(STAT_PROCESS_FAULT_COPIES, (lost - start) >> GUARD_PAGE_SHIFT);
}

void guard_forget(const void *start, size_t bytes)
{
	uintptr_t from = page_of(start), to = page_behind(start, bytes);
	struct guard_cover *cover;
	uint64_t mask;
	bool any = false;

	if (!bytes || !guard_lends())
		return;
	mask = guard_lock();
	for (;; any = true) {
		cover = NULL;
		cover_each(from, to, find_lent, &cover);
		if (!cover)
			break;
		take_lent(cover, cover->start > from ? cover->start : from, cover->end < to ? cover->end : to);
	}
	if (any)
		guard_count(STAT_PROCESS_SETTLES, 1);
	guard_unlock(mask);
}

/* Faults --------------------------------------------------------------------------------------------------------------- */

/* Calls the owner's poll() without the lock; in and out with it. Signals stay blocked. */
static void visit_owner(struct guard_record *record, bool fault)
{
	struct visit visit = { record->owner, (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0), visits };
	const struct guard_owner_ops *ops = record->ops;
	bool tell = fault && !record->told && ops->faulted;

	visits = &visit;
	record->told |= fault;
	guard_lock_give();
	if (tell)
		ops->faulted(visit.owner, record);
	if (ops->poll)
		ops->poll(visit.owner);
	guard_lock_take();
	for (struct visit **at = &visits; *at; at = &(*at)->next)
		if (*at == &visit) {
			*at = visit.next;
			break;
		}
}

/*
 * Block-on-write: asks the owners of the page until it is free or time is up. A record waits so only once, however many of
 * its pages are written to: a program that rewrites its whole buffer must not pay for each page.
 */
static void block_on_write(uintptr_t page)
{
	uint64_t limit = settings.block_us * NS_PER_US;
	struct guard_cover *cover;
	uint64_t began = clock_now(), now;

	while ((cover = cover_find(page, page + GUARD_PAGE))) {
		struct guard_record *record = cover->record;

		if (!record->ops)
			return;
		visit_owner(record, true);
		cover = cover_find(page, page + GUARD_PAGE);
		if (!cover)
			return;
		now = clock_now();
		if (now - began + cover->record->waited_ns >= limit) {
			cover->record->waited_ns += now - began;
			return;
		}
		guard_lock_give();
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		guard_lock_take();
	}
}

/* How much to take at one time: a program that writes through its buffer in order gets ever longer runs. */
static uintptr_t run_end(uintptr_t page)
{
	struct guard_cover *cover = cover_find(page, page + GUARD_PAGE);
	struct guard_record *record = cover->record;
	uintptr_t end;

	if (record->run_next == page && record->run_pages)
		record->run_pages = record->run_pages < RUN_PAGES_MAX ? record->run_pages * 2 : RUN_PAGES_MAX;
	else
		record->run_pages = 1;
	end = page + (record->run_pages << GUARD_PAGE_SHIFT);
	if (end > cover->end)
		end = cover->end;
	record->run_next = end;
	return end;
}

static void clear_told(struct guard_cover *cover, void *arg)
{
	cover->record->told = false;
}

bool guard_fault(uintptr_t page)
{
	uint64_t mask = guard_lock();
	bool ours = true;

	if (!cover_find(page, page + GUARD_PAGE)) {
		ours = atomic_load(&guard_backend_now)->stray(page);
		goto unlock;
	}
	guard_count(STAT_PROCESS_FAULTS, 1);
	cover_each(page, page + GUARD_PAGE, clear_told, NULL);
	block_on_write(page);
	if (cover_find(page, page + GUARD_PAGE))
		take(page, run_end(page));
	else
		guard_count(STAT_PROCESS_FAULT_WAITS, 1);
unlock:
	guard_unlock(mask);
	return ours;
}

void guard_poll_owners(void)
{
	static uint64_t round; /* under the lock */
	uint64_t mask = guard_lock();
	struct guard_record *record;

	round++;
	for (record = guard_all; record;) {
		struct guard_record *other;
		void *owner = record->owner;

		if (record->polled == round || !record->ops || !record->covers) {
			record = record->next;
			continue;
		}
		for (other = record; other; other = other->next)
			if (other->owner == owner)
				other->polled = round;
		visit_owner(record, false);
		record = guard_all; /* the list may have changed */
	}
	guard_unlock(mask);
}

bool guard_handle_signal(int signal, siginfo_t *info, void *context)
{
	uint64_t mask;
	bool ours;

	if (signal != SIGSEGV || !guard_needs_settling() || info->si_code != SEGV_ACCERR)
		return false;
#if defined(__x86_64__)
	if (!(((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2)) /* not a write */
		return false;
#endif
	mask = guard_signals_block();
	ours = guard_fault((uintptr_t)info->si_addr & ~(GUARD_PAGE - 1));
	guard_signals_restore(mask);
	return ours;
}
