/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/guest.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/vfs.h>

#include "common/sys.h"
#include "preload/conn.h"
#include "preload/engine.h"
#include "preload/defer.h"
#include "preload/evict.h"
#include "preload/sg.h"
#include "rdma/guard.h"
#include "rdma/later.h"

_Atomic bool guest_sandbox;
_Atomic bool guest_rings;
_Atomic bool guest_ending;

/* A filter may allow nothing of what a fault on a guarded page, a held byte or a ring takes: there may be none behind it. */
static void enter_sandbox(void)
{
	if (!guest_sandboxed())
		later_hold();
	if (!guest_sandboxed() && engine_possible() && conn_process_is_ours()) {
		defer_settle_all();
		conn_each(evict_all_of);
	}
	atomic_store(&guest_sandbox, true);
	sg_flush_all();
	guard_settle(NULL, SIZE_MAX);
}

static void leave_for_io_uring(struct conn *conn)
{
	if (!atomic_load(&conn->engine))
		return;
	stats_reason(conn->slot, REASON_IO_URING);
	evict_all_of(conn);
}

void guest_uses_io_uring(void)
{
	if (atomic_load(&guest_rings) || !conn_process_is_ours())
		return;
	atomic_store(&guest_rings, true);
	if (guest_sandboxed() || !engine_possible())
		return;
	defer_settle_all();
	conn_each(leave_for_io_uring);
}

void guest_maps_submissions(int fd)
{
	struct statfs file_system;

	if (!atomic_load(&guest_rings) && !guest_sandboxed() &&
	    !sys_call(SYS_fstatfs, fd, (long)&file_system, 0, 0, 0, 0) && file_system.f_type == ANON_INODE_FS_MAGIC)
		guest_uses_io_uring();
}

void guest_notes_prctl(int option)
{
	if (option == PR_SET_SECCOMP)
		enter_sandbox();
}

bool guest_is_strict_prctl(int option, unsigned long mode)
{
	return option == PR_SET_SECCOMP && mode == SECCOMP_MODE_STRICT;
}

bool guest_is_strict_syscall(long number, const long *a)
{
	return (number == SYS_seccomp && a[0] == SECCOMP_SET_MODE_STRICT) ||
	       (number == SYS_prctl && guest_is_strict_prctl((int)a[0], (unsigned long)a[1]));
}

void guest_writes_proc(int fd)
{
	struct statfs file_system;

	/* A sandbox may know no fstatfs; nothing is guarded anew in one. */
	if (!guest_sandboxed() && !sys_call(SYS_fstatfs, fd, (long)&file_system, 0, 0, 0, 0) &&
	    file_system.f_type == PROC_SUPER_MAGIC)
		guard_settle(NULL, SIZE_MAX);
}

/* The heap's end moves; 0 only asks for it. */
static void notes_break(uintptr_t end)
{
	uintptr_t now = end ? (uintptr_t)sys_call(SYS_brk, 0, 0, 0, 0, 0, 0) : 0;

	if (now > end) {
		later_forget((void *)end, now - end);
		guard_forget((void *)end, now - end);
	}
}

/* Memory that a raw system call has the kernel write to, or that it takes away. */
static void notes_memory(long number, const long *a)
{
	if (!guard_active() && !later_active())
		return;
	switch (number) {
	case SYS_read:
	case SYS_pread64:
	case SYS_recvfrom:
		if (guard_needs_settling())
			guard_settle((void *)a[1], (size_t)a[2]);
		break;
	case SYS_readv:
	case SYS_preadv:
	case SYS_preadv2:
		for (long i = 0; guard_needs_settling() && i < a[2] && i < 1024; i++) {
			const struct iovec *iov = (const struct iovec *)a[1] + i;

			guard_settle(iov->iov_base, iov->iov_len);
		}
		break;
	case SYS_recvmsg:
		for (size_t i = 0; guard_needs_settling() && i < ((struct msghdr *)a[1])->msg_iovlen && i < 1024; i++)
			guard_settle(((struct msghdr *)a[1])->msg_iov[i].iov_base,
				     ((struct msghdr *)a[1])->msg_iov[i].iov_len);
		break;
	case SYS_write:
	case SYS_pwrite64:
	case SYS_writev:
	case SYS_pwritev:
	case SYS_pwritev2:
		guest_writes_file((int)a[0]);
		break;
	case SYS_process_vm_writev:
		for (long i = 0; guard_needs_settling() && i < a[4] && i < 1024; i++) {
			const struct iovec *iov = (const struct iovec *)a[3] + i;

			guard_settle(iov->iov_base, iov->iov_len);
		}
		break;
	case SYS_munmap:
	case SYS_mmap:
		if (number == SYS_munmap || a[3] & MAP_FIXED) {
			later_forget((void *)a[0], (size_t)a[1]);
			guard_forget((void *)a[0], (size_t)a[1]);
		}
		break;
	case SYS_brk:
		notes_break((uintptr_t)a[0]);
		break;
	case SYS_mremap:
		later_settle(NULL, SIZE_MAX);
		if (a[3] & MREMAP_FIXED)
			guard_forget((void *)a[4], (size_t)a[2]);
		guard_settle((void *)a[0], (size_t)a[1]);
		break;
	case SYS_process_madvise:
		later_settle(NULL, SIZE_MAX);
		guard_settle(NULL, SIZE_MAX);
		break;
	case SYS_madvise:
	case SYS_mprotect:
	case SYS_pkey_mprotect:
		later_settle((void *)a[0], (size_t)a[1]);
		guard_settle((void *)a[0], (size_t)a[1]);
		break;
	default:
		break;
	}
}

void guest_notes_syscall(long number, const long *a)
{
	switch (number) {
	case SYS_seccomp:
		if (a[0] != SECCOMP_SET_MODE_STRICT && a[0] != SECCOMP_SET_MODE_FILTER)
			return; /* it only asks */
		enter_sandbox();
		return;
	case SYS_prctl:
		guest_notes_prctl((int)a[0]);
		return;
	case SYS_close:
		conn_close((int)a[0]);
		return;
	case SYS_clone:
		sg_flush_all();
		later_settle(NULL, SIZE_MAX);
		return;
	default:
		notes_memory(number, a);
	}
}

/* Between this process and itself, by the kernel. Returns bytes or -errno. */
static long copied(long call, const void *ours, const void *theirs, size_t bytes)
{
	struct iovec local = { (void *)ours, bytes }, remote = { (void *)theirs, bytes };

	if (guest_sandboxed())
		return -ENOSYS;
	return sys_call(call, sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0), (long)&local, 1, (long)&remote, 1, 0);
}

/* The kernel has not looked. */
static bool is_unknown(long copied)
{
	return copied < 0 && copied != -EFAULT;
}

bool guest_read(const void *from, void *to, size_t bytes)
{
	long rc = copied(SYS_process_vm_readv, to, from, bytes);

	if (is_unknown(rc))
		memcpy(to, from, bytes);
	return is_unknown(rc) || rc == (long)bytes;
}

bool guest_write(void *to, const void *from, size_t bytes)
{
	long rc = copied(SYS_process_vm_writev, from, to, bytes);

	if (is_unknown(rc))
		memcpy(to, from, bytes);
	return is_unknown(rc) || rc == (long)bytes;
}
