/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/zc/library.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/zc/elf.h"

#define NAME "libzc.so"

/* Set by CMake: from the command's directory to the library's, in the build tree and where they are installed. */
static const char *const places[] = { "../../preload/" NAME, ZC_LIBDIR_FROM_BINDIR "/" NAME };

static bool is_libzc(const char *file)
{
	char name[sizeof(NAME)];
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	bool is = fd >= 0 && !elf_soname(fd, name, sizeof(name)) && !strcmp(name, NAME);

	if (fd >= 0)
		close(fd);
	return is;
}

/* Returns 0 when the file can be what LD_PRELOAD names, or -errno; then `why` says what is wrong with it. */
static int fits(const char *file, const char **why)
{
	struct stat info;

	if (stat(file, &info) < 0) {
		*why = strerror(errno);
		return -errno;
	}
	*why = "is no file";
	if (!S_ISREG(info.st_mode))
		return -EINVAL;
	*why = "can't be read";
	if (access(file, R_OK))
		return -errno;
	*why = "is no " NAME " of this machine's kind";
	if (!is_libzc(file))
		return -EINVAL;
	*why = "has a space or a colon in its path, which LD_PRELOAD can't name";
	return strpbrk(file, " :\t\n") ? -EINVAL : 0;
}

static int find_named(const char *named, char *out, size_t bytes)
{
	char real[PATH_MAX];
	const char *why = "";
	int rc;

	if (!realpath(named, real)) {
		rc = -errno;
		snprintf(out, bytes, "ZC_LIBRARY=%s: %s; allowed is the path of a libzc.so", named, strerror(-rc));
		return rc;
	}
	rc = fits(real, &why);
	if (rc)
		snprintf(out, bytes, "ZC_LIBRARY=%s: %s; allowed is the path of a libzc.so", named, why);
	else if ((size_t)snprintf(out, bytes, "%s", real) >= bytes)
		rc = -ENAMETOOLONG;
	return rc;
}

int own_directory(char *out, size_t bytes)
{
	ssize_t got = readlink("/proc/self/exe", out, bytes - 1);
	char *slash;

	if (got < 0)
		return -errno;
	out[got] = '\0';
	slash = strrchr(out, '/');
	if (slash)
		*slash = '\0';
	return 0;
}

int library_find(char *out, size_t bytes)
{
	char here[PATH_MAX], looked[4 * PATH_MAX] = "", real[PATH_MAX];
	const char *named = getenv("ZC_LIBRARY");
	int rc;

	if (named && *named)
		return find_named(named, out, bytes);
	rc = own_directory(here, sizeof(here));
	if (rc) {
		snprintf(out, bytes,
			 "/proc/self/exe can't be read (%s), so that " NAME " can't be looked for beside zc; "
			 "set ZC_LIBRARY",
			 strerror(-rc));
		return rc;
	}
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char place[2 * PATH_MAX];
		const char *why = "";
		size_t used = strlen(looked);

		snprintf(place, sizeof(place), "%s/%s", here, places[i]);
		rc = realpath(place, real) ? fits(real, &why) : -errno;
		if (!rc && strlen(real) < bytes) {
			memcpy(out, real, strlen(real) + 1);
			return 0;
		}
		snprintf(looked + used, sizeof(looked) - used, "%s%s (%s)", used ? ", " : "", place,
			 *why ? why : strerror(-rc));
	}
	snprintf(out, bytes,
		 NAME " not found; looked at %s; build or install zc, or set ZC_LIBRARY to the library's path", looked);
	return -ENOENT;
}

int library_preload(const char *library)
{
	const char *before = getenv("LD_PRELOAD");
	const char *first = ZC_SANITIZER_RUNTIME;
	char *value;
	int rc;

	if (asprintf(&value, "%s%s%s%s%s", first, *first ? ":" : "", library, before && *before ? ":" : "",
		     before ? before : "") < 0)
		return -ENOMEM;
	rc = setenv("LD_PRELOAD", value, 1) ? -errno : 0;
	free(value);
	return rc;
}
