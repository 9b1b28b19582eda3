/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/meet.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#include "common/log.h"
#include "common/sys.h"
#include "rdma/meet_internal.h"

#define OVERFLOW_USER 65534 /* as the kernel has it unless it is told otherwise */

struct meet_place meet_place_of(const struct sockaddr_storage *from)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
	const struct sockaddr_in *four = (const struct sockaddr_in *)from;
	struct meet_place place = { .family = AF_INET };

	if (from->ss_family == AF_INET) {
		place.port = four->sin_port;
		memcpy(place.address, &four->sin_addr, 4);
		return place;
	}
	place.port = six->sin6_port;
	if (!memcmp(&six->sin6_addr, mapped, sizeof(mapped))) {
		memcpy(place.address, six->sin6_addr.s6_addr + 12, 4);
		return place;
	}
	place.family = AF_INET6;
	memcpy(place.address, &six->sin6_addr, 16);
	return place;
}

bool meet_is_inet(const struct meet_names *names)
{
	return (names->local.ss_family == AF_INET || names->local.ss_family == AF_INET6) &&
	       (names->peer.ss_family == AF_INET || names->peer.ss_family == AF_INET6);
}

int meet_is_local(const struct meet_names *names)
{
	struct meet_place local, peer;

	if (!meet_is_inet(names))
		return 0;
	local = meet_place_of(&names->local);
	peer = meet_place_of(&names->peer);
	if (local.family != peer.family)
		return 0;
	return (peer.family == AF_INET && peer.address[0] == 127) || !memcmp(local.address, peer.address, 16);
}

uint64_t meet_space(int fd)
{
	uint64_t cookie = 0;
	socklen_t bytes = sizeof(cookie);

	return sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE, (long)&cookie, (long)&bytes, 0) < 0 ? 0 :
													       cookie;
}

void meet_identity(const struct meet_names *names, enum channel_end end, int fd, uint8_t out[TRANSPORT_IDENTITY_BYTES])
{
	struct {
		struct meet_place from, to;
		uint64_t namespace;
	} identity;
	struct meet_place own = meet_place_of(&names->local), peer = meet_place_of(&names->peer);

	_Static_assert(sizeof(identity) == TRANSPORT_IDENTITY_BYTES, "without gaps");
	identity.from = end == CHANNEL_CONNECTING ? own : peer;
	identity.to = end == CHANNEL_CONNECTING ? peer : own;
	identity.namespace = meet_space(fd);
	memcpy(out, &identity, sizeof(identity));
}

static size_t put_place(char *out, size_t bytes, const struct meet_place *place)
{
	size_t used = 0;

	for (size_t i = 0; i < (place->family == AF_INET ? 4 : 16); i++)
		used += log_format(out + used, bytes - used, "%02x", place->address[i]);
	return used + log_format(out + used, bytes - used, ":%u", ntohs(place->port));
}

/* The abstract name of a connection, from its connecting end to its accepting end. Returns the address's length. */
static socklen_t name_of(const struct sockaddr_storage *from, const struct sockaddr_storage *to, uint64_t space,
			 struct sockaddr_un *out)
{
	struct meet_place a = meet_place_of(from), b = meet_place_of(to);
	size_t room = sizeof(out->sun_path) - 1, used;

	memset(out, 0, sizeof(*out));
	out->sun_family = AF_UNIX;
	used = log_format(out->sun_path + 1, room, "zc%u/", CHANNEL_VERSION);
	used += put_place(out->sun_path + 1 + used, room - used, &a);
	used += log_format(out->sun_path + 1 + used, room - used, "/");
	used += put_place(out->sun_path + 1 + used, room - used, &b);
	used += log_format(out->sun_path + 1 + used, room - used, "/%llu", (unsigned long long)space);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
}

static size_t read_file(const char *path, char *out, size_t bytes)
{
	long fd = sys_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
	long got = fd < 0 ? fd : sys_call(SYS_read, fd, (long)out, (long)bytes - 1, 0, 0, 0);

	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	out[got > 0 ? got : 0] = 0;
	return got > 0 ? (size_t)got : 0;
}

