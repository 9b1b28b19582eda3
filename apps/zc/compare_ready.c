/* SPDX-License-Identifier: MIT */
/*
 * When a server is ready. Its port is looked up in the kernel's list of listening sockets: a trial connection would tell
 * the same (the kernel completes it as soon as somebody listens) but use up a server that serves one client and ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/zc/compare_run.h"

#define STATE_LISTEN 0x0a

int port_pick(char out[8])
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    getsockname(fd, (struct sockaddr *)&address, &bytes))
		rc = -errno;
	close(fd);
	snprintf(out, 8, "%u", ntohs(address.sin_port));
	return rc;
}

static bool is_in_list(const char *file, unsigned int port)
{
	FILE *list = fopen(file, "re");
	unsigned int local, state;
	char line[512];
	bool found = false;

	while (list && !found && fgets(line, sizeof(line), list))
		found = sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
			local == port && state == STATE_LISTEN;
	if (list)
		fclose(list);
	return found;
}

bool port_is_listened_to(unsigned int port)
{
	return is_in_list("/proc/self/net/tcp", port) || is_in_list("/proc/self/net/tcp6", port);
}

bool line_has_come(const char *file, const regex_t *regex)
{
	FILE *stream = fopen(file, "re");
	char *line = NULL;
	size_t room = 0;
	bool found = false;
	ssize_t got;

	while (stream && !found && (got = getline(&line, &room, stream)) > 0) {
		if (line[got - 1] != '\n')
			break; /* the rest of it is still to come */
		line[got - 1] = '\0';
		found = !regexec(regex, line, 0, NULL, 0);
	}
	free(line);
	if (stream)
		fclose(stream);
	return found;
}
