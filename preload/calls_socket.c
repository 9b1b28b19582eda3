/* SPDX-License-Identifier: MIT */
/* How connections come to be, and what a program asks or changes of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/before.h"
#include "preload/engine.h"
#include "preload/far.h"
#include "preload/evict.h"
#include "preload/guest.h"
#include "preload/inq.h"
#include "preload/real.h"
#include "preload/send.h"
#include "preload/spare.h"
#include "preload/zerocopy.h"

#define BUSY_OR_BETTER(rc) ((rc) == 0 || errno == EINPROGRESS)

/* A number that a call has just made: whatever it meant before is over, however it ended. */
static int fresh(int fd)
{
	if (__builtin_expect(fd >= 0 && table_entry(fd) != TABLE_UNKNOWN, 0) && !table_is_own(fd)) {
		int saved = errno;

		conn_close(fd);
		errno = saved;
	}
	return fd;
}

ZC_EXPORT int socket(int domain, int type, int protocol)
{
	int fd = fresh(SPARE_CALL(real.socket(domain, type, protocol)));

	conn_socket_made(fd, domain, type, protocol);
	return fd;
}

ZC_EXPORT int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	return real.bind(fd, address, bytes);
}

ZC_EXPORT int listen(int fd, int backlog)
{
	return real.listen(fd, backlog);
}

/* A connection begins here, before `began` (ns) if it was accepted, else behind it; `peer` as for conn_open(). */
static void opened(int fd, enum stats_role role, const struct sockaddr_storage *peer, uint64_t began)
{
	struct conn *conn;

	conn_open(fd, role, peer);
	conn = table_conn(fd);
	if (conn)
		atomic_store_explicit(&conn->opened, began, memory_order_relaxed);
	if (__builtin_expect(atomic_load_explicit(&low_water_ever, memory_order_relaxed), 0) && conn &&
	    low_water_is_set(fd))
		low_water_keeps(conn, fd);
	if (__builtin_expect(atomic_load_explicit(&peek_offset_ever, memory_order_relaxed), 0) && conn &&
	    peek_offset_is_set(fd)) {
		engine_retire(conn, fd);
		conn_detach(conn, REASON_DETACHED);
	}
	if (__builtin_expect(atomic_load_explicit(&before_seen, memory_order_relaxed), 0))
		before_opened(conn, fd);
	if (__builtin_expect(settings.rdma_wait_ms != 0, 0) && conn)
		far_wait(conn, fd);
}

/*
 * Whom a connect() that the kernel has taken up is for. Returns NULL if only the kernel can tell: an address of no host (0.0.0.0) means
 * this one. Where a filter of the kernel's (eBPF) sends connections elsewhere, this is what the program has asked for, which is what its
 * rules are about; the ends find one another by what the kernel says (engine_meet.c).
 */
static const struct sockaddr_storage *asked_for(const struct sockaddr *address, socklen_t bytes,
						struct sockaddr_storage *out)
{
	const struct sockaddr_in *four = (const struct sockaddr_in *)address;
	const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
	uint32_t low;

	if (address->sa_family == AF_INET) {
		if (four->sin_addr.s_addr == INADDR_ANY)
			return NULL;
	} else {
		memcpy(&low, &six->s6_addr[12], sizeof(low));
		if (!low && (IN6_IS_ADDR_UNSPECIFIED(six) || IN6_IS_ADDR_V4MAPPED(six)))
			return NULL;
	}
	memset(out, 0, sizeof(*out));
	memcpy(out, address, bytes < sizeof(*out) ? bytes : sizeof(*out));
	return out;
}

ZC_EXPORT int connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	struct conn *conn = table_conn(fd);
	struct sockaddr_storage peer;
	uint64_t began;
	int rc, saved;

	sg_before_wait();
	if (conn) { /* asked again: how is it going? Or it is to be dissolved */
		rc = real.connect(fd, address, bytes);
		if (!rc && address && address->sa_family == AF_UNSPEC)
			engine_dissolve(conn, fd);
		return rc;
	}
	began = clock_now();
	rc = real.connect(fd, address, bytes);
	saved = errno;
	/* Only what the kernel has read can be read. */
	if (BUSY_OR_BETTER(rc) && address && (address->sa_family == AF_INET || address->sa_family == AF_INET6) &&
	    (table_was_made(fd) || conn_is_tcp(fd)))
		opened(fd, ROLE_CLIENT, asked_for(address, bytes, &peer), began);
	errno = saved;
	return rc;
}

static int accepted(int fd)
{
	int saved = errno;

	if (fd < 0)
		return fd;
	fresh(fd);
	if (conn_is_tcp(fd))
		opened(fd, ROLE_SERVER, NULL, clock_now());
	errno = saved;
	return fd;
}

ZC_EXPORT int accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
	sg_before_wait();
	return accepted(SPARE_CALL(real.accept(fd, address, bytes)));
}

ZC_EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
	sg_before_wait();
	return accepted(SPARE_CALL(real.accept4(fd, address, bytes, flags)));
}

ZC_EXPORT int shutdown(int fd, int how)
{
	struct conn *conn = conn_of_socket(fd);
	bool later;

	sg_before_wait();
	later = conn && engine_is_there(conn) && engine_shuts(conn, fd, how);
	if (conn && conn_active(conn) && how != SHUT_RD) {
		sg_drain(conn, fd, true);
		/* Sends fail from here on, and have to fail at once. */
		atomic_store_explicit(&conn->sg.skip, UINT32_MAX, memory_order_relaxed);
	}
	if (later && how == SHUT_WR)
		return 0;
	return real.shutdown(fd, later ? SHUT_RD : how);
}

