/* SPDX-License-Identifier: MIT */
/* Checks of what the guard and zero-copy want of memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "apps/zc/doctor.h"
#include "common/capability.h"
#include "common/settings.h"
#include "common/uffd.h"

#define PAGEMAP_PRESENT (1ull << 63)

static char *map_page(size_t *bytes)
{
	char *page;

	*bytes = (size_t)sysconf(_SC_PAGESIZE);
	page = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	page[0] = 1;
	return page;
}

/* Returns a userfaultfd that sees the kernel's faults too, or -errno of the call; *how says what allowed it. */
static int open_userfaultfd(const char **how)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), error = errno, device;

	*how = capability_everywhere(CAP_SYS_PTRACE) ? "by CAP_SYS_PTRACE" : "by vm.unprivileged_userfaultfd=1";
	if (fd >= 0)
		return fd;
	*how = "by /dev/userfaultfd";
	device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return -error;
	fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
	error = errno;
	close(device);
	return fd < 0 ? -error : fd;
}

/* Write-protects a page of ours. Returns 0 or -errno. */
static int try_protect(int fd)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMAP };
	size_t bytes;
	char *page = map_page(&bytes);
	struct uffdio_register range = { .range = { (uintptr_t)page, bytes }, .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect protect = { .range = range.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int rc = 0;

	if (!page)
		return -ENOMEM;
	if (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range) ||
	    ioctl(fd, UFFDIO_WRITEPROTECT, &protect))
		rc = -errno;
	munmap(page, bytes);
	return rc;
}

static void no_userfaultfd(struct finding *out, int error)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd >= 0) {
		close(fd);
		finding_is(out, HEALTH_LIMITED, "for faults in user mode only");
		finding_means(out, "it would let the kernel's writes fail, so that zc guards by mprotect instead");
		return;
	}
	finding_is(out, HEALTH_LIMITED, "none (%s)", strerror(error));
	finding_means(out, "zc guards by mprotect and SIGSEGV instead");
	if (error == ENOSYS)
		finding_remedy(out, "a kernel with CONFIG_USERFAULTFD, and a seccomp filter that allows the call");
}

void doctor_userfaultfd(struct finding *out)
{
	const char *how;
	int fd = open_userfaultfd(&how), rc;

	if (fd < 0) {
		no_userfaultfd(out, -fd);
		return;
	}
	rc = try_protect(fd);
	close(fd);
	if (!rc) {
		finding_is(out, HEALTH_OK, "full, %s", how);
		return;
	}
	finding_is(out, HEALTH_LIMITED, "without write-protect (%s)", strerror(-rc));
	finding_means(out, "zc guards by mprotect and SIGSEGV instead");
	finding_remedy(out, "a kernel from 5.13 with CONFIG_HAVE_ARCH_USERFAULTFD_WP (x86_64 or aarch64)");
}

/* Registers a page of ours for missing pages, drops it, and poisons it. Returns 0 or -errno. */
static int try_poison(int fd)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_POISON_FEATURE };
	size_t bytes;
	char *page = map_page(&bytes);
	struct uffdio_register range = { .range = { (uintptr_t)page, bytes }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffd_poison poison = { .range = range.range };
	int rc = 0;

	if (!page)
		return -ENOMEM;
	if (ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range) || madvise(page, bytes, MADV_DONTNEED) ||
	    ioctl(fd, UFFD_POISON_IOCTL, &poison))
		rc = -errno;
	munmap(page, bytes);
	return rc;
}

void doctor_recv_async(struct finding *out)
{
	const char *how;
	int fd = open_userfaultfd(&how), rc = fd < 0 ? fd : try_poison(fd);

	if (fd >= 0)
		close(fd);
	if (!rc) {
		finding_is(out, HEALTH_OK, "can be had, %s", how);
		return;
	}
	finding_is(out, HEALTH_LIMITED, "none (%s)", strerror(-rc));
	finding_means(out, "ZC_RECV_ASYNC=yes does nothing: receives wait for their bytes");
}

static sigjmp_buf fault_return;

static void fault(int signal)
{
	siglongjmp(fault_return, 1);
}

