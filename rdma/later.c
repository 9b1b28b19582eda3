/* SPDX-License-Identifier: MIT */
/* The pages' side of later.h: the userfaultfd, what is under way, and the thread. */
#define _GNU_SOURCE
#include "rdma/later.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/log.h"
#include "common/room.h"
#include "common/thread.h"
#include "common/uffd.h"
#include "rdma/guard_internal.h"
#include "rdma/later_internal.h"

#define GETS 64u
#define LOST_MAX 256u
#define CHUNK_BYTES 65536ul /* fetched at one time: it is in the cache when it is put in its place */
#define IDLE_MS 500
#define LOOK_MS 10 /* of who waits for a GET that runs: its end wakes him, this is for a wake that went elsewhere */
#define NO_MEMORY_TRIES 1000
#define THREAD_STACK_BYTES (256 * 1024)

enum { GET_FREE, GET_FILLING, GET_QUEUED, GET_RUNNING };
enum { THREAD_NONE, THREAD_STARTING, THREAD_RUNNING };

_Atomic unsigned int later_count;

static struct later_get gets[GETS];
static struct {
	uintptr_t start, end;
} lost[LOST_MAX]; /* under the guard's lock */
static _Atomic int uffd = -1;
static _Atomic int unavailable; /* -errno: asked for once, for all */
static _Atomic int thread_state;
static _Atomic uint32_t work; /* changes when there is something for the thread */
static _Atomic uint64_t tickets;
static _Atomic unsigned int holds;
static _Atomic long owner; /* the process that these are of: a child that nobody has announced must leave them alone */

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, uint64_t ms)
{
	struct timespec time = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000l };

	return sys_call(SYS_futex, (long)word, operation | FUTEX_PRIVATE_FLAG, value,
			operation == FUTEX_WAIT ? (long)&time : 0, 0, 0);
}

/* Opening -------------------------------------------------------------------------------------------------------------- */

static int open_uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_POISON_FEATURE };
	long fd = room_for_own() ? guard_open_userfaultfd() : -EMFILE;

	if (fd < 0)
		return fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM ? (int)fd : -ENOTSUP;
	fd = sys_fd_raise((int)fd);
	if (sys_call(SYS_ioctl, fd, (long)UFFDIO_API, (long)&api, 0, 0, 0) < 0) {
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
		return -ENOTSUP;
	}
	atomic_store(&owner, sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0));
	atomic_store(&uffd, (int)fd);
	return 0;
}

int later_descriptor(void)
{
	return atomic_load(&uffd);
}

/* Pages ---------------------------------------------------------------------------------------------------------------- */

static bool drop(uintptr_t start, uintptr_t end)
{
	long rc = sys_call(SYS_madvise, (long)start, (long)(end - start), MADV_DONTNEED, 0, 0, 0);

	if (rc == -EINVAL)
		rc = sys_call(SYS_madvise, (long)start, (long)(end - start), UFFD_DONTNEED_LOCKED, 0, 0, 0);
	return !rc;
}

static long copy_in(uintptr_t to, const char *from, size_t bytes, size_t *copied)
{
	struct uffdio_copy copy = { .dst = to, .src = (uintptr_t)from, .len = bytes };
	long rc = sys_call(SYS_ioctl, atomic_load(&uffd), (long)UFFDIO_COPY, (long)&copy, 0, 0, 0);

	*copied = copy.copy > 0 ? (size_t)copy.copy : 0;
	return rc;
}

/* There is a page already: one that could not be dropped. Returns whether it has the bytes now, or is to be put there anew. */
static bool copy_over(uintptr_t page, const char *from)
{
	if (drop(page, page + GUARD_PAGE))
		return false;
	memcpy((void *)page, from, GUARD_PAGE);
	return true;
}

/* Puts bytes in the program's place. Where that is gone, nobody misses them. Returns 0 or -ENOMEM. */
static int place(uintptr_t at, const char *from, size_t bytes)
{
	uintptr_t end = at + bytes;
	size_t step = bytes, copied;
	int tries = 0;

	while (at < end) {
		long rc = copy_in(at, from, step < end - at ? step : end - at, &copied);

		at += copied;
		from += copied;
		if (copied)
			continue;
		if (rc == -EEXIST) {
			step = GUARD_PAGE;
			if (!copy_over(at, from))
				continue;
		} else if (rc == -EAGAIN || rc == -ENOMEM) {
			if (rc == -ENOMEM && ++tries > NO_MEMORY_TRIES)
				return -ENOMEM;
			sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
			continue;
		} else if (step > GUARD_PAGE) { /* there is more than one mapping now */
			step = GUARD_PAGE;
			continue;
		}
		at += GUARD_PAGE;
		from += GUARD_PAGE;
	}
	return 0;
}

