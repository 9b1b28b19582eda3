/* SPDX-License-Identifier: MIT */
/*
 * What ends a guard: memory that goes away, is replaced, or changes its nature. A relaxed load when nothing is guarded.
 *
 * free() and realloc() are among it for what libc's allocator does by calls of its own: it unmaps, moves and drops the memory
 * of blocks. (libc's other functions that free or reallocate do it by these two.) An allocator that is preloaded before us, or
 * linked to the program, is not seen here; its calls of munmap and madvise are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include "preload/guest.h"
#include "preload/real.h"
#include "rdma/channel.h"
#include "rdma/guard.h"
#include "rdma/later.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

#define PAGE 4096

static inline void going_away(const void *at, size_t bytes)
{
	if (later_active())
		later_forget(at, bytes);
	if (guard_lends())
		guard_forget(at, bytes);
}

static inline void changing(const void *at, size_t bytes)
{
	if (later_active())
		later_settle(at, bytes);
	if (__builtin_expect(guard_active(), 0))
		guard_settle(at, bytes);
}

static bool replaces(const void *at, int flags)
{
	return at && flags & MAP_FIXED && (flags & MAP_FIXED_NOREPLACE) != MAP_FIXED_NOREPLACE;
}

static inline void looks_at(int fd, off64_t offset)
{
	if (__builtin_expect(fd >= 0 && offset == GUEST_MAPS_SUBMISSIONS, 0)) {
		int saved = errno;

		guest_maps_submissions(fd);
		errno = saved;
	}
}

ZC_EXPORT void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	looks_at(fd, offset);
	if (replaces(at, flags))
		going_away(at, bytes);
	return real.mmap(at, bytes, protection, flags, fd, offset);
}

ZC_EXPORT void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
	looks_at(fd, offset);
	if (replaces(at, flags))
		going_away(at, bytes);
	return real.mmap64(at, bytes, protection, flags, fd, offset);
}

ZC_EXPORT int munmap(void *at, size_t bytes)
{
	going_away(at, bytes);
	return real.munmap(at, bytes);
}

/* What was at the old address, or behind the new end, is there no more. */
static void has_moved(const void *at, size_t bytes, const void *to, size_t new_bytes)
{
	if (to != at)
		later_moved(at, bytes, to, new_bytes);
	else if (new_bytes < bytes)
		later_moved((const char *)at + new_bytes, bytes - new_bytes, NULL, 0);
}

ZC_EXPORT void *mremap(void *at, size_t bytes, size_t new_bytes, int flags, ...)
{
	void *to = NULL, *moved;
	va_list list;

	if (flags & MREMAP_FIXED) {
		va_start(list, flags);
		to = va_arg(list, void *);
		va_end(list);
		going_away(to, new_bytes);
	}
	real_resolve();
	changing(at, bytes); /* it moves: the pages must be ordinary ones */
	moved = real.mremap(at, bytes, new_bytes, flags, to);
	/* Pages that the mprotect guard has replaced are mappings of their own, and mremap takes one at a time. */
	if (moved == MAP_FAILED && errno == EFAULT && guard_needs_settling() && !guard_join(at, bytes))
		moved = real.mremap(at, bytes, new_bytes, flags, to);
	if (moved != MAP_FAILED && later_active())
		has_moved(at, bytes, moved, new_bytes);
	return moved;
}

ZC_EXPORT int madvise(void *at, size_t bytes, int advice)
{
	int rc;

	if (advice == MADV_DONTNEED || advice == MADV_REMOVE || advice == MADV_FREE || advice == MADV_DONTFORK ||
	    advice == MADV_WIPEONFORK || advice == MADV_DONTNEED_LOCKED || advice == MADV_GUARD_INSTALL)
		changing(at, bytes);
	rc = real.madvise(at, bytes, advice);
	if (!rc && later_active() && (advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED))
		later_moved(at, bytes, NULL, 0);
	return rc;
}

