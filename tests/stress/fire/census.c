/* SPDX-License-Identifier: MIT */
/* What a process holds: descriptors, memory that is shared by descriptor, threads. */
#define _GNU_SOURCE
#include "fire.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int count_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = -2;

	while (tasks && readdir(tasks))
		count++;
	if (tasks)
		closedir(tasks);
	return count;
}

static void count_descriptors(struct census *census)
{
	DIR *descriptors = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[256];
	ssize_t bytes;

	while (descriptors && (entry = readdir(descriptors))) {
		bytes = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof(target) - 1);
		if (bytes < 0)
			continue;
		target[bytes] = 0;
		census->descriptors++;
		census->sockets += !strncmp(target, "socket:", 7);
		census->memfds += !strncmp(target, "/memfd:", 7);
	}
	if (descriptors)
		closedir(descriptors);
}

static int count_maps(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int count = 0;

	while (maps && fgets(line, sizeof(line), maps))
		count += strstr(line, "/memfd:") || strstr(line, "/dev/shm/");
	if (maps)
		fclose(maps);
	return count;
}

void census_take(struct census *census)
{
	*census = (struct census){ .threads = count_threads(), .maps = count_maps() };
	count_descriptors(census);
}

/*
 * What the library starts when it first needs it, once for the process: a thread that flushes, and its guard's descriptors. A
 * session that leaves something behind does so hundreds of times.
 */
#define ONCE_THREADS 1
#define ONCE_DESCRIPTORS 5

bool census_exceeds(const struct census *now, const struct census *then)
{
	return now->descriptors > then->descriptors + ONCE_DESCRIPTORS || now->sockets > then->sockets ||
	       now->memfds > then->memfds || now->maps > then->maps || now->threads > then->threads + ONCE_THREADS;
}

/* What memory it is that is left, says how it was lost. */
static void print_descriptors(void)
{
	DIR *descriptors = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[256];
	ssize_t bytes;

	while (descriptors && (entry = readdir(descriptors))) {
		bytes = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof(target) - 1);
		if (bytes > 0)
			fprintf(stderr, "  %s: %.*s\n", entry->d_name, (int)bytes, target);
	}
	if (descriptors)
		closedir(descriptors);
}

void census_print(const char *who, const struct census *census)
{
	fprintf(stderr, "fire: %s: %d descriptors (%d sockets, %d memfds), %d shared maps, %d threads\n", who,
		census->descriptors, census->sockets, census->memfds, census->maps, census->threads);
	print_descriptors();
}
