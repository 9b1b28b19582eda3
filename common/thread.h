/* SPDX-License-Identifier: MIT */
/*
 * Threads of our own inside the guest. The program must not notice them: its signals are never delivered to one, nobody joins
 * them, and they take little of its address space.
 */
#ifndef ZC_COMMON_THREAD_H
#define ZC_COMMON_THREAD_H

#include <pthread.h>
#include <stddef.h>

/*
 * Starts body(arg) in a detached thread with a stack of that size, or of the program's default size where that is too small for its
 * static thread-local data or for a sanitizer. All its signals are blocked but the two that libc sends to every thread (setuid,
 * cancellation). Returns 0 or -errno; errno is kept.
 */
int thread_start(void *(*body)(void *), void *arg, size_t stack_bytes);

/* The same for one that the caller joins, once: until it has, the thread may be in the middle of what libc does at a thread's end, with locks of libc's. */
int thread_start_joined(void *(*body)(void *), void *arg, size_t stack_bytes, pthread_t *out);

/*
 * From here on thread_start() returns -EAGAIN, here and in the children of this process: for one that was forked past libc while another
 * thread had libc's loader locked. That thread does not exist here, and pthread_create() would wait for it.
 */
void thread_starts_no_more(void);

#endif
