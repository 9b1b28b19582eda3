/* SPDX-License-Identifier: MIT */
/* Whose stack memory is, and since when it is nobody's. */
#include "guard_testing.h"

#include <sched.h>

#include "rdma/guard_internal.h"

#define THREADS 300
#define STACK (16 * PAGE)

static bool touches(const void *start, size_t bytes, bool but_own)
{
	uint64_t mask = guard_lock();
	bool does = guard_stacks_touch((uintptr_t)start, (uintptr_t)start + bytes, but_own);

	guard_unlock(mask);
	return does;
}

/* A thread that says that [low, low + bytes) is its stack, and waits. */
struct living {
	pthread_t thread;
	unsigned char *low;
	size_t bytes;
	_Atomic int number;
	pthread_barrier_t *told, *over;
	bool others, own; /* what it is told of its own */
};

static void *live(void *arg)
{
	struct living *living = arg;

	atomic_store(&living->number, (int)syscall(SYS_gettid));
	guard_stack_begins((uintptr_t)living->low, (uintptr_t)living->low + living->bytes);
	living->others = touches(living->low, living->bytes, true);
	living->own = touches(living->low, living->bytes, false);
	pthread_barrier_wait(living->told);
	pthread_barrier_wait(living->over);
	return NULL;
}

/* The kernel has a thread a moment longer than pthread_join() waits. */
static void join(struct living *living)
{
	pthread_join(living->thread, NULL);
	while (!syscall(SYS_tgkill, getpid(), atomic_load(&living->number), 0))
		sched_yield();
}

struct crowd {
	struct living living[THREADS];
	pthread_barrier_t told, over;
	int count;
};

static void begin(struct crowd *crowd, int count)
{
	crowd->count = count;
	pthread_barrier_init(&crowd->told, NULL, (unsigned int)count + 1);
	pthread_barrier_init(&crowd->over, NULL, (unsigned int)count + 1);
	for (int i = 0; i < count; i++) {
		crowd->living[i].told = &crowd->told;
		crowd->living[i].over = &crowd->over;
		assert_int_equal(pthread_create(&crowd->living[i].thread, NULL, live, &crowd->living[i]), 0);
	}
	pthread_barrier_wait(&crowd->told);
}

static void end(struct crowd *crowd)
{
	pthread_barrier_wait(&crowd->over);
	for (int i = 0; i < crowd->count; i++)
		join(&crowd->living[i]);
}

/* Every second piece of the memory is a stack. */
static void place(struct crowd *crowd, unsigned char *memory)
{
	for (int i = 0; i < THREADS; i++)
		crowd->living[i] =
			(struct living){ .low = memory + 2 * (size_t)(i * 7 % THREADS) * STACK, .bytes = STACK };
}

static void test_many(void **state)
{
	static struct crowd crowd;
	unsigned char *memory = map_buffer(2 * THREADS * STACK);

	for (int round = 0; round < 2; round++) {
		place(&crowd, memory);
		begin(&crowd, THREADS);
		for (int i = 0; i < THREADS; i++) {
			unsigned char *low = memory + 2 * (size_t)i * STACK;

			assert_true(touches(low, 1, true));
			assert_true(touches(low + STACK - 1, 1, true));
			assert_true(touches(low - PAGE, PAGE + 1, true));
			assert_false(touches(low + STACK, STACK, true));
			assert_false(crowd.living[i].others);
			assert_true(crowd.living[i].own);
		}
		end(&crowd);
		assert_false(touches(memory, 2 * THREADS * STACK, true));
	}
	munmap(memory, 2 * THREADS * STACK);
}

/* Ranges are more than the stacks, and a program may give a part of one thread's stack to another. */
static void test_overlapping(void **state)
{
	static struct crowd outer, inner;
	unsigned char *memory = map_buffer(8 * STACK);

	outer.living[0] = (struct living){ .low = memory, .bytes = 8 * STACK };
	inner.living[0] = (struct living){ .low = memory + STACK, .bytes = STACK };
	inner.living[1] = (struct living){ .low = memory + 2 * STACK - PAGE, .bytes = STACK };
	begin(&outer, 1);
	begin(&inner, 2);
	for (size_t at = 0; at < 8 * STACK; at += PAGE)
		assert_true(touches(memory + at, PAGE, true));
	end(&inner);
	for (size_t at = 0; at < 8 * STACK; at += PAGE)
		assert_true(touches(memory + at, PAGE, true));
	end(&outer);
	assert_false(touches(memory, 8 * STACK, true));
	munmap(memory, 8 * STACK);
}

static void test_guard(void **state)
{
	static struct crowd crowd;
	unsigned char *memory = map_buffer(4 * PAGE);
	struct owner owner = { 0 };
	struct guard_record *record;

	memset(memory, 1, 4 * PAGE);
	crowd.living[0] = (struct living){ .low = memory + PAGE, .bytes = PAGE };
	begin(&crowd, 1);
	assert_int_equal(guard_protect(memory, 4 * PAGE, &pinned_ops, &owner, &record), -EINVAL);
	assert_int_equal(guard_protect(memory, PAGE, &pinned_ops, &owner, &record), 0);
	guard_release(record);
	assert_int_equal(guard_protect(memory + 2 * PAGE, PAGE, &pinned_ops, &owner, &record), 0);
	guard_release(record);
	end(&crowd);
	assert_int_equal(guard_protect(memory, 4 * PAGE, &pinned_ops, &owner, &record), 0);
	guard_release(record);
	munmap(memory, 4 * PAGE);
}

/* The child's one thread has the stack of the one that forked. */
static void *fork_from_stack(void *arg)
{
	unsigned char *memory = arg;
	pid_t pid;
	int status;

	guard_stack_begins((uintptr_t)memory, (uintptr_t)memory + PAGE);
	guard_before_fork();
	pid = fork();
	guard_after_fork(!pid);
	if (!pid) {
		child_check(touches(memory, PAGE, false));
		child_check(!touches(memory, PAGE, true));
		child_check(!touches(memory + 2 * PAGE, PAGE, false));
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(touches(memory + 2 * PAGE, PAGE, true));
	return NULL;
}

static void test_fork(void **state)
{
	static struct crowd crowd;
	unsigned char *memory = map_buffer(4 * PAGE);
	pthread_t thread;

	crowd.living[0] = (struct living){ .low = memory + 2 * PAGE, .bytes = PAGE };
	begin(&crowd, 1);
	assert_int_equal(pthread_create(&thread, NULL, fork_from_stack, memory), 0);
	pthread_join(thread, NULL);
	end(&crowd);
	munmap(memory, 4 * PAGE);
}

/* The last: from then on it holds for the process. */
static void test_unknown(void **state)
{
	unsigned char *memory = map_buffer(PAGE);
	struct owner owner = { 0 };
	struct guard_record *record;

	memory[0] = 1;
	guard_stacks_unknown();
	assert_int_equal(guard_protect(memory, PAGE, &pinned_ops, &owner, &record), -EINVAL);
	munmap(memory, PAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(test_many), BOTH(test_overlapping), BOTH(test_guard), BOTH(test_fork), BOTH(test_unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
