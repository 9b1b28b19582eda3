/* SPDX-License-Identifier: MIT */
/*
 * The guard by userfaultfd write-protect. A write to a protected page, also by the kernel on the program's behalf, waits
 * until a thread of ours has read the event; there is no signal.
 *
 * A range is registered (for write-protect) as long as it is guarded and not longer, so that the program's mappings are not
 * split and its own mremap, khugepaged and so on find what they expect. To take a page away it is copied, then registered
 * for missing pages too, dropped, and filled from the copy: whoever touches it in the gap waits as well. The kernel or
 * device that holds the old page keeps it.
 *
 * mremap by the program (realloc does it inside libc) is followed by its event, which the kernel has the program wait for.
 *
 * The thread ends when nothing was guarded for a while: a process that wants to be alone in its threads (unshare, setns, or
 * pthread_exit from the last one) gets its wish. While it lives it asks the owners once in a while, so that what an idle
 * program sent does not stay under guard for ever.
 */
#define _GNU_SOURCE
#include "rdma/guard_internal.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>

#include "common/log.h"
#include "common/thread.h"
#include "common/uffd.h"

#define CHUNK_PAGES 64
#define CHUNK_BYTES (CHUNK_PAGES * GUARD_PAGE)
#define EVENTS 16
#define IDLE_MS 500
#define THREAD_STACK_BYTES (256 * 1024)
#define COPY_TRIES 100000
#define MOVE_TRIES 1000
#define TORN_MAX 16

enum { THREAD_NONE, THREAD_STARTING, THREAD_RUNNING };

struct span {
	uintptr_t start;
	uintptr_t end;
};

static int uffd = -1;
static _Atomic int thread_state;
static void *aside;			/* room for a chunk of copies; used under the lock */
static bool clear_first;		/* the kernel is older than 6.1: leaving does not lift the protection */
static _Atomic unsigned int generation; /* of the descriptor: a thread of an old one leaves */
static struct span gap; /* registered for missing pages now, or when memory was moved that is not booked yet */
static struct span torn[TORN_MAX]; /* moved out of the gap */
static int torn_count;
_Atomic unsigned int guard_keeps_untidy;
static bool untidy; /* memory may be registered or protected that is not in the books */

static void uffd_take(uintptr_t start, uintptr_t end);

static long uffd_ioctl(unsigned long request, void *arg)
{
	return sys_call(SYS_ioctl, uffd, (long)request, (long)arg, 0, 0, 0);
}

static long uffd_register(uintptr_t start, uintptr_t end, uint64_t mode, uint64_t *ioctls)
{
	struct uffdio_register range = { .range = { start, end - start }, .mode = mode };
	long rc = uffd_ioctl(UFFDIO_REGISTER, &range);

	if (ioctls)
		*ioctls = range.ioctls;
	return rc;
}

static void uffd_wake(uintptr_t start, uintptr_t end)
{
	struct uffdio_range range = { start, end - start };

	uffd_ioctl(UFFDIO_WAKE, &range);
}

/* Where the program has put something else into the range meanwhile, the rest must still go free: by halves. */
static void uffd_unregister(uintptr_t start, uintptr_t end)
{
	struct uffdio_range range = { start, end - start };
	uintptr_t middle = (start + (end - start) / 2) & ~(GUARD_PAGE - 1);
	long rc;

	if (clear_first) {
		struct uffdio_writeprotect lift = { .range = range };

		uffd_ioctl(UFFDIO_WRITEPROTECT, &lift);
	}
	rc = uffd_ioctl(UFFDIO_UNREGISTER, &range);
	untidy |= rc == -ENOMEM;
	if (rc != -EINVAL || middle == start)
		return;
	uffd_unregister(start, middle);
	uffd_unregister(middle, end);
}

/* Opening -------------------------------------------------------------------------------------------------------------- */