/* Where the program has put something else meanwhile, the rest must still go free: by halves. */
static void unregister(uintptr_t start, uintptr_t end)
{
	struct uffdio_range range = { start, end - start };
	uintptr_t middle = (start + (end - start) / 2) & ~(GUARD_PAGE - 1);
	long rc = sys_call(SYS_ioctl, atomic_load(&uffd), (long)UFFDIO_UNREGISTER, (long)&range, 0, 0, 0);

	if (rc == -EINVAL && middle != start) {
		unregister(start, middle);
		unregister(middle, end);
	}
	sys_call(SYS_ioctl, atomic_load(&uffd), (long)UFFDIO_WAKE, (long)&range, 0, 0, 0);
}

/* Where the books are full, such a range stays what it is until the memory is unmapped. Under the guard's lock. */
static void book_lost(uintptr_t start, uintptr_t end)
{
	for (unsigned int i = 0; i < LOST_MAX; i++) {
		if (lost[i].end)
			continue;
		lost[i].start = start;
		lost[i].end = end;
		atomic_fetch_add(&later_count, 1);
		return;
	}
}

/* Whoever touches them gets SIGBUS. */
static void poison(uintptr_t start, uintptr_t end)
{
	struct uffd_poison pages = { .range = { start, end - start } };
	uint64_t mask;

	for (uintptr_t at = start; at < end; at += GUARD_PAGE) {
		pages.range = (struct uffdio_range){ at, GUARD_PAGE };
		while (sys_call(SYS_ioctl, atomic_load(&uffd), (long)UFFD_POISON_IOCTL, (long)&pages, 0, 0, 0) ==
		       -EAGAIN)
			sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	}
	mask = guard_lock();
	book_lost(start, end);
	guard_unlock(mask);
}

/* Claims --------------------------------------------------------------------------------------------------------------- */

static bool overlaps(const struct later_get *get, uintptr_t start, uintptr_t end)
{
	return get->start < end && start < get->end;
}

static void let_go(struct later_get *get)
{
	atomic_fetch_sub(&guard_keeps_untidy, 1);
	atomic_store(&get->state, GET_FREE);
	atomic_fetch_sub(&later_count, 1);
	futex(&get->state, FUTEX_WAKE, INT32_MAX, 0);
}

