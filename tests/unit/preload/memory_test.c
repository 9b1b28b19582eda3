/* SPDX-License-Identifier: MIT */
/*
 * Blocks that are freed or reallocated while their pages are lent: the wrappers of calls_memory.c are this program's own here,
 * in front of the allocator's. Run once more with another allocator preloaded.
 */
#include "../rdma/lent_testing.h"

#include <malloc.h>

#define BLOCK LENT_MAX

static struct reader readers[2];

/* Fills a block with pattern 1, and lends its whole pages. */
static void lend_block(struct reader *reader, void *block, size_t bytes)
{
	uintptr_t from = ((uintptr_t)block + PAGE - 1) & ~(PAGE - 1), to = ((uintptr_t)block + bytes) & ~(PAGE - 1);

	assert_non_null(block);
	fill((unsigned char *)from, to - from, 1);
	lend(reader, (unsigned char *)from, to - from);
}

static void freeing(void *block)
{
	lend_block(&readers[0], block, BLOCK);
	errno = EXFULL;
	free(block);
	assert_int_equal(errno, EXFULL);
	check_read(&readers[0]);
}

static void a_block_of_its_own_mapping_is_read_before_it_goes(void **state)
{
	void *block = NULL;

	mallopt(M_MMAP_THRESHOLD, BLOCK / 2);
	freeing(malloc(BLOCK));
	freeing(calloc(1, BLOCK));
	freeing(aligned_alloc(PAGE, BLOCK));
	assert_int_equal(posix_memalign(&block, 64 * PAGE, BLOCK), 0);
	freeing(block);
}

static void a_block_at_the_end_of_the_heap_is_read_before_it_goes(void **state)
{
	mallopt(M_MMAP_THRESHOLD, 2 * BLOCK);
	mallopt(M_TRIM_THRESHOLD, 1);
	freeing(malloc(BLOCK));
}

static void *free_in_thread(void *block)
{
	free(block);
	return NULL;
}

static void another_thread_may_free_it(void **state)
{
	void *block = malloc(BLOCK);
	pthread_t thread;

	lend_block(&readers[0], block, BLOCK);
	assert_int_equal(pthread_create(&thread, NULL, free_in_thread, block), 0);
	pthread_join(thread, NULL);
	check_read(&readers[0]);
}

static void *by_realloc(void *block, size_t bytes)
{
	return realloc(block, bytes);
}

static void *by_reallocarray(void *block, size_t bytes)
{
	return reallocarray(block, bytes / PAGE, PAGE);
}

static void reallocating(void *(*call)(void *block, size_t bytes), size_t bytes)
{
	unsigned char *block = malloc(BLOCK);
	size_t head;

	lend_block(&readers[0], block, BLOCK);
	head = (size_t)(readers[0].start - block);
	block = call(block, bytes);
	assert_non_null(block);
	check_read(&readers[0]);
	assert_int_equal(differing(block + head, bytes < BLOCK ? bytes - head : readers[0].bytes, 1), 0);
	fill(block, bytes, 2);
	free(block);
}

static void a_block_that_moves_or_shrinks_is_read_before(void **state)
{
	mallopt(M_MMAP_THRESHOLD, BLOCK / 2);
	reallocating(by_realloc, 64 * BLOCK);
	reallocating(by_realloc, 4 * PAGE);
	reallocating(by_reallocarray, 16 * BLOCK);
}

static void other_blocks_stay_guarded(void **state)
{
	void *mine = malloc(BLOCK), *other = malloc(BLOCK), *small = malloc(100);

	lend_block(&readers[0], mine, BLOCK);
	lend_block(&readers[1], other, BLOCK);
	small = realloc(small, 200);
	free(small);
	free(NULL);
	assert_int_equal(readers[0].copied, 0);
	assert_int_equal(readers[1].copied, 0);
	free(mine);
	assert_int_equal(readers[0].copied, readers[0].bytes);
	assert_int_equal(readers[1].copied, 0);
	guard_release(readers[0].record);
	free(other);
	check_read(&readers[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(a_block_of_its_own_mapping_is_read_before_it_goes),
		BOTH(a_block_at_the_end_of_the_heap_is_read_before_it_goes),
		BOTH(another_thread_may_free_it),
		BOTH(a_block_that_moves_or_shrinks_is_read_before),
		BOTH(other_blocks_stay_guarded),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