/* A userfaultfd that sees the kernel's faults too; one for user mode only would make read() fail with EFAULT. */
long guard_open_userfaultfd(void)
{
	long fd = sys_call(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK, 0, 0, 0, 0, 0);
	long device;

	if (fd >= 0)
		return fd;
	device = sys_call(SYS_openat, AT_FDCWD, (long)"/dev/userfaultfd", O_RDWR | O_CLOEXEC, 0, 0, 0);
	if (device < 0)
		return fd;
	fd = sys_call(SYS_ioctl, device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK, 0, 0, 0);
	sys_call(SYS_close, device, 0, 0, 0, 0, 0);
	return fd;
}

/* Proves on a page of ours that write-protection works and that pagemap shows it (Linux 5.13). */
static int uffd_prove(void)
{
	uintptr_t page = (uintptr_t)aside;
	int rc = -ENOTSUP;

	*(volatile char *)aside = 1;
	if (!guard_backend_uffd.protect(page, page + GUARD_PAGE))
		rc = 0;
	uffd_unregister(page, page + GUARD_PAGE);
	clear_first = memory_pages_are(page, page + GUARD_PAGE, PAGEMAP_UFFD_WP, PAGEMAP_UFFD_WP);
	return rc;
}

static int uffd_open(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMAP };
	long fd;
	int rc = memory_open();

	if (rc)
		return rc == -EMFILE || rc == -ENFILE ? rc : -ENOTSUP;
	fd = guard_open_userfaultfd();
	if (fd < 0)
		return fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM ? (int)fd : -ENOTSUP;
	uffd = sys_fd_raise((int)fd);
	rc = -ENOTSUP;
	if (uffd_ioctl(UFFDIO_API, &api) < 0)
		goto close_fd;
	if (!aside) {
		long at =
			sys_call(SYS_mmap, 0, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at < 0 && at > -4096)
			goto close_fd;
		aside = (void *)at;
	}
	rc = uffd_prove();
	if (rc)
		goto close_fd;
	atomic_fetch_add(&generation, 1);
	return 0;

close_fd:
	sys_call(SYS_close, uffd, 0, 0, 0, 0, 0);
	uffd = -1;
	return rc;
}

/* Events --------------------------------------------------------------------------------------------------------------- */

/* Reads events, with the lock, so that moves are booked before anybody looks. Returns how many faults are in `faults`. */
static long read_events(struct uffd_msg *faults)
{
	long got = sys_call(SYS_read, uffd, (long)faults, EVENTS * sizeof(*faults), 0, 0, 0);
	long count = 0;

	for (long i = 0; i < got / (long)sizeof(*faults); i++) {
		uintptr_t from = faults[i].arg.remap.from, to = faults[i].arg.remap.to;
		size_t bytes = faults[i].arg.remap.len;

		if (faults[i].event == UFFD_EVENT_PAGEFAULT) {
			faults[count++] = faults[i];
			continue;
		}
		untidy = true;
		cover_move(from, to, bytes);
		if (from < gap.end && gap.start < from + bytes && torn_count < TORN_MAX)
			torn[torn_count++] = (struct span){ to, to + bytes };
	}
	return got < 0 ? got : count;
}

/*
 * From the moment that a program's thread moves memory until the event is read, the kernel says EAGAIN to whatever changes
 * pages. The handler may be waiting for the lock that the caller holds, or be the caller, so we read in its place. Who
 * faulted tries again, and the handler sees that.
 */
