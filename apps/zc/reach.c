/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/zc/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "apps/zc/elf.h"

#define SCRIPTS_MAX 5 /* as many #! in a row as the kernel follows, and one */
#define FIRST_LINE_BYTES 256

struct judging {
	char *why;
	int depth;
};

static enum reach judge_file(struct judging *judging, const char *file);

static enum reach say(struct judging *judging, enum reach verdict, const char *file, const char *what)
{
	snprintf(judging->why, REACH_WHY_BYTES, "%s %s", file, what);
	return verdict;
}

static bool is_executable(const char *file)
{
	struct stat info;

	return !stat(file, &info) && S_ISREG(info.st_mode) && !access(file, X_OK);
}

/* Searches PATH as execvp does. Returns 0, -ENOENT, or -EACCES when only files that can't be executed were found. */
static int search(const char *command, char *out)
{
	const char *path = getenv("PATH");
	struct stat info;
	int rc = -ENOENT;

	for (const char *at = path ? path : "/bin:/usr/bin"; at;) {
		int bytes = (int)strcspn(at, ":");

		if (snprintf(out, PATH_MAX, "%.*s%s%s", bytes, at, bytes ? "/" : "", command) < PATH_MAX) {
			if (is_executable(out))
				return 0;
			if (!stat(out, &info))
				rc = -EACCES;
		}
		at = at[bytes] ? at + bytes + 1 : NULL;
	}
	return rc;
}

static enum reach judge_command(struct judging *judging, const char *command)
{
	char file[PATH_MAX];
	int rc;

	if (strchr(command, '/'))
		return judge_file(judging, command);
	rc = *command ? search(command, file) : -ENOENT;
	if (rc == -ENOENT)
		return say(judging, REACH_NOT_FOUND, *command ? command : "''", "is in no directory of PATH");
	if (rc)
		return say(judging, REACH_NOT_EXECUTABLE, command,
			   "is in PATH, but not as a file that may be executed");
	return judge_file(judging, file);
}

/* In secure execution the loader ignores LD_PRELOAD. The kernel grants no rights where either of these holds. */
static bool rights_are_ignored(int fd)
{
	struct statvfs system;

	return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 || (!fstatvfs(fd, &system) && system.f_flag & ST_NOSUID);
}

/* Returns what gives the program rights that its user does not have, or NULL. */
static const char *gains(int fd, const struct stat *info)
{
	if (rights_are_ignored(fd))
		return NULL;
	if (info->st_mode & S_ISUID && info->st_uid != getuid())
		return "is a set-user-ID program";
	if ((info->st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && info->st_gid != getgid())
		return "is a set-group-ID program";
	if (getuid() && fgetxattr(fd, "security.capability", NULL, 0) > 0)
		return "has file capabilities";
	return NULL;
}

static const char *base_of(const char *file)
{
	const char *slash = strrchr(file, '/');

	return slash ? slash + 1 : file;
}

/* Returns the loader that this command was linked with: the glibc that libzc.so is for. */
static const char *our_loader(void)
{
	static struct elf_facts facts;
	int fd = *facts.loader ? -1 : open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (elf_read(fd, &facts))
			facts.loader[0] = '\0';
		close(fd);
	}
	return facts.loader;
}

static bool is_same_file(const char *a, const struct stat *b)
{
	struct stat info;

	return !stat(a, &info) && info.st_dev == b->st_dev && info.st_ino == b->st_ino;
}

static enum reach judge_elf(struct judging *judging, const char *file, int fd, const struct elf_facts *facts)
{
	struct stat info;
	char what[PATH_MAX + 200];
	const char *gained;

