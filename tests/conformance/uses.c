/* SPDX-License-Identifier: MIT */
/*
 * Which paths the preloaded ends used, from the statistics that they leave in a directory of ours: a corpus run that meant
 * to try `zerocopy` and never sent a byte that way would show nothing.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
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

static void add_up(int fd, int path, struct used *used, bool meetings)
{
	const struct stats_segment *segment;

	if (stats_map(fd, &segment) < 0)
		return;
	for (uint32_t i = 0; i < segment->slots && i <= atomic_load(&segment->slots_used); i++) {
		used->bytes += atomic_load(&segment->slot[i].path[path][STAT_PATH_BYTES]);
		if (meetings)
			used->rdma_meetings += atomic_load(&segment->slot[i].conn[STAT_CONN_RDMA_MEETINGS]);
	}
	stats_unmap(segment);
}

void uses_collect(const char *path, struct used *used, bool meetings)
{
	DIR *dir = opendir(directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		int fd = entry->d_name[0] == '.' ? -1 : openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			continue;
		if (used)
			add_up(fd, path_number(path), used, meetings);
		close(fd);
		unlinkat(dirfd(dir), entry->d_name, 0);
	}
	if (dir)
		closedir(dir);
}

unsigned long long uses_rdma_packets(void)
{
	unsigned long long packets = 0, some;
	glob_t found;

	if (glob("/sys/class/infiniband/*/ports/*/hw_counters/sent_pkts", 0, NULL, &found))
		return 0;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *file = fopen(found.gl_pathv[i], "r");

		if (file && fscanf(file, "%llu", &some) == 1)
			packets += some;
		if (file)
			fclose(file);
	}
	globfree(&found);
	return packets;
}

void uses_end(void)
{
	if (!begun)
		return;
	uses_collect("", NULL, false);
	rmdir(directory);
	begun = false;
}