static bool next_number(const char **text, uint64_t *out)
{
	const char *at = *text;

	while (*at == ' ' || *at == '\n')
		at++;
	if (*at < '0' || *at > '9')
		return false;
	for (*out = 0; *at >= '0' && *at <= '9'; at++)
		*out = *out * 10 + (uint64_t)(*at - '0');
	*text = at;
	return true;
}

/*
 * Whether a user's number is one user. To a user namespace all users that it does not map are the overflow user: two of
 * them are equal and prove nothing, so that one counts only where every user is mapped.
 */
static bool is_one_user(uid_t user)
{
	char text[512];
	const char *at = text;
	uint64_t overflow, inside, outside, count;

	if (!read_file("/proc/sys/kernel/overflowuid", text, sizeof(text)) || !next_number(&at, &overflow))
		overflow = OVERFLOW_USER;
	if (user != overflow)
		return true;
	at = text;
	read_file("/proc/self/uid_map", text, sizeof(text));
	while (next_number(&at, &inside) && next_number(&at, &outside) && next_number(&at, &count)) {
		if (inside == 0 && outside == 0 && count == UINT32_MAX)
			return true;
	}
	return false;
}

/* Returns 0 if the one behind a Unix socket owns the other end of the connection, -EPERM if not. */
static int prove(long fd, const struct meet_names *names)
{
	struct ucred who;
	socklen_t bytes = sizeof(who);
	uid_t owner;
	int rc = meet_owner(names, &owner);

	if (rc < 0)
		return rc;
	rc = (int)sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, (long)&who, (long)&bytes, 0);
	if (rc < 0)
		return rc;
	return who.uid == owner && is_one_user(owner) ? 0 : -EPERM;
}

/*
 * Whether descriptors may be sent to a Unix socket (Linux 6.16). A stranger could send a TCP socket that lingers, and whoever closes
 * the last descriptor of that waits as long as he likes: so nobody may who has not proved himself. What comes to a listener
 * takes after it.
 */
static void allow_descriptors(long fd, bool allow)
{
	int value = allow;

	sys_call(SYS_setsockopt, fd, SOL_SOCKET, SO_PASSRIGHTS, (long)&value, sizeof(value), 0);
}

/* Makes a Unix socket and does `call` (SYS_bind or SYS_connect) with a connection's name. Returns it or -errno. */
static long open_named(const struct meet_names *names, long call)
{
	const struct sockaddr_storage *from = call == SYS_bind ? &names->local : &names->peer;
	const struct sockaddr_storage *to = call == SYS_bind ? &names->peer : &names->local;
	struct sockaddr_un name;
	socklen_t bytes;
	long fd, rc;

	if (!meet_is_inet(names))
		return -EAFNOSUPPORT;
	bytes = name_of(from, to, names->space, &name);
	fd = sys_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0, 0);
	if (fd < 0)
		return fd;
	fd = sys_fd_raise((int)fd);
	allow_descriptors(fd, false);
	rc = sys_call(call, fd, (long)&name, bytes, 0, 0, 0);
	if (rc >= 0)
		return fd;
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return rc;
}

int meet_offer(const struct meet_names *names)
{
	long fd = open_named(names, SYS_bind);
	long rc = fd < 0 ? fd : sys_call(SYS_listen, fd, 4, 0, 0, 0, 0);

	if (rc < 0 && fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return rc < 0 ? (int)rc : (int)fd;
}

/* A message of the handover: the channel's nonce, with its memfd from the accepting end. */
struct handover {
	struct msghdr message;
	struct iovec iov;
	uint8_t nonce[CHANNEL_NONCE_BYTES];
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
};

static void prepare(struct handover *handover)
{
	memset(handover, 0, sizeof(*handover));
	handover->iov = (struct iovec){ handover->nonce, sizeof(handover->nonce) };
	handover->message = (struct msghdr){ .msg_iov = &handover->iov,
					     .msg_iovlen = 1,
					     .msg_control = handover->control.bytes,
					     .msg_controllen = sizeof(handover->control.bytes) };
}

int meet_give(int reached, const struct channel *channel)
{
	struct handover handover;
	long rc;

	prepare(&handover);
	memcpy(handover.nonce, channel->header->nonce, CHANNEL_NONCE_BYTES);
	handover.control.head.cmsg_level = SOL_SOCKET;
	handover.control.head.cmsg_type = SCM_RIGHTS;
	handover.control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&handover.control.head), &channel->fd, sizeof(int));
	/* It stays in the queue of the one who has not accepted yet, also when this end closes. */
	rc = sys_call(SYS_sendmsg, reached, (long)&handover.message, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0, 0);
	return rc == -EPERM ? -EAGAIN : rc < 0 ? (int)rc : 0;
}

