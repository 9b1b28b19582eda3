/* SPDX-License-Identifier: MIT */
/*
 * Which paths the preloaded ends used, from the statistics that they leave in a directory of ours: a corpus run that meant
 * to try `zerocopy` and never sent a byte that way would show nothing.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/settings.h"
#include "common/stats.h"
#include "runner.h"

static char directory[] = "/tmp/corpus-XXXXXX";
static bool begun;

void uses_begin(void)
{
	if (!mkdtemp(directory)) {
		perror("corpus: a directory in /tmp");
		exit(1);
	}
	begun = true;
	atexit(uses_end);
	setenv("ZC_STATS_DIR", directory, 1);
}

static int path_number(const char *name)
{
	for (int i = 0; i < PATH_COUNT; i++) {
		if (!strcmp(path_name((enum zc_path)i), name))
			return i;
	}
	fprintf(stderr, "corpus: --uses %s: no such path\n", name);
	exit(2);
}

static unsigned long long bytes_in(int fd, int path)
{
	const struct stats_segment *segment;
	unsigned long long bytes = 0;

	if (stats_map(fd, &segment) < 0)
		return 0;
	for (uint32_t i = 0; i < segment->slots && i <= atomic_load(&segment->slots_used); i++)
		bytes += atomic_load(&segment->slot[i].path[path][STAT_PATH_BYTES]);
	stats_unmap(segment);
	return bytes;
}

/* Adds up what the path carried and removes the files. */
unsigned long long uses_collect(const char *path)
{
	DIR *dir = opendir(directory);
	unsigned long long bytes = 0;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		int fd = entry->d_name[0] == '.' ? -1 : openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			continue;
		bytes += path[0] ? bytes_in(fd, path_number(path)) : 0;
		close(fd);
		unlinkat(dirfd(dir), entry->d_name, 0);
	}
	if (dir)
		closedir(dir);
	return bytes;
}

void uses_end(void)
{
	if (!begun)
		return;
	uses_collect("");
	rmdir(directory);
	begun = false;
}
