/* SPDX-License-Identifier: MIT */
/*
 * The guard while a process forks: libc's fork waits for locks that other threads hold (malloc's, and those that handlers of
 * pthread_atfork() take), and these threads write to guarded memory meanwhile.
 */
#include "guard_testing.h"

#include <sched.h>

/* The sanitizer's question: threads are started in a child, too. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

static void wait_for(pid_t pid)
{
	int status;

	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* A guard of the child's own works. */
static void child_guards(void)
{
	unsigned char *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct owner owner = { 0 };
	struct guard_record *record;

	fill(buffer, BYTES, 1);
	child_check(!guard_protect(buffer, BYTES, &pinned_ops, &owner, &record));
	fill(buffer, BYTES, 2);
	child_check(differing(buffer, BYTES, 2) == 0);
	child_check(atomic_load(&owner.faults) > 0);
	guard_release(record);
	child_check(!guard_active());
}

/* A lock that fork waits for --------------------------------------------------------------------------------------------- */

/* Of one test: fork's handler meets the other thread, and goes on when that one is done. */
static struct meeting {
	pthread_t thread;
	pthread_barrier_t forking, done;
	struct sent *sent, late;
	int refused, pinned;
} * _Atomic meeting;

static void before_libc_forks(void)
{
	struct meeting *now = atomic_load(&meeting);

	if (!now)
		return;
	pthread_barrier_wait(&now->forking);
	pthread_barrier_wait(&now->done);
}

/* Writes to what is under guard, and goes on with a send, while the other thread's fork waits for it. */
static void *works_during_fork(void *arg)
{
	struct meeting *now = arg;
	struct owner owner = { 0 };
	struct guard_record *record;

	pthread_barrier_wait(&now->forking);
	fill(now->sent->buffer, BYTES, 2);
	now->refused = guard_protect(now->sent->buffer, BYTES, &pinned_ops, &owner, &record);
	hold(&now->late.holder, now->late.buffer, BYTES);
	now->pinned = guard_pinned(now->late.record);
	fill(now->late.buffer, BYTES / 2, 3);
	pthread_barrier_wait(&now->done);
	return NULL;
}

static void meet(struct meeting *now, struct sent *sent)
{
	static bool told;

	*now = (struct meeting){ .sent = sent, .late = { .buffer = map_buffer(BYTES) } };
	if (!told)
		assert_int_equal(pthread_atfork(before_libc_forks, NULL, NULL), 0);
	told = true;
	send_buffer(sent);
	fill(now->late.buffer, BYTES, 1);
	assert_int_equal(guard_protect(now->late.buffer, BYTES, &pinned_ops, &now->late.owner, &now->late.record), 0);
	assert_int_equal(pthread_barrier_init(&now->forking, NULL, 2), 0);
	assert_int_equal(pthread_barrier_init(&now->done, NULL, 2), 0);
	assert_int_equal(pthread_create(&now->thread, NULL, works_during_fork, now), 0);
	atomic_store(&meeting, now);
}

static void part(struct meeting *now)
{
	atomic_store(&meeting, NULL);
	pthread_join(now->thread, NULL);
	pthread_barrier_destroy(&now->forking);
	pthread_barrier_destroy(&now->done);
	munmap(now->late.buffer, BYTES);
	munmap(now->sent->buffer, BYTES);
}

static void a_fork_may_wait_for_who_writes(void **state)
{
	static struct meeting now;
	static struct sent sent;
	pid_t pid;

	meet(&now, &sent);
	guard_before_fork();
	pid = fork();
	guard_after_fork(pid == 0);
	if (!pid) {
		alarm(60);
		child_check(!guard_active());
		child_check(differing(sent.buffer, BYTES, 2) == 0);
		child_check(differing(now.late.buffer, BYTES / 2, 3) == 0);
		fill(sent.buffer, BYTES, 4);
		fill(now.late.buffer, BYTES, 4);
		guard_shrink(now.late.record, PAGE); /* of the parent's; harmless */
		guard_release(now.late.record);
		child_guards();
		_exit(0);
	}
	wait_for(pid);
	assert_int_equal(now.refused, -EAGAIN);
	assert_int_equal(now.pinned, 0);
	fill(now.late.buffer, BYTES, 5);
	assert_int_equal(let_go(&now.late.holder, 1), 0);
	guard_release(now.late.record);
	check_held(&sent);
	part(&now);
}

/* A fork that fails, and two at the same time: the guard works again when the last of them is over. */
static void the_guard_works_again_after_forks(void **state)
{
	struct sent sent = { 0 };
	struct owner owner = { 0 };
	struct guard_record *record;
	unsigned char *other = map_buffer(BYTES);

	fill(other, BYTES, 1);
	send_buffer(&sent);
	guard_before_fork();
	assert_false(guard_active());
	guard_before_fork();
	guard_after_fork(false);
	assert_int_equal(guard_protect(other, BYTES, &pinned_ops, &owner, &record), -EAGAIN);
	guard_after_fork(false);
	fill(sent.buffer, BYTES, 2);
	check_held(&sent);
	assert_int_equal(guard_protect(other, BYTES, &pinned_ops, &owner, &record), 0);
	assert_true(guard_active());
	other[0] ^= 1;
	assert_int_equal(atomic_load(&owner.faults), 1);
	guard_release(record);
	munmap(sent.buffer, BYTES);
	munmap(other, BYTES);
}