pid_t meet_process(int reached)
{
	struct ucred who = { 0 };
	socklen_t bytes = sizeof(who);

	sys_call(SYS_getsockopt, reached, SOL_SOCKET, SO_PEERCRED, (long)&who, (long)&bytes, 0);
	return who.pid;
}

int meet_reach(const struct meet_names *names)
{
	long fd = open_named(names, SYS_connect);
	int rc;

	if (fd < 0)
		return (int)fd;
	rc = prove(fd, names);
	if (rc >= 0)
		return (int)fd;
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return rc;
}

/* The descriptors that a message has brought: because of its alignment, the room for one has room for more. */
static size_t brought(const struct handover *handover, int *fds)
{
	const struct cmsghdr *head = &handover->control.head;
	size_t bytes;

	if (handover->message.msg_controllen < CMSG_LEN(sizeof(int)) || head->cmsg_level != SOL_SOCKET ||
	    head->cmsg_type != SCM_RIGHTS || head->cmsg_len < CMSG_LEN(sizeof(int)) ||
	    head->cmsg_len > sizeof(handover->control))
		return 0;
	bytes = head->cmsg_len - CMSG_LEN(0);
	memcpy(fds, CMSG_DATA(head), bytes);
	return bytes / sizeof(int);
}

/* Receives the message of one who has come. Returns a memfd or -errno. */
static int receive(long fd, uint8_t *nonce)
{
	struct handover handover;
	int fds[sizeof(handover.control) / sizeof(int)];
	size_t count;
	long got;

	prepare(&handover);
	got = sys_call(SYS_recvmsg, fd, (long)&handover.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC, 0, 0, 0);
	if (got < 0)
		return (int)got;
	count = brought(&handover, fds);
	if (count == 1 && got == CHANNEL_NONCE_BYTES && !(handover.message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		memcpy(nonce, handover.nonce, CHANNEL_NONCE_BYTES);
		return fds[0];
	}
	while (count)
		sys_call(SYS_close, fds[--count], 0, 0, 0, 0, 0);
	return -EPROTO;
}

/* Lets somebody in who owns the other end. Returns his socket or -errno. */
static int let_in(const struct meet_names *names, int offer)
{
	long fd = sys_call(SYS_accept4, offer, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0);
	int rc;

	if (fd < 0)
		return (int)fd;
	rc = prove(fd, names);
	if (rc >= 0) {
		allow_descriptors(fd, true);
		return sys_fd_raise((int)fd);
	}
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return rc;
}

int meet_pick_up(const struct meet_names *names, int offer, int *visitor, struct channel *out)
{
	uint8_t nonce[CHANNEL_NONCE_BYTES];
	int memory, rc;

	if (*visitor < 0)
		*visitor = let_in(names, offer);
	if (*visitor < 0) {
		rc = *visitor;
		*visitor = -1;
		return rc;
	}
	memory = receive(*visitor, nonce);
	rc = memory;
	if (rc == -EAGAIN)
		return rc; /* in a moment */
	if (rc < 0)
		goto close_visitor;
	rc = channel_take(out, memory);
	if (!rc && memcmp(nonce, out->header->nonce, sizeof(nonce))) {
		channel_close(out);
		rc = -EPROTO;
	}
	out->peer = rc < 0 ? 0 : meet_process(*visitor);
	sys_call(SYS_close, memory, 0, 0, 0, 0, 0);
close_visitor:
	sys_call(SYS_close, *visitor, 0, 0, 0, 0, 0);
	*visitor = -1;
	return rc;
}
