/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/spare.h"

#include <errno.h>
#include <limits.h>

#include "common/log.h"
#include "common/stats.h"
#include "preload/engine.h"
#include "preload/guest.h"

bool spare_all(void)
{
	uint32_t at = 0;
	struct conn *conn;
	int saved = errno, fd;
	bool any = false;

	if (guest_sandboxed() || !conn_process_is_ours())
		return false;
	atomic_store(&room_edge, INT_MAX);
	while ((conn = conn_next(&at)))
		any |= engine_spares(conn);
	fd = stats_hide();
	if (fd >= 0) {
		table_own_refresh(); /* before its number can be another's */
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
		any = true;
	}
	if (any)
		log_info("descriptors are given up: the program needs them");
	errno = saved;
	return any;
}

bool spare_again(long result, int tries)
{
	if (result >= 0 || (errno != EMFILE && errno != ENFILE) || guest_sandboxed())
		return false;
	return spare_all() || !tries;
}
