/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the guard share. The pinned holder is a pipe: vmsplice() puts the very pages of the buffer into it, as
 * MSG_ZEROCOPY puts them into a socket, and what is read from the pipe later is what these pages hold by then.
 */
#ifndef ZC_TESTS_GUARD_TESTING_H
#define ZC_TESTS_GUARD_TESTING_H

#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/settings.h"
#include "common/stats.h"
#include "rdma/guard.h"

#define PAGE ((size_t)4096)
#define PAGES 64
#define BYTES (PAGES * PAGE)

static inline unsigned char pattern(size_t at, unsigned int seed)
{
	return (unsigned char)((at >> 12) * 7 + at + seed * 31 + 1);
}

static inline void fill(unsigned char *bytes, size_t count, unsigned int seed)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = pattern(i, seed);
}

static inline size_t differing(const unsigned char *bytes, size_t count, unsigned int seed)
{
	size_t different = 0;

	for (size_t i = 0; i < count; i++)
		different += bytes[i] != pattern(i, seed);
	return different;
}

static inline unsigned char *map_buffer(size_t bytes)
{
	unsigned char *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(buffer, MAP_FAILED);
	return buffer;
}

/* The holder ----------------------------------------------------------------------------------------------------------- */

struct holder {
	int pipe[2];
	size_t bytes;
};

static inline void hold(struct holder *holder, void *buffer, size_t bytes)
{
	struct iovec span = { buffer, bytes };

	assert_int_equal(pipe2(holder->pipe, O_CLOEXEC), 0);
	assert_true(fcntl(holder->pipe[1], F_SETPIPE_SZ, (int)bytes) >= (int)bytes);
	holder->bytes = bytes;
	assert_int_equal(vmsplice(holder->pipe[1], &span, 1, 0), bytes);
}

static inline void read_all(int fd, unsigned char *out, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t got = read(fd, out + at, bytes - at);

		assert_true(got > 0);
		at += (size_t)got;
	}
}

/* Ends the holding. Returns how many of the held bytes are not those of `seed`. */
static inline size_t let_go(struct holder *holder, unsigned int seed)
{
	unsigned char *got = malloc(holder->bytes);
	size_t different;

	assert_non_null(got);
	read_all(holder->pipe[0], got, holder->bytes);
	different = differing(got, holder->bytes, seed);
	free(got);
	close(holder->pipe[0]);
	close(holder->pipe[1]);
	return different;
}

/* Owners --------------------------------------------------------------------------------------------------------------- */

struct owner {
	_Atomic int polls;
	_Atomic int faults;
	_Atomic(struct guard_record *) finish; /* poll() finds that this one has come to an end */
};

static inline void owner_poll(void *arg)
{
	struct owner *owner = arg;
	struct guard_record *done = atomic_exchange(&owner->finish, NULL);

	atomic_fetch_add(&owner->polls, 1);
	if (done)
		guard_release(done);
}

static inline void owner_faulted(void *arg, struct guard_record *record)
{
	struct owner *owner = arg;

	atomic_fetch_add(&owner->faults, 1);
}

static const struct guard_owner_ops pinned_ops = { .poll = owner_poll, .faulted = owner_faulted };

/* Kinds ---------------------------------------------------------------------------------------------------------------- */

static struct sigaction behind;

static inline void on_segv(int number, siginfo_t *info, void *context)
{
	if (!guard_handle_signal(number, info, context))
		behind.sa_handler(number);
}

static inline int leave_segv(void)
{
	return 0;
}

/* cmocka catches SIGSEGV anew for each test, so each test that faults puts the guard in front of that again. */
static inline void catch_segv(void)
{
	struct sigaction catch = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO };
	struct sigaction now;

	sigaction(SIGSEGV, NULL, &now);
	if (now.sa_sigaction == on_segv)
		return;
	behind = now;
	sigaction(SIGSEGV, &catch, NULL);
}

static inline int use(enum guard_kind kind)
{
	guard_install_handler = leave_segv;
	return guard_start(kind) == (int)kind ? 0 : -1;
}

static inline int use_uffd(void **state)
{
	return use(GUARD_UFFD);
}

static inline int use_mprotect(void **state)
{
	return use(GUARD_MPROTECT);
}

#define BOTH(test)                                                                                                     \
	{ #test " (userfaultfd)", test, use_uffd, NULL, NULL },                                                        \
	{                                                                                                              \
#test " (mprotect)", test, use_mprotect, NULL, NULL                                                    \
	}

/* A buffer of pattern 1 that is under guard and held by a pipe ---------------------------------------------------------- */

struct sent {
	unsigned char *buffer;
	struct holder holder;
	struct owner owner;
	struct guard_record *record;
};

static inline void send_from(struct sent *sent, unsigned char *buffer)
{
	catch_segv();
	guard_settle_owner(
		&sent->owner); /* an earlier test's; shows the thread sanitizer what the kernel has ordered */
	*sent = (struct sent){ .buffer = buffer };
	fill(sent->buffer, BYTES, 1);
	assert_int_equal(guard_protect(sent->buffer, BYTES, &pinned_ops, &sent->owner, &sent->record), 0);
	hold(&sent->holder, sent->buffer, BYTES);
	assert_int_equal(guard_pinned(sent->record), 0);
}

static inline void send_buffer(struct sent *sent)
{
	send_from(sent, map_buffer(BYTES));
}

/* Checks that what is held is what was sent, and ends the record. */
static inline void check_held(struct sent *sent)
{
	assert_int_equal(let_go(&sent->holder, 1), 0);
	guard_release(sent->record);
	assert_false(guard_active());
}

/* The program overwrites it all, and has then what it wrote; what is held is what was sent. Frees the buffer. */
static inline void overwrite_and_check(struct sent *sent)
{
	fill(sent->buffer, BYTES, 2);
	assert_int_equal(differing(sent->buffer, BYTES, 2), 0);
	check_held(sent);
	assert_int_equal(differing(sent->buffer, BYTES, 2), 0);
	munmap(sent->buffer, BYTES);
}

/* Runs part() in a child process. Returns its wait status. */
static inline int in_child(void (*part)(void *arg), void *arg)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		alarm(60);
		part(arg);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* In a child process, where cmocka's assertions would run the rest of the tests twice. */
#define child_check(condition)                                                                                         \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			static const char told[] = "child: " #condition " failed\n";                                   \
			if (write(2, told, sizeof(told) - 1) < 0)                                                      \
				_exit(2);                                                                              \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

#endif
