/* SPDX-License-Identifier: MIT */
/*
 * The environment that libzc-verbs.so and the libraries that it brings along read: the owner's copy. They ask on threads of the owner's, while
 * the program's only thread may be in setenv(), which gives the old array back; and the libc of a namespace of the loader's goes on
 * with the array that was there when it was loaded. These definitions come before libc's, as those of verbs_memory.c do; until an owner
 * is known, as in the constructors of libraries, nothing is set.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "rdma/verbs_internal.h"

#define OFFERED __attribute__((visibility("default")))

extern char **environ;

static char **kept;

void verbs_environment_use(const struct verbs_owner *owner)
{
	static char *none[1];

	kept = owner->environment ? owner->environment : owner->program_environment ? none : environ;
	if (owner->program_environment && owner->program_environment != &environ)
		environ = kept;
}

OFFERED char *getenv(const char *name)
{
	size_t length = strlen(name);

	for (char **one = kept; one && *one; one++) {
		if (!strncmp(*one, name, length) && (*one)[length] == '=')
			return *one + length + 1;
	}
	return NULL;
}

OFFERED char *secure_getenv(const char *name)
{
	return getenv(name);
}
