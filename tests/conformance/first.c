/* SPDX-License-Identifier: MIT */
/*
 * A program whose first call of all is a recv on a socket that it has inherited: it is made from .preinit_array, before the
 * constructors of any library have run. (Not under a sanitizer, whose own start has to come first: then it is a constructor.)
 */
#define _GNU_SOURCE
#include "first.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct first first;

static void first_call(int argc, char **argv, char **environment)
{
	for (; *environment; environment++) {
		if (strncmp(*environment, FIRST_FD "=", sizeof(FIRST_FD)) != 0)
			continue;
		first.got = recv(atoi(*environment + sizeof(FIRST_FD)), first.data, sizeof(first.data), MSG_WAITALL);
		first.error = first.got < 0 ? errno : 0;
	}
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern char **environ;
__attribute__((constructor)) static void early(void)
{
	first_call(0, NULL, environ);
}
#else
__attribute__((section(".preinit_array"), used)) static void (*const early)(int, char **, char **) = first_call;
#endif
