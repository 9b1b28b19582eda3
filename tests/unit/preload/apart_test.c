/* SPDX-License-Identifier: MIT */
/* Descriptors that come and go unseen: apart.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/sys.h"
#include "preload/apart.h"
#include "preload/table.h"

#define MANY 8

static int kept; /* of the library's, before a body */
static struct {
	int opened[MANY], inside, first, second;
	bool has_own, has_program, has_output, is_own_yet;
	ino_t ino;
	sem_t has_opened, has_looked;
} seen;

static ino_t ino_of(int fd)
{
	struct stat found;

	return fstat(fd, &found) < 0 ? 0 : found.st_ino;
}

static int lowest_free(void)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);

	close(fd);
	return fd;
}

static int make(void)
{
	return memfd_create("apart", MFD_CLOEXEC);
}

static bool is_there(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static int begin(void **state)
{
	if (!table && table_start())
		return -1;
	apart_prepare();
	kept = apart_keep(make());
	sem_init(&seen.has_opened, 0, 0);
	sem_init(&seen.has_looked, 0, 0);
	return kept < 0;
}

static int end(void **state)
{
	apart_drop(kept);
	close(kept);
	apart_after_fork();
	return 0;
}

static void open_many(void *program)
{
	for (int i = 0; i < MANY; i++)
		seen.opened[i] = make();
	seen.has_own = ino_of(kept) == seen.ino;
	seen.has_program = is_there(*(int *)program) && ino_of(*(int *)program) == seen.ino;
	seen.has_output = write(STDERR_FILENO, "unseen\n", 7) == 7;
	sem_post(&seen.has_opened);
	sem_wait(&seen.has_looked);
}

static void *look(void *first)
{
	sem_wait(&seen.has_opened);
	seen.inside = lowest_free();
	sem_post(&seen.has_looked);
	return first;
}

static void program_sees_none_of_what_is_open_there(void **state)
{
	int pipes[2], program = make(), before = lowest_free(), output = dup(STDERR_FILENO);
	pthread_t other;
	char text[8];

	seen.ino = ino_of(kept);
	/* What is said there is not said to the program's user. */
	assert_int_equal(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
	dup2(pipes[1], STDERR_FILENO);
	assert_int_equal(pthread_create(&other, NULL, look, NULL), 0);
	before = lowest_free();
	apart_run(open_many, &program);
	pthread_join(other, NULL);
	dup2(output, STDERR_FILENO);
	assert_int_equal(seen.inside, before);
	assert_true(seen.has_own && seen.has_output);
	assert_false(seen.has_program);
	assert_int_equal(read(pipes[0], text, sizeof(text)), -1);
	for (int i = 0; i < MANY; i++) {
		assert_in_range(seen.opened[i], 3, 63);
		if (i)
			assert_int_not_equal(seen.opened[i], seen.opened[i - 1]);
	}
	close(pipes[0]);
	close(pipes[1]);
	close(output);
	close(program);
	assert_int_equal(lowest_free(), program);
}

static void keep_two(void *unused)
{
	int fd = make();

	seen.ino = ino_of(fd);
	seen.first = apart_keep(fd);
	seen.has_own = ino_of(seen.first) == seen.ino && (fd == seen.first || !is_there(fd));
	seen.inside = apart_keep(seen.first); /* it is kept already */
	seen.second = apart_keep(make());
	apart_drop(seen.second);
	seen.is_own_yet = table_is_own(seen.second); /* until it is closed in both */
	close(seen.second);
}

static void what_is_kept_has_the_same_number_in_both(void **state)
{
	int before = lowest_free();

	apart_run(keep_two, NULL);
	assert_true(seen.has_own);
	assert_true(seen.first >= SYS_FD_HIGH);
	assert_int_equal(seen.inside, seen.first);
	assert_int_equal(ino_of(seen.first), seen.ino);
	assert_true(table_is_own(seen.first));
	/* And what was closed there again is not here. */
	assert_true(seen.is_own_yet);
	assert_true(seen.second >= SYS_FD_HIGH && seen.second != seen.first);
	assert_false(is_there(seen.second) || table_is_own(seen.second));
	assert_int_equal(lowest_free(), before);
	apart_drop(seen.first);
	close(seen.first);
}

static void close_kept(void *unused)
{
	close(kept);
}

static void what_was_kept_before_and_is_closed_there_is_closed_here(void **state)
{
	int was = kept;

	apart_run(close_kept, NULL);
	assert_false(is_there(was) || table_is_own(was));
	kept = apart_keep(make());
}

static void put_another(void *unused)
{
	int fd = make();

	seen.ino = ino_of(fd);
	apart_put(fd, kept);
	seen.has_own = ino_of(kept) == seen.ino;
}

static void kept_number_may_become_another_descriptor(void **state)
{
	apart_run(put_another, NULL);
	assert_true(seen.has_own);
	assert_int_equal(ino_of(kept), seen.ino);
	assert_true(table_is_own(kept));
	put_another(NULL);
	assert_int_equal(ino_of(kept), seen.ino);
}

/* A pipe whose writing end is there no more is read to its end at once: not when a thread has ended, some time. */
static void close_writing_end(void *end)
{
	close(*(int *)end);
}

static void nothing_stays_open_there(void **state)
{
	int pipes[2], writing;
	char byte;

	assert_int_equal(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
	writing = apart_keep(pipes[1]);
	for (int i = 0; i < 50; i++) {
		apart_run(keep_two, NULL);
		apart_drop(seen.first);
		close(seen.first);
	}
	apart_run(close_writing_end, &writing);
	assert_int_equal(read(pipes[0], &byte, 1), 0);
	close(pipes[0]);
}

static void note_thread(void *thread)
{
	*(pthread_t *)thread = pthread_self();
}

static bool runs_here(void)
{
	pthread_t by;

	apart_run(note_thread, &by);
	return pthread_equal(by, pthread_self());
}

static void work_is_done_here_where_it_cannot_be_elsewhere(void **state)
{
	struct rlimit before, low = { 32, 32 };
	int many[200];

	assert_false(runs_here());
	/* Where the library has a great many, and where its numbers are those of what comes and goes. */
	for (size_t i = 0; i < sizeof(many) / sizeof(*many); i++)
		many[i] = apart_keep(make());
	assert_true(runs_here());
	for (size_t i = 0; i < sizeof(many) / sizeof(*many); i++) {
		apart_drop(many[i]);
		close(many[i]);
	}
	assert_false(runs_here());
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	low.rlim_max = before.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	many[0] = apart_keep(make());
	assert_in_range(many[0], 3, 31);
	assert_true(runs_here());
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	apart_drop(many[0]);
	close(many[0]);
}

/* A thread whose process's first one has another table than it can't know its numbers there. */
static void *run_with_a_table_of_its_own(void *here)
{
	/* The socket's number is something else there by now. */
	int other = make();

	sem_wait(&seen.has_opened);
	*(bool *)here = runs_here();
	close(other);
	return NULL;
}

static void first_thread_with_another_table_is_found_out(void **state)
{
	pid_t child = fork();
	int status;

	if (!child) {
		bool here = false;
		pthread_t other;

		if (pthread_create(&other, NULL, run_with_a_table_of_its_own, &here))
			_exit(2);
		if (sys_call(SYS_unshare, CLONE_FILES, 0, 0, 0, 0, 0) < 0)
			_exit(3);
		for (int fd = table_own_next(0); fd >= 0; fd = table_own_next(fd + 1))
			dup2(STDIN_FILENO, fd);
		sem_post(&seen.has_opened);
		pthread_join(other, NULL);
		_exit(here ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static pthread_key_t last;
static sem_t returned;
static _Atomic bool has_ended;

/* What libc does at a thread's end takes as long as this: until the caller goes on, which it is not to do. */
static void end_slowly(void *value)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 200000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	has_ended = sem_timedwait(&returned, &until) < 0;
}

static void end_slowly_there(void *unused)
{
	pthread_setspecific(last, &last);
}

/* A fork past libc waits for who is in there: its child would find the locks of libc's that a thread takes at its end taken for ever. */
static void thread_has_ended_behind_it(void **state)
{
	assert_int_equal(pthread_key_create(&last, end_slowly), 0);
	sem_init(&returned, 0, 0);
	apart_run(end_slowly_there, NULL);
	assert_true(has_ended);
	sem_post(&returned);
	pthread_key_delete(last);
}

static void speaks(void *unused)
{
	dprintf(STDOUT_FILENO, "Warning: one\n");
	dprintf(STDERR_FILENO, "Warning: another\n");
}

/* Such as why a driver can't be loaded. */
static void what_libraries_say_there_is_in_the_log(void **state)
{
	char file[64], got[64] = "";
	int log = make();

	snprintf(file, sizeof(file), "/proc/self/fd/%d", log);
	assert_int_equal(log_open(LOG_WARN, file), 0);
	table_own_keep(log_descriptor());
	apart_run(speaks, NULL);
	assert_true(pread(log, got, sizeof(got) - 1, 0) > 0);
	assert_string_equal(got, "Warning: one\nWarning: another\n");
	close(log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Before there are threads: a sanitizer takes those of a parent for its child's, too. */
		cmocka_unit_test_setup_teardown(first_thread_with_another_table_is_found_out, begin, end),
		cmocka_unit_test_setup_teardown(program_sees_none_of_what_is_open_there, begin, end),
		cmocka_unit_test_setup_teardown(what_is_kept_has_the_same_number_in_both, begin, end),
		cmocka_unit_test_setup_teardown(what_was_kept_before_and_is_closed_there_is_closed_here, begin, end),
		cmocka_unit_test_setup_teardown(kept_number_may_become_another_descriptor, begin, end),
		cmocka_unit_test_setup_teardown(nothing_stays_open_there, begin, end),
		cmocka_unit_test_setup_teardown(thread_has_ended_behind_it, begin, end),
		cmocka_unit_test_setup_teardown(work_is_done_here_where_it_cannot_be_elsewhere, begin, end),
		/* Last: the log stays open. */
		cmocka_unit_test_setup_teardown(what_libraries_say_there_is_in_the_log, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
