/* SPDX-License-Identifier: MIT */
/* Public names that libc has for calls besides their own: other libraries use them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "preload/real.h"

#define ZC_CALL(ret, name, params, args)
#define ZC_ALIAS(ret, name, of, params, args)                                                                          \
	ZC_EXPORT ret name params                                                                                      \
	{                                                                                                              \
		return of args;                                                                                        \
	}
#include "preload/calls.def"