static void let_moves_end(void)
{
	static struct uffd_msg faults[EVENTS]; /* under the lock, and the stack may be short */
	long count = read_events(faults);

	for (long i = 0; i < count; i++) {
		uintptr_t page = (uintptr_t)faults[i].arg.pagefault.address & ~(GUARD_PAGE - 1);

		uffd_wake(page, page + GUARD_PAGE);
	}
	sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

/* Returns whether some thread is moving memory that is registered, and its event has not been read. */
static bool moves_go_on(void)
{
	struct uffdio_copy nothing = { 0 };

	return uffd_ioctl(UFFDIO_COPY, &nothing) == -EAGAIN;
}

/*
 * A move out of a range that was registered for missing pages carries that along, and it can't be changed without lifting
 * the protection. So nothing stays under guard there.
 */
static void take_torn(void)
{
	for (int tries = 0; gap.end && tries < MOVE_TRIES && moves_go_on(); tries++)
		let_moves_end();
	if (gap.end && !moves_go_on())
		gap = (struct span){ 0, 0 };
	while (torn_count) {
		struct span span = torn[--torn_count];

		guard_take(span.start, span.end);
		uffd_take(span.start, span.end);
	}
}

/* The thread ----------------------------------------------------------------------------------------------------------- */

/*
 * Whoever met a page that is not there, in the gap of one that was being taken: as the lock is free again, that gap is closed.
 * But the range may be registered for missing pages where a move has carried that off; then zeros are what is there.
 */
static void handle_missing(uintptr_t page)
{
	struct uffdio_zeropage zero = { .range = { page, GUARD_PAGE } };
	uint64_t mask = guard_lock();

	/* Does nothing where there is a page, or no registration, or (EAGAIN) a move: then the toucher comes back. */
	uffd_ioctl(UFFDIO_ZEROPAGE, &zero);
	guard_unlock(mask);
}

static void handle_fault(const struct uffd_msg *event)
{
	uintptr_t page = (uintptr_t)event->arg.pagefault.address & ~(GUARD_PAGE - 1);

	if (event->arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP)
		guard_fault(page);
	else
		handle_missing(page);
	uffd_wake(page, page + GUARD_PAGE);
}

static long next_faults(struct uffd_msg *events)
{
	uint64_t mask = guard_lock();
	long got = read_events(events);

	take_torn();
	guard_unlock(mask);
	return got;
}

/* Sets all memory free, as nothing is guarded: what is left of moves would have nobody to wait for. */
static void tidy(void)
{
	struct guard_mapping mapping;

	for (uintptr_t at = 0; !memory_mapping(at, &mapping); at = mapping.end)
		if (mapping.plain)
			uffd_unregister(mapping.start, mapping.end);
	untidy = false;
}

/* Ends the thread if nothing is guarded. Returns whether it is to end. */
static bool go_home(unsigned int mine)
{
	uint64_t mask = guard_lock();
	bool home = mine != atomic_load(&generation) || !guard_active();

	if (home && mine == atomic_load(&generation)) {
		int running = THREAD_RUNNING;

		/* Whoever has started it and did not come to say so yet counts on it. */
		home = atomic_compare_exchange_strong(&thread_state, &running, THREAD_NONE);
		if (home && untidy && !atomic_load(&guard_keeps_untidy))
			tidy();
	}
	guard_unlock(mask);
	return home;
}

static void *handler(void *arg)
{
	unsigned int mine = atomic_load(&generation);
	struct uffd_msg events[EVENTS];

	sys_call(SYS_prctl, PR_SET_NAME, (long)"zc-guard", 0, 0, 0, 0);
	for (;;) {
		struct pollfd ready = { .fd = uffd, .events = POLLIN };
		struct timespec wait = { .tv_nsec = IDLE_MS * 1000000l };
		long got = sys_call(SYS_ppoll, (long)&ready, 1, (long)&wait, 0, 0, 0);

		if (!got) {
			guard_poll_owners();
			if (go_home(mine))
				return NULL;
			continue;
		}
		got = next_faults(events);
		if (got < 0 && got != -EAGAIN && got != -EINTR) {
			log_error("guard: reading the userfaultfd failed with %d", (int)-got);
			return NULL;
		}
		for (long i = 0; i < got; i++)
			handle_fault(&events[i]);
	}
}

static int uffd_available(void)
{
	long fd = guard_open_userfaultfd();

	if (fd < 0)
		return -ENOTSUP;
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return 0;
}

static bool uffd_ready(void)
{
	return uffd >= 0 && atomic_load(&thread_state) == THREAD_RUNNING;
}

static int uffd_start(void)
{
	int expected = THREAD_NONE;
	int rc = 0;

	if (atomic_load(&thread_state) == THREAD_RUNNING)
		return 0;
	/* Another thread, or this one further up in a signal handler or the program's malloc, is at it. */
	if (!atomic_compare_exchange_strong(&thread_state, &expected, THREAD_STARTING))
		return expected == THREAD_RUNNING ? 0 : -EAGAIN;
	if (uffd < 0)
		rc = uffd_open();
	if (!rc)
		rc = thread_start(handler, NULL, THREAD_STACK_BYTES);
	atomic_store(&thread_state, rc ? THREAD_NONE : THREAD_RUNNING);
	return rc;
}

/* Protecting ----------------------------------------------------------------------------------------------------------- */

static int protect_pages(uintptr_t start, uintptr_t end, uint64_t ioctls)
{
	struct uffdio_writeprotect protect = { .range = { start, end - start }, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	long rc;

	if (!(ioctls & (1ull << _UFFDIO_WRITEPROTECT)) || !(ioctls & (1ull << _UFFDIO_ZEROPAGE)))
		return -EINVAL; /* huge pages from hugetlbfs */
	while ((rc = uffd_ioctl(UFFDIO_WRITEPROTECT, &protect)) == -EAGAIN)
		let_moves_end();
	if (rc < 0)
		return rc == -ENOENT ? -EINVAL : (int)rc;
	/* Now that nothing can slip in any more. */
	if (!memory_pages_are(start, end, PAGEMAP_PRESENT | PAGEMAP_FILE | PAGEMAP_UFFD_WP,
			      PAGEMAP_PRESENT | PAGEMAP_UFFD_WP))
		return -EINVAL;
	return 0;
}

static int uffd_protect(uintptr_t start, uintptr_t end)
{
	uint64_t ioctls = 0;
	long rc = uffd_register(start, end, UFFDIO_REGISTER_MODE_WP, &ioctls);

	if (rc < 0)
		return rc == -ENOMEM ? -ENOMEM : -EINVAL;
	rc = protect_pages(start, end, ioctls);
	if (rc)
		guard_free_uncovered(start, end);
	return (int)rc;
}

static bool still_protected(uintptr_t start, uintptr_t end)
{
	return memory_pages_are(start, end, PAGEMAP_UFFD_WP, PAGEMAP_UFFD_WP);
}

/* Drops pages. Holes that the program has made meanwhile (ENOMEM) have nothing to be dropped. */
static bool drop(uintptr_t start, uintptr_t end)
{
	long rc = sys_call(SYS_madvise, (long)start, (long)(end - start), MADV_DONTNEED, 0, 0, 0);

	if (rc == -EINVAL)
		rc = sys_call(SYS_madvise, (long)start, (long)(end - start), UFFD_DONTNEED_LOCKED, 0, 0, 0);
	return !rc || rc == -ENOMEM;
}

/* Fills dropped pages from the copy. The kernel allocates here: under memory pressure that takes its time. */
static void fill(uintptr_t start, uintptr_t end, const char *from)
{
	uintptr_t at = start, until = end;

	for (int tries = 0; at < end && tries < COPY_TRIES; tries++) {
		struct uffdio_copy copy = { .dst = at, .src = (uintptr_t)from + (at - start), .len = until - at };
		long rc = uffd_ioctl(UFFDIO_COPY, &copy);

		if (copy.copy > 0)
			at += (uintptr_t)copy.copy;
		else if (rc == -EEXIST) /* zeros that a reader got where the gap could not be closed to it */
			drop(at, at + GUARD_PAGE);
		else if (rc != -ENOENT && rc != -ESRCH && rc != -EINVAL)
			let_moves_end();
		else if (until - at == GUARD_PAGE) /* the mapping of this page is gone */
			at = until;
		else /* there is more than one mapping now */
			until = at + GUARD_PAGE;
		if (at == until)
			until = until < end ? at + GUARD_PAGE : end;
	}
	if (at < end)
		log_error("guard: no memory for a page that was taken");
}

/*
 * Calls part() for the pages of [start, end) that are still protected: at once if they all are, else for each one, with
 * where it lies in the copy.
 */
static void each_protected(uintptr_t start, uintptr_t end, char *copy, void (*part)(uintptr_t, uintptr_t, char *))
{
	if (still_protected(start, end)) {
		part(start, end, copy);
		return;
	}
	for (uintptr_t page = start; page < end && end - start > GUARD_PAGE; page += GUARD_PAGE)
		if (still_protected(page, page + GUARD_PAGE))
			part(page, page + GUARD_PAGE, copy + (page - start));
}

static void exchange(uintptr_t start, uintptr_t end, char *copy)
{
	/* The child of a fork must not find the gap. */
	if (!atomic_load(&guard_forks) && drop(start, end))
		fill(start, end, copy);
	else
		memory_replace(start, end, (uintptr_t)copy, still_protected);
}

/*
 * Takes up to a chunk of pages that were all protected a moment ago. Pages may vanish at any time, and then reading them
 * in a range that is registered for missing pages would wait for the handler, for good if that is this very thread. So they
 * are copied first: write-protection keeps no reader waiting, and what is still protected afterwards still has the bytes
 * that were copied.
 */
static void take_protected(uintptr_t start, uintptr_t end, char *copy)
{
	struct guard_mapping mapping;
	bool one = !memory_mapping(start, &mapping) && mapping.start <= start && mapping.end >= end;

	if (one && !mapping.plain) {
		memory_replace(start, end, start, still_protected);
	} else if (one && !memory_copy(copy, start, end - start)) {
		/* If there is no memory to split the mapping, only a reader in the gap is at risk, and fill() sees to that. */
		uffd_register(start, end, UFFDIO_REGISTER_MODE_WP | UFFDIO_REGISTER_MODE_MISSING, NULL);
		each_protected(start, end, copy, exchange);
	} else {
		for (uintptr_t page = start; page < end && end - start > GUARD_PAGE; page += GUARD_PAGE)
			take_protected(page, page + GUARD_PAGE, copy + (page - start));
	}
}

static void uffd_take(uintptr_t start, uintptr_t end)
{
	uintptr_t at = start;

	gap.start = gap.end && gap.start < start ? gap.start : start;
	gap.end = gap.end > end ? gap.end : end;
	while (at < end) {
		uintptr_t until = end - at > CHUNK_BYTES ? at + CHUNK_BYTES : end;

		each_protected(at, until, aside, take_protected);
		at = until;
	}
	uffd_unregister(start, end);
	uffd_wake(start, end);
	take_torn();
}

static int uffd_join(uintptr_t start, uintptr_t end)
{
	return -EINVAL; /* nothing was taken apart */
}

static bool uffd_stray(uintptr_t page)
{
	/* Released meanwhile: the writer is woken and finds an ordinary page. Otherwise the books missed a move: copy. */
	if (still_protected(page, page + GUARD_PAGE))
		uffd_take(page, page + GUARD_PAGE);
	return true;
}

static void uffd_child(void)
{
	/* The descriptor belongs to the parent's memory; the kernel has left its registrations out of ours. */
	if (uffd >= 0)
		sys_call(SYS_close, uffd, 0, 0, 0, 0, 0);
	uffd = -1;
	gap = (struct span){ 0, 0 };
	torn_count = 0;
	untidy = false;
	atomic_store(&thread_state, THREAD_NONE);
}

static int uffd_descriptors(int *out, int count)
{
	if (!count)
		return 0;
	out[0] = uffd;
	return 1;
}

const struct guard_backend guard_backend_uffd = {
	.name = "userfaultfd",
	.available = uffd_available,
	.start = uffd_start,
	.ready = uffd_ready,
	.protect = uffd_protect,
	.unprotect = uffd_unregister,
	.take = uffd_take,
	.join = uffd_join,
	.stray = uffd_stray,
	.child = uffd_child,
	.descriptors = uffd_descriptors,
};
