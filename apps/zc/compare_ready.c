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
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/zc/compare_run.h"

#define STATE_LISTEN 0x0a

#define PORT_FIRST 1024u
#define PORT_END 65536u
#define TRIES 200

/* The ports that the kernel gives to whoever connects. */
static void read_range(unsigned int *least, unsigned int *most)
{
	FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");

	if (!file || fscanf(file, "%u %u", least, most) != 2) {
		*least = 32768;
		*most = 60999;
	}
	if (file)
		fclose(file);
}

/* Returns 0 or -errno. 0 for any, and then told which. */
static int try_port(unsigned int *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    getsockname(fd, (struct sockaddr *)&address, &bytes))
		rc = -errno;
	close(fd);
	*port = ntohs(address.sin_port);
	return rc;
}

/* Not one that another's connection may get before the server has it, if there are others. */
int port_pick(char out[8])
{
	unsigned int least, most, port = 0;
	int rc = -EADDRINUSE;

	read_range(&least, &most);
	for (int i = 0; rc && i < TRIES; i++) {
		uint32_t dice;

		if (getrandom(&dice, sizeof(dice), 0) != sizeof(dice))
			break;
		port = PORT_FIRST + dice % (PORT_END - PORT_FIRST);
		if (port < least || port > most)
			rc = try_port(&port);
	}
	if (rc) {
		port = 0;
		rc = try_port(&port);
	}
	snprintf(out, 8, "%u", port);
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
