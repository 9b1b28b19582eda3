/* SPDX-License-Identifier: MIT */
#include "common/room.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>

#include "common/sys.h"

/* The library's own descriptors may be among the highest numbers: from 1000 up, of 1024. */
#define LOOKED_AT (3 * ROOM_KEPT)

_Atomic int room_edge = INT_MAX;
_Atomic int room_for_meetings = INT_MAX;

bool room_for_own(void)
{
	struct rlimit limit;
	int top, room = 0;

	if (sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0) < 0)
		return false;
	top = limit.rlim_cur < INT_MAX ? (int)limit.rlim_cur : INT_MAX;
	atomic_store(&room_for_meetings, top / ROOM_SHARE);
	/* Not by poll(), which asks the files: one of them may be a file system that this very program serves. */
	for (int fd = top - 1; fd >= 0 && fd >= top - LOOKED_AT && room < ROOM_KEPT; fd--)
		room += sys_call(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0) == -EBADF;
	if (room < ROOM_KEPT)
		return false;
	atomic_store(&room_edge, top - ROOM_KEPT);
	return true;
}