	if (!elf_is_ours(facts)) {
		snprintf(what, sizeof(what), "is a program for another machine (%s) than libzc.so",
			 elf_machine_name(facts));
		return say(judging, REACH_NO, file, what);
	}
	if (fstat(fd, &info) < 0)
		return say(judging, REACH_NOT_EXECUTABLE, file, strerror(errno));
	if (!*facts->loader && facts->may_be_loader && is_same_file(our_loader(), &info))
		return REACH_YES;
	if (!*facts->loader)
		return say(judging, REACH_NO, file,
			   "is statically linked: no dynamic loader runs, so that none loads libzc.so");
	if (access(facts->loader, X_OK)) {
		snprintf(what, sizeof(what), "needs the dynamic loader %s: %s", facts->loader, strerror(errno));
		return say(judging, REACH_NOT_FOUND, file, what);
	}
	if (strcmp(base_of(facts->loader), base_of(our_loader()))) {
		snprintf(what, sizeof(what), "uses another libc than glibc: %sits loader is %s",
			 strstr(facts->loader, "musl") ? "musl; " : "", facts->loader);
		return say(judging, REACH_NO, file, what);
	}
	gained = gains(fd, &info);
	if (gained) {
		snprintf(what, sizeof(what), "%s: the loader ignores LD_PRELOAD for it", gained);
		return say(judging, REACH_NO, file, what);
	}
	if (facts->is_go)
		return say(judging, REACH_NO, file, "is a Go program: its system calls do not go through libc");
	return REACH_YES;
}

/* Says what leads to the file that stands in the way. */
static enum reach judge_interpreter(struct judging *judging, const char *script, const char *interpreter, bool in_path)
{
	enum reach verdict = in_path ? judge_command(judging, interpreter) : judge_file(judging, interpreter);
	char why[REACH_WHY_BYTES];

	if (verdict == REACH_YES)
		return verdict;
	memcpy(why, judging->why, sizeof(why));
	snprintf(judging->why, REACH_WHY_BYTES, "%s is a script for %s; %.*s", script, interpreter, REACH_WHY_BYTES / 2,
		 why);
	return verdict;
}

/* `#!INTERPRETER [ARGUMENT]`; env(1) runs the program that its argument names. */
static enum reach judge_script(struct judging *judging, const char *script, char *line)
{
	char *interpreter, *argument, *rest = line;
	enum reach verdict;

	line[strcspn(line, "\n")] = '\0';
	interpreter = strtok_r(line, " \t\r", &rest);
	if (!interpreter)
		return say(judging, REACH_NOT_EXECUTABLE, script, "begins with #! and names no interpreter");
	verdict = judge_interpreter(judging, script, interpreter, false);
	if (verdict != REACH_YES || strcmp(base_of(interpreter), "env"))
		return verdict;
	do {
		argument = strtok_r(NULL, " \t\r", &rest);
	} while (argument && (*argument == '-' || strchr(argument, '=')));
	return argument ? judge_interpreter(judging, script, argument, true) : REACH_YES;
}

static enum reach judge_content(struct judging *judging, const char *file, int fd)
{
	char line[FIRST_LINE_BYTES + 1];
	struct elf_facts facts;
	ssize_t got = pread(fd, line, FIRST_LINE_BYTES, 0);

	if (got < 0)
		return say(judging, REACH_NOT_EXECUTABLE, file, strerror(errno));
	line[got] = '\0';
	if (got >= 2 && !memcmp(line, "#!", 2)) {
		memmove(line, line + 2, (size_t)got - 1);
		return judge_script(judging, file, line);
	}
	if (got < 4 || memcmp(line, "\177ELF", 4)) /* execvp hands it to the shell */
		return judge_interpreter(judging, file, "/bin/sh", false);
	if (elf_read(fd, &facts))
		return say(judging, REACH_NOT_EXECUTABLE, file, "is a malformed ELF file");
	return judge_elf(judging, file, fd, &facts);
}

static enum reach judge_file(struct judging *judging, const char *file)
{
	struct stat info;
	enum reach verdict;
	int fd;

	if (stat(file, &info) < 0)
		return say(judging, errno == EACCES ? REACH_NOT_EXECUTABLE : REACH_NOT_FOUND, file, strerror(errno));
	if (!S_ISREG(info.st_mode))
		return say(judging, REACH_NOT_EXECUTABLE, file,
			   S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file");
	if (access(file, X_OK))
		return say(judging, REACH_NOT_EXECUTABLE, file, "may not be executed: Permission denied");
	if (++judging->depth > SCRIPTS_MAX)
		return say(judging, REACH_NOT_EXECUTABLE, file, "is at the end of too many #! lines");
	fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) /* may be executed though it may not be read: sudo-like programs; nothing can be said */
		return REACH_YES;
	verdict = judge_content(judging, file, fd);
	close(fd);
	return verdict;
}

enum reach reach_judge(const char *command, char *why)
{
	struct judging judging = { why, 0 };

	*why = '\0';
	return judge_command(&judging, command);
}
