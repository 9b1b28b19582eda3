/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/verbs_provider.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NODE_RNIC "4:" /* how node_type begins where a device is iWARP's */

/* The kernel's driver of the device below, and the provider. */
static const struct {
	const char *driver, *provider;
} known[] = {
	{ "bnxt_en", "bnxt_re" }, { "cxgb4", "cxgb4" },	      { "efa", "efa" },	       { "erdma", "erdma" },
	{ "hns3", "hns" },	  { "i40e", "irdma" },	      { "ice", "irdma" },      { "mana", "mana" },
	{ "mlx4_core", "mlx4" },  { "mlx5_core", "mlx5" },    { "qede", "qedr" },      { "be2net", "ocrdma" },
	{ "hfi1", "hfi1verbs" },  { "ib_qib", "ipathverbs" }, { "ib_mthca", "mthca" }, { "vmw_pvrdma", "vmw_pvrdma" },
};

/* Returns false where it has no room. */
static bool path_of(char out[PATH_MAX], const char *directory, const char *name, const char *rest)
{
	return snprintf(out, PATH_MAX, "%s/%s%s", directory, name, rest) < PATH_MAX;
}

/* Devices of software have no other device below. */
static const char *provider_of_software(const char *devices, const char *device)
{
	char node[16] = "", path[PATH_MAX];
	FILE *file = path_of(path, devices, device, "/node_type") ? fopen(path, "re") : NULL;

	if (!file)
		return NULL;
	if (!fgets(node, sizeof(node), file))
		node[0] = 0;
	fclose(file);
	return !node[0] ? NULL : strncmp(node, NODE_RNIC, strlen(NODE_RNIC)) ? "rxe" : "siw";
}

const char *verbs_provider_of(const char *devices, const char *device)
{
	char path[PATH_MAX], driver[PATH_MAX];
	const char *name;
	ssize_t bytes;

	if (!path_of(path, devices, device, "/device") || access(path, F_OK) < 0)
		return provider_of_software(devices, device);
	if (!path_of(path, devices, device, "/device/driver"))
		return NULL;
	bytes = readlink(path, driver, sizeof(driver) - 1);
	if (bytes < 0)
		return NULL;
	driver[bytes] = 0;
	name = strrchr(driver, '/') ? strrchr(driver, '/') + 1 : driver;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (!strcmp(known[i].driver, name))
			return known[i].provider;
	}
	return NULL;
}

/* The number behind the name is libibverbs' own interface's; one of another can't be loaded. */
static void load_provider(const char *directory, const char *provider)
{
	char start[64], path[PATH_MAX];
	DIR *files = opendir(directory);
	const struct dirent *file;
	bool loaded = false;

	if (!files)
		return;
	snprintf(start, sizeof(start), "lib%s-rdmav", provider);
	while (!loaded && (file = readdir(files))) {
		if (!strncmp(file->d_name, start, strlen(start)) && path_of(path, directory, file->d_name, ""))
			loaded = dlopen(path, RTLD_NOW);
	}
	closedir(files);
}

void verbs_providers_load(const char *devices, const char *library)
{
	const char *slash = strrchr(library, '/');
	char directory[PATH_MAX];
	const struct dirent *device;
	DIR *all;

	if (!slash || snprintf(directory, sizeof(directory), "%.*s/libibverbs", (int)(slash - library), library) >=
			      (int)sizeof(directory))
		return;
	all = opendir(devices);
	while (all && (device = readdir(all))) {
		const char *provider = device->d_name[0] == '.' ? NULL : verbs_provider_of(devices, device->d_name);

		if (provider)
			load_provider(directory, provider);
	}
	if (all)
		closedir(all);
}
