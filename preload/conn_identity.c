/* SPDX-License-Identifier: MIT */
/*
 * Which socket a number names: conn.h. A program that connects waits for the calls that ask, and most connections to a peer without the
 * library never need the answers. So what socket() was told is believed at first, and the kernel is asked at the first call that moves
 * data: until then nothing was counted, and whatever TCP connection the number names is as good as any.
 */
#define _GNU_SOURCE
#include <netinet/in.h>

#include "common/sys.h"
#include "preload/conn.h"
#include "preload/guest.h"

static long get_option(int fd, int level, int name, void *value, socklen_t bytes)
{
	return sys_call(SYS_getsockopt, fd, level, name, (long)value, (long)&bytes, 0);
}

void conn_socket_made(int fd, int domain, int type, int protocol)
{
	table_makes(fd, (domain == AF_INET || domain == AF_INET6) &&
				(type & ~(SOCK_CLOEXEC | SOCK_NONBLOCK)) == SOCK_STREAM &&
				(!protocol || protocol == IPPROTO_TCP));
}

bool conn_is_tcp(int fd)
{
	int protocol = 0;

	return !guest_sandboxed() && !get_option(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, sizeof(protocol)) &&
	       protocol == IPPROTO_TCP;
}

bool conn_may_be(int fd)
{
	int listening = 1, domain = 0;

	return conn_is_tcp(fd) && !get_option(fd, SOL_SOCKET, SO_DOMAIN, &domain, sizeof(domain)) &&
	       (domain == AF_INET || domain == AF_INET6) &&
	       !get_option(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, sizeof(listening)) && !listening;
}

uint64_t conn_cookie_of(int fd)
{
	uint64_t cookie = 0;

	return get_option(fd, SOL_SOCKET, SO_COOKIE, &cookie, sizeof(cookie)) < 0 ? 0 : cookie;
}

uint64_t conn_identify(struct conn *conn, int fd)
{
	uint64_t cookie = atomic_load(&conn->cookie), none = 0;

	if (cookie || !conn->believed || guest_sandboxed() || !conn_is_tcp(fd))
		return cookie;
	cookie = conn_cookie_of(fd);
	return atomic_compare_exchange_strong(&conn->cookie, &none, cookie) ? cookie : none;
}

bool conn_is_same(struct conn *conn, int fd)
{
	uint64_t cookie = conn_identify(conn, fd);

	return cookie && conn_cookie_of(fd) == cookie;
}
