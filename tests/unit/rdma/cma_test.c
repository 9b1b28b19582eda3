/* SPDX-License-Identifier: MIT */
/*
 * GETs from real processes: who is proved and who is refused, memory that ends in the middle, senders that die, exec or have
 * their number reused. What needs root or Yama says so when it is left out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "rdma/transport.h"
#include "stream_testing.h"

#define PAGE 4096u
#define PAGES 64u
#define NOBODY 65534

static const struct transport_ops *const cma = &transport_cma;
static struct transport_token token = { .challenge = "a challenge", .identity = "a connection" };

/* What a sender tells: memory that it shares with the test. */
static struct told {
	_Atomic int ready;
	struct transport_place place;
	uint64_t data;
	pid_t process;
} * told;

static uint8_t *make_data(void)
{
	uint8_t *data = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	fill(data, 0, PAGES * PAGE);
	return data;
}

static void tell(const uint8_t *data)
{
	told->data = (uintptr_t)data;
	told->process = getpid();
	atomic_store(&told->ready, 1);
}

static void await_told(pid_t child)
{
	while (!atomic_load(&told->ready)) {
		assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
		sched_yield();
	}
}

/* A child that keeps the token and has data; `prepare` runs in it first. */
static pid_t start_sender(void (*prepare)(void))
{
	pid_t child;

	atomic_store(&told->ready, 0);
	child = fork();
	if (child)
		goto parent;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (prepare)
		prepare();
	if (cma->keep(&token, &told->place) < 0)
		_exit(1);
	tell(make_data());
	for (;;)
		pause();
parent:
	assert_true(child > 0);
	await_told(child);
	return child;
}

static void end_sender(pid_t child)
{
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

static ssize_t get(struct transport_reach *reach, size_t offset, void *to, size_t bytes)
{
	struct iovec iov = { to, bytes };
	struct transport_get wanted = { told->data + offset, bytes, &iov, 1, 0 };

	return cma->get(reach, &told->place, &token, &wanted);
}

static void assert_right(const uint8_t *got, size_t offset, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != byte_at(offset + i))
			fail_msg("byte %zu is wrong", i);
}

