/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/sys.h"

#define DEFAULT_STACK 0

static _Atomic bool no_more;

/* Detached without `joined`. */
static int create(void *(*body)(void *), void *arg, size_t stack_bytes, pthread_t *joined)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int rc = pthread_attr_init(&attributes);

	if (rc)
		return rc;
	pthread_attr_setdetachstate(&attributes, joined ? PTHREAD_CREATE_JOINABLE : PTHREAD_CREATE_DETACHED);
	if (stack_bytes != DEFAULT_STACK)
		pthread_attr_setstacksize(&attributes, stack_bytes);
	rc = pthread_create(joined ? joined : &thread, &attributes, body, arg);
	pthread_attr_destroy(&attributes);
	return rc;
}

static int start(void *(*body)(void *), void *arg, size_t stack_bytes, pthread_t *joined)
{
	uint64_t blocked = ~(1ull << 31 | 1ull << 32), before;
	int saved = errno, rc;

	if (atomic_load_explicit(&no_more, memory_order_relaxed))
		return -EAGAIN;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	stack_bytes = DEFAULT_STACK; /* frames are larger there */
#endif
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&blocked, (long)&before, sizeof(blocked), 0, 0);
	rc = create(body, arg, stack_bytes, joined);
	if (rc == EINVAL) /* the static thread-local data of this program is larger than that */
		rc = create(body, arg, DEFAULT_STACK, joined);
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, sizeof(before), 0, 0);
	errno = saved;
	return -rc;
}

int thread_start(void *(*body)(void *), void *arg, size_t stack_bytes)
{
	return start(body, arg, stack_bytes, NULL);
}

int thread_start_joined(void *(*body)(void *), void *arg, size_t stack_bytes, pthread_t *out)
{
	return start(body, arg, stack_bytes, out);
}

void thread_starts_no_more(void)
{
	atomic_store(&no_more, true);
}
