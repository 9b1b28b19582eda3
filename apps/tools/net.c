/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/net.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 1024

/* No SOCK_CLOEXEC and no accept4() here: the tools execute nothing, and rdma-core's preload for rsockets, which they are compared
 * with, leaves such sockets to TCP without a word. */

void net_address_text(const struct sockaddr_storage *address, char out[NET_ADDRESS_BYTES])
{
	char host[64] = "?", port[8] = "?";

	getnameinfo((const struct sockaddr *)address, sizeof(*address), host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(out, NET_ADDRESS_BYTES, address->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static int find(const char *host, uint64_t port, int flags, struct addrinfo **out, struct fault *fault)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV };
	char service[8];
	int rc;

	snprintf(service, sizeof(service), "%u", (unsigned int)port);
	rc = getaddrinfo(host, service, &hints, out);
	if (rc)
		return fault_set(fault, EHOSTUNREACH, "%.100s is no address or host name that can be found: %s", host,
				 gai_strerror(rc));
	return 0;
}

int net_listen(const char *address, uint64_t port, char out[NET_ADDRESS_BYTES], struct fault *fault)
{
	struct sockaddr_storage name = { 0 };
	socklen_t bytes = sizeof(name);
	struct addrinfo *list;
	int rc = find(address, port, AI_PASSIVE, &list, fault);
	int fd, on = 1;

	if (rc)
		return rc;
	fd = socket(list->ai_family, SOCK_STREAM, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(fd, list->ai_addr, list->ai_addrlen) || listen(fd, BACKLOG) || fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
		rc = fault_errno(fault, errno, "can't listen on %.100s port %llu", address, (unsigned long long)port);
		if (fd >= 0)
			close(fd);
		fd = rc;
	} else {
		getsockname(fd, (struct sockaddr *)&name, &bytes);
		net_address_text(&name, out);
	}
	freeaddrinfo(list);
	return fd;
}

static int set_buffers(int fd, uint64_t bytes)
{
	int value = (int)bytes;

	if (!bytes)
		return 0;
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof(value)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value)))
		return -errno;
	return 0;
}

/* Waits for a connect under way. Returns 0 or -errno. */
static int await(int fd, uint64_t timeout_s)
{
	struct pollfd waiting = { .fd = fd, .events = POLLOUT };
	socklen_t bytes = sizeof(int);
	int rc, code = 0;

	do
		rc = poll(&waiting, 1, (int)(timeout_s * 1000));
	while (rc < 0 && errno == EINTR);
	if (rc < 0)
		return -errno;
	if (!rc)
		return -ETIMEDOUT;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
	return -code;
}

static int connect_one(const struct addrinfo *to, uint64_t timeout_s, uint64_t socket_buffer)
{
	int fd = socket(to->ai_family, SOCK_STREAM, 0);
	int rc;

	if (fd < 0)
		return -errno;
	rc = set_buffers(fd, socket_buffer);
	if (!rc && fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		rc = -errno;
	if (!rc && connect(fd, to->ai_addr, to->ai_addrlen) < 0)
		rc = errno == EINPROGRESS ? await(fd, timeout_s) : -errno;
	if (!rc && fcntl(fd, F_SETFL, 0) < 0)
		rc = -errno;
	if (!rc)
		return fd;
	close(fd);
	return rc;
}

int net_connect(const char *host, uint64_t port, uint64_t timeout_s, uint64_t socket_buffer, struct fault *fault)
{
	struct addrinfo *list;
	int rc = find(host, port, 0, &list, fault);
	int fd = -EHOSTUNREACH;

	if (rc)
		return rc;
	for (struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
		fd = connect_one(at, timeout_s, socket_buffer);
	freeaddrinfo(list);
	if (fd < 0)
		return fault_errno(fault, -fd, "can't connect to %.100s port %llu", host, (unsigned long long)port);
	return fd;
}

int net_configure(int fd, const struct shared_options *shared, struct fault *fault)
{
	int on = shared->nodelay;
	int rc = set_buffers(fd, shared->socket_buffer);

	if (rc)
		return fault_errno(fault, -rc, "--socket-buffer %llu can't be set",
				   (unsigned long long)shared->socket_buffer);
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		return fault_errno(fault, errno, "TCP_NODELAY can't be set");
	return 0;
}
