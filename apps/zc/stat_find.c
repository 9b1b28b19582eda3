/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/zc/stat_find.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/version.h"

#define LINK_MEMFD "/memfd:" STATS_MEMFD_NAME

/* Returns whether a descriptor's name may be that of a segment: the memfd, or a zc-PID.stats of ZC_STATS_DIR. */
static bool may_be_segment(const char *name)
{
	const char *base = strrchr(name, '/');
	size_t bytes = strlen(LINK_MEMFD);
	int number, end = 0;

	if (!strncmp(name, LINK_MEMFD, bytes) && (!name[bytes] || name[bytes] == ' '))
		return true;
	return base && sscanf(base, "/zc-%d.stats%n", &number, &end) == 1 && end && !base[end];
}

/* Opens what may be a segment without waiting for, or waking, anything that is none. */
static int open_plain(int dir, const char *name, struct stat *info)
{
	int fd;

	if (fstatat(dir, name, info, 0) < 0)
		return -errno;
	if (!S_ISREG(info->st_mode))
		return -EPROTO;
	fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	return fd < 0 ? -errno : fd;
}

static int read_segment(int dir, const char *name, struct found *out)
{
	struct stat info;
	int fd = open_plain(dir, name, &info);
	int rc;

	if (fd < 0)
		return fd;
	rc = stats_read(fd, &out->segment);
	close(fd);
	out->device = info.st_dev;
	out->inode = info.st_ino;
	return rc;
}

static DIR *open_descriptors(pid_t pid)
{
	char name[64];

	snprintf(name, sizeof(name), "/proc/%d/fd", (int)pid);
	return opendir(name);
}

/* Returns 0, -ENOENT when the process has no segment, or the error of what may have been one. */
static int look_into(pid_t pid, struct found *out)
{
	DIR *dir = open_descriptors(pid);
	struct dirent *entry;
	int rc = -ENOENT;

	if (!dir)
		return errno == ENOENT ? -ESRCH : -errno;
	while (rc && (entry = readdir(dir))) {
		char name[256];
		ssize_t got = readlinkat(dirfd(dir), entry->d_name, name, sizeof(name) - 1);

		if (got <= 0)
			continue;
		name[got] = '\0';
		if (may_be_segment(name))
			rc = read_segment(dirfd(dir), entry->d_name, out);
	}
	closedir(dir);
	out->pid = pid;
	out->running = FOUND_RUNNING;
	return rc;
}

/* Returns whether the process has mapped a file whose name has that in it. */
static bool has_mapped(pid_t pid, const char *text)
{
	char name[64], line[1024];
	bool has = false;
	FILE *maps;

	snprintf(name, sizeof(name), "/proc/%d/maps", (int)pid);
	maps = fopen(name, "re");
	while (maps && !has && fgets(line, sizeof(line), maps))
		has = strstr(line, text) != NULL;
	if (maps)
		fclose(maps);
	return has;
}

/* Tells whether the process still has the file open, or mapped: it may have needed the descriptor. */
static enum found_running is_writing(pid_t pid, const struct found *found)
{
	DIR *dir = pid > 0 ? open_descriptors(pid) : NULL;
	struct dirent *entry;
	enum found_running running = FOUND_ENDED;
	char name[64];

	if (!dir)
		return pid > 0 && errno == EACCES ? FOUND_UNKNOWN : FOUND_ENDED;
	while ((entry = readdir(dir))) {
		struct stat info;

		if (!fstatat(dirfd(dir), entry->d_name, &info, 0) && info.st_dev == found->device &&
		    info.st_ino == found->inode)
			running = FOUND_RUNNING;
	}
	closedir(dir);
	snprintf(name, sizeof(name), "/zc-%d.stats", (int)pid);
	return has_mapped(pid, name) ? FOUND_RUNNING : running;
}

bool found_has_library(pid_t pid)
{
	return has_mapped(pid, "/libzc.so");
}

/* Returns what is wrong with a segment that could not be read. */
static const char *segment_trouble(int rc)
{
	switch (rc) {
	case -EPROTO:
		return "is no zc statistics, or was cut short";
	case -EPROTONOSUPPORT:
		return "is statistics of another version than this zc (" ZC_VERSION
		       "): read it with the zc of its program";
	default:
		return strerror(-rc);
	}
}

int found_of_process(pid_t pid, struct found *out, char *why, size_t bytes)
{
	int rc = look_into(pid, out);

	switch (rc) {
	case 0:
		break;
	case -ESRCH:
		snprintf(why, bytes, "there is no process %d", (int)pid);
		break;
	case -EACCES:
	case -EPERM:
		snprintf(why, bytes,
			 "process %d may not be looked into: be its user, or have CAP_SYS_PTRACE (try sudo)", (int)pid);
		break;
	case -ENOENT:
		if (has_mapped(pid, LINK_MEMFD))
			snprintf(
				why, bytes,
				"process %d has used up its descriptors, that of its statistics too: raise its limit of open files, or set ZC_STATS_DIR",
				(int)pid);
		else if (found_has_library(pid))
			snprintf(
				why, bytes,
				"process %d runs under zc, and has made no TCP connection so far, but such as path tcp leaves alone and uncounted",
				(int)pid);
		else
			snprintf(why, bytes, "process %d does not run under zc: start it with `zc run`", (int)pid);
		break;
	default:
		snprintf(why, bytes, "the segment of process %d %s", (int)pid, segment_trouble(rc));
	}
	return rc;
}

int found_of_file(const char *file, struct found *out, char *why, size_t bytes)
{
	int rc = read_segment(AT_FDCWD, file, out);

	if (rc) {
		snprintf(why, bytes, "%s%s %s", file, rc == -EPROTO || rc == -EPROTONOSUPPORT ? "" : ":",
			 segment_trouble(rc));
		return rc;
	}
	out->pid = out->segment->pid;
	out->running = is_writing(out->pid, out);
	return 0;
}

/* A child that was not made by fork() has its parent's segment open: it belongs to the parent. */
static bool is_known(const struct found_list *list, const struct found *found)
{
	for (size_t i = 0; i < list->count; i++)
		if (list->row[i].device == found->device && list->row[i].inode == found->inode)
			return true;
	return false;
}

static int take(struct found_list *list, pid_t pid)
{
	struct found found = { 0 }, *row;
	int rc = look_into(pid, &found);

	list->refused += rc == -EACCES || rc == -EPERM;
	list->unreadable += rc == -EPROTO || rc == -EPROTONOSUPPORT;
	if (rc)
		return 0;
	row = is_known(list, &found) ? NULL : reallocarray(list->row, list->count + 1, sizeof(*row));
	if (!row) {
		bool known = is_known(list, &found);

		stats_unmap(found.segment);
		return known ? 0 : -ENOMEM;
	}
	list->row = row;
	list->row[list->count++] = found;
	return 0;
}

int found_all(struct found_list *out)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int rc = 0;

	*out = (struct found_list){ 0 };
	if (!proc)
		return -errno;
	while (!rc && (entry = readdir(proc)))
		if (isdigit((unsigned char)entry->d_name[0]))
			rc = take(out, (pid_t)atoi(entry->d_name));
	closedir(proc);
	if (rc)
		found_list_free(out);
	return rc;
}

void found_list_free(struct found_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		stats_unmap(list->row[i].segment);
	free(list->row);
	*list = (struct found_list){ 0 };
}
