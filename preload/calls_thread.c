/* SPDX-License-Identifier: MIT */
/*
 * How threads come to be: each tells the guard of its stack before it runs what the program wants. Nothing of ours is on the
 * stack after that, and nothing is done at the end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <sys/mman.h>

#include "preload/fork.h"
#include "preload/guest.h"
#include "preload/pool.h"
#include "preload/real.h"
#include "preload/unseen.h"
#include "rdma/guard.h"

#define PAGE 4096ul

/* From the thread that creates to the one that begins. */
struct beginning {
	union {
		void *(*posix)(void *argument);
		thrd_start_t c11;
	} run;
	void *argument;
	uintptr_t top; /* of a stack that the program has allocated; 0: one of libc's */
	size_t bytes;  /* of the stack */
	void *next_free;
};

static struct pool pool = {
	.bytes = sizeof(struct beginning),
	.link = offsetof(struct beginning, next_free),
	.each = 64,
	.slabs_max = UINT32_MAX,
	.sharing = MAP_PRIVATE,
};

/* Who had the lock, or pieces, is not in this process. */
void threads_after_fork(void)
{
	atomic_store(&pool.lock.word, 0);
	pool.free = NULL;
}

/*
 * How far thread-local variables reach above what pthread_self() tells. libc takes them, its description of the thread and the
 * frames as one piece, in which the description is the last, or these are.
 */
#if defined(__x86_64__)
static size_t variables_bytes(void)
{
	return 0;
}
#else
static int add_variables(struct dl_phdr_info *object, size_t bytes, void *sum)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		if (object->dlpi_phdr[i].p_type == PT_TLS)
			*(size_t *)sum += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
	}
	return 0;
}

static size_t variables_bytes(void)
{
	static _Atomic size_t known;
	size_t sum = atomic_load(&known);

	if (!sum) {
		sum = 1;
		dl_iterate_phdr(add_variables, &sum);
		atomic_store(&known, sum);
	}
	return sum;
}
#endif

/* Whole pages, and not one too many: what the program maps next to a stack is memory that can be guarded. */
static void tell(struct beginning *beginning)
{
	uintptr_t self = (uintptr_t)pthread_self() + variables_bytes();
	uintptr_t top = beginning->top ? beginning->top : (self | (PAGE - 1)) + 1;
	uintptr_t low = top > beginning->bytes ? top - beginning->bytes : 0;

	pool_give(&pool, beginning);
	if (!guest_sandboxed())
		guard_stack_begins(low & ~(PAGE - 1), top);
}

static void *begin_posix(void *at)
{
	struct beginning *beginning = at;
	void *(*run)(void *) = beginning->run.posix;
	void *argument = beginning->argument;

	tell(beginning);
	return run(argument);
}

static int begin_c11(void *at)
{
	struct beginning *beginning = at;
	thrd_start_t run = beginning->run.c11;
	void *argument = beginning->argument;

	tell(beginning);
	return run(argument);
}

static void find_size(struct beginning *beginning, const pthread_attr_t *attributes)
{
	void *at;
	size_t bytes;

	pthread_attr_getstacksize(attributes, &beginning->bytes);
	beginning->top = 0;
	if (!pthread_attr_getstack(attributes, &at, &bytes))
		beginning->top = (uintptr_t)at + bytes;
	/* A signal, or the thread itself, would meet the guard where it can't be met. */
	if (beginning->top && guard_active())
		guard_settle((void *)(beginning->top - beginning->bytes), beginning->bytes);
}

/* Returns NULL if there is no memory: then whatever is sent may lie on a stack. */
static struct beginning *prepare(void *argument, const pthread_attr_t *attributes)
{
	struct beginning *beginning;
	pthread_attr_t usual;

	/* By a handler of the fork's, in a child that is not ready: a thread would take the fork for one that nobody has prepared. */
	if (unseen_fork())
		return NULL;
	beginning = guest_sandboxed() ? NULL : pool_take(&pool);
	if (!beginning) {
		if (!guest_sandboxed())
			guard_stacks_unknown();
		return NULL;
	}
	beginning->argument = argument;
	if (attributes) {
		find_size(beginning, attributes);
	} else {
		pthread_attr_init(&usual);
		find_size(beginning, &usual);
		pthread_attr_destroy(&usual);
	}
	return beginning;
}

ZC_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	int saved = errno, rc;
	struct beginning *beginning = prepare(argument, attributes);

	errno = saved;
	if (!beginning)
		return real.pthread_create(thread, attributes, run, argument);
	beginning->run.posix = run;
	rc = real.pthread_create(thread, attributes, begin_posix, beginning);
	if (rc)
		pool_give(&pool, beginning);
	return rc;
}

ZC_EXPORT int thrd_create(thrd_t *thread, thrd_start_t run, void *argument)
{
	int saved = errno, rc;
	struct beginning *beginning = prepare(argument, NULL);

	errno = saved;
	if (!beginning)
		return real.thrd_create(thread, run, argument);
	beginning->run.c11 = run;
	rc = real.thrd_create(thread, begin_c11, beginning);
	if (rc != thrd_success)
		pool_give(&pool, beginning);
	return rc;
}
