/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/zc/compare_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_temporary(struct output *output)
{
	mode_t mask = umask(0);
	int fd, rc;

	umask(mask);
	if ((size_t)snprintf(output->temporary, sizeof(output->temporary), "%s.XXXXXX", output->name) >=
	    sizeof(output->temporary)) {
		*output->temporary = '\0';
		return -ENAMETOOLONG;
	}
	fd = mkostemp(output->temporary, O_CLOEXEC);
	if (fd < 0) {
		rc = -errno;
		*output->temporary = '\0';
		return rc;
	}
	fchmod(fd, 0666 & ~mask);
	return fd;
}

static int kernel_result(int fd)
{
	return fd < 0 ? -errno : fd;
}

int output_open(struct output *output, const char *name)
{
	struct stat info;
	int fd;

	*output = (struct output){ .name = name };
	if (!name)
		return 0;
	if (!strcmp(name, "-"))
		fd = kernel_result(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
	else if (!stat(name, &info) && S_ISDIR(info.st_mode))
		return -EISDIR;
	else if (!stat(name, &info) && !S_ISREG(info.st_mode))
		fd = kernel_result(open(name, O_WRONLY | O_CLOEXEC | O_NOCTTY));
	else
		fd = open_temporary(output);
	if (fd < 0)
		return fd;
	output->stream = fdopen(fd, "w");
	if (output->stream)
		return 0;
	close(fd);
	output_abort(output);
	return -ENOMEM;
}

int output_commit(struct output *output)
{
	int rc = 0;

	if (!output->stream)
		return 0;
	errno = 0;
	if (fflush(output->stream) || ferror(output->stream) || (*output->temporary && fsync(fileno(output->stream))))
		rc = errno ? -errno : -EIO;
	if (fclose(output->stream) && !rc)
		rc = -errno;
	output->stream = NULL;
	if (!rc && *output->temporary && rename(output->temporary, output->name))
		rc = -errno;
	if (!rc)
		*output->temporary = '\0';
	output_abort(output);
	return rc;
}

void output_abort(struct output *output)
{
	if (output->stream)
		fclose(output->stream);
	if (*output->temporary)
		unlink(output->temporary);
	output->stream = NULL;
	*output->temporary = '\0';
}
