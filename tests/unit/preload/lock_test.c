/* SPDX-License-Identifier: MIT */
/* A lock that processes share, and holders that are killed: it is lost, and nobody hangs. With real processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "preload/conn.h"

#define HANG_SECONDS 60 /* what hangs fails by itself */

static struct lock *lock;
static int to_parent[2], to_child[2];

static int start(void **state)
{
	lock = sys_map(sizeof(*lock), MAP_SHARED);
	if (!lock || pipe(to_parent) || pipe(to_child))
		return -1;
	atomic_store(&lock->kind, LOCK_SHARED);
	conn_process_is_ours();
	alarm(HANG_SECONDS);
	return 0;
}

static int stop(void **state)
{
	for (int i = 0; i < 2; i++) {
		close(to_parent[i]);
		close(to_child[i]);
	}
	sys_call(SYS_munmap, (long)lock, sizeof(*lock), 0, 0, 0, 0);
	return 0;
}

static void tell(const int *pipe)
{
	assert_int_equal(write(pipe[1], "", 1), 1);
}

static void hear(const int *pipe)
{
	char byte;

	assert_int_equal(read(pipe[0], &byte, 1), 1);
}

static pid_t fork_child(void)
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (child)
		return child;
	lock_thread = 0; /* as after the library's own fork */
	alarm(HANG_SECONDS);
	return 0;
}

/* A process that has the lock, until it hears something or is killed. */
static pid_t fork_holder(void)
{
	struct lock_hold hold;
	pid_t child = fork_child();

	if (child) {
		hear(to_parent);
		assert_int_equal(atomic_load(&lock->word), child);
		return child;
	}
	if (!lock_take(lock, &hold))
		_exit(1);
	tell(to_parent);
	hear(to_child);
	lock_give(lock, &hold);
	_exit(0);
}

/* A process that takes it; its status tells whether it has had it. Comes back when that one waits. */
static pid_t fork_waiter(void)
{
	struct lock_hold hold;
	pid_t child = fork_child();
	bool had;

	if (child) {
		while (!(atomic_load(&lock->word) & LOCK_WAITERS))
			sched_yield();
		return child;
	}
	had = lock_take(lock, &hold);
	if (had)
		lock_give(lock, &hold);
	_exit(had);
}

