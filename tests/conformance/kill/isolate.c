/* SPDX-License-Identifier: MIT */
/* A place of our own in which everything that is left behind can be seen. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/stats.h"
#include "kill.h"

#define LIST_BYTES 8192 /* for LD_PRELOAD */

static bool write_text(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

/* An ordinary user gets the namespaces with a user namespace around them, where that is allowed. */
static bool leave(int spaces)
{
	char users[64], groups[64];

	if (!unshare(spaces))
		return true;
	snprintf(users, sizeof(users), "%d %d 1", (int)geteuid(), (int)geteuid());
	snprintf(groups, sizeof(groups), "%d %d 1", (int)getegid(), (int)getegid());
	return !unshare(CLONE_NEWUSER | spaces) && write_text("/proc/self/setgroups", "deny") &&
	       write_text("/proc/self/uid_map", users) && write_text("/proc/self/gid_map", groups);
}

static bool loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool up = fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &request);

	if (fd >= 0)
		close(fd);
	return up;
}

bool isolate(bool network)
{
	return leave(network ? CLONE_NEWNS | CLONE_NEWNET : CLONE_NEWNS) &&
	       !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) && !mount("none", "/tmp", "tmpfs", 0, NULL) &&
	       !mount("none", "/dev/shm", "tmpfs", 0, NULL) && (!network || loopback_up());
}

int litter_in(const char *path, const char *known)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	int count = 0;

	while (dir && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || !strcmp(entry->d_name, known))
			continue;
		fprintf(stderr, "kill: %s/%s was left behind\n", path, entry->d_name);
		count++;
	}
	if (dir)
		closedir(dir);
	return count;
}

/* The lines of a table of /proc/net, without its head. */
static int sockets_in(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[512];
	int count = -1;

	while (file && fgets(line, sizeof(line), file)) {
		if (count++ >= 0)
			fprintf(stderr, "kill: %s: %s", path, line);
	}
	if (file)
		fclose(file);
	return count > 0 ? count : 0;
}

int litter(const char *known, bool network)
{
	return litter_in("/tmp", known) + litter_in("/dev/shm", known) + (network ? sockets_in("/proc/net/unix") : 0);
}

struct use use_take(const char *dir, pid_t pid)
{
	const struct stats_segment *segment;
	struct use use = { 0 };
	char name[512];
	int fd;

	/* Who was killed while it made its file has left the beginnings of one. */
	snprintf(name, sizeof(name), "%s/.zc-%d.unfinished", dir, (int)pid);
	unlink(name);
	snprintf(name, sizeof(name), "%s/zc-%d.stats", dir, (int)pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return use;
	if (!stats_map(fd, &segment)) {
		for (uint32_t i = 0; i < segment->slots_used || !i; i++) {
			const struct stats_slot *slot = &segment->slot[i];

			use.meetings += slot->conn[STAT_CONN_MEETINGS];
			use.takeovers += slot->conn[STAT_CONN_TAKEOVERS];
			use.switches += slot->conn[STAT_CONN_SWITCHES];
			use.fetched += slot->conn[STAT_CONN_GET_BYTES];
			use.ring += slot->path[PATH_BSDP][STAT_PATH_BYTES];
			use.announced +=
				slot->path[PATH_ZSDP][STAT_PATH_BYTES] + slot->path[PATH_AZSDP][STAT_PATH_BYTES];
		}
		stats_unmap(segment);
	}
	close(fd);
	unlink(name);
	return use;
}

char *hold_libraries(char *list)
{
	char *out = calloc(1, LIST_BYTES), *each = strtok(list, ":");

	for (; each && out; each = strtok(NULL, ":")) {
		char held[32];
		int fd = open(each, O_PATH);

		if (fd < 0) {
			free(out);
			return NULL;
		}
		snprintf(held, sizeof(held), "/proc/self/fd/%d", fd);
		snprintf(out + strlen(out), LIST_BYTES - strlen(out), "%s%s", *out ? ":" : "",
			 strncmp(each, "/tmp/", 5) ? each : held);
	}
	return out;
}
