/* SPDX-License-Identifier: MIT */
/* The guard and the rest of the process: its signals, its children, its threads. */
#include "guard_testing.h"

#include <sched.h>

/* The sanitizers' questions: threads are started after fork, and a process that leaves by pthread_exit() frees nothing. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

static bool leaving;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return leaving;
}

/* Signals -------------------------------------------------------------------------------------------------------------- */

static _Atomic(unsigned char *) expected_fault;

static void program_handler(int number, siginfo_t *info, void *context)
{
	_exit((unsigned char *)info->si_addr == atomic_load(&expected_fault) ? 42 : 43);
}

/* The guard installs its own handler here, in front of the program's. */
static void fault_of_its_own(void *arg)
{
	struct sigaction catch = { .sa_sigaction = program_handler, .sa_flags = SA_SIGINFO };
	unsigned char *buffer = map_buffer(BYTES), *forbidden = map_buffer(PAGE);
	struct owner owner = { 0 };
	struct guard_record *record;
	struct holder holder;

	if (arg)
		sigaction(SIGSEGV, &catch, NULL);
	else
		signal(SIGSEGV, SIG_DFL);
	guard_install_handler = NULL;
	child_check(guard_start(GUARD_MPROTECT) == GUARD_MPROTECT);
	fill(buffer, BYTES, 1);
	child_check(!guard_protect(buffer, BYTES, &pinned_ops, &owner, &record));
	hold(&holder, buffer, BYTES);
	fill(buffer, BYTES, 2);
	child_check(let_go(&holder, 1) == 0);
	mprotect(forbidden, PAGE, PROT_NONE);
	atomic_store(&expected_fault, forbidden + 5);
	forbidden[5] = 1;
}

/* Runs first: in a process where the guard has not yet been told who installs handlers. */
static void a_fault_of_the_programs_own_is_passed_on(void **state)
{
	static int yes;
	int status = in_child(fault_of_its_own, &yes);

	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 42);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	status = in_child(fault_of_its_own, NULL);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSEGV);
#endif
}

static void signals_that_are_none_of_the_guards_are_not_taken(void **state)
{
	siginfo_t info = { .si_signo = SIGSEGV, .si_code = SEGV_MAPERR };
	ucontext_t context = { 0 };

	assert_false(guard_handle_signal(SIGSEGV, &info, &context));
	info.si_code = SI_USER;
	assert_false(guard_handle_signal(SIGSEGV, &info, &context));
	assert_false(guard_handle_signal(SIGBUS, &info, &context));
}

/* fork ----------------------------------------------------------------------------------------------------------------- */

static struct sent forked;

static void child_writes(void *arg)
{
	fill(forked.buffer, BYTES, 3);
	child_check(differing(forked.buffer, BYTES, 3) == 0);
}

/* Forks as the preload does it. */
static pid_t fork_told(void)
{
	pid_t pid;

	guard_before_fork();
	pid = fork();
	guard_after_fork(pid == 0);
	return pid;
}

