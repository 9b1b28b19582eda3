/* SPDX-License-Identifier: MIT */
/*
 * The guard against what programs do to memory that they have sent. The pinned holder is a pipe: vmsplice() puts the very
 * pages of the buffer into it, as MSG_ZEROCOPY puts them into a socket, and what is read from the pipe later is what these
 * pages hold by then. Each promise is tested with each implementation; `the_test_sees_corruption_without_the_guard` shows
 * that the tests would notice.
 */
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
#include <stdio.h>
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

static unsigned char pattern(size_t at, unsigned int seed)
{
	return (unsigned char)((at >> 12) * 7 + at + seed * 31 + 1);
}

static void fill(unsigned char *bytes, size_t count, unsigned int seed)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = pattern(i, seed);
}

static size_t differing(const unsigned char *bytes, size_t count, unsigned int seed)
{
	size_t different = 0;

	for (size_t i = 0; i < count; i++)
		different += bytes[i] != pattern(i, seed);
	return different;
}

static unsigned char *map_buffer(size_t bytes)
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

static void hold(struct holder *holder, void *buffer, size_t bytes)
{
	struct iovec span = { buffer, bytes };

	assert_int_equal(pipe2(holder->pipe, O_CLOEXEC), 0);
	assert_true(fcntl(holder->pipe[1], F_SETPIPE_SZ, (int)bytes) >= (int)bytes);
	holder->bytes = bytes;
	assert_int_equal(vmsplice(holder->pipe[1], &span, 1, 0), bytes);
}

/* Ends the holding. Returns how many of the held bytes are not those of `seed`. */
static size_t let_go(struct holder *holder, unsigned int seed)
{
	unsigned char *got = malloc(holder->bytes);
	size_t at = 0, different;

	assert_non_null(got);
	while (at < holder->bytes) {
		ssize_t rc = read(holder->pipe[0], got + at, holder->bytes - at);

		assert_true(rc > 0);
		at += (size_t)rc;
	}
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

static void owner_poll(void *arg)
{
	struct owner *owner = arg;
	struct guard_record *done = atomic_exchange(&owner->finish, NULL);

	atomic_fetch_add(&owner->polls, 1);
	if (done)
		guard_release(done);
}

static void owner_faulted(void *arg, struct guard_record *record)
{
	struct owner *owner = arg;

	atomic_fetch_add(&owner->faults, 1);
}

static const struct guard_owner_ops pinned_ops = { .poll = owner_poll, .faulted = owner_faulted };

/* Kinds ---------------------------------------------------------------------------------------------------------------- */

static enum guard_kind kind;

/* cmocka catches SIGSEGV anew for each test, so each test that faults puts the guard in front of that again. */
static struct sigaction behind;

static void on_segv(int number, siginfo_t *info, void *context)
{
	if (!guard_handle_signal(number, info, context))
		behind.sa_handler(number);
}

static int leave_segv(void)
{
	return 0;
}

static void catch_segv(void)
{
	struct sigaction catch = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, NULL, &behind);
	if (behind.sa_sigaction != on_segv)
		sigaction(SIGSEGV, &catch, &behind);
	else
		behind.sa_handler = SIG_DFL;
}

static int use(enum guard_kind wanted)
{
	kind = wanted;
	guard_install_handler = leave_segv;
	return guard_start(wanted) == (int)wanted ? 0 : -1;
}

static int use_uffd(void **state)
{
	return use(GUARD_UFFD);
}

static int use_mprotect(void **state)
{
	return use(GUARD_MPROTECT);
}

/* A buffer that is under guard and held by a pipe. */
struct sent {
	unsigned char *buffer;
	struct holder holder;
	struct owner owner;
	struct guard_record *record;
};

static void send_buffer(struct sent *sent)
{
	catch_segv();
	*sent = (struct sent){ .buffer = map_buffer(BYTES) };
	fill(sent->buffer, BYTES, 1);
	assert_int_equal(guard_protect(sent->buffer, BYTES, &pinned_ops, &sent->owner, &sent->record), 0);
	hold(&sent->holder, sent->buffer, BYTES);
}

static void check_held(struct sent *sent)
{
	assert_int_equal(let_go(&sent->holder, 1), 0);
	guard_release(sent->record);
	assert_false(guard_active());
}

/* Writes ----------------------------------------------------------------------------------------------------------------- */

static void overwriting_leaves_what_was_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	fill(sent.buffer, BYTES, 2);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	assert_true(atomic_load(&sent.owner.faults) > 0);
	check_held(&sent);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	munmap(sent.buffer, BYTES);
}

static void *overwrite(void *arg)
{
	fill(arg, BYTES, 2);
	return NULL;
}

static void another_thread_leaves_what_was_sent(void **state)
{
	struct sent sent;
	pthread_t thread;

	send_buffer(&sent);
	pthread_create(&thread, NULL, overwrite, sent.buffer);
	pthread_join(thread, NULL);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

static void release_frees_the_pages(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	check_held(&sent);
	fill(sent.buffer, BYTES, 3);
	assert_int_equal(differing(sent.buffer, BYTES, 3), 0);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	munmap(sent.buffer, BYTES);
}

static void the_test_sees_corruption_without_the_guard(void **state)
{
	struct sent sent;

	if (!settings_guard_can_be_off())
		skip();
	assert_int_equal(use(GUARD_OFF), 0);
	send_buffer(&sent);
	fill(sent.buffer, BYTES, 2);
	assert_true(let_go(&sent.holder, 1) > BYTES / 2);
	guard_release(sent.record);
	munmap(sent.buffer, BYTES);
}

#define BOTH(test)                                                                                                     \
	{ #test " (userfaultfd)", test, use_uffd, NULL, NULL }, { #test " (mprotect)", test, use_mprotect, NULL, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(overwriting_leaves_what_was_sent),
		BOTH(another_thread_leaves_what_was_sent),
		BOTH(release_frees_the_pages),
		cmocka_unit_test(the_test_sees_corruption_without_the_guard),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
