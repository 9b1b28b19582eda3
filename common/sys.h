/* SPDX-License-Identifier: MIT */
/*
 * Raw system calls: result or -errno, errno untouched, no cancellation point, no libc symbol that could be one of our own
 * wrappers. For the places where a guest's libc must not be entered: start-up, locks, signal handlers.
 */
#ifndef ZC_COMMON_SYS_H
#define ZC_COMMON_SYS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Descriptors of our own live from here up, out of the way of programs that count theirs from 0. */
#define SYS_FD_HIGH 1000

#if defined(__x86_64__)
static inline long sys_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static inline long sys_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#else
#error "zc knows the system call convention of x86_64 and aarch64 only"
#endif

/* Maps anonymous memory of zeroes; flags: MAP_PRIVATE or MAP_SHARED, MAP_NORESERVE. Returns NULL if there is none. */
static inline void *sys_map(size_t bytes, int flags)
{
	long at = sys_call(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	return at < 0 && at > -4096 ? NULL : (void *)at;
}

/* Moves one of our own descriptors up, out of the guest's way. Returns the new number, or fd if there is no room there. */
static inline int sys_fd_raise(int fd)
{
	struct rlimit limit;
	long high;

	if (fd < 0 || fd >= SYS_FD_HIGH)
		return fd;
	high = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, SYS_FD_HIGH, 0, 0, 0);
	/* Where there are no such numbers, half of those that there are stay the program's. */
	if (high < 0 && sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0) >= 0 &&
	    (unsigned long)fd < limit.rlim_cur / 2)
		high = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, (long)limit.rlim_cur / 2, 0, 0, 0);
	if (high < 0)
		return fd;
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return (int)high;
}

/* Whether a file may get this size. If not, the kernel would not only refuse, but end the program by a signal (RLIMIT_FSIZE). */
static inline bool sys_file_may_have(uint64_t bytes)
{
	struct rlimit limit;

	return sys_call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)&limit, 0, 0) < 0 || bytes <= limit.rlim_cur;
}

#endif
