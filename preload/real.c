/* SPDX-License-Identifier: MIT */
/*
 * Resolves the table of real.h. dlsym may allocate, and an allocator that is preloaded too may map memory and read files
 * while it starts: for that time the calls that it needs are raw system calls.
 */
#define _GNU_SOURCE
#include "preload/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "common/sys.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wpedantic"

enum { UNRESOLVED, RESOLVING, RESOLVED };
static _Atomic int state;
static _Atomic long resolver; /* thread that resolves */

static long self_id(void)
{
	return sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

static long result_of(long value)
{
	if (value < 0 && value > -4096) {
		errno = (int)-value;
		return -1;
	}
	return value;
}

/* The few calls that work by themselves while the table is being resolved. */
static ssize_t early_read(int fd, void *data, size_t bytes)
{
	return result_of(sys_call(SYS_read, fd, (long)data, (long)bytes, 0, 0, 0));
}

static ssize_t early_write(int fd, const void *data, size_t bytes)
{
	return result_of(sys_call(SYS_write, fd, (long)data, (long)bytes, 0, 0, 0));
}

static int early_close(int fd)
{
	return (int)result_of(sys_call(SYS_close, fd, 0, 0, 0, 0, 0));
}

static void *early_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	return (void *)result_of(sys_call(SYS_mmap, (long)at, (long)bytes, protection, flags, fd, offset));
}

static int early_munmap(void *at, size_t bytes)
{
	return (int)result_of(sys_call(SYS_munmap, (long)at, (long)bytes, 0, 0, 0, 0));
}

static int early_madvise(void *at, size_t bytes, int advice)
{
	return (int)result_of(sys_call(SYS_madvise, (long)at, (long)bytes, advice, 0, 0, 0));
}

static int early_mprotect(void *at, size_t bytes, int protection)
{
	return (int)result_of(sys_call(SYS_mprotect, (long)at, (long)bytes, protection, 0, 0, 0));
}

/*
 * first_NAME resolves and forwards. Called by the resolving thread itself, it is a call out of dlsym that nothing above
 * serves: it fails as on a libc without that function. absent_NAME stays where this libc has no such function.
 */
static int resolve_first(void)
{
	real_resolve();
	if (atomic_load(&state) == RESOLVED)
		return 1;
	errno = ENOSYS;
	return 0;
}

#define ZC_CALL(ret, name, params, args)                                                                               \
	static ret first_##name params                                                                                 \
	{                                                                                                              \
		return resolve_first() ? real.name args : (ret)-1;                                                     \
	}                                                                                                              \
	static ret absent_##name params                                                                                \
	{                                                                                                              \
		errno = ENOSYS;                                                                                        \
		return (ret)-1;                                                                                        \
	}
#define ZC_POINTER(ret, name, params, args)                                                                            \
	static ret first_##name params                                                                                 \
	{                                                                                                              \
		return resolve_first() ? real.name args : NULL;                                                        \
	}                                                                                                              \
	static ret absent_##name params                                                                                \
	{                                                                                                              \
		errno = ENOSYS;                                                                                        \
		return NULL;                                                                                           \
	}
#define ZC_VOID(name, params, args)                                                                                    \
	static void first_##name params                                                                                \
	{                                                                                                              \
		if (resolve_first())                                                                                   \
			real.name args;                                                                                \
	}                                                                                                              \
	static void absent_##name params                                                                               \
	{                                                                                                              \
		errno = ENOSYS;                                                                                        \
	}
#define ZC_NORETURN(name, params, args)                                                                                \
	static void first_##name params                                                                                \
	{                                                                                                              \
		if (resolve_first())                                                                                   \
			real.name args;                                                                                \
		for (;;)                                                                                               \
			sys_call(SYS_exit_group, 127, 0, 0, 0, 0, 0);                                                  \
	}                                                                                                              \
	static void absent_##name params                                                                               \
	{                                                                                                              \
		for (;;)                                                                                               \
			sys_call(SYS_exit_group, 127, 0, 0, 0, 0, 0);                                                  \
	}
#include "preload/calls.def"

/* Those without a forwarding form are reached through wrappers that resolve first; see calls_process.c and others. */
#define ZC_CALL(ret, name, params, args)
#define ZC_VARIADIC(ret, name, params)                                                                                 \
	static ret absent_##name params                                                                                \
	{                                                                                                              \
		errno = ENOSYS;                                                                                        \
		return (ret)-1;                                                                                        \
	}
