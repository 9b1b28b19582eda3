/* SPDX-License-Identifier: MIT */
/*
 * zc-writes: the same bytes by many writes, by one writev or by one write. The server reads NBUFS x BUFSIZE bytes a
 * repetition and says at the end how many reads that took.
 */
#ifndef ZC_TOOLS_WRITES_H
#define ZC_TOOLS_WRITES_H

#include "apps/tools/client.h"
#include "apps/tools/option.h"
#include "apps/tools/server.h"

enum { TYPE_WRITES = 1, TYPE_WRITEV, TYPE_WRITE };

struct writes_options {
	struct shared_options shared;
#include "apps/tools/option_fields.h"
#include "apps/tools/writes.def"
};

/* Returns the bytes of a repetition. */
uint64_t writes_bytes(const void *values);

int writes_measure(const struct tool *tool, const struct writes_options *options);

#endif
