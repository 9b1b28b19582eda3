/* SPDX-License-Identifier: MIT */
#ifndef ZC_TESTS_RESIDENT_TESTING_H
#define ZC_TESTS_RESIDENT_TESTING_H

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* Returns how much of a shared mapping, up to 4 MiB, has memory now. */
static inline size_t resident_bytes(void *start, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = bytes / page, found = 0;
	unsigned char there[1024];

	if (pages > sizeof(there) || mincore(start, bytes, there))
		return bytes;
	for (size_t i = 0; i < pages; i++)
		found += there[i] & 1;
	return found * page;
}

#endif
