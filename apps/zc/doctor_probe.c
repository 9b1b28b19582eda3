/* SPDX-License-Identifier: MIT */
/*
 * Is libzc.so alive in a program? This command runs itself under the library (`zc doctor --probe`): it sends to itself over
 * loopback, looks at its own statistics as `zc stat` would, and prints what was counted there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/zc/doctor.h"
#include "apps/zc/library.h"
#include "apps/zc/stat_find.h"
#include "apps/zc/stat_view.h"

#define PROBE_SENDS 8
#define PROBE_BYTES (256 * 1024)
#define PROBE_WAIT_MS 20000
#define NO_LOOPBACK "loaded, no loopback connection: "

extern char **environ;

/* What the probe reports, in this order, one line: sends, zero-copy sends, guards, and the reason against zero-copy. */
struct report {
	unsigned long long sends;
	unsigned long long zerocopy;
	unsigned long long guards;
	char reason[64];
};

/* In the program ------------------------------------------------------------------------------------------------------ */

/* Moves a block from one end to the other: neither ever waits, so that one thread does for both. */
static int move(const int fds[2], char *block, char *room)
{
	size_t sent = 0, received = 0;

	while (received < PROBE_BYTES) {
		struct pollfd wait = { .fd = fds[1], .events = POLLIN };
		ssize_t got = send(fds[0], block + sent, PROBE_BYTES - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (got < 0 && errno != EAGAIN)
			return -errno;
		sent += got > 0 ? (size_t)got : 0;
		if (poll(&wait, 1, PROBE_WAIT_MS) != 1)
			return -ETIMEDOUT;
		got = recv(fds[1], room + received, PROBE_BYTES - received, MSG_DONTWAIT);
		if (got <= 0)
			return got ? -errno : -ECONNRESET;
		received += (size_t)got;
	}
	return memcmp(block, room, PROBE_BYTES) ? -EBADMSG : 0;
}

static int move_all(const int fds[2])
{
	char *block = mmap(NULL, 2 * PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc = block == MAP_FAILED ? -errno : 0;

	for (int i = 0; !rc && i < PROBE_SENDS; i++) {
		memset(block, 'a' + i, PROBE_BYTES);
		rc = move(fds, block, block + PROBE_BYTES);
	}
	if (block != MAP_FAILED)
		munmap(block, 2 * PROBE_BYTES);
	return rc;
}

/* The reason that speaks against zero-copy, as far as one was counted. */
static const char *main_reason(const struct view_conn *conn)
{
	enum stat_reason order[REASON_COUNT];

	return view_reasons(conn, order) ? stat_reason_rows[order[0]].name : "-";
}

int doctor_probe(void)
{
	struct found found = { 0 };
	struct view view;
	char why[512];
	int fds[2], rc = doctor_connect(fds);

	if (rc && found_has_library(getpid())) {
		printf(NO_LOOPBACK "%s\n", strerror(-rc));
		return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
	}
	if (!rc)
		rc = move_all(fds);
	if (rc) {
		fprintf(stderr, "%s\n", strerror(-rc));
		return EXIT_FAILURE;
	}
	rc = found_of_process(getpid(), &found, why, sizeof(why));
	if (rc || view_make(&found, &view)) {
		fprintf(stderr, "%s\n",
			rc == -ENOENT ? "its TCP connections were not counted" :
			rc	      ? why :
					strerror(ENOMEM));
		return EXIT_FAILURE;
	}
	printf("%llu %llu %llu %s\n", (unsigned long long)view_sends(&view.all),
	       (unsigned long long)view.all.path[PATH_ZEROCOPY].counter[STAT_PATH_CALLS],
	       (unsigned long long)view.process[STAT_PROCESS_GUARDS], main_reason(&view.all));
	return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* In the doctor ------------------------------------------------------------------------------------------------------- */

/* The user's own settings would make the answer one about them. */
static void forget_settings(void)
{
	char name[64];

	for (char **entry = environ; *entry;) {
		size_t bytes = strcspn(*entry, "=");

		if (strncmp(*entry, "ZC_", 3) || bytes >= sizeof(name)) {
			entry++;
			continue;
		}
		memcpy(name, *entry, bytes);
		name[bytes] = '\0';
		unsetenv(name); /* moves the next one here */
	}
}

static void become_probe(const char *library, int out)
{
	char *const argv[] = { (char *)"zc", (char *)"doctor", (char *)"--probe", NULL };

	forget_settings();
	if (dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0 || library_preload(library) ||
	    setenv("ZC_PATH", "zerocopy", 1) || setenv("ZC_ZEROCOPY_KEEP", "yes", 1))
		_exit(EXIT_FAILURE);
	execv("/proc/self/exe", argv);
	_exit(EXIT_FAILURE);
}

/* Runs the probe under the library. Returns 0 with its report; -EIO with what it said, or how it ended, in `said`. */
static int run_probe(const char *library, struct report *out, char *said, size_t bytes)
{
	if (doctor_in_child(become_probe, library, said, bytes))
		return -EIO;
	return sscanf(said, "%llu %llu %llu %63s", &out->sends, &out->zerocopy, &out->guards, out->reason) == 4 ? 0 :
														  -EIO;
}

/* The library's check comes before the path's: they share one run. */
static struct report report;
static int probed = -EIO;

void doctor_library(struct finding *out)
{
	char library[4 * PATH_MAX], said[200] = "";

	if (library_find(library, sizeof(library)) < 0) {
		finding_is(out, HEALTH_MISSING, "not found");
		finding_means(out, "%.300s", library);
		return;
	}
	probed = run_probe(library, &report, said, sizeof(said));
	if (!probed && report.sends >= PROBE_SENDS) {
		finding_is(out, HEALTH_OK, "%.160s, counted %llu sends of a program under it", library, report.sends);
		return;
	}
	if (!strncmp(said, NO_LOOPBACK, strlen(NO_LOOPBACK))) {
		finding_is(out, HEALTH_LIMITED, "%.160s, %.90s", library, said);
		finding_means(out, "programs start under it; more could not be tried");
		finding_remedy(out, "sudo ip link set lo up");
		return;
	}
	probed = -EIO;
	finding_is(out, HEALTH_MISSING, "%.160s does not work", library);
	finding_means(out, "a program under it: %s", *said ? said : "it said nothing");
	finding_remedy(out, "LD_DEBUG=libs zc run /bin/true shows what the loader does");
}

void doctor_zerocopy_path(struct finding *out)
{
	if (probed) {
		finding_is(out, HEALTH_MISSING, "not tried: no connection was made under libzc.so");
		finding_remedy(out, "see libzc.so above");
		return;
	}
	if (report.zerocopy) {
		finding_is(out, HEALTH_OK, "%llu sends left by zerocopy, %llu ranges under guard", report.zerocopy,
			   report.guards);
		return;
	}
	finding_is(out, HEALTH_LIMITED, "no send left by zerocopy, for the reason %s", report.reason);
	for (int i = 0; i < REASON_COUNT; i++)
		if (!strcmp(report.reason, stat_reason_rows[i].name))
			finding_means(out, "large sends take copy: %s", stat_reason_rows[i].help);
}
