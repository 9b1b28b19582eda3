/* SPDX-License-Identifier: MIT */
/* The ways of mutate.h. */
#define _GNU_SOURCE
#include "ways.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "common/sys.h"

static void fill_after(struct target *target)
{
	fill(target->buffer, target->bytes, SEED_AFTER);
}

static unsigned char *map_private(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED);
	return at;
}

unsigned char *other_bytes(const struct target *target)
{
	unsigned char *bytes = map_private(target->bytes);

	fill(bytes, target->bytes, SEED_AFTER);
	return bytes;
}

static void wait_for(pid_t pid)
{
	int status;

	must(pid > 0);
	must(waitpid(pid, &status, 0) == pid);
	must(status == 0);
}

/* By hand -------------------------------------------------------------------------------------------------------------- */

static void *thread_fills(void *arg)
{
	fill_after(arg);
	return NULL;
}

static void other_thread(struct target *target)
{
	pthread_t thread;

	must(!pthread_create(&thread, NULL, thread_fills, target));
	pthread_join(thread, NULL);
}

static void vfork_child(struct target *target)
{
	pid_t pid = vfork();

	if (!pid) {
		fill_after(target);
		_exit(0);
	}
	wait_for(pid);
}

static void close_first(struct target *target)
{
	must(!close(target->socket));
	target->socket = -1;
	fill_after(target);
}

static void shutdown_first(struct target *target)
{
	must(!shutdown(target->socket, SHUT_WR));
	fill_after(target);
}

static unsigned char in_bss[8 << 20];

static void prepare_bss(struct target *target)
{
	target->buffer = in_bss + 100; /* not at the start of a page */
	must(target->bytes + 100 < sizeof(in_bss));
}

static void prepare_heap(struct target *target)
{
	mallopt(M_MMAP_THRESHOLD, 32 << 20); /* a sanitizer's allocator has no such thing */
	target->buffer = malloc(target->bytes);
	must(target->buffer);
}

/* Threads' stacks ------------------------------------------------------------------------------------------------------ */

/* A thread that lends a buffer on its stack, and waits until it has been sent. */
static struct {
	pthread_t thread;
	sem_t lent, sent, used;
	struct target *target;
} lender;

static __attribute__((noinline)) void lend(void)
{
	unsigned char buffer[BYTES];

	lender.target->buffer = buffer;
	__asm__ volatile("" : : "r"(buffer) : "memory");
	must(!sem_post(&lender.lent));
	must(!sem_wait(&lender.sent));
}

/* Goes down through where the buffer was, in small steps: the kernel puts a signal's frame at the lower end of the last one. */
static __attribute__((noinline)) unsigned char use_stack(size_t bytes)
{
	volatile unsigned char step[1024];

	for (size_t i = 0; i < sizeof(step); i++)
		step[i] = pattern(i, SEED_AFTER);
	return bytes > sizeof(step) ? (unsigned char)(use_stack(bytes - sizeof(step)) + step[1]) : step[0];
}

static void *lend_and_end(void *arg)
{
	lend();
	return NULL;
}

static int lend_and_use(void *arg)
{
	lend();
	use_stack(BYTES);
	must(!sem_post(&lender.used));
	for (;;)
		pause();
}

static void *lend_and_go_on(void *arg)
{
	lend_and_use(arg);
	return NULL;
}

static void begin_lending(struct target *target)
{
	lender.target = target;
	must(!sem_init(&lender.lent, 0, 0) && !sem_init(&lender.sent, 0, 0) && !sem_init(&lender.used, 0, 0));
}

static void prepare_ending_stack(struct target *target)
{
	begin_lending(target);
	must(!pthread_create(&lender.thread, NULL, lend_and_end, NULL));
	must(!sem_wait(&lender.lent));
}

static void prepare_stack(struct target *target)
{
	begin_lending(target);
	must(!pthread_create(&lender.thread, NULL, lend_and_go_on, NULL));
	must(!sem_wait(&lender.lent));
}

static void prepare_c11_stack(struct target *target)
{
	thrd_t thread;

	begin_lending(target);
	must(thrd_create(&thread, lend_and_use, NULL) == thrd_success);
	must(!sem_wait(&lender.lent));
}

static void end_thread(struct target *target)
{
	must(!sem_post(&lender.sent));
	must(!pthread_join(lender.thread, NULL));
}

static void let_go_on(struct target *target)
{
	must(!sem_post(&lender.sent));
	must(!sem_wait(&lender.used));
}

/* Aliases -------------------------------------------------------------------------------------------------------------- */

static void prepare_alias(struct target *target)
{
	target->memory = memfd_create("mutate", MFD_CLOEXEC);
	must(target->memory >= 0);
	must(!ftruncate(target->memory, (off_t)target->bytes));
	target->buffer = mmap(NULL, target->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, target->memory, 0);
	target->alias = mmap(NULL, target->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, target->memory, 0);
	must(target->buffer != MAP_FAILED && target->alias != MAP_FAILED);
}