/* Sends in parts cork the connection and push what is left (zerocopy.c): the program neither sees that nor loses an option by it. */
static bool options_wait(struct conn *conn, int fd, int level, int name, struct lock_hold *hold)
{
	return conn && level == IPPROTO_TCP && (name == TCP_CORK || name == TCP_NODELAY) && conn_enter(conn, fd, hold);
}

ZC_EXPORT int getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
	struct conn *conn = table_conn(fd);
	struct lock_hold hold;
	int rc, error;
	bool entered;

	sg_before_wait();
	/* It takes what is in the stream, uncounted, and that may be doorbells. With bytes in a ring: as on a kernel that does not have it. */
	if (__builtin_expect(level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE, 0) && conn &&
	    engine_is_there(conn) && !engine_retire(conn, fd)) {
		errno = ENOPROTOOPT;
		return -1;
	}
	entered = options_wait(conn, fd, level, name, &hold);
	rc = real.getsockopt(fd, level, name, value, bytes);
	if (entered)
		conn_leave(conn, &hold);
	if (rc || !conn || *bytes < sizeof(int))
		return rc;
	if (level == IPPROTO_TCP && engine_is_there(conn))
		engine_gets_option(conn, fd, name, value);
	if (level != SOL_SOCKET)
		return rc;
	if (name == SO_ZEROCOPY && conn->zerocopy.enabled && !conn->app_error_queue)
		*(int *)value = 0; /* that is ours */
	if (name == SO_ERROR && !*(int *)value) {
		error = sg_take_error(conn);
		*(int *)value = error == EPIPE ? 0 : error;
	}
	return rc;
}

/* Returns whether it is one. What is no memory the kernel is to refuse, and what it has taken needs no such care. */
static bool read_int(const void *value, socklen_t bytes, int *out)
{
	return bytes >= sizeof(*out) && guest_read(value, out, sizeof(*out));
}

/* Options after which notices could meet the program, or bytes are no longer bytes. Returns REASON_NONE for all others. */
static enum stat_reason leaves_us(int level, int name, const void *value, socklen_t bytes)
{
	int offset;

	if (level == SOL_SOCKET && name == SO_PEEK_OFF && read_int(value, bytes, &offset) && offset >= 0)
		return REASON_DETACHED;
	if (level == SOL_SOCKET && (name == SO_ZEROCOPY || name == SO_TIMESTAMPING || name == SO_TIMESTAMPING_NEW))
		return REASON_APP_ERRQUEUE;
	if ((level == SOL_IP && name == IP_RECVERR) || (level == SOL_IPV6 && name == IPV6_RECVERR))
		return REASON_APP_ERRQUEUE;
	if (level == IPPROTO_TCP && (name == TCP_ULP || name == TCP_REPAIR || name == TCP_NOTSENT_LOWAT))
		return REASON_DETACHED;
	return REASON_NONE;
}

/* SO_RCVLOWAT has been set; negative is more than there will ever be. */
static void low_water_changes(int fd, int bytes)
{
	int saved = errno;
	struct conn *conn;

	if (bytes == 0 || bytes == 1)
		return;
	atomic_store_explicit(&low_water_ever, true, memory_order_relaxed);
	conn = conn_of_socket(fd);
	if (conn)
		low_water_keeps(conn, fd);
	errno = saved;
}

ZC_EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
	enum stat_reason why = leaves_us(level, name, value, bytes);
	struct conn *conn = table_conn(fd);
	struct lock_hold hold;
	bool entered;
	int rc, now;

	sg_before_wait();
	if (__builtin_expect(why != REASON_NONE, 0)) {
		conn = conn_of_socket(fd);
		if (conn) {
			/* What is unread in a ring would not take part: as on a kernel that does not have it. */
			if (name == TCP_NOTSENT_LOWAT) {
				engine_pin(conn, fd);
			} else if (why == REASON_DETACHED && !engine_retire(conn, fd)) {
				errno = level == SOL_SOCKET ? EOPNOTSUPP : name == TCP_REPAIR ? EPERM : ENOENT;
				return -1;
			}
			conn_detach(conn, why);
			conn->app_error_queue |= why == REASON_APP_ERRQUEUE;
		}
	} else if (conn && level == SOL_SOCKET && name == SO_SNDBUF) {
		atomic_store_explicit(&conn->sg.room, 0, memory_order_relaxed);
	} else if (conn && level == IPPROTO_TCP && engine_has_option(name) && engine_is_there(conn) &&
		   read_int(value, bytes, &now) && engine_sets_option(conn, fd, name, now)) {
		return 0;
	}
	entered = options_wait(conn, fd, level, name, &hold);
	rc = real.setsockopt(fd, level, name, value, bytes);
	if (entered)
		conn_leave(conn, &hold);
	if (conn && level == SOL_SOCKET)
		atomic_store_explicit(&conn->recv_ends, 0, memory_order_relaxed);
	if (!rc && why != REASON_NONE && !conn && conn_is_tcp(fd))
		before_notes(BEFORE_OPTIONS);
	if (!rc && level == SOL_SOCKET && name == SO_PEEK_OFF)
		peek_offset_is_set(fd); /* a listening socket hands it down */
	if (!rc && level == IPPROTO_TCP && name == TCP_INQ)
		atomic_store_explicit(&inq_ever, true, memory_order_relaxed);
	if (!rc && level == SOL_SOCKET && name == SO_RCVLOWAT)
		low_water_changes(fd, *(const int *)value);
	return rc;
}