static void wait_for(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void a_child_writes_and_leaves_what_was_sent(void **state)
{
	pid_t pid;

	send_buffer(&forked);
	pid = fork_told();
	if (!pid) {
		alarm(60);
		child_check(!guard_active());
		child_writes(NULL);
		guard_release(forked.record); /* of the parent's; harmless */
		_exit(0);
	}
	wait_for(pid);
	assert_int_equal(differing(forked.buffer, BYTES, 1), 0);
	fill(forked.buffer, BYTES, 2);
	check_held(&forked);
	munmap(forked.buffer, BYTES);
}

static void a_parent_writes_after_fork_and_leaves_what_was_sent(void **state)
{
	int go[2];
	pid_t pid;
	char byte;

	send_buffer(&forked);
	assert_int_equal(pipe(go), 0);
	pid = fork_told();
	if (!pid) {
		alarm(60);
		close(go[1]);
		child_check(read(go[0], &byte, 1) == 0); /* until the parent has written */
		child_check(differing(forked.buffer, BYTES, 1) == 0);
		child_writes(NULL);
		_exit(0);
	}
	close(go[0]);
	fill(forked.buffer, BYTES / 2, 2);
	guard_release(forked.record);
	fill(forked.buffer, BYTES, 2);
	close(go[1]);
	wait_for(pid);
	assert_int_equal(let_go(&forked.holder, 1), 0);
	assert_int_equal(differing(forked.buffer, BYTES, 2), 0);
	munmap(forked.buffer, BYTES);
}

static void a_child_guards_for_itself(void **state)
{
	pid_t pid;

	send_buffer(&forked);
	pid = fork_told();
	if (!pid) {
		struct holder holder;
		struct guard_record *record;
		struct owner owner = { 0 };
		unsigned char *buffer = map_buffer(BYTES);

		alarm(60);
		fill(buffer, BYTES, 1);
		child_check(!guard_protect(buffer, BYTES, &pinned_ops, &owner, &record));
		hold(&holder, buffer, BYTES);
		fill(buffer, BYTES, 2);
		child_check(let_go(&holder, 1) == 0);
		guard_release(record);
		child_check(!guard_active());
		_exit(0);
	}
	wait_for(pid);
	fill(forked.buffer, BYTES, 2);
	check_held(&forked);
	munmap(forked.buffer, BYTES);
}

/* A fork that nobody announces: by system call, as some runtimes do it. */
static void an_unannounced_child_is_safe(void **state)
{
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	skip(); /* the sanitizer needs to be told as well */
#endif
	send_buffer(&forked);
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!pid) {
		struct guard_record *record;
		struct owner owner = { 0 };
		unsigned char *buffer = map_buffer(BYTES);

		syscall(SYS_alarm, 60);
		child_writes(NULL);
		fill(buffer, BYTES, 1);
		child_check(!guard_protect(buffer, BYTES, &pinned_ops, &owner, &record));
		buffer[0] ^= 1;
		child_check(atomic_load(&owner.faults) == 1);
		guard_release(record);
		child_check(!guard_active());
		_exit(0);
	}
	assert_true(pid > 0);
	wait_for(pid);
	assert_true(guard_active());
	fill(forked.buffer, BYTES, 2);
	check_held(&forked);
	munmap(forked.buffer, BYTES);
}

static void vforked(void)
{
	pid_t pid = vfork();

	if (!pid) {
		for (size_t i = 0; i < BYTES; i++)
			forked.buffer[i] = pattern(i, 2); /* the parent's own memory */
		_exit(0);
	}
	wait_for(pid);
}

static void a_vforked_child_writes_and_leaves_what_was_sent(void **state)
{
#ifdef __SANITIZE_THREAD__
	skip(); /* the sanitizer makes it a fork */
#endif
	send_buffer(&forked);
	vforked();
	assert_int_equal(differing(forked.buffer, BYTES, 2), 0);
	check_held(&forked);
	munmap(forked.buffer, BYTES);
}

/* Threads -------------------------------------------------------------------------------------------------------------- */

#define WRITERS 3
#define ROUNDS 60
#define FAULTS 5 /* at least so many in PAGES / 2 pages, even if each run is twice as long as the one before */

struct hammer {
	unsigned char *buffer;
	_Atomic bool stop;
};