void doctor_mprotect(struct finding *out)
{
	struct sigaction action = { .sa_handler = fault }, before;
	size_t bytes;
	char *volatile page = map_page(&bytes);
	volatile bool caught = false, allowed = false;

	sigaction(SIGSEGV, &action, &before);
	if (page && !mprotect(page, bytes, PROT_READ)) {
		if (sigsetjmp(fault_return, 1))
			caught = true;
		else
			*(volatile char *)page = 2;
		allowed = !mprotect(page, bytes, PROT_READ | PROT_WRITE);
	}
	sigaction(SIGSEGV, &before, NULL);
	if (caught && allowed)
		finding_is(out, HEALTH_OK, "a write to a protected page was caught");
	else
		finding_is(out, HEALTH_MISSING, "a write to a protected page was not caught");
	if (!caught)
		finding_means(out, "without userfaultfd nothing is sent by zerocopy");
	if (page)
		munmap(page, bytes);
}

void doctor_pagemap(struct finding *out)
{
	size_t bytes;
	char *page = map_page(&bytes);
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int error = errno;
	bool present =
		fd >= 0 && page &&
		pread(fd, &entry, sizeof(entry), (off_t)((uintptr_t)page / bytes * sizeof(entry))) == sizeof(entry) &&
		entry & PAGEMAP_PRESENT;

	if (present)
		finding_is(out, HEALTH_OK, "readable");
	else
		finding_is(out, HEALTH_MISSING, "%s", fd < 0 ? strerror(error) : "does not show a page that is there");
	if (!present)
		finding_means(out, "no page can be guarded, so that nothing is sent by zerocopy");
	if (fd >= 0)
		close(fd);
	if (page)
		munmap(page, bytes);
}

void doctor_memlock(struct finding *out)
{
	struct rlimit limit = { 0 };

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (capability_everywhere(CAP_IPC_LOCK))
		finding_is(out, HEALTH_OK, "no limit, by CAP_IPC_LOCK");
	else if (limit.rlim_cur == RLIM_INFINITY)
		finding_is(out, HEALTH_OK, "no limit");
	else if (limit.rlim_cur >= settings.zerocopy_bytes_max)
		finding_is(out, HEALTH_OK, "%llu kB", (unsigned long long)limit.rlim_cur / 1024);
	else
		finding_is(out, HEALTH_LIMITED, "%llu kB", (unsigned long long)limit.rlim_cur / 1024);
	if (out->health == HEALTH_LIMITED)
		finding_means(out,
			      "less than the %lu kB of one connection (ZC_ZEROCOPY_BYTES_MAX): what is beyond takes "
			      "copy, with the reason enobufs",
			      settings.zerocopy_bytes_max / 1024);
}

void doctor_vm_readv(struct finding *out)
{
	char from[64] = "zc", to[64] = "";
	struct iovec local = { to, sizeof(to) }, remote = { from, sizeof(from) };
	ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	if (got == sizeof(to) && !memcmp(from, to, sizeof(to)))
		finding_is(out, HEALTH_OK, "works within a process");
	else
		finding_is(out, HEALTH_MISSING, "%s", strerror(errno));
}

void doctor_ptrace_scope(struct finding *out)
{
	static const char *const scopes[] = { "any process of the same user", "descendants only", "CAP_SYS_PTRACE only",
					      "nobody" };
	char line[32];
	int scope = -1;

	if (doctor_read_line("/proc/sys/kernel/yama/ptrace_scope", line, sizeof(line)) ||
	    sscanf(line, "%d", &scope) != 1) {
		finding_is(out, HEALTH_OK, "no Yama: any process of the same user");
		return;
	}
	finding_is(out, scope > 0 && !capability_here(CAP_SYS_PTRACE) ? HEALTH_LIMITED : HEALTH_OK,
		   "ptrace_scope %d: %s", scope, scope >= 0 && scope <= 3 ? scopes[scope] : "unknown");
	if (out->health == HEALTH_LIMITED)
		finding_means(
			out,
			"a process can't read another one's memory: zsdp and azsdp go by the ring (get_refused in zc stat)");
}

void doctor_thp(struct finding *out)
{
	char line[64], *chosen, *end;

	if (doctor_read_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line))) {
		finding_is(out, HEALTH_OK, "none: nothing is split");
		return;
	}
	chosen = strchr(line, '[');
	end = chosen ? strchr(chosen, ']') : NULL;
	if (end)
		*end = '\0';
	chosen = end ? chosen + 1 : line;
	finding_is(out, strcmp(chosen, "always") ? HEALTH_OK : HEALTH_LIMITED, "%s", chosen);
	if (out->health == HEALTH_LIMITED)
		finding_means(out, "large buffers lie in huge pages, which zerocopy splits: some performance is lost");
}
