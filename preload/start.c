/* SPDX-License-Identifier: MIT */
/* The library's start in a program: the constructor. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>

#include "common/log.h"
#include "common/settings.h"
#include "common/stats.h"
#include "common/sys.h"
#include "preload/choose.h"
#include "preload/conn.h"
#include "preload/exec.h"
#include "preload/guest.h"
#include "preload/real.h"
#include "preload/signals.h"
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
		if (!(fds[i].revents & POLLNVAL) && table_entry(i) == TABLE_UNKNOWN)
			conn_classify(i);
	}
}

__attribute__((constructor)) void guest_start(void)
{
	static _Atomic bool started;
	int saved = errno;

	if (atomic_exchange(&started, true))
		return;
	real_resolve();
	settings_load(log_refused);
	if (settings.log_level)
		log_open((enum log_level)settings.log_level, settings.log_file);
	choose_start(log_refused);
	if (stats_start() < 0)
		goto end;
	guard_install_handler = signals_take_fault;
	guard_start((enum guard_kind)settings.guard);
	if (table_start() < 0)
		goto end; /* every descriptor stays the kernel's alone */
	table_own_refresh();
	target_start();
	exec_take_in();
	look_at_inherited();
end:
	exec_take_in(); /* where it can't be taken in, it must not be missed in silence */
	errno = saved;
}
