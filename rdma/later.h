/* SPDX-License-Identifier: MIT */
/*
 * Receives that return before their bytes are there (receive-side asynchrony of Balaji et al. 2006): the GET of a source runs in
 * a thread of ours, and whoever touches the pages meanwhile waits until they are filled. Opt-in (ZC_RECV_ASYNC).
 *
 * The source is PROMISED (source.h): its word says that the receiver's program has been told of all its bytes. What does not
 * fill whole pages is fetched before that. Then the pages are registered with a userfaultfd for missing pages and dropped, so
 * that every access waits, reads and the kernel's own included; the thread fetches into memory of its own, claims what it has
 * (as every GET does), and only then puts it in the program's place by UFFDIO_COPY, which wakes who waits. Nothing reads the
 * userfaultfd: the thread comes to each page anyway.
 *
 * Bytes that were promised and can't be had any more (the sender was killed, or its memory is gone) leave poisoned pages: who
 * touches them gets SIGBUS, for any byte that could be read there would be a wrong one; and the connection is reset. The
 * poison goes when the program gives the memory back, or receives into it anew.
 *
 * What ends a mapping, doubles or ends the process or the connection, has to settle first. A GET that nobody has begun is then
 * done by who settles, so that nobody depends on the thread; a GET is as bounded as process_vm_readv is.
 *
 * Locks: none is taken by the thread but the guard's, for a moment; who waits for a page waits for nothing that he could hold.
 */
#ifndef ZC_RDMA_LATER_H
#define ZC_RDMA_LATER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdma/lane.h"

/* GETs that run, and ranges that were lost. */
extern _Atomic unsigned int later_count;

/* Returns whether anything needs to be settled: one load. If not, whatever was under way has ended before. */
static inline bool later_active(void)
{
	return __builtin_expect(atomic_load_explicit(&later_count, memory_order_acquire) != 0, 0);
}

/*
 * Makes ready: a userfaultfd and the thread. To be called without locks, before a receive that may be PROMISED. Returns 0,
 * -ENOTSUP (no userfaultfd, or one that knows no poison: Linux 6.6), -EAGAIN (just being made ready), or another -errno.
 */
int later_start(void);

/* Waits until nothing is under way in [start, start + bytes). Everything: (NULL, SIZE_MAX). */
void later_settle(const void *start, size_t bytes);

/* The same for a lane: before it is unmapped, or its end is told. */
void later_settle_lane(const struct lane_shared *shared);

/* The same as later_settle() for memory whose bytes nobody will read any more: poison in it goes, too. */
void later_forget(const void *start, size_t bytes);

/*
 * Behind a move of that memory to another address, with its poison, as far as the first `kept` bytes; NULL: it is gone. What is mapped at the old
 * one next has none.
 */
void later_moved(const void *start, size_t bytes, const void *to, size_t kept);

/* Settles all and begins nothing new until later_release(): before exec, exit, a sandbox. They nest. */
void later_hold(void);
void later_release(void);

/* fork: instead of later_hold() and later_release(). The child has no GETs under way. */
void later_before_fork(void);
void later_after_fork(bool in_child);

/* The userfaultfd; -1: none. */
int later_descriptor(void);

#endif