/* Registers pages that are one mapping of ordinary memory, all there. Under the guard's lock. */
static bool register_pages(uintptr_t start, uintptr_t end)
{
	struct uffdio_register range = { .range = { start, end - start }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct guard_mapping mapping;

	if (memory_open() < 0 || memory_mapping(start, &mapping) < 0 || mapping.start > start || mapping.end < end ||
	    !mapping.plain || mapping.protection != (PROT_READ | PROT_WRITE) ||
	    !memory_pages_are(start, end, PAGEMAP_PRESENT | PAGEMAP_FILE, PAGEMAP_PRESENT))
		return false;
	return !sys_call(SYS_ioctl, atomic_load(&uffd), (long)UFFDIO_REGISTER, (long)&range, 0, 0, 0);
}

static bool is_alone(const struct later_get *mine)
{
	for (unsigned int i = 0; i < GETS; i++) {
		if (&gets[i] != mine && atomic_load(&gets[i].state) != GET_FREE &&
		    overlaps(&gets[i], mine->start, mine->end))
			return false;
	}
	return true;
}

struct later_get *later_claim(uintptr_t start, uintptr_t end)
{
	struct later_get *get = NULL;
	uint64_t mask;
	bool can;

	if (atomic_load(&thread_state) != THREAD_RUNNING)
		return NULL;
	for (unsigned int i = 0; i < GETS && !get; i++) {
		uint32_t none = GET_FREE;

		if (atomic_compare_exchange_strong(&gets[i].state, &none, GET_FILLING))
			get = &gets[i];
	}
	if (!get)
		return NULL;
	get->start = get->at = start;
	get->end = end;
	/* In one total order with later_hold(): either it sees this, or it is seen. */
	atomic_fetch_add(&later_count, 1);
	mask = guard_lock();
	atomic_fetch_add(&guard_keeps_untidy, 1);
	can = !atomic_load(&holds) && is_alone(get) && register_pages(start, end);
	guard_unlock(mask);
	if (can)
		return get;
	let_go(get);
	return NULL;
}

void later_unclaim(struct later_get *get)
{
	unregister(get->start, get->end);
	let_go(get);
}

/* Filling -------------------------------------------------------------------------------------------------------------- */

static int fill_chunk(struct later_get *get, char *aside, size_t bytes)
{
	int rc = later_bring(get, aside, bytes, get->at + bytes == get->end);

	if (rc < 0)
		return rc;
	rc = place(get->at, aside, bytes);
	get->at += rc < 0 ? 0 : bytes;
	return rc;
}

/* Runs a GET to its end, whatever that is. */
static void run(struct later_get *get, char *aside)
{
	size_t chunk = CHUNK_BYTES;

	while (get->at < get->end) {
		size_t left = get->end - get->at;
		int rc = fill_chunk(get, aside, left < chunk ? left : chunk);

		if (!rc)
			continue;
		/* What comes before the page that is gone is there. */
		if (rc != -ENOMEM && chunk > GUARD_PAGE && left > GUARD_PAGE) {
			chunk = GUARD_PAGE;
			continue;
		}
		log_warn("bytes that were received have died with their sender: %d", -rc);
		atomic_store(&get->lane.in->lost, true);
		poison(get->at, get->end);
		break;
	}
	unregister(get->start, get->end);
	let_go(get);
}

/* By the caller's own hand. */
static void run_here(struct later_get *get)
{
	char *aside = sys_map(CHUNK_BYTES, MAP_PRIVATE);
	char page[GUARD_PAGE];

	if (aside) {
		run(get, aside);
		sys_call(SYS_munmap, (long)aside, CHUNK_BYTES, 0, 0, 0, 0);
		return;
	}
	while (get->at < get->end && !fill_chunk(get, page, GUARD_PAGE))
		;
	if (get->at < get->end) {
		atomic_store(&get->lane.in->lost, true);
		poison(get->at, get->end);
	}
	unregister(get->start, get->end);
	let_go(get);
}

static bool take_up(struct later_get *get)
{
	uint32_t queued = GET_QUEUED;

	return atomic_compare_exchange_strong(&get->state, &queued, GET_RUNNING);
}

void later_go(struct later_get *get)
{
	bool dropped = drop(get->start, get->end);

	get->ticket = atomic_fetch_add(&tickets, 1);
	atomic_store(&get->state, GET_QUEUED);
	atomic_fetch_add(&work, 1);
	futex(&work, FUTEX_WAKE, 1, 0);
	/* Pages that are still there keep nobody waiting; and the thread may have gone home. */
	if (!dropped)
		later_settle((void *)get->start, get->end - get->start);
	else if (atomic_load(&thread_state) != THREAD_RUNNING && take_up(get))
		run_here(get);
}

/* The thread ----------------------------------------------------------------------------------------------------------- */

static struct later_get *oldest(void)
{
	struct later_get *first = NULL;

	for (unsigned int i = 0; i < GETS; i++) {
		if (atomic_load(&gets[i].state) == GET_QUEUED && (!first || gets[i].ticket < first->ticket))
			first = &gets[i];
	}
	return first;
}

/* Nothing was to be done for a while. Returns whether the thread ends; a process may want to be alone in its threads. */
static bool go_home(void)
{
	int none = THREAD_NONE;

	atomic_store(&thread_state, THREAD_NONE);
	return !oldest() || !atomic_compare_exchange_strong(&thread_state, &none, THREAD_RUNNING);
}

static void *fetcher(void *aside)
{
	sys_call(SYS_prctl, PR_SET_NAME, (long)"zc-fetch", 0, 0, 0, 0);
	for (;;) {
		uint32_t seen = atomic_load(&work);
		struct later_get *get = oldest();

		if (get && take_up(get))
			run(get, aside);
		else if (!get && futex(&work, FUTEX_WAIT, seen, IDLE_MS) == -ETIMEDOUT && go_home())
			break;
	}
	sys_call(SYS_munmap, (long)aside, CHUNK_BYTES, 0, 0, 0, 0);
	return NULL;
}

static int start_fetcher(void)
{
	char *aside = sys_map(CHUNK_BYTES, MAP_PRIVATE);
	int rc = aside ? thread_start(fetcher, aside, THREAD_STACK_BYTES) : -ENOMEM;

	if (aside && rc)
		sys_call(SYS_munmap, (long)aside, CHUNK_BYTES, 0, 0, 0, 0);
	return rc;
}

static void run_queued(void)
{
	struct later_get *get;

	while ((get = oldest())) {
		if (take_up(get))
			run_here(get);
	}
}

int later_start(void)
{
	int now = THREAD_NONE, rc;

	if (atomic_load_explicit(&thread_state, memory_order_relaxed) == THREAD_RUNNING)
		return 0;
	rc = atomic_load(&unavailable);
	if (rc || atomic_load(&holds))
		return rc ? rc : -EAGAIN;
	if (!atomic_compare_exchange_strong(&thread_state, &now, THREAD_STARTING))
		return now == THREAD_RUNNING ? 0 : -EAGAIN;
	if (atomic_load(&uffd) < 0)
		rc = open_uffd();
	if (rc == -ENOTSUP)
		atomic_store(&unavailable, rc);
	/* Before it runs: it may find that it is to go home. */
	atomic_store(&thread_state, THREAD_RUNNING);
	if (!rc)
		rc = start_fetcher();
	if (!rc)
		return 0;
	atomic_store(&thread_state, THREAD_NONE);
	run_queued(); /* what was claimed in between */
	return rc;
}

/* Settling ------------------------------------------------------------------------------------------------------------- */

static bool is_ours(void)
{
	return atomic_load(&owner) == sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
}

/* One step towards the end of a GET. */
static void help(struct later_get *get)
{
	uint32_t state = atomic_load(&get->state);

	if (state == GET_QUEUED && take_up(get))
		run_here(get);
	else if (state == GET_RUNNING)
		futex(&get->state, FUTEX_WAIT, GET_RUNNING, LOOK_MS);
	else if (state == GET_FILLING)
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

void later_settle(const void *at, size_t bytes)
{
	uintptr_t start = (uintptr_t)at, end = start + bytes < start ? UINTPTR_MAX : start + bytes;

	if (!later_active() || !is_ours())
		return;
	for (unsigned int i = 0; i < GETS; i++) {
		while (atomic_load(&gets[i].state) != GET_FREE && overlaps(&gets[i], start, end))
			help(&gets[i]);
	}
}

void later_settle_lane(const struct lane_shared *shared)
{
	if (!later_active() || !is_ours())
		return;
	for (unsigned int i = 0; i < GETS; i++) {
		while (atomic_load(&gets[i].state) > GET_FILLING && gets[i].lane.shared == shared)
			help(&gets[i]);
	}
}

/* Takes [start, end), which lies in a range that was lost, out of the books: what is there next is not to be dropped. */
static void strike(unsigned int i, uintptr_t start, uintptr_t end)
{
	const uintptr_t from = lost[i].start, until = lost[i].end;

	lost[i].start = from < start ? from : end;
	lost[i].end = from < start ? start : until;
	if (from < start && end < until)
		book_lost(end, until);
	if (lost[i].start < lost[i].end)
		return;
	lost[i].start = lost[i].end = 0;
	atomic_fetch_sub(&later_count, 1);
}

/* The whole pages of a range, and what becomes of their poison: it is dropped; or it is gone, or at another place, as far as `kept` bytes. */
static void strike_all(const void *at, size_t bytes, bool dropped, const void *to, size_t kept)
{
	uintptr_t start = ((uintptr_t)at + GUARD_PAGE - 1) & ~(GUARD_PAGE - 1), end = (uintptr_t)at + bytes;
	uint64_t mask;

	if (!later_active() || end < start)
		return;
	end &= ~(GUARD_PAGE - 1);
	mask = guard_lock();
	for (unsigned int i = 0; i < LOST_MAX; i++) {
		uintptr_t from = lost[i].start > start ? lost[i].start : start;
		uintptr_t until = lost[i].end < end ? lost[i].end : end;

		if (!lost[i].end || from >= until)
			continue;
		if (dropped)
			drop(from, until);
		strike(i, from, until);
		from -= (uintptr_t)at;
		until -= (uintptr_t)at;
		if (to && from < kept)
			book_lost((uintptr_t)to + from, (uintptr_t)to + (until < kept ? until : kept));
	}
	guard_unlock(mask);
}

void later_forget(const void *at, size_t bytes)
{
	later_settle(at, bytes);
	strike_all(at, bytes, true, NULL, 0);
}

void later_moved(const void *at, size_t bytes, const void *to, size_t kept)
{
	strike_all(at, bytes, false, to, kept);
}

void later_hold(void)
{
	atomic_fetch_add(&holds, 1);
	later_settle(NULL, SIZE_MAX);
}

void later_release(void)
{
	atomic_fetch_sub(&holds, 1);
}

void later_before_fork(void)
{
	later_hold();
}

void later_after_fork(bool in_child)
{
	if (!in_child) {
		later_release();
		return;
	}
	/* The descriptor is of the parent's memory. */
	if (atomic_load(&uffd) >= 0)
		sys_call(SYS_close, atomic_load(&uffd), 0, 0, 0, 0, 0);
	atomic_store(&uffd, -1);
	atomic_store(&thread_state, THREAD_NONE);
	atomic_store(&holds, 0);
	for (unsigned int i = 0; i < GETS; i++) {
		if (atomic_exchange(&gets[i].state, GET_FREE) != GET_FREE)
			atomic_fetch_sub(&later_count, 1);
	}
	atomic_store(&guard_keeps_untidy, 0);
}
