/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/target.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/sys.h"

#define INTERPRETERS_MAX 4 /* as the kernel has it */
#define HEADERS_MAX 64
#define HEAD_BYTES 256 /* what the kernel reads of a script's first line */

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#else
#define OUR_MACHINE EM_AARCH64
#endif

extern char **environ;

static struct stat own;
static char own_name[64]; /* without the directories; empty: not known */

void target_start(void)
{
	Dl_info info;
	const char *slash;

	if (!dladdr((void *)&own, &info) || !info.dli_fname || stat(info.dli_fname, &own) < 0)
		return;
	slash = strrchr(info.dli_fname, '/');
	slash = slash ? slash + 1 : info.dli_fname;
	if (strlen(slash) < sizeof(own_name))
		memcpy(own_name, slash, strlen(slash) + 1);
}

static const char *value_of(char *const envp[], const char *name)
{
	size_t length = strlen(name);

	for (; envp && *envp; envp++) {
		if (!strncmp(*envp, name, length) && (*envp)[length] == '=')
			return *envp + length + 1;
	}
	return NULL;
}

static bool is_us(const char *path, size_t length)
{
	char copy[PATH_MAX];
	struct stat found;

	if (!length || length >= sizeof(copy))
		return false;
	memcpy(copy, path, length);
	copy[length] = 0;
	if (!strchr(copy, '/'))
		return !strcmp(copy, own_name); /* along the linker's path, as we were found */
	return sys_call(SYS_newfstatat, AT_FDCWD, (long)copy, (long)&found, 0, 0, 0) >= 0 &&
	       found.st_dev == own.st_dev && found.st_ino == own.st_ino;
}

static bool preloads_us(char *const envp[])
{
	const char *at = value_of(envp, "LD_PRELOAD");

	while (at && *at && own_name[0]) {
		size_t length = strcspn(at, " :");

		if (is_us(at, length))
			return true;
		at += length + (at[length] != 0);
	}
	return false;
}

/* The linker ignores LD_PRELOAD in a program that has more rights than its caller. */
static bool gains_rights(int fd, const struct stat *program)
{
	return program->st_mode & (S_ISUID | S_ISGID) ||
	       sys_call(SYS_fgetxattr, fd, (long)"security.capability", 0, 0, 0, 0) >= 0 ||
	       sys_call(SYS_getuid, 0, 0, 0, 0, 0, 0) != sys_call(SYS_geteuid, 0, 0, 0, 0, 0, 0) ||
	       sys_call(SYS_getgid, 0, 0, 0, 0, 0, 0) != sys_call(SYS_getegid, 0, 0, 0, 0, 0, 0);
}

static bool read_at(int fd, void *out, size_t bytes, uint64_t offset)
{
	return sys_call(SYS_pread64, fd, (long)out, (long)bytes, (long)offset, 0, 0) == (long)bytes;
}

/* Whether the dynamic linker of this machine runs it. */
static bool is_dynamic(int fd)
{
	Elf64_Ehdr head;
	Elf64_Phdr part;

	if (!read_at(fd, &head, sizeof(head), 0) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
	    head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != OUR_MACHINE || head.e_phentsize != sizeof(part))
		return false;
	for (int i = 0; i < head.e_phnum && i < HEADERS_MAX; i++) {
		if (!read_at(fd, &part, sizeof(part), head.e_phoff + (uint64_t)i * sizeof(part)))
			return false;
		if (part.p_type == PT_INTERP)
			return true;
	}
	return false;
}

/* Opens the program of a script's first line. Returns it, -ENOEXEC if it is no script, or another -errno. */
static long open_interpreter(int fd)
{
	char line[HEAD_BYTES + 1] = "";
	size_t from, length;
	long got = sys_call(SYS_pread64, fd, (long)line, HEAD_BYTES, 0, 0, 0);

	if (got < 2 || line[0] != '#' || line[1] != '!')
		return -ENOEXEC;
	line[got] = 0;
	from = 2 + strspn(line + 2, " \t");
	length = strcspn(line + from, " \t\n");
	line[from + length] = 0;
	return sys_call(SYS_openat, AT_FDCWD, (long)(line + from), O_RDONLY | O_CLOEXEC, 0, 0, 0);
}

/* Ownership: takes fd. */
static enum target look(long fd, char *const envp[])
{
	enum target found = TARGET_FOREIGN;
	struct stat info;

	for (int i = 0; fd >= 0 && i <= INTERPRETERS_MAX; i++) {
		long next = open_interpreter((int)fd);

		if (sys_call(SYS_fstat, fd, (long)&info, 0, 0, 0, 0) < 0 || !S_ISREG(info.st_mode))
			break;
		if (next == -ENOEXEC) {
			if (is_dynamic((int)fd) && !gains_rights((int)fd, &info) && preloads_us(envp))
				found = TARGET_OURS;
			break;
		}
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
		fd = next;
	}
	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return found;
}

/* One candidate. */
static enum target try(int dir, const char *path, char *const envp[])
{
	struct stat info;

	if (sys_call(SYS_newfstatat, dir, (long)path, (long)&info, 0, 0, 0) < 0 || !S_ISREG(info.st_mode) ||
	    sys_call(SYS_faccessat, dir, (long)path, 1 /* X_OK */, 0, 0, 0) < 0)
		return TARGET_NONE;
	/* What can be run but not read is nothing to count on. */
	return look(sys_call(SYS_openat, dir, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0), envp);
}

static enum target search(const char *name, char *const envp[])
{
	const char *at = value_of(environ, "PATH"); /* the caller's own, not the new one */
	size_t bytes = strlen(name) + 1;
	enum target found = TARGET_NONE;
	char path[PATH_MAX];

	if (!at)
		at = "/bin:/usr/bin";
	for (bool more = true; more && found == TARGET_NONE;) {
		size_t length = strcspn(at, ":");

		if (length + 1 + bytes <= sizeof(path)) {
			memcpy(path, at, length);
			path[length] = '/';
			memcpy(path + length + (length != 0), name, bytes);
			found = try(AT_FDCWD, path, envp);
		}
		more = at[length] == ':';
		at += length + 1;
	}
	return found;
}

enum target target_of(const struct target_name *name, char *const envp[])
{
	if (name->dir == AT_FDCWD && (!name->path || !*name->path))
		return TARGET_NONE;
	if (!name->path || !*name->path) /* an own descriptor for looking, since an O_PATH one can't be read */
		return look(sys_call(SYS_fcntl, name->dir, F_DUPFD_CLOEXEC, 0, 0, 0, 0), envp);
	if (name->search && !strchr(name->path, '/'))
		return search(name->path, envp);
	return try(name->dir, name->path, envp);
}