static void alias(struct target *target)
{
	fill(target->alias, target->bytes, SEED_AFTER);
}

static void alias_file(struct target *target)
{
	must(pwrite(target->memory, other_bytes(target), target->bytes, 0) == (ssize_t)target->bytes);
}

static void prepare_shared(struct target *target)
{
	target->buffer = mmap(NULL, target->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(target->buffer != MAP_FAILED);
}

static void prepare_private_file(struct target *target)
{
	prepare_alias(target);
	munmap(target->buffer, target->bytes);
	target->buffer = mmap(NULL, target->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, target->memory, 0);
	must(target->buffer != MAP_FAILED);
}

/*
 * /proc/self/mem: a debugger's way, which ignores protection. It may be refused (userfaultfd can't make it wait), but if it
 * is not, it must not be seen by the receiver.
 */
static void proc_mem(struct target *target)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	unsigned char *bytes = other_bytes(target);

	must(fd >= 0);
	if (pwrite(fd, bytes, target->bytes, (off_t)(uintptr_t)target->buffer) != (ssize_t)target->bytes)
		fprintf(stderr, "note: a write to /proc/self/mem was refused\n");
	close(fd);
}

static void vm_write(pid_t pid, struct target *target, bool may_fail)
{
	struct iovec from = { other_bytes(target), target->bytes };
	struct iovec to = { target->buffer, target->bytes };
	bool done = process_vm_writev(pid, &from, 1, &to, 1, 0) == (ssize_t)target->bytes;

	if (!done && may_fail)
		fprintf(stderr, "note: process_vm_writev from outside was refused\n");
	else
		must(done);
}

static void process_vm_self(struct target *target)
{
	vm_write(getpid(), target, false);
}

/* Another process reaches in; nobody in this one knows. */
static void process_vm_child(struct target *target)
{
	pid_t parent = getpid(), pid = fork();

	if (!pid) {
		vm_write(parent, target, true);
		_exit(0);
	}
	wait_for(pid);
}

/* The mapping ---------------------------------------------------------------------------------------------------------- */

static void unmap_and_map(struct target *target)
{
	must(!munmap(target->buffer, target->bytes));
	must(mmap(target->buffer, target->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) == target->buffer);
	fill_after(target);
}

static void map_over(struct target *target)
{
	must(mmap(target->buffer, target->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) == target->buffer);
	fill_after(target);
}

/* Nobody sees it. */
static void unmap_raw(struct target *target)
{
	must(!sys_call(SYS_munmap, (long)target->buffer, (long)target->bytes, 0, 0, 0, 0));
}

