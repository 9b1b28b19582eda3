/* SPDX-License-Identifier: MIT */
/* A port for the other end of a test's connection. */
#ifndef ZC_TESTS_LISTENING_H
#define ZC_TESTS_LISTENING_H

#include <arpa/inet.h>
#include <err.h>
#include <stdio.h>
#include <sys/socket.h>

/* Listens at a free port of this address, and prints which. */
static inline int listen_and_tell(in_addr_t address, int backlog)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
	socklen_t bytes = sizeof(name);
	int listening = socket(AF_INET, SOCK_STREAM, 0);

	if (listening < 0 || bind(listening, (struct sockaddr *)&name, sizeof(name)) || listen(listening, backlog) ||
	    getsockname(listening, (struct sockaddr *)&name, &bytes))
		err(1, "listen");
	printf("%d\n", ntohs(name.sin_port));
	fflush(stdout);
	return listening;
}

static inline int accept_one(int listening)
{
	int fd = accept(listening, NULL, NULL);

	if (fd < 0)
		err(1, "accept");
	return fd;
}

#endif
