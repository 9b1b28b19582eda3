/* SPDX-License-Identifier: MIT */
/* The new program's part of exec.h: what the one before it has left to it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/log.h"
#include "common/sys.h"
#include "preload/engine.h"
#include "preload/exec.h"
#include "preload/exec_names.h"

static bool next_number(const char **at, int base, char ends, uint64_t *out)
{
	char *end;

	*out = strtoull(*at, &end, base);
	if (end == *at || *end != ends)
		return false;
	*at = end + 1;
	return true;
}

/* Gives the bytes to the socket of this cookie under all its numbers. */
static bool give_to_socket(const struct channel *rest, uint64_t cookie, const struct exec_names *names)
{
	struct conn *conn = NULL;
	int first = -1;

	for (int i = 0; i < names->count; i++) {
		if (conn_cookie_of(names->fds[i]) != cookie)
			continue;
		if (conn) {
			conn_dup(first, names->fds[i]);
			continue;
		}
		conn = conn_take_in(names->fds[i]);
		if (!conn || !engine_take_in(conn, rest))
			return false;
		first = names->fds[i];
	}
	return conn != NULL;
}

static void take_in(int memory, uint64_t cookie, const struct exec_names *names)
{
	struct channel rest;
	int rc = channel_take(&rest, memory);

	if (rc == -EPROTO || rc == -EPROTONOSUPPORT)
		return; /* it is not ours: the variable is somebody's old one */
	if (rc >= 0 && give_to_socket(&rest, cookie, names)) {
		log_info("fd %d: %u bytes unread from the program before", names->fds[0],
			 (unsigned int)lane_unread(&rest.in));
	} else {
		for (int i = 0; i < names->count; i++) {
			struct sockaddr nobody = { .sa_family = AF_UNSPEC };

			if (conn_cookie_of(names->fds[i]) == cookie)
				sys_call(SYS_connect, names->fds[i], (long)&nobody, sizeof(nobody), 0, 0, 0);
		}
		if (rc >= 0)
			channel_close(&rest);
	}
	sys_call(SYS_close, memory, 0, 0, 0, 0, 0);
}

void exec_take_in(void)
{
	const char *at = secure_getenv(EXEC_VARIABLE);
	uint64_t memory, cookie, fd;

	while (at && *at && next_number(&at, 10, '.', &memory) && next_number(&at, 16, '.', &cookie) && cookie) {
		struct exec_names names = { .count = 0 };

		while (next_number(&at, 10, ',', &fd))
			exec_names_add(&names, (int)fd);
		for (int i = 0; i < EXEC_SCAN; i++) {
			if (conn_cookie_of(i) == cookie)
				exec_names_add(&names, i);
		}
		take_in((int)memory, cookie, &names);
		if (*at == ';')
			at++;
	}
	exec_forget();
}

void exec_forget(void)
{
	unsetenv(EXEC_VARIABLE);
}