/* Nor that there are other bytes at the same place. */
static void unmap_and_map_raw(struct target *target)
{
	unmap_raw(target);
	must(sys_call(SYS_mmap, (long)target->buffer, (long)target->bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (long)target->buffer);
	for (size_t i = 0; i < target->bytes; i++)
		target->buffer[i] = pattern(i, SEED_AFTER);
}

/* A munmap() that fails must not have ended the guard. */
static void unmap_badly(struct target *target)
{
	must(munmap(target->buffer + 1, target->bytes) == -1);
	fill_after(target);
}

static void advise(struct target *target, int advice, bool raw)
{
	if (raw)
		must(!sys_call(SYS_madvise, (long)target->buffer, (long)target->bytes, advice, 0, 0, 0));
	else
		must(!madvise(target->buffer, target->bytes, advice));
	fill_after(target);
}

static void dontneed(struct target *target)
{
	advise(target, MADV_DONTNEED, false);
}

static void dontneed_raw(struct target *target)
{
	advise(target, MADV_DONTNEED, true);
}

static void advise_free(struct target *target)
{
	advise(target, MADV_FREE, false);
}

static void move(struct target *target)
{
	unsigned char *moved = mremap(target->buffer, target->bytes, 2 * target->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
				      map_private(2 * target->bytes));

	must(moved != MAP_FAILED);
	for (size_t i = 0; i < target->bytes; i++)
		must(moved[i] == pattern(i, SEED_SENT));
	fill(moved, 2 * target->bytes, SEED_AFTER);
}

/* First a part of it is rewritten, then the whole moves. */
static void write_and_move(struct target *target)
{
	unsigned char *moved;

	for (size_t at = 0; at < target->bytes / 2; at += 64 << 10)
		target->buffer[at] = pattern(at, SEED_AFTER);
	moved = mremap(target->buffer, target->bytes, 2 * target->bytes, MREMAP_MAYMOVE);
	must(moved != MAP_FAILED);
	fill(moved, 2 * target->bytes, SEED_AFTER);
}

static void protect_twice(struct target *target)
{
	must(!mprotect(target->buffer, target->bytes, PROT_READ));
	must(!mprotect(target->buffer, target->bytes, PROT_READ | PROT_WRITE));
	fill_after(target);
}

/* A large block: libc maps it, and moves it by a call of its own. */
static void prepare_large_block(struct target *target)
{
	mallopt(M_MMAP_THRESHOLD, 64 << 10);
	target->buffer = malloc(target->bytes);
	must(target->buffer);
}

static void reallocate(struct target *target)
{
	unsigned char *wall, *grown;

	/* Whatever lies behind: the block can't grow in place for ever. */
	grown = realloc(target->buffer, 16 * target->bytes);
	must(grown);
	wall = malloc(target->bytes);
	must(wall);
	for (size_t i = 0; i < target->bytes; i++)
		must(grown[i] == pattern(i, SEED_SENT));
	fill(grown, target->bytes, SEED_AFTER);
	free(wall);
}

static void reallocate_array(struct target *target)
{
	unsigned char *grown = reallocarray(target->buffer, 16, target->bytes);

	must(grown);
	fill(grown, target->bytes, SEED_AFTER);
}

/* Its memory goes with it. */
static void free_alone(struct target *target)
{
	free(target->buffer);
}

static void prepare_aligned(struct target *target)
{
	void *at;

	mallopt(M_MMAP_THRESHOLD, 64 << 10);
	must(!posix_memalign(&at, 64 << 10, target->bytes));
	target->buffer = at;
}

static void free_and_malloc(struct target *target)
{
	unsigned char *again;

	free(target->buffer);
	again = malloc(target->bytes);
	must(again);
	fill(again, target->bytes, SEED_AFTER);
}

static void prepare_break(struct target *target)
{
	uintptr_t start = ((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095;

	must(!brk((void *)(start + target->bytes)));
	target->buffer = (unsigned char *)start;
}

static void move_break(struct target *target)
{
	must(!brk(target->buffer));
	must(!brk(target->buffer + target->bytes));
	fill_after(target);
}

/* Processes ------------------------------------------------------------------------------------------------------------ */

static void fork_child_writes(struct target *target)
{
	pid_t pid = fork();

	if (!pid) {
		for (size_t i = 0; i < target->bytes; i++)
			must(target->buffer[i] == pattern(i, SEED_SENT));
		fill_after(target);
		_exit(0);
	}
	wait_for(pid);
}

static void fork_raw_child_writes(struct target *target)
{
	pid_t pid = (pid_t)sys_call(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);

	if (!pid) {
		for (size_t i = 0; i < target->bytes; i++)
			target->buffer[i] = pattern(i, SEED_AFTER);
		sys_call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	}
	wait_for(pid);
}

/* The child keeps the memory while the parent writes, then writes itself. */
static void fork_parent_writes(struct target *target)
{
	int go[2];
	pid_t pid;
	char byte;

	must(!pipe2(go, O_CLOEXEC));
	pid = fork();
	if (!pid) {
		close(go[1]);
		must(read(go[0], &byte, 1) == 0);
		for (size_t i = 0; i < target->bytes; i++)
			must(target->buffer[i] == pattern(i, SEED_SENT));
		fill_after(target);
		_exit(0);
	}
	fill_after(target);
	close(go[1]);
	wait_for(pid);
}

/* A sandbox that kills for every call that a fault on a guarded page could take. */
static void sandboxed(struct target *target)
{
	static const int forbidden[] = { SYS_process_vm_readv, SYS_mremap, SYS_madvise, SYS_mprotect, SYS_ioctl,
					 SYS_pread64,	       SYS_futex };
	enum { COUNT = sizeof(forbidden) / sizeof(forbidden[0]) };
	struct sock_filter code[COUNT + 3];
	struct sock_fprog program = { COUNT + 3, code };

	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < COUNT; i++)
		code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned int)forbidden[i],
							   (unsigned char)(COUNT - i), 0);
	code[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	fill_after(target);
}

static void leave_by_exit(struct target *target)
{
	fill_after(target);
	exit(0);
}

static void leave_by__exit(struct target *target)
{
	_exit(0);
}

static void leave_by_exec(struct target *target)
{
	execl("/bin/true", "true", (char *)NULL);
	must(!"exec");
}

static void leave_by_kill(struct target *target)
{
	kill(getpid(), SIGKILL);
}

const struct way ways[] = {
	{ "same-thread", NULL, fill_after, SEEN, false, WHOLE },
	{ "other-thread", NULL, other_thread, SEEN, false, WHOLE },
	{ "vfork-child", NULL, vfork_child, SEEN, false, WHOLE },
	{ "static-memory", prepare_bss, fill_after, SEEN, false, WHOLE },
	{ "heap-memory", prepare_heap, fill_after, SEEN, false, WHOLE },
	{ "close-and-write", NULL, close_first, SEEN_PINNED, false, WHOLE },
	{ "shutdown-and-write", NULL, shutdown_first, SEEN, false, WHOLE },
	{ "alias-mapping", prepare_alias, alias, SEEN, true, WHOLE },
	{ "alias-file", prepare_alias, alias_file, SEEN, true, WHOLE },
	{ "alias-child", prepare_shared, fork_child_writes, SEEN, true, WHOLE },
	{ "private-file", prepare_private_file, fill_after, SEEN, true, WHOLE },
	{ "thread-stack-that-ends", prepare_ending_stack, end_thread, UNSEEN, true, WHOLE },
	{ "thread-stack-in-use", prepare_stack, let_go_on, SEEN, true, WHOLE },
	{ "c11-thread-stack-in-use", prepare_c11_stack, let_go_on, SEEN, true, WHOLE },
	{ "proc-self-mem", NULL, proc_mem, SEEN, false, WHOLE },
	{ "process-vm-writev", NULL, process_vm_self, SEEN, false, WHOLE },
	{ "process-vm-writev-from-outside", NULL, process_vm_child, UNSEEN, false, WHOLE },
	{ "read", NULL, by_read, SEEN, false, WHOLE },
	{ "pread", NULL, by_pread, SEEN, false, WHOLE },
	{ "readv", NULL, by_readv, SEEN, false, WHOLE },
	{ "preadv", NULL, by_preadv, SEEN, false, WHOLE },
	{ "read-by-syscall", NULL, by_syscall, SEEN, false, WHOLE },
	{ "read-by-instruction", NULL, by_instruction, SEEN, false, WHOLE },
	{ "fread", NULL, by_fread, SEEN, false, WHOLE },
	{ "recv", NULL, recv_into, SEEN, false, WHOLE },
	{ "recvmsg", NULL, recvmsg_into, SEEN, false, WHOLE },
	{ "getrandom", NULL, by_getrandom, SEEN, false, WHOLE },
	{ "process-vm-readv", NULL, by_process_vm_readv, SEEN, false, WHOLE },
	{ "munmap", NULL, unmap_and_map, UNSEEN, false, WHOLE },
	{ "munmap-refused", NULL, unmap_badly, SEEN, false, WHOLE },
	{ "munmap-by-instruction", NULL, unmap_raw, UNSEEN, false, CUT },
	{ "munmap-and-mmap-by-instruction", NULL, unmap_and_map_raw, UNSEEN, false, WRONG },
	{ "mmap-over", NULL, map_over, UNSEEN, false, WHOLE },
	{ "madvise-dontneed", NULL, dontneed, UNSEEN, false, WHOLE },
	{ "madvise-dontneed-by-instruction", NULL, dontneed_raw, UNSEEN, false, WRONG },
	{ "madvise-free", NULL, advise_free, SEEN, false, WHOLE },
	{ "mremap", NULL, move, SEEN_PINNED, false, WHOLE },
	{ "write-and-mremap", NULL, write_and_move, SEEN_PINNED, false, WHOLE },
	{ "mprotect", NULL, protect_twice, SEEN, false, WHOLE },
	{ "realloc", prepare_large_block, reallocate, SEEN_PINNED, false, WHOLE },
	{ "reallocarray", prepare_large_block, reallocate_array, SEEN_PINNED, false, WHOLE },
	{ "free", prepare_large_block, free_alone, UNSEEN, false, WHOLE },
	{ "free-aligned", prepare_aligned, free_and_malloc, UNSEEN, false, WHOLE },
	{ "free-and-malloc", prepare_heap, free_and_malloc, SEEN, false, WHOLE },
	{ "free-and-malloc-mapped", prepare_large_block, free_and_malloc, UNSEEN, false, WHOLE },
	{ "brk", prepare_break, move_break, UNSEEN, false, WHOLE },
	{ "fork-child-writes", NULL, fork_child_writes, UNSEEN, false, WHOLE },
	{ "fork-raw-child-writes", NULL, fork_raw_child_writes, UNSEEN, false, WHOLE },
	{ "fork-parent-writes", NULL, fork_parent_writes, UNSEEN, false, WHOLE },
	{ "sandbox", NULL, sandboxed, SEEN_PINNED, false, WHOLE },
	{ "exit", NULL, leave_by_exit, SEEN, false, WHOLE },
	{ "_exit", NULL, leave_by__exit, UNSEEN, false, WHOLE },
	{ "exec", NULL, leave_by_exec, UNSEEN, false, WHOLE },
	{ "kill", NULL, leave_by_kill, UNSEEN, false, CUT },
};
const size_t way_count = sizeof(ways) / sizeof(ways[0]);
