/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "kill.h"

#define ESTABLISHED 1

bool is_half_open(uint32_t port)
{
	FILE *file = fopen("/proc/net/tcp", "re");
	char line[256];
	bool connected = false, peer = false;

	while (file && fgets(line, sizeof(line), file)) {
		unsigned int local, remote, state;

		if (sscanf(line, " %*d: %*x:%x %*x:%x %x", &local, &remote, &state) != 3)
			continue;
		connected |= remote == port && state == ESTABLISHED;
		peer |= local == port;
	}
	if (file)
		fclose(file);
	return connected && !peer;
}