/* Runs as an ordinary user in a child of its own. Returns what `run` returned, as an exit status. */
static int as_user(int (*run)(void))
{
	pid_t child = fork();
	int status;

	if (!child) {
		if (!geteuid() && (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
			_exit(120);
		prctl(PR_SET_DUMPABLE, 1);
		_exit(run());
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static bool is_root(const char *what)
{
	if (!geteuid())
		return true;
	print_message("left out, needs root: %s\n", what);
	return false;
}

static void every_slot_of_the_table_is_filled(void **state)
{
	void *const *slot = (void *const *)cma;

	for (size_t i = 0; i < sizeof(*cma) / sizeof(*slot); i++)
		assert_non_null(slot[i]);
	assert_int_equal(cma->poll(&(struct transport_reach){ 0 }), -EINVAL);
}

static void proves_and_fetches(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child = start_sender(NULL);
	static uint8_t to[PAGES * PAGE];
	const size_t sizes[] = { 1, 7, PAGE - 1, PAGE, PAGE + 1, 16 * PAGE + 3, PAGES * PAGE - 11 };

	assert_int_equal(cma->prove(&reach, &told->place, &token), 0);
	assert_int_equal(reach.process, child);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		assert_int_equal(get(&reach, 11, to, sizes[i]), sizes[i]);
		assert_right(to, 11, sizes[i]);
	}
	end_sender(child);
}

static void fetches_into_many_pieces(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child = start_sender(NULL);
	static uint8_t to[100 * 1000];
	struct iovec iov[100];
	struct transport_get wanted = { told->data, 90000, iov, 100, 1500 };

	for (size_t i = 0; i < 100; i++)
		iov[i] = (struct iovec){ to + i * 1000, i % 3 ? 1000 : 0 };
	assert_int_equal(cma->get(&reach, &told->place, &token, &wanted), 66 * 1000 - 1500);
	for (size_t i = 0, at = 0; i < 100; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++, at++)
			if (at >= 1500)
				assert_int_equal(to[i * 1000 + k], byte_at(at - 1500));
	end_sender(child);
}

static void wrong_tokens_and_processes_are_refused(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child = start_sender(NULL);
	struct transport_token other = token;
	struct transport_place place = told->place;
	char byte;

	other.challenge[0] ^= 1;
	assert_int_equal(cma->prove(&reach, &place, &other), -ESTALE);
	other = token;
	other.identity[TRANSPORT_IDENTITY_BYTES - 1] ^= 1;
	assert_int_equal(cma->prove(&reach, &place, &other), -ESTALE);
	place.token += 8;
	assert_int_equal(cma->prove(&reach, &place, &token), -ESTALE);
	place.token = 0xffffffffffffff00;
	assert_int_equal(cma->prove(&reach, &place, &token), -ESTALE);
	place = told->place;
	place.number = (uint32_t)getpid();
	assert_int_equal(cma->prove(&reach, &place, &token), -ESTALE);
	place.number = 0x7fffffff;
	assert_int_equal(cma->prove(&reach, &place, &token), -ESRCH);
	place.number = 0xffffffff;
	assert_int_equal(cma->prove(&reach, &place, &token), -ESRCH);
	/* What was proved before is no excuse. */
	assert_int_equal(cma->prove(&reach, &told->place, &token), 0);
	other = token;
	other.challenge[3] ^= 1;
	assert_int_equal(cma->get(&reach, &told->place, &other,
				  &(struct transport_get){ told->data, 1, &(struct iovec){ &byte, 1 }, 1, 0 }),
			 -ESTALE);
	end_sender(child);
}

/* The child of a fork ---------------------------------------------------------------------------------------------- */

static void a_child_keeps_no_token_of_its_parent(void **state)
{
	struct transport_place place, again;
	struct transport_token second = token;
	struct transport_reach reach = { 0 };
	pid_t child;
	int status;

	second.challenge[0] = 'z';
	assert_int_equal(cma->keep(&token, &place), 0);
	assert_true(cma->keeps(&place, &token));
	child = fork();
	if (!child) {
		struct transport_place own;

		if (cma->keeps(&place, &token))
			_exit(1);
		cma->drop(&place); /* not its own to drop */
		if (cma->keep(&second, &own) || !cma->keeps(&own, &second) || cma->keeps(&own, &token))
			_exit(2);
		_exit(cma->keeps(&place, &token) ? 3 : 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_true(cma->keeps(&place, &token));
	assert_int_equal(cma->prove(&reach, &place, &token), 0);
	assert_int_equal(cma->keep(&second, &again), 0);
	assert_true(again.token != place.token);
	cma->drop(&again);
	cma->drop(&place);
	assert_false(cma->keeps(&place, &token));
	assert_int_equal(cma->prove(&reach, &place, &token), -ESTALE);
	assert_int_equal(cma->keep(&token, &again), 0);
	assert_int_equal(again.token, place.token); /* reused */
	cma->drop(&again);
}

/* Memory that ends ------------------------------------------------------------------------------------------------- */

static void memory_of_the_sender_that_ends_cuts_the_get(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child;
	static uint8_t to[PAGES * PAGE];

	atomic_store(&told->ready, 0);
	child = fork();
	if (!child) {
		uint8_t *data = make_data();

		munmap(data + 20 * PAGE, PAGE);
		mprotect(data + 40 * PAGE, PAGE, PROT_NONE);
		if (cma->keep(&token, &told->place) < 0)
			_exit(1);
		tell(data);
		for (;;)
			pause();
	}
	await_told(child);
	assert_int_equal(get(&reach, 5, to, PAGES * PAGE - 5), 20 * PAGE - 5);
	assert_right(to, 5, 20 * PAGE - 5);
	assert_int_equal(get(&reach, 20 * PAGE, to, PAGE), -ENXIO);
	assert_int_equal(get(&reach, 21 * PAGE - 1, to, PAGE), -ENXIO);
	assert_int_equal(get(&reach, 21 * PAGE, to, 43 * PAGE), 19 * PAGE);
	assert_right(to, 21 * PAGE, 19 * PAGE);
	assert_int_equal(get(&reach, 41 * PAGE, to, 23 * PAGE), 23 * PAGE);
	assert_int_equal(get(&reach, (size_t)(0 - told->data), to, PAGE), -ENXIO); /* address 0 */
	assert_int_equal(get(&reach, (size_t)(0xffffffff81000000ull - told->data), to, PAGE),
			 -ENXIO); /* the kernel's */
	assert_int_equal(get(&reach, (size_t)(0x8000000000000000ull - told->data), to, PAGE), -ENXIO);
	end_sender(child);
}

static void memory_of_the_receiver_that_ends_is_its_own_fault(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child = start_sender(NULL);
	uint8_t *to = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t got;

	munmap(to + 4 * PAGE, PAGE);
	got = get(&reach, 0, to, 8 * PAGE);
	assert_int_equal(got, 4 * PAGE);
	assert_right(to, 0, (size_t)got);
	assert_int_equal(get(&reach, 4 * PAGE, to + 4 * PAGE, PAGE), -EFAULT);
	munmap(to, 8 * PAGE);
	end_sender(child);
}

/* Ends -------------------------------------------------------------------------------------------------------------- */

static void a_dead_sender_is_no_process(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child = start_sender(NULL);
	char byte;
	siginfo_t info;

	assert_int_equal(get(&reach, 0, &byte, 1), 1);
	kill(child, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(get(&reach, 0, &byte, 1), -ESRCH); /* a zombie */
	end_sender(child);
	assert_int_equal(get(&reach, 0, &byte, 1), -ESRCH);
}

static void a_sender_killed_during_gets_gives_right_bytes_or_none(void **state)
{
	static uint8_t to[PAGES * PAGE];

	for (int i = 0; i < 200; i++) {
		struct transport_reach reach = { 0 };
		pid_t child = start_sender(NULL), killer;
		ssize_t got;

		killer = fork();
		if (!killer) {
			for (volatile int k = 0; k < i * 500; k++)
				;
			kill(child, SIGKILL);
			_exit(0);
		}
		do {
			memset(to, 0, sizeof(to));
			got = get(&reach, 0, to, sizeof(to));
			if (got > 0)
				assert_right(to, 0, (size_t)got);
		} while (got == (ssize_t)sizeof(to));
		if (got <= 0)
			assert_true(got == -ESRCH || got == -ENXIO);
		assert_int_equal(waitpid(killer, NULL, 0), killer);
		assert_int_equal(waitpid(child, NULL, 0), child);
	}
}

static void a_sender_that_execs_is_another_program(void **state)
{
	struct transport_reach reach = { 0 };
	int in[2], out[2];
	pid_t child;
	char byte = 0;

	assert_int_equal(pipe(in), 0);
	assert_int_equal(pipe(out), 0);
	atomic_store(&told->ready, 0);
	child = fork();
	if (!child) {
		if (cma->keep(&token, &told->place) < 0)
			_exit(1);
		tell(make_data());
		read(in[0], &byte, 1);
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		execlp("cat", "cat", (char *)NULL);
		_exit(1);
	}
	await_told(child);
	assert_int_equal(get(&reach, 0, &byte, 1), 1);
	assert_int_equal(write(in[1], "go", 2), 2);
	assert_int_equal(read(out[0], &byte, 1), 1); /* from cat, behind its exec */
	assert_int_equal(get(&reach, 0, &byte, 1), -ESTALE);
	end_sender(child);
	close(in[0]), close(in[1]), close(out[0]), close(out[1]);
}

/* A process with a number of our choice, which shares what a fork shares. */
static pid_t fork_as(pid_t number)
{
	struct clone_args args = { .exit_signal = SIGCHLD, .set_tid = (uintptr_t)&number, .set_tid_size = 1 };

	return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

static void a_number_that_is_reused_is_not_the_sender(void **state)
{
	struct transport_reach reach = { 0 };
	struct transport_place place;
	pid_t child, again;
	char byte;

	if (!is_root("a process with a number of our choice"))
		return;
	/* The one with the reused number is a copy of a process that kept this very token at this very address. */
	assert_int_equal(cma->keep(&token, &place), 0);
	child = start_sender(NULL);
	assert_int_equal(told->place.token, place.token);
	assert_int_equal(get(&reach, 0, &byte, 1), 1);
	end_sender(child);
	again = fork_as(child);
	if (!again) {
		for (;;)
			pause();
	}
	if (again < 0) {
		print_message("left out: no process with a number of our choice: error %d\n", errno);
	} else {
		assert_int_equal(again, child);
		assert_int_equal(get(&reach, 0, &byte, 1), -ESTALE);
		end_sender(again);
	}
	cma->drop(&place);
}

/* Refusals ---------------------------------------------------------------------------------------------------------- */

static void make_undumpable(void)
{
	prctl(PR_SET_DUMPABLE, 0);
}

static int prove_undumpable(void)
{
	struct transport_reach reach = { 0 };
	pid_t child = start_sender(make_undumpable);
	int rc = cma->prove(&reach, &told->place, &token);

	end_sender(child);
	return -rc;
}

static void a_process_that_is_not_dumpable_is_refused(void **state)
{
	assert_int_equal(as_user(prove_undumpable), EPERM);
}

static void become_nobody(void)
{
	if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY) || prctl(PR_SET_DUMPABLE, 1))
		_exit(1);
}

static int prove_other(void)
{
	struct transport_reach reach = { 0 };

	return -cma->prove(&reach, &told->place, &token);
}

static void another_user_is_refused_both_ways(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child;

	if (!is_root("two users"))
		return;
	child = start_sender(become_nobody);
	/* The kernel would allow it. */
	assert_int_equal(cma->prove(&reach, &told->place, &token), -EACCES);
	end_sender(child);
	child = start_sender(NULL);
	assert_int_equal(as_user(prove_other), EPERM);
	end_sender(child);
}

/* One child of ours keeps the token, another one reads it: neither descends from the other. */
static int prove_between_siblings(void)
{
	pid_t sender = start_sender(NULL), reader = fork();
	int status;

	if (!reader)
		_exit(prove_other());
	if (waitpid(reader, &status, 0) != reader)
		return 121;
	end_sender(sender);
	return WEXITSTATUS(status);
}

static void yama_is_obeyed(void **state)
{
	FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
	int scope = 0;

	if (file && fscanf(file, "%d", &scope) != 1)
		scope = 0;
	if (file)
		fclose(file);
	else
		print_message("this kernel has no Yama: siblings may read each other\n");
	assert_int_equal(as_user(prove_between_siblings), scope ? EPERM : 0);
}

static void a_sender_in_another_pid_namespace_is_found_by_the_hint(void **state)
{
	struct transport_reach reach = { 0 };
	pid_t child, inner;
	int pair[2], go[2];
	char byte;

	if (!is_root("a pid namespace"))
		return;
	assert_int_equal(pipe(pair), 0);
	assert_int_equal(pipe(go), 0);
	atomic_store(&told->ready, 0);
	child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWPID))
			_exit(1);
		inner = fork(); /* number 1 there */
		if (!inner) {
			if (getpid() != 1 || cma->keep(&token, &told->place) < 0)
				_exit(1);
			tell(make_data());
			read(go[0], &byte, 1);
			_exit(0);
		}
		if (write(pair[1], &inner, sizeof(inner)) < 0)
			_exit(1);
		waitpid(inner, NULL, 0);
		_exit(0);
	}
	assert_int_equal(read(pair[0], &inner, sizeof(inner)), sizeof(inner));
	await_told(child);
	assert_int_equal(told->place.number, 1);
	assert_true(cma->prove(&reach, &told->place, &token) < 0); /* somebody else is number 1 here */
	reach.hint = inner;
	assert_int_equal(cma->prove(&reach, &told->place, &token), 0);
	assert_int_equal(reach.process, inner);
	assert_int_equal(get(&reach, 0, &byte, 1), 1);
	assert_int_equal((uint8_t)byte, byte_at(0));
	assert_int_equal(write(go[1], "", 1), 1);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(pair[0]), close(pair[1]), close(go[0]), close(go[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_slot_of_the_table_is_filled),
		cmocka_unit_test(proves_and_fetches),
		cmocka_unit_test(fetches_into_many_pieces),
		cmocka_unit_test(wrong_tokens_and_processes_are_refused),
		cmocka_unit_test(a_child_keeps_no_token_of_its_parent),
		cmocka_unit_test(memory_of_the_sender_that_ends_cuts_the_get),
		cmocka_unit_test(memory_of_the_receiver_that_ends_is_its_own_fault),
		cmocka_unit_test(a_dead_sender_is_no_process),
		cmocka_unit_test(a_sender_killed_during_gets_gives_right_bytes_or_none),
		cmocka_unit_test(a_sender_that_execs_is_another_program),
		cmocka_unit_test(a_number_that_is_reused_is_not_the_sender),
		cmocka_unit_test(a_process_that_is_not_dumpable_is_refused),
		cmocka_unit_test(another_user_is_refused_both_ways),
		cmocka_unit_test(yama_is_obeyed),
		cmocka_unit_test(a_sender_in_another_pid_namespace_is_found_by_the_hint),
	};

	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return told == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
