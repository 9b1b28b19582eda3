/* SPDX-License-Identifier: MIT */
/* What libzc-verbs.so and its libraries read of the environment is the owner's copy, whatever the program does with its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rdma/verbs.h"

extern char **environ;

static char one[] = "ZC_TEST_ONE=1", *copy[] = { one, NULL };

static void set_owner(void *plug_in)
{
	const struct verbs_table *table = dlsym(plug_in, VERBS_SYMBOL);
	const struct verbs_owner owner = { .environment = copy, .program_environment = &environ };

	assert_non_null(table);
	table->set_owner(&owner);
}

static char *ask(void *plug_in, const char *name)
{
	char *(*its_getenv)(const char *) = (char *(*)(const char *))dlsym(plug_in, "getenv");

	assert_non_null(its_getenv);
	return its_getenv(name);
}

static void plug_in_reads_the_copy_and_leaves_the_program_s_alone(void **state)
{
	void *plug_in = dlopen(PLUG_IN, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND); /* as the library does */
	char **before;

	assert_non_null(plug_in);
	setenv("ZC_TEST_TWO", "2", 1);
	before = environ;
	assert_null(ask(plug_in, "ZC_TEST_TWO")); /* nobody's yet */
	set_owner(plug_in);
	assert_string_equal(ask(plug_in, "ZC_TEST_ONE"), "1");
	assert_null(ask(plug_in, "ZC_TEST_TWO"));
	assert_null(ask(plug_in, "ZC_TEST_ON"));
	assert_ptr_equal(environ, before);
	assert_string_equal(getenv("ZC_TEST_TWO"), "2");
}

/* As in a child whose parent has a device. Its libc began with the array that setenv() gives back. */
static void libc_of_a_namespace_reads_the_copy(void **state)
{
	void *plug_in = dlmopen(LM_ID_NEWLM, PLUG_IN, RTLD_NOW | RTLD_LOCAL), *libc;
	char ***its_environ;
	Lmid_t space;

	assert_non_null(plug_in);
	assert_int_equal(dlinfo(plug_in, RTLD_DI_LMID, &space), 0);
	libc = dlmopen(space, "libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(libc);
	its_environ = (char ***)dlsym(libc, "environ");
	assert_ptr_not_equal(its_environ, &environ);
	set_owner(plug_in);
	assert_ptr_equal(*its_environ, copy);
	assert_string_equal(ask(plug_in, "ZC_TEST_ONE"), "1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plug_in_reads_the_copy_and_leaves_the_program_s_alone),
		cmocka_unit_test(libc_of_a_namespace_reads_the_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
