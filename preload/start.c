/* SPDX-License-Identifier: MIT */
/* The library's start in a program: the constructor. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/settings.h"
#include "common/stats.h"
#include "common/sys.h"
#include "preload/before.h"
#include "preload/choose.h"
#include "preload/conn.h"
#include "preload/evict.h"
#include "preload/exec.h"
#include "preload/far.h"
#include "preload/far_compare.h"
#include "preload/fork.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/signals.h"
#include "preload/unseen.h"
#include "rdma/guard.h"

#define INHERITED_MAX 256

/* Descriptors that were there before us: a server under inetd may read its connection without any socket call. */
static void look_at_inherited(void)
{
	struct pollfd fds[INHERITED_MAX];

	for (int i = 0; i < INHERITED_MAX; i++)
		fds[i] = (struct pollfd){ .fd = i };
	if (sys_call(SYS_poll, (long)fds, INHERITED_MAX, 0, 0, 0, 0) < 0)
		return;
	for (int i = 0; i < INHERITED_MAX; i++) {
		if (fds[i].revents & POLLNVAL || table_entry(i) != TABLE_UNKNOWN)
			continue;
		conn_classify(i);
		if (!table_conn(i)) { /* it may be listening */
			low_water_is_set(i);
			peek_offset_is_set(i);
			before_inherits(i);
		}
	}
}

#define LINE_BYTES 2048
#define ENVIRONMENT_FIELD 50 /* of /proc/self/stat */

extern char **environ;

/* Where the environment's strings begin, as the kernel has put them; NULL if it does not tell. */
static char *find_strings(void)
{
	char line[LINE_BYTES];
	long fd = sys_call(SYS_openat, AT_FDCWD, (long)"/proc/self/stat", O_RDONLY | O_CLOEXEC, 0, 0, 0);
	long got = fd < 0 ? fd : sys_call(SYS_read, fd, (long)line, sizeof(line) - 1, 0, 0, 0);
	char *at;

	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	line[got > 0 ? got : 0] = 0;
	at = strrchr(line, ')'); /* behind the name: the third field */
	for (int field = 2; at && field < ENVIRONMENT_FIELD; field++)
		at = strchr(at + 1, ' ');
	return at ? (char *)strtoul(at + 1, NULL, 10) : NULL;
}

/* Before libc's own start there is no environment: it is made of what the kernel has left on the stack. Returns NULL without. */
static char **find_environment(void)
{
	char *strings = find_strings(), *at = strings;
	size_t count = 0;
	char **made;

	/* The strings end with the program's name, which is no setting, and with a zero word. */
	for (; at && *at && strchr(at, '='); at += strlen(at) + 1)
		count++;
	made = count ? sys_map((count + 1) * sizeof(*made), MAP_PRIVATE) : NULL;
	for (size_t i = 0; made && i < count; i++) {
		made[i] = strings;
		strings += strlen(strings) + 1;
	}
	return made;
}

static bool is_left_bytes(char **environment)
{
	for (; environment && *environment; environment++) {
		if (!strncmp(*environment, EXEC_VARIABLE "=", sizeof(EXEC_VARIABLE)))
			return true;
	}
	return false;
}

static _Atomic bool started;

void guest_start_early(void)
{
	static _Atomic bool looked;
	char **before = environ;

	if (atomic_load(&started) || atomic_exchange(&looked, true))
		return;
	if (!before)
		environ = find_environment();
	if (is_left_bytes(environ))
		guest_start();
	if (!before)
		environ = NULL;
}

__attribute__((constructor)) void guest_start(void)
{
	int saved = errno;

	if (atomic_exchange(&started, true)) {
		exec_forget(); /* once more, in the environment that libc has */
		return;
	}
	real_resolve();
	settings_load(log_refused);
	if (settings.log_level)
		log_open((enum log_level)settings.log_level, settings.log_file);
	choose_start(log_refused);
	far_compare_start();
	if (stats_start() < 0)
		goto end;
	guard_install_handler = signals_take_fault;
	guard_start((enum guard_kind)settings.guard);
	if (signals_start())
		signals_take_fault();
	if (table_start() < 0)
		goto end; /* every descriptor stays the kernel's alone */
	fork_start();
	unseen_start(fork_was_unseen);
	table_own_refresh();
	far_keep_environment();
	target_start();
	exec_take_in();
	look_at_inherited();
end:
	exec_take_in(); /* where it can't be taken in, it must not be missed in silence */
	errno = saved;
}
