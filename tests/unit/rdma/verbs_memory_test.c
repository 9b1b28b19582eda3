/* SPDX-License-Identifier: MIT */
/* What libzc-verbs.so and its libraries allocate and free is the program's allocator's, whichever that is. Run with jemalloc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 100

static void *plug_in;

static int open_plug_in(void **state)
{
	/* As the library does. */
	plug_in = dlopen(PLUG_IN, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	return plug_in ? 0 : -1;
}

static void plug_in_frees_what_the_program_allocates(void **state)
{
	void (*its_free)(void *) = (void (*)(void *))dlsym(plug_in, "free");
	void *(*its_realloc)(void *, size_t) = (void *(*)(void *, size_t))dlsym(plug_in, "realloc");
	char *block = malloc(BYTES);

	assert_non_null(block);
	memset(block, 1, BYTES);
	block = its_realloc(block, 10 * BYTES);
	assert_non_null(block);
	assert_int_equal(block[BYTES - 1], 1);
	its_free(block);
}

static void program_frees_what_the_plug_in_allocates(void **state)
{
	void *(*its_malloc)(size_t) = (void *(*)(size_t))dlsym(plug_in, "malloc");
	void *(*its_calloc)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(plug_in, "calloc");
	int (*its_memalign)(void **, size_t, size_t) =
		(int (*)(void **, size_t, size_t))dlsym(plug_in, "posix_memalign");
	void *aligned = NULL;

	free(its_malloc(BYTES));
	free(its_calloc(BYTES, BYTES));
	assert_int_equal(its_memalign(&aligned, 4096, BYTES), 0);
	assert_int_equal((uintptr_t)aligned % 4096, 0);
	free(aligned);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plug_in_frees_what_the_program_allocates),
		cmocka_unit_test(program_frees_what_the_plug_in_allocates),
	};

	return cmocka_run_group_tests(tests, open_plug_in, NULL);
}
