/* SPDX-License-Identifier: MIT */
/* Opens the RDMA devices as a program under the library would: by the plug-in, libibverbs and the devices' own drivers. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/zc/doctor.h"
#include "common/verbs_probe.h"

#define PLUG_IN_USELESS -1

static void tell(int out, int answer, const char *text)
{
	char line[256];
	int used = snprintf(line, sizeof(line), "%d %s\n", answer, text);

	if (used >= (int)sizeof(line))
		used = (int)sizeof(line) - 1;
	_exit(write(out, line, (size_t)used) == used ? EXIT_SUCCESS : EXIT_FAILURE);
}

static void open_devices(const char *plug_in, int out)
{
	void *handle = dlopen(plug_in, RTLD_NOW | RTLD_LOCAL);
	verbs_probe_function *probe = handle ? (verbs_probe_function *)dlsym(handle, VERBS_PROBE_SYMBOL) : NULL;
	char text[200];
	enum verbs_probe found;

	if (!probe)
		tell(out, PLUG_IN_USELESS, dlerror());
	found = probe(text, sizeof(text));
	tell(out, (int)found, text);
}

static const char *remedy_of(enum verbs_probe found)
{
	switch (found) {
	case VERBS_PROBE_NO_DEVICE:
		return "the device's driver for libibverbs: apt install ibverbs-providers (`ibv_devinfo` shows what it finds)";
	case VERBS_PROBE_NO_ADDRESS:
		return "give its interface an address: ip address add ADDRESS/BITS dev DEVICE";
	default:
		return "`ibv_devinfo -v` tells more (Debian: ibverbs-utils)";
	}
}

bool doctor_opens_devices(const char *plug_in, const char *names, struct finding *out)
{
	char said[256] = "", text[200] = "";
	int answer = PLUG_IN_USELESS;
	bool spoke = !doctor_in_child(open_devices, plug_in, said, sizeof(said)) &&
		     sscanf(said, "%d %199[^\n]", &answer, text) == 2;

	if (spoke && answer == VERBS_PROBE_OPENED) {
		finding_is(out, HEALTH_OK, "%.120s, opened, %.100s", names, text);
		return true;
	}
	if (spoke && answer != PLUG_IN_USELESS) {
		finding_is(out, HEALTH_LIMITED, "%.120s, but none can be used: %.100s", names, text);
		finding_remedy(out, "%s", remedy_of((enum verbs_probe)answer));
		return false;
	}
	finding_is(out, HEALTH_LIMITED, "%.120s, but %.60s can't be used", names, strrchr(plug_in, '/') + 1);
	finding_means(out, "it was loaded as the library does: %.200s",
		      spoke ? text :
		      *said ? said :
			      "it said nothing");
	finding_remedy(out, "apt install libibverbs1 librdmacm1 ibverbs-providers");
	return false;
}
