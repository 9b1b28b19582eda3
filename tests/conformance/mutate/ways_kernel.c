/* SPDX-License-Identifier: MIT */
/* Ways in which the kernel writes to the memory, by a call of the program. */
#define _GNU_SOURCE
#include "ways.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/sys.h"

/* A descriptor from which the other bytes can be read. */
static int source(const struct target *target)
{
	int fd = memfd_create("source", MFD_CLOEXEC);

	must(fd >= 0);
	must(write(fd, other_bytes(target), target->bytes) == (ssize_t)target->bytes);
	must(lseek(fd, 0, SEEK_SET) == 0);
	return fd;
}

void by_read(struct target *target)
{
	must(read(source(target), target->buffer, target->bytes) == (ssize_t)target->bytes);
}

void by_pread(struct target *target)
{
	must(pread(source(target), target->buffer, target->bytes, 0) == (ssize_t)target->bytes);
}

void by_readv(struct target *target)
{
	struct iovec halves[] = { { target->buffer, target->bytes / 2 },
				  { target->buffer + target->bytes / 2, target->bytes - target->bytes / 2 } };

	must(readv(source(target), halves, 2) == (ssize_t)target->bytes);
}

void by_preadv(struct target *target)
{
	struct iovec all = { target->buffer, target->bytes };

	must(preadv(source(target), &all, 1, 0) == (ssize_t)target->bytes);
}

void by_syscall(struct target *target)
{
	must(syscall(SYS_read, source(target), target->buffer, target->bytes) == (long)target->bytes);
}

/* Without any libc: nobody can know. Under mprotect the kernel refuses it; then nothing has changed. */
void by_instruction(struct target *target)
{
	long got = sys_call(SYS_read, source(target), (long)target->buffer, (long)target->bytes, 0, 0, 0);

	if (got != (long)target->bytes)
		fprintf(stderr, "note: read by instruction was refused\n");
}

void by_fread(struct target *target)
{
	FILE *file = fdopen(source(target), "r");

	must(file);
	must(fread(target->buffer, 1, target->bytes, file) == target->bytes);
	fclose(file);
}

static void by_recv(struct target *target, bool message)
{
	unsigned char *bytes = other_bytes(target);
	struct iovec all = { target->buffer, 4096 * 4 };
	struct msghdr header = { .msg_iov = &all, .msg_iovlen = 1 };
	int pair[2];

	must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	for (size_t at = 0; at + all.iov_len <= target->bytes; at += all.iov_len) {
		must(send(pair[0], bytes + at, all.iov_len, 0) == (ssize_t)all.iov_len);
		all.iov_base = target->buffer + at;
		if (message)
			must(recvmsg(pair[1], &header, MSG_WAITALL) == (ssize_t)all.iov_len);
		else
			must(recv(pair[1], all.iov_base, all.iov_len, MSG_WAITALL) == (ssize_t)all.iov_len);
	}
}

void recv_into(struct target *target)
{
	by_recv(target, false);
}

void recvmsg_into(struct target *target)
{
	by_recv(target, true);
}

void by_getrandom(struct target *target)
{
	for (size_t at = 0; at < target->bytes; at += 256)
		must(getrandom(target->buffer + at, 256, 0) == 256);
}

void by_process_vm_readv(struct target *target)
{
	struct iovec from = { other_bytes(target), target->bytes };
	struct iovec to = { target->buffer, target->bytes };

	must(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)target->bytes);
}