static int reap(pid_t child)
{
	int status;

	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* It is dead from here on, but keeps its number until reap(). */
static void kill_unreaped(pid_t child)
{
	siginfo_t info;

	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
}

static void assert_lost(void)
{
	struct lock_hold hold;

	assert_true(lock_is_lost(lock));
	assert_false(lock_take(lock, &hold));
	assert_int_equal(lock_depth, 0);
}

static void test_a_killed_holder_loses_it(void **state)
{
	struct lock_hold hold;
	pid_t holder = fork_holder();

	kill_unreaped(holder);
	assert_int_equal(reap(holder), -SIGKILL);
	assert_false(lock_is_lost(lock));
	errno = 7;
	assert_false(lock_take(lock, &hold));
	assert_int_equal(errno, 7);
	assert_lost();
}

static void test_before_anybody_has_waited_for_it(void **state)
{
	struct lock_hold hold;
	pid_t holder = fork_holder();

	kill_unreaped(holder);
	assert_false(lock_take(lock, &hold));
	assert_lost();
	assert_int_equal(reap(holder), -SIGKILL);
}

static void test_those_who_wait_already_are_told(void **state)
{
	pid_t holder = fork_holder();
	pid_t waiters[3];

	for (int i = 0; i < 3; i++)
		waiters[i] = fork_waiter();
	kill_unreaped(holder);
	for (int i = 0; i < 3; i++)
		assert_int_equal(reap(waiters[i]), 0);
	reap(holder);
	assert_lost();
}

/* Long enough for a waiter to ask several times. */
static void let_it_ask(void)
{
	uint64_t until = clock_now() + 4ull * LOCK_PATIENCE_NS;

	while (clock_now() < until)
		sched_yield();
}

static void test_a_living_holder_keeps_it(void **state)
{
	pid_t holder = fork_holder();
	pid_t waiter = fork_waiter();

	kill(holder, SIGSTOP);
	let_it_ask();
	assert_int_equal(atomic_load(&lock->word), (uint32_t)holder | LOCK_WAITERS);
	kill(holder, SIGCONT);
	tell(to_child);
	assert_int_equal(reap(holder), 0);
	assert_int_equal(reap(waiter), 1);
	assert_int_equal(atomic_load(&lock->word), 0);
}

static void test_who_has_other_numbers_is_not_asked_for(void **state)
{
	pid_t holder = fork_holder(), waiter;

	atomic_store(&lock->kind, LOCK_FAR);
	kill_unreaped(holder);
	reap(holder);
	waiter = fork_waiter();
	let_it_ask();
	assert_false(lock_is_lost(lock));
	/* As if it were given back by one that lives elsewhere. */
	atomic_store(&lock->word, 0);
	sys_call(SYS_futex, (long)&lock->word, FUTEX_WAKE, 1, 0, 0, 0);
	assert_int_equal(reap(waiter), 1);
}

static void test_a_killed_waker_wakes_nobody(void **state)
{
	pid_t holder = fork_holder();
	pid_t waiter = fork_waiter();

	/* Killed after it gave the lock back, before it woke anybody. */
	atomic_store(&lock->word, 0);
	kill_unreaped(holder);
	assert_int_equal(reap(waiter), 1);
	reap(holder);
}

static void test_who_has_others_to_serve_does_not_wait_for_ever(void **state)
{
	struct lock_hold hold;
	pid_t holder = fork_holder();

	assert_false(lock_take_until(lock, &hold, clock_now() + NS_PER_MS));
	assert_false(lock_is_lost(lock));
	assert_int_equal(lock_depth, 0);
	/* A wake may have been meant for it, of which there is one for all: the holder has to wake the next. */
	assert_int_equal(atomic_load(&lock->word), (uint32_t)holder | LOCK_WAITERS);
	tell(to_child);
	assert_int_equal(reap(holder), 0);
	assert_true(lock_take_until(lock, &hold, 0));
	lock_give(lock, &hold);
}

static void test_it_is_given_the_lock_in_time(void **state)
{
	struct lock_hold hold;
	pid_t holder = fork_holder();

	tell(to_child);
	assert_true(lock_take_until(lock, &hold, LOCK_FOREVER));
	lock_give(lock, &hold);
	assert_int_equal(reap(holder), 0);
	holder = fork_holder();
	kill_unreaped(holder);
	assert_false(lock_take_until(lock, &hold, clock_now() + 2ull * LOCK_PATIENCE_NS));
	assert_lost();
	reap(holder);
}

static void test_ones_own_is_told_from_a_namesakes(void **state)
{
	struct lock_hold hold, again;

	assert_true(lock_take(lock, &hold));
	assert_false(lock_take(lock, &again));
	assert_false(lock_is_lost(lock));
	lock_give(lock, &hold);
	/* A holder was killed, and this thread has its number now. */
	atomic_store(&lock->word, lock_self());
	assert_false(lock_take(lock, &hold));
	assert_lost();
}

/* What a child of vfork leaves in its parent's thread variables. */
static void test_a_number_is_kept_by_its_own_process_alone(void **state)
{
	pid_t child;

	lock_thread = 0;
	child = vfork();
	if (!child) {
		struct lock_hold hold;

		if (lock_take(lock, &hold))
			lock_give(lock, &hold);
		_exit(0);
	}
	assert_int_equal(reap(child), 0);
	assert_int_equal(lock_self(), gettid());
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
	const struct CMUnitTest tests[] = {
		TEST(test_a_killed_holder_loses_it),
		TEST(test_before_anybody_has_waited_for_it),
		TEST(test_those_who_wait_already_are_told),
		TEST(test_a_living_holder_keeps_it),
		TEST(test_who_has_other_numbers_is_not_asked_for),
		TEST(test_a_killed_waker_wakes_nobody),
		TEST(test_who_has_others_to_serve_does_not_wait_for_ever),
		TEST(test_it_is_given_the_lock_in_time),
		TEST(test_ones_own_is_told_from_a_namesakes),
		TEST(test_a_number_is_kept_by_its_own_process_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