#define ZC_JUMP(ret, name, params) ZC_VARIADIC(ret, name, params)
#include "preload/calls.def"

struct real real = {
#define ZC_CALL(ret, name, params, args) .name = first_##name,
#define ZC_VOID(name, params, args) .name = first_##name,
#define ZC_NORETURN(name, params, args) .name = first_##name,
#define ZC_VARIADIC(ret, name, params) .name = absent_##name,
#define ZC_JUMP(ret, name, params) .name = absent_##name,
#include "preload/calls.def"
};

/* Where the vfork wrapper jumps to: the bare system call until libc's is found. */
void bare_vfork(void);
#if defined(__x86_64__)
__asm__(".text\n.hidden bare_vfork\n.globl bare_vfork\n.type bare_vfork,@function\nbare_vfork:\n"
	"	popq %rdi\n"
	"	movl $58, %eax\n"
	"	syscall\n"
	"	pushq %rdi\n"
	"	ret\n"
	".size bare_vfork,.-bare_vfork\n");
#elif defined(__aarch64__)
__asm__(".text\n.hidden bare_vfork\n.globl bare_vfork\n.type bare_vfork,%function\nbare_vfork:\n"
	"	mov x0, #0x4111\n" /* CLONE_VM | CLONE_VFORK | SIGCHLD */
	"	mov x1, #0\n"
	"	mov x8, #220\n"
	"	svc #0\n"
	"	ret\n"
	".size bare_vfork,.-bare_vfork\n");
#endif
__attribute__((visibility("hidden"))) void *real_vfork = (void *)bare_vfork;

static size_t (*usable_size)(void *block);

static void *find(const char *name, void *absent)
{
	void *found = dlsym(RTLD_NEXT, name);

	return found ? found : absent;
}

static bool are_of_one_library(void *a, void *b)
{
	Dl_info of_a, of_b;

	return dladdr(a, &of_a) && dladdr(b, &of_b) && of_a.dli_fbase == of_b.dli_fbase;
}

/* Before all others: what dlsym itself may call. A block that it frees earlier than this is lost. */
static void find_heap(void)
{
	void *release = find("free", NULL), *size = find("malloc_usable_size", NULL);

	if (release)
		real.free = (__typeof__(real.free))release;
	real.realloc = (__typeof__(real.realloc))find("realloc", (void *)absent_realloc);
	/* An allocator in front of libc's that does not tell sizes: libc's would look for them where there are none. */
	if (release && size && are_of_one_library(release, size))
		usable_size = (__typeof__(usable_size))size;
}

size_t real_block_bytes(void *block)
{
	real_resolve();
	return usable_size ? usable_size(block) : SIZE_MAX;
}

static void find_all(void)
{
	struct real found;

	find_heap();
#define FIND(name) found.name = (__typeof__(found.name))find(#name, (void *)absent_##name);
#define ZC_CALL(ret, name, params, args) FIND(name)
#define ZC_VOID(name, params, args) FIND(name)
#define ZC_NORETURN(name, params, args) FIND(name)
#define ZC_VARIADIC(ret, name, params) FIND(name)
#define ZC_JUMP(ret, name, params) FIND(name)
#include "preload/calls.def"
	real = found;
}

void real_resolve(void)
{
	int expected = UNRESOLVED;

	if (atomic_load(&state) == RESOLVED)
		return;
	if (!atomic_compare_exchange_strong(&state, &expected, RESOLVING)) {
		while (atomic_load(&state) == RESOLVING && atomic_load(&resolver) != self_id())
			sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		return;
	}
	int saved = errno;

	atomic_store(&resolver, self_id());
	real.read = early_read;
	real.write = early_write;
	real.close = early_close;
	real.mmap = early_mmap;
	real.mmap64 = early_mmap;
	real.munmap = early_munmap;
	real.madvise = early_madvise;
	real.mprotect = early_mprotect;
	find_all();
	real_vfork = (void *)real.vfork;
	atomic_store(&state, RESOLVED);
	errno = saved;
}

void real_resolve_late(void)
{
	void *library, *found;

	real_resolve();
	if (real.forkpty != absent_forkpty)
		return;
	library = dlopen("libutil.so.1", RTLD_LAZY);
	found = library ? dlsym(library, "forkpty") : NULL;
	if (found)
		real.forkpty = (__typeof__(real.forkpty))found;
}
