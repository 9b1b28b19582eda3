/* SPDX-License-Identifier: MIT */
/* The check of RDMA: a device, an active port with an address, the right to use it, memory that may be locked, the plug-in. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "apps/zc/doctor.h"
#include "apps/zc/library.h"
#include "common/capability.h"

#define DEVICES "/sys/class/infiniband"
#define MANAGER "/dev/infiniband/rdma_cm"
#define PLUG_IN "libzc-verbs.so"
#define MEMLOCK_OF_ONE (2ul << 20) /* a connection's two rings of ZC_RING_BYTES */
#define MEMLOCK_GOOD (64 * MEMLOCK_OF_ONE)

/* Returns whether the running kernel has a module by that name, loaded, built in, or to be loaded. */
static bool has_module(const char *name)
{
	static const char *const lists[] = { "modules.dep", "modules.builtin" };
	struct utsname system;
	char file[512], line[4096], loaded[128], wanted[128];
	bool has;

	snprintf(loaded, sizeof(loaded), "/sys/module/%s", name);
	snprintf(wanted, sizeof(wanted), "/%s.ko", name);
	has = !access(loaded, F_OK);
	uname(&system);
	for (size_t i = 0; !has && i < sizeof(lists) / sizeof(lists[0]); i++) {
		FILE *list;

		snprintf(file, sizeof(file), "/lib/modules/%s/%s", system.release, lists[i]);
		list = fopen(file, "re");
		while (list && !has && fgets(line, sizeof(line), list)) {
			line[strcspn(line, ":")] = '\0';
			has = strstr(line, wanted) != NULL;
		}
		if (list)
			fclose(list);
	}
	return has;
}

/* What the devices are, as far as sysfs tells. */
struct devices {
	char names[200];
	char first[64];
	bool fit;    /* one of them is no iWARP device */
	bool active; /* one of those has an active port */
};

static bool is_active(const char *device)
{
	char path[512], line[64];

	for (int port = 1; port <= 4; port++) {
		snprintf(path, sizeof(path), DEVICES "/%.60s/ports/%d/state", device, port);
		if (!doctor_read_line(path, line, sizeof(line)) && strstr(line, "ACTIVE"))
			return true;
	}
	return false;
}

static bool is_iwarp(const char *device)
{
	char path[512], line[64];

	snprintf(path, sizeof(path), DEVICES "/%.60s/node_type", device);
	return !doctor_read_line(path, line, sizeof(line)) && strstr(line, "RNIC");
}

static void look_at_devices(struct devices *out)
{
	DIR *dir = opendir(DEVICES);
	struct dirent *entry;

	memset(out, 0, sizeof(*out));
	while (dir && (entry = readdir(dir))) {
		size_t used = strlen(out->names);

		if (entry->d_name[0] == '.')
			continue;
		snprintf(out->names + used, sizeof(out->names) - used, "%s%.60s", used ? ", " : "", entry->d_name);
		if (!*out->first)
			snprintf(out->first, sizeof(out->first), "%.60s", entry->d_name);
		if (is_iwarp(entry->d_name))
			continue;
		out->fit = true;
		out->active |= is_active(entry->d_name);
	}
	if (dir)
		closedir(dir);
}

/* The plug-in is beside the library, or where it was built. Returns whether there is one, with its path. */
static bool find_plug_in(char *path, size_t bytes)
{
	char library[4096];
	char *slash;

	if (library_find(library, sizeof(library)) || !(slash = strrchr(library, '/')))
		return false;
	*slash = '\0';
	snprintf(path, bytes, "%s/" PLUG_IN, library);
	if (!access(path, R_OK))
		return true;
	snprintf(path, bytes, "%s/../rdma/" PLUG_IN, library);
	return !access(path, R_OK);
}

static bool may_open_verbs(void)
{
	char path[64];

	for (int i = 0; i < 16; i++) {
		snprintf(path, sizeof(path), "/dev/infiniband/uverbs%d", i);
		if (!access(path, R_OK | W_OK))
			return true;
	}
	return false;
}

static void without_device(struct finding *out)
{
	if (has_module("rdma_rxe")) {
		finding_is(out, HEALTH_LIMITED, "no device; soft-RoCE (rdma_rxe) can be loaded");
	} else {
		finding_is(out, HEALTH_MISSING, "no device, and no module rdma_rxe for this kernel");
		finding_remedy(out, "an RDMA device, or a kernel with CONFIG_RDMA_RXE");
	}
}

static void check_memlock(struct finding *out, const struct devices *devices)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur >= MEMLOCK_GOOD || capability_everywhere(CAP_IPC_LOCK))
		return;
	finding_is(out, HEALTH_LIMITED, "%s, but %lu KB may be locked", devices->names,
		   (unsigned long)limit.rlim_cur / 1024);
	finding_means(
		out,
		"about %lu connections at a time, half as many that announce large sends (zsdp, azsdp): the others stay on "
		"TCP, or send by the ring, with the reason rdma_memlock",
		(unsigned long)limit.rlim_cur / MEMLOCK_OF_ONE);
	finding_remedy(out, "ulimit -l unlimited, for services LimitMEMLOCK=infinity");
}

void doctor_rdma(struct finding *out)
{
	struct devices devices;
	char plug_in[4200];

	look_at_devices(&devices);
	if (!*devices.names) {
		without_device(out);
	} else if (!devices.fit) {
		finding_is(out, HEALTH_LIMITED, "%s, but iWARP has no RDMA WRITE with immediate data", devices.names);
		finding_remedy(out, "a device for RoCE or InfiniBand");
	} else if (!devices.active) {
		finding_is(out, HEALTH_LIMITED, "%s, but no port is active", devices.names);
		finding_remedy(out, "connect it and set its interface up: rdma link, ip link set DEVICE up");
	} else if (access(MANAGER, F_OK)) {
		finding_is(out, HEALTH_LIMITED, "%s, but " MANAGER " is missing", devices.names);
		finding_remedy(out, "sudo modprobe rdma_ucm");
	} else if (access(MANAGER, R_OK | W_OK) || !may_open_verbs()) {
		finding_is(out, HEALTH_LIMITED, "%s, but this user may not open /dev/infiniband", devices.names);
		finding_remedy(out, "rights on /dev/infiniband/rdma_cm and uverbs*: a udev rule, or rdma-core's");
	} else if (!find_plug_in(plug_in, sizeof(plug_in))) {
		finding_is(out, HEALTH_LIMITED, "%s, but " PLUG_IN " is missing", devices.names);
		finding_remedy(out, "build with libibverbs-dev and librdmacm-dev installed");
	} else if (doctor_opens_devices(plug_in, devices.names, out)) {
		check_memlock(out, &devices);
	}
}
