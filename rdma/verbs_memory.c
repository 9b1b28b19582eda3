/* SPDX-License-Identifier: MIT */
/*
 * The allocator of libzc-verbs.so and of the libraries that it brings along: the program's. They are bound to libc before anything else, so
 * that their calls are not intercepted, and would take libc's allocator with it. What libc itself allocates for them, in
 * getaddrinfo() say, is from the program's own, jemalloc for instance, as is what libibverbs' providers allocate: freed by the other one, it
 * ends the program. These definitions come before libc's in that binding.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define OFFERED __attribute__((visibility("default")))

static struct {
	void *(*malloc)(size_t bytes);
	void *(*calloc)(size_t count, size_t bytes);
	void *(*realloc)(void *block, size_t bytes);
	int (*posix_memalign)(void **out, size_t alignment, size_t bytes);
	void (*free)(void *block);
} program;

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* What it has is asked of the module that its malloc() is in: libzc.so stands before it with a free() and a realloc() of its own. */
static void find(void)
{
	void *all = dlopen(NULL, RTLD_LAZY), *its = NULL;
	Dl_info module;

	program.malloc = (void *(*)(size_t))dlsym(all, "malloc");
	if (dladdr((void *)program.malloc, &module) && module.dli_fname)
		its = dlopen(module.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!its)
		its = all; /* the program itself, which comes before libzc.so */
	program.calloc = (void *(*)(size_t, size_t))dlsym(its, "calloc");
	program.realloc = (void *(*)(void *, size_t))dlsym(its, "realloc");
	program.posix_memalign = (int (*)(void **, size_t, size_t))dlsym(its, "posix_memalign");
	program.free = (void (*)(void *))dlsym(its, "free");
}

OFFERED void *malloc(size_t bytes)
{
	pthread_once(&once, find);
	return program.malloc(bytes);
}

OFFERED void *calloc(size_t count, size_t bytes)
{
	pthread_once(&once, find);
	return program.calloc(count, bytes);
}

OFFERED void *realloc(void *block, size_t bytes)
{
	pthread_once(&once, find);
	return program.realloc(block, bytes);
}

OFFERED int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	pthread_once(&once, find);
	return program.posix_memalign(out, alignment, bytes);
}

OFFERED void free(void *block)
{
	pthread_once(&once, find);
	program.free(block);
}
