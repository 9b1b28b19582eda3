/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/table.h"

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "common/log.h"
#include "common/stats.h"
#include "common/sys.h"
#include "rdma/guard.h"
#include "rdma/later.h"

_Atomic uintptr_t *table;
_Atomic bool *table_made;
uint32_t table_size;

#define OWN_MAX 16
static _Atomic int own[OWN_MAX]; /* descriptor + 1; 0 is free */
static _Atomic int own_extra;	 /* descriptor + 1 */
static _Atomic int own_highest = -1;

int table_start(void)
{
	table = sys_map(TABLE_DESCRIPTORS * (sizeof(*table) + sizeof(*table_made)), MAP_PRIVATE | MAP_NORESERVE);
	if (!table)
		return -ENOMEM;
	table_made = (_Atomic bool *)(table + TABLE_DESCRIPTORS);
	table_size = TABLE_DESCRIPTORS;
	return 0;
}

void table_own_add(int fd)
{
	atomic_store(&own_extra, fd + 1);
	table_own_refresh();
}

void table_own_refresh(void)
{
	int now[OWN_MAX];
	int count = 0;

	now[count++] = log_descriptor();
	now[count++] = stats_descriptor();
	now[count++] = atomic_load(&own_extra) - 1;
	now[count++] = later_descriptor();
	count += guard_descriptors(now + count, OWN_MAX - count);
	for (int i = 0; i < OWN_MAX; i++) {
		int fd = i < count ? now[i] : -1;
		int was = atomic_exchange(&own[i], fd + 1) - 1;

		if (was >= 0 && was != fd && table_is_own(was))
			table_put(was, TABLE_UNKNOWN);
	}
	for (int i = 0; i < count; i++) {
		if (now[i] >= 0)
			table_own_keep(now[i]);
	}
}

void table_own_keep(int fd)
{
	int highest = atomic_load(&own_highest);

	while (fd > highest && !atomic_compare_exchange_weak(&own_highest, &highest, fd))
		;
	table_put(fd, TABLE_OWN);
}

void table_own_drop(int fd)
{
	if (table_is_own(fd))
		table_put(fd, TABLE_UNKNOWN);
}

void table_own_close(int fd)
{
	if (fd < 0)
		return;
	table_own_drop(fd);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
}

int table_highest_of_program(void)
{
	char entries[4096];
	long dir = sys_call(SYS_openat, AT_FDCWD, (long)"/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
	int highest = -1;
	long got;

	if (dir < 0)
		return -1;
	while ((got = sys_call(SYS_getdents64, dir, (long)entries, sizeof(entries), 0, 0, 0)) > 0) {
		for (long at = 0; at < got;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
			int fd = 0;

			for (const char *c = entry->d_name; *c; c++)
				fd = *c < '0' || *c > '9' ? -1 : 10 * fd + (*c - '0');
			if (fd > highest && fd != dir && !table_is_own(fd))
				highest = fd;
			at += entry->d_reclen;
		}
	}
	sys_call(SYS_close, dir, 0, 0, 0, 0, 0);
	return highest;
}

int table_own_next(int from)
{
	int highest = atomic_load(&own_highest);

	for (int fd = from; fd <= highest; fd++) {
		if (table_is_own(fd))
			return fd;
	}
	return -1;
}