/* Threads at malloc ------------------------------------------------------------------------------------------------------ */

#define FORKS 40
#define USERS 2
#define BLOCKS 16

struct block {
	unsigned char *bytes;
	struct guard_record *record;
};

struct user {
	pthread_t thread;
	_Atomic bool *stop;
	_Atomic int failed; /* the line */
	_Atomic unsigned int sends;
	struct owner owner;
	struct block blocks[BLOCKS];
};

#define user_check(user, condition)                                                                                    \
	do {                                                                                                           \
		if (!(condition))                                                                                      \
			atomic_store(&(user)->failed, __LINE__);                                                       \
	} while (0)

/* Sends a page from the middle of a heap block, and writes to it at once. Leaves it under guard. */
static void send_block(struct user *user, struct block *block, unsigned int seed)
{
	unsigned char *page = (unsigned char *)(((uintptr_t)block->bytes + PAGE - 1) & ~(PAGE - 1));
	struct guard_record *record;
	struct holder holder;
	int rc;

	fill(page, PAGE, seed);
	rc = guard_protect(page, PAGE, &pinned_ops, &user->owner, &record);
	user_check(user, !rc || rc == -EAGAIN);
	if (rc)
		return;
	hold(&holder, page, PAGE);
	user_check(user, !guard_pinned(record));
	fill(page, PAGE, seed + 1);
	user_check(user, let_go(&holder, seed) == 0);
	guard_release(record);
	user_check(user, differing(page, PAGE, seed + 1) == 0);
	if (guard_protect(page, PAGE, &pinned_ops, &user->owner, &block->record))
		block->record = NULL;
	atomic_fetch_add(&user->sends, 1);
}

/* What is freed is under guard still, so that malloc faults where it writes down what it has. */
static void free_block(struct block *block)
{
	free(block->bytes);
	if (block->record)
		guard_release(block->record);
	*block = (struct block){ 0 };
}

static void *use_heap(void *arg)
{
	struct user *user = arg;
	unsigned int random = 1;

	while (!atomic_load(user->stop) && !atomic_load(&user->failed)) {
		struct block *block = &user->blocks[(random >> 8) % BLOCKS];

		random = random * 1103515245 + 12345;
		if (block->bytes)
			free_block(block);
		block->bytes = malloc(3 * PAGE + (random >> 16) % (4 * PAGE));
		send_block(user, block, random >> 8);
	}
	for (int i = 0; i < BLOCKS; i++)
		free_block(&user->blocks[i]);
	return NULL;
}

/* Forks as the preload does it. The child finds what was sent as it was, and can use heap and guard. */
static void fork_once(const unsigned char *sent)
{
	pid_t pid;

	guard_before_fork();
	pid = fork();
	guard_after_fork(pid == 0);
	if (!pid) {
		unsigned char *block;

		alarm(60);
		child_check(!guard_active());
		child_check(differing(sent, BYTES, 1) == 0);
		block = malloc(5 * PAGE);
		fill(block, 5 * PAGE, 1);
		child_check(differing(block, 5 * PAGE, 1) == 0);
		free(block);
		child_guards();
		_exit(0);
	}
	wait_for(pid);
}

static void forks_go_on_while_malloc_meets_the_guard(void **state)
{
	static struct user users[USERS];
	_Atomic bool stop = false;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* a sanitizer's malloc is not held over fork as libc's is: the child would wait for a thread it does not have */
#endif
	catch_segv();
	memset(users, 0, sizeof(users));
	for (int i = 0; i < USERS; i++) {
		users[i].stop = &stop;
		assert_int_equal(pthread_create(&users[i].thread, NULL, use_heap, &users[i]), 0);
	}
	for (int round = 0; round < FORKS; round++) {
		unsigned int before = atomic_load(&users[round % USERS].sends);
		struct sent sent;

		sent.owner = (struct owner){ 0 };
		send_buffer(&sent);
		fork_once(sent.buffer);
		fill(sent.buffer, BYTES, 2);
		assert_int_equal(let_go(&sent.holder, 1), 0);
		guard_release(sent.record);
		munmap(sent.buffer, BYTES);
		while (atomic_load(&users[round % USERS].sends) == before && !atomic_load(&users[round % USERS].failed))
			sched_yield();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < USERS; i++) {
		pthread_join(users[i].thread, NULL);
		assert_int_equal(users[i].failed, 0);
	}
	assert_false(guard_active());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(a_fork_may_wait_for_who_writes),
		BOTH(the_guard_works_again_after_forks),
		BOTH(forks_go_on_while_malloc_meets_the_guard),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
