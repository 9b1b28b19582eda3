/* SPDX-License-Identifier: MIT */
/* zc run: checks what can be checked before the program starts, then becomes it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/zc/commands.h"
#include "apps/zc/library.h"
#include "apps/zc/reach.h"
#include "common/rules.h"
#include "common/settings.h"

#define EXIT_NOT_EXECUTABLE 126
#define EXIT_NOT_FOUND 127

static int settings_refused;

static void refused(const char *message)
{
	settings_refused = command_usage("run", "%s", message);
}

/* Puts a name into the environment that holds in whatever directory the program goes on. Returns 0 or -errno. */
static int set_absolute(const char *env, const char *name)
{
	char here[PATH_MAX], whole[2 * PATH_MAX];

	if (!name || *name == '/')
		return 0;
	if (!getcwd(here, sizeof(here)))
		return -errno;
	if ((size_t)snprintf(whole, sizeof(whole), "%s/%s", here, name) >= PATH_MAX)
		return -ENAMETOOLONG;
	return setenv(env, whole, 1) ? -errno : 0;
}

static int set_files(void)
{
	int rc = set_absolute("ZC_RULES", settings.rules);

	if (!rc)
		rc = set_absolute("ZC_STATS_DIR", settings.stats_dir);
	if (!rc)
		rc = set_absolute("ZC_LOG_FILE", settings.log_file);
	return rc ? command_failed("run", "names of files can't be made absolute: %s", strerror(-rc)) : 0;
}

/* Files that a program would only find unusable when it is too late to say so. */
static int check_files(void)
{
	static struct rules rules;
	char message[PATH_MAX + 256];
	struct stat info;
	int fd, rc;

	if (settings.rules && rules_read(settings.rules, &rules, message, sizeof(message)) < 0)
		return command_usage("run", "%s", message);
	rc = !settings.stats_dir			 ? 0 :
	     stat(settings.stats_dir, &info) < 0	 ? errno :
	     !S_ISDIR(info.st_mode)			 ? ENOTDIR :
	     access(settings.stats_dir, W_OK | X_OK) < 0 ? errno :
							   0;
	if (rc)
		return command_usage("run", "ZC_STATS_DIR=%s: %s; allowed is a directory that may be written to",
				     settings.stats_dir, rc == ENOTDIR ? "is no directory" : strerror(rc));
	if (!settings.log_level || !settings.log_file)
		return 0;
	fd = open(settings.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
	if (fd < 0)
		return command_usage("run", "ZC_LOG_FILE=%s: can't be written: %s", settings.log_file, strerror(errno));
	close(fd);
	return 0;
}

/* Returns 0 and sets *anyway, EXIT_USAGE, or -1 when help was printed. */
static int parse(int argc, char **argv, bool *anyway)
{
	static const struct option options[] = {
		{ "path", required_argument, NULL, 'p' },
		{ "anyway", no_argument, NULL, 'a' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	char message[256];
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "+:p:h", options, NULL)) != -1) {
		switch (option) {
		case 'p':
			if (settings_check("ZC_PATH", optarg, message, sizeof(message)))
				return command_usage("run", "-p: %s", message);
			if (setenv("ZC_PATH", optarg, 1))
				return command_failed("run", "%s", strerror(errno));
			break;
		case 'a':
			*anyway = true;
			break;
		case 'h':
			command_help("run");
			return -1;
		default:
			return command_bad_option("run", option, argv);
		}
	}
	return optind < argc ? 0 : command_usage("run", "a COMMAND to run is missing");
}

/* Returns 0 if the program may start, or the exit status. */
static int judge(const char *command, bool anyway)
{
	char why[REACH_WHY_BYTES];
	enum reach verdict = reach_judge(command, why);

	switch (verdict) {
	case REACH_YES:
		return 0;
	case REACH_NO:
		if (!anyway)
			return command_failed("run",
					      "out of reach: %s. Run it without zc, or with --anyway "
					      "(over plain TCP).",
					      why);
		command_failed("run", "warning: runs over plain TCP: %s", why);
		return 0;
	default:
		command_failed("run", "%s", why);
		return verdict == REACH_NOT_FOUND ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
	}
}

int zc_run(int argc, char **argv)
{
	char library[4 * PATH_MAX];
	bool anyway = false;
	int rc = parse(argc, argv, &anyway);

	if (rc)
		return rc < 0 ? command_flush("run") : rc;
	if (settings_load(refused))
		return settings_refused;
	rc = check_files();
	if (!rc)
		rc = set_files();
	if (rc)
		return rc;
	argv += optind;
	if (library_find(library, sizeof(library)) < 0)
		return command_failed("run", "%s", library);
	rc = judge(argv[0], anyway);
	if (rc)
		return rc;
	rc = library_preload(library);
	if (rc)
		return command_failed("run", "LD_PRELOAD can't be set: %s", strerror(-rc));
	execvp(argv[0], argv);
	rc = errno;
	command_failed("run", "%s: %s", argv[0], strerror(rc));
	return rc == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}