/* Of this process, perhaps (Linux 6.13), and of which pages the kernel decides. */
ZC_EXPORT ssize_t process_madvise(int process, const struct iovec *iov, size_t count, int advice, unsigned int flags)
{
	changing(NULL, SIZE_MAX);
	return real.process_madvise(process, iov, count, advice, flags);
}

/* Libc's loader unmaps by a call of its own. */
ZC_EXPORT int dlclose(void *handle)
{
	changing(NULL, SIZE_MAX);
	return real.dlclose(handle);
}

ZC_EXPORT int mprotect(void *at, size_t bytes, int protection)
{
	changing(at, bytes);
	return real.mprotect(at, bytes, protection);
}

ZC_EXPORT int pkey_mprotect(void *at, size_t bytes, int protection, int key)
{
	changing(at, bytes);
	return real.pkey_mprotect(at, bytes, protection, key);
}

ZC_EXPORT int mlockall(int flags)
{
	/* Said before, as other threads map at any time: what is unlocked in vain does no harm. */
	bool before = flags & MCL_FUTURE ? atomic_exchange(&channel_is_locked, true) : atomic_load(&channel_is_locked);
	int rc = real.mlockall(flags);

	if (rc)
		atomic_store(&channel_is_locked, before);
	else if (!(flags & MCL_FUTURE))
		atomic_store(&channel_is_locked, false);
	return rc;
}

ZC_EXPORT int munlockall(void)
{
	int rc = real.munlockall();

	atomic_store(&channel_is_locked, false);
	return rc;
}

/* The heap's end moves down: what lies above it goes away. */
static void before_shrink(uintptr_t end)
{
	uintptr_t now = guard_active() || later_active() ? (uintptr_t)real.sbrk(0) : 0;

	if (now > end)
		going_away((void *)end, now - end);
}

ZC_EXPORT int brk(void *end)
{
	before_shrink((uintptr_t)end);
	return real.brk(end);
}

ZC_EXPORT void *sbrk(intptr_t step)
{
	if (step < 0 && (guard_active() || later_active()))
		before_shrink((uintptr_t)real.sbrk(0) - (uintptr_t)-step);
	return real.sbrk(step);
}

ZC_EXPORT void *shmat(int id, const void *at, int flags)
{
	struct shmid_ds info;

	if (at && flags & SHM_REMAP && (guard_active() || later_active()) && !shmctl(id, IPC_STAT, &info))
		going_away(at, info.shm_segsz);
	return real.shmat(id, at, flags);
}

ZC_EXPORT int shmdt(const void *at)
{
	return real.shmdt(at); /* shared memory is never guarded */
}

/* What is smaller than a page has no whole one that could be guarded. */
static __attribute__((noinline)) void block_goes(void *block)
{
	int saved = errno;
	size_t bytes = block ? real_block_bytes(block) : 0;

	if (bytes == SIZE_MAX)
		going_away(NULL, SIZE_MAX);
	else if (bytes >= PAGE)
		going_away(block, bytes);
	errno = saved;
}

ZC_EXPORT void free(void *block)
{
	if (guard_lends() || later_active())
		block_goes(block);
	real.free(block);
}

/* Its bytes stay the program's: those that were lost are told where they are, or where libc moves them. */
static __attribute__((noinline)) void *reallocate(void *block, size_t bytes)
{
	int saved = errno;
	size_t had = block ? real_block_bytes(block) : 0;
	void *to, *from = had == SIZE_MAX ? NULL : block;

	if (had >= PAGE) {
		later_settle(from, had);
		if (guard_lends())
			guard_forget(from, had);
		if (from && bytes < had)
			later_forget((char *)from + bytes, had - bytes);
	}
	errno = saved;
	to = real.realloc(block, bytes);
	if (to && to != block && from && had >= PAGE)
		later_moved(from, had, to, bytes);
	return to;
}

ZC_EXPORT void *realloc(void *block, size_t bytes)
{
	if (guard_lends() || later_active())
		return reallocate(block, bytes);
	return real.realloc(block, bytes);
}