static void *hammer_writer(void *arg)
{
	struct hammer *hammer = arg;
	unsigned int random = (unsigned int)(uintptr_t)&random >> 4;
	unsigned char value = 0;

	while (!atomic_load_explicit(&hammer->stop, memory_order_relaxed)) {
		random = random * 1103515245 + 12345;
		__atomic_store_n(&hammer->buffer[(random >> 8) % BYTES], ++value, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A copy of what the holder's pages contain now, without ending the holding. */
static void peek(struct holder *holder, unsigned char *out)
{
	int copy[2];

	assert_int_equal(pipe2(copy, O_CLOEXEC), 0);
	assert_true(fcntl(copy[1], F_SETPIPE_SZ, (int)holder->bytes) >= (int)holder->bytes);
	assert_int_equal(tee(holder->pipe[0], copy[1], holder->bytes, 0), holder->bytes);
	read_all(copy[0], out, holder->bytes);
	close(copy[0]);
	close(copy[1]);
}

/*
 * Threads write all the time, also between protecting and pinning. What the pages contain when the send returns is what
 * arrives, whatever that is.
 */
static void hammering_threads_change_nothing_after_the_send(void **state)
{
	struct hammer hammer = { .buffer = map_buffer(BYTES) };
	unsigned char *before = malloc(BYTES), *after = malloc(BYTES);
	pthread_t threads[WRITERS];
	struct owner owner = { 0 };

	catch_segv();
	fill(hammer.buffer, BYTES, 1);
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hammer_writer, &hammer), 0);
	for (int round = 0; round < ROUNDS; round++) {
		struct guard_record *record, *second;
		struct holder holder;
		int faults;

		assert_int_equal(guard_protect(hammer.buffer, BYTES, &pinned_ops, &owner, &record), 0);
		hold(&holder, hammer.buffer, BYTES);
		assert_int_equal(guard_pinned(record), 0);
		peek(&holder, before);
		/* Counted from before: by the time that guard_protect() is back, the last page may have been written to. */
		faults = atomic_load(&owner.faults);
		assert_int_equal(guard_protect(hammer.buffer + PAGE, BYTES / 2, &pinned_ops, &owner, &second), 0);
		while (atomic_load(&owner.faults) < faults + FAULTS)
			sched_yield();
		guard_release(second);
		read_all(holder.pipe[0], after, BYTES);
		assert_memory_equal(before, after, BYTES);
		close(holder.pipe[0]);
		close(holder.pipe[1]);
		guard_release(record);
	}
	atomic_store(&hammer.stop, true);
	for (int i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	assert_false(guard_active());
	free(before);
	free(after);
	munmap(hammer.buffer, BYTES);
}

struct sender {
	pthread_t thread;
	bool failed;
};

static void *send_own_buffers(void *arg)
{
	struct sender *sender = arg;
	struct owner owner = { 0 };

	for (int round = 0; round < ROUNDS && !sender->failed; round++) {
		unsigned char *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct guard_record *record;
		int rc;

		fill(buffer, BYTES, (unsigned int)round);
		do {
			rc = guard_protect(buffer, BYTES, &pinned_ops, &owner, &record);
		} while (rc == -EAGAIN); /* the guard's thread is just being made */
		sender->failed |= rc != 0;
		buffer[PAGE * ((size_t)round % PAGES)] ^= 1;
		guard_settle(buffer + BYTES / 2, PAGE);
		guard_release(record);
		sender->failed |= differing(buffer, BYTES, (unsigned int)round) != 1;
		munmap(buffer, BYTES);
	}
	return NULL;
}

static void threads_guard_at_the_same_time(void **state)
{
	struct sender senders[WRITERS] = { 0 };

	catch_segv();
	for (int i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&senders[i].thread, NULL, send_own_buffers, &senders[i]), 0);
	for (int i = 0; i < WRITERS; i++) {
		pthread_join(senders[i].thread, NULL);
		assert_false(senders[i].failed);
	}
	assert_false(guard_active());
}

/* A process whose last thread leaves by pthread_exit() ends, although the guard has had a thread. */
static void last_thread_leaves(void *arg)
{
	static struct sent sent;

	send_buffer(&sent);
	atomic_store(&sent.owner.finish, sent.record); /* nobody asks for it but the guard's own thread */
	pthread_exit(NULL);
}

static void an_idle_process_loses_the_guards_thread(void **state)
{
	int status;
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	skip(); /* the sanitizer has a thread of its own that does not leave */
#endif
	pid = fork_told();
	if (!pid) {
		alarm(30);
		leaving = true;
		last_thread_leaves(NULL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fault_of_the_programs_own_is_passed_on),
		BOTH(signals_that_are_none_of_the_guards_are_not_taken),
		BOTH(a_child_writes_and_leaves_what_was_sent),
		BOTH(a_parent_writes_after_fork_and_leaves_what_was_sent),
		BOTH(a_child_guards_for_itself),
		BOTH(an_unannounced_child_is_safe),
		BOTH(a_vforked_child_writes_and_leaves_what_was_sent),
		BOTH(hammering_threads_change_nothing_after_the_send),
		BOTH(threads_guard_at_the_same_time),
		BOTH(an_idle_process_loses_the_guards_thread),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
