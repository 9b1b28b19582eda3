/* SPDX-License-Identifier: MIT */
/* The providers of the devices of a directory that looks like sysfs: which they are, and that those are loaded, and no others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "rdma/verbs_provider.h"

static char root[64], devices[128];

static const char *under_root(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

static int begin(void **state)
{
	snprintf(root, sizeof(root), "/tmp/zc-provider-XXXXXX");
	assert_non_null(mkdtemp(root));
	snprintf(devices, sizeof(devices), "%s/infiniband", root);
	return mkdir(devices, 0755);
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
	return remove(path);
}

static int end(void **state)
{
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void make_device(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), "infiniband/%s", name);
	assert_int_equal(mkdir(under_root(path), 0755), 0);
}

/* Of hardware; without a driver where that is NULL. */
static void make_card(const char *name, const char *driver)
{
	char path[256], to[256];

	make_device(name);
	snprintf(path, sizeof(path), "infiniband/%s/device", name);
	assert_int_equal(mkdir(under_root(path), 0755), 0);
	snprintf(path, sizeof(path), "infiniband/%s/device/driver", name);
	snprintf(to, sizeof(to), "../../../bus/pci/drivers/%s", driver ? driver : "");
	if (driver)
		assert_int_equal(symlink(to, under_root(path)), 0);
}

static void make_software(const char *name, const char *node_type)
{
	char path[256];
	FILE *file;

	make_device(name);
	snprintf(path, sizeof(path), "infiniband/%s/node_type", name);
	file = fopen(under_root(path), "w");
	assert_non_null(file);
	fputs(node_type, file);
	fclose(file);
}

static void assert_provider(const char *device, const char *provider)
{
	const char *found = verbs_provider_of(devices, device);

	if (provider)
		assert_string_equal(found ? found : "none", provider);
	else
		assert_null(found);
}

static void providers_are_those_of_the_drivers(void **state)
{
	make_card("rocep1s0f0", "mlx5_core");
	make_card("bnxt_re0", "bnxt_en");
	make_card("irdma0", "ice");
	make_card("another", "a_driver_of_tomorrow");
	make_card("unbound", NULL);
	make_software("mlx5_0", "1: CA\n"); /* a name says nothing */
	make_software("wire", "4: RNIC\n");
	make_software("empty", "");
	make_device("nothing");
	assert_provider("rocep1s0f0", "mlx5");
	assert_provider("bnxt_re0", "bnxt_re");
	assert_provider("irdma0", "irdma");
	assert_provider("another", NULL);
	assert_provider("unbound", NULL);
	assert_provider("mlx5_0", "rxe");
	assert_provider("wire", "siw");
	assert_provider("empty", NULL);
	assert_provider("nothing", NULL);
	assert_provider("absent", NULL);
}

static bool is_loaded(const char *name)
{
	void *found = dlopen(under_root(name), RTLD_NOW | RTLD_NOLOAD);

	if (found)
		dlclose(found);
	return found;
}

static void put_library(const char *name)
{
	assert_int_equal(symlink(PROVIDER, under_root(name)), 0);
}

static void devices_get_theirs_and_nothing_else(void **state)
{
	make_card("unknown", "a_driver_of_tomorrow");
	make_software("rxe0", "1: CA\n");
	assert_int_equal(mkdir(under_root("libibverbs"), 0755), 0);
	/* Of another interface, and of no device that is here. */
	assert_int_equal(symlink("/dev/null", under_root("libibverbs/librxe-rdmav1.so")), 0);
	put_library("libibverbs/libmlx5-rdmav99.so");
	verbs_providers_load(devices, under_root("libibverbs.so.1"));
	assert_false(is_loaded("libibverbs/libmlx5-rdmav99.so"));
	put_library("libibverbs/librxe-rdmav99.so");
	verbs_providers_load(devices, under_root("libibverbs.so.1"));
	assert_true(is_loaded("libibverbs/librxe-rdmav99.so"));
}

static void without_devices_or_providers_nothing_happens(void **state)
{
	verbs_providers_load("/nonexistent", under_root("libibverbs.so.1"));
	verbs_providers_load(devices, "libibverbs.so.1");
	make_software("rxe0", "1: CA\n");
	verbs_providers_load(devices, under_root("libibverbs.so.1"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(providers_are_those_of_the_drivers, begin, end),
		cmocka_unit_test_setup_teardown(devices_get_theirs_and_nothing_else, begin, end),
		cmocka_unit_test_setup_teardown(without_devices_or_providers_nothing_happens, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
