/* SPDX-License-Identifier: MIT */
/* Connections and payload of the cases. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/sys.h"
#include "end.h"

#define CHUNK 65536
#define BUFFERS_SMALL 16384

struct addresses addresses = { "127.0.0.1", "::1", "::ffff:127.0.0.1" };

/* Whether text is an address of the family that a socket here can be bound to. */
static bool is_own(const char *text, int family)
{
	struct sockaddr_storage name;
	uint8_t binary[sizeof(struct in6_addr)];
	socklen_t bytes;
	bool bound;
	int fd;

	if (inet_pton(family, text, binary) != 1)
		return false;
	bytes = address_of(text, 0, &name);
	fd = socket(family, SOCK_STREAM, 0);
	bound = fd >= 0 && !bind(fd, (struct sockaddr *)&name, bytes);
	close(fd);
	return bound;
}

void addresses_choose(void)
{
	const char *text = getenv("CORPUS_ADDRESSES"), *comma = text ? strchr(text, ',') : NULL;
	struct addresses *to = &addresses;

	if (!text)
		return;
	if (comma && (size_t)(comma - text) < sizeof(to->ipv4) && strlen(comma + 1) < sizeof(to->ipv6)) {
		*(char *)mempcpy(to->ipv4, text, (size_t)(comma - text)) = '\0';
		strcpy(to->ipv6, comma + 1);
		strcpy(stpcpy(to->mapped, "::ffff:"), to->ipv4);
		if (is_own(to->ipv4, AF_INET) && is_own(to->ipv6, AF_INET6))
			return;
	}
	fprintf(stderr,
		"corpus: CORPUS_ADDRESSES: '%s'; allowed is IPV4,IPV6: an IPv4 and an IPv6 address of this machine\n",
		text);
	exit(2);
}

socklen_t address_of(const char *text, int port, struct sockaddr_storage *out)
{
	struct sockaddr_in *in = (struct sockaddr_in *)out;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)port);
		return sizeof(*in);
	}
	if (inet_pton(AF_INET6, text, &in6->sin6_addr) != 1)
		die("address %s", text);
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons((uint16_t)port);
	return sizeof(*in6);
}

static int listen_with(const char *address, int buffers, int *port)
{
	struct sockaddr_storage name;
	socklen_t bytes = address_of(address, 0, &name);
	int fd = (int)MUST(socket(name.ss_family, SOCK_STREAM, 0));

	if (buffers)
		set_buffers(fd, buffers);
	MUST(bind(fd, (struct sockaddr *)&name, bytes));
	MUST(listen(fd, 16));
	MUST(getsockname(fd, (struct sockaddr *)&name, &bytes));
	*port = ntohs(name.ss_family == AF_INET ? ((struct sockaddr_in *)&name)->sin_port :
						  ((struct sockaddr_in6 *)&name)->sin6_port);
	return fd;
}

int listen_on(const char *address, int *port)
{
	return listen_with(address, 0, port);
}

void accept_one(struct end *end)
{
	int port, listening = listen_on(addresses.ipv4, &port);

	tell_number(end, port);
	end->fd = (int)MUST(accept(listening, NULL, NULL));
}

static int connect_with(const char *address, int buffers, int port)
{
	struct sockaddr_storage name;
	socklen_t bytes = address_of(address, port, &name);
	int fd = (int)MUST(socket(name.ss_family, SOCK_STREAM, 0));

	if (buffers)
		set_buffers(fd, buffers);
	MUST(connect(fd, (struct sockaddr *)&name, bytes));
	return fd;
}

int connect_to(const char *address, int port)
{
	return connect_with(address, 0, port);
}

static void meet_with(struct end *end, int buffers)
{
	int port, listening;

	if (!end->server) {
		end->fd = connect_with(addresses.ipv4, buffers, (int)await_number(end));
		return;
	}
	listening = listen_with(addresses.ipv4, buffers, &port);
	tell_number(end, port);
	end->fd = (int)MUST(accept(listening, NULL, NULL));
	MUST(close(listening));
}

void meet(struct end *end)
{
	meet_with(end, 0);
}

void meet_small(struct end *end)
{
	meet_with(end, BUFFERS_SMALL);
}

void get_going(struct end *end)
{
	char data[100] = { 0 };

	for (int i = 0; i < 60; i++) {
		if (!end->server)
			give(end->fd, data, sizeof(data));
		EXPECT(recv(end->fd, data, sizeof(data), MSG_WAITALL) == sizeof(data));
		if (end->server)
			give(end->fd, data, sizeof(data));
	}
}

void meet_and_go(struct end *end)
{
	meet(end);
	get_going(end);
}

/* A linear congruence, so that a piece out of place, doubled or missing shows; letters only. */
static char pattern_at(unsigned int seed, uint64_t position)
{
	uint64_t mixed = (position + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;

	return (char)('a' + (mixed >> 40) % 26);
}

void pattern_fill(void *data, size_t bytes, unsigned int seed, uint64_t position)
{
	for (size_t i = 0; i < bytes; i++)
		((char *)data)[i] = pattern_at(seed, position + i);
}

bool pattern_check(const void *data, size_t bytes, unsigned int seed, uint64_t position)
{
	const char *got = data;

	for (size_t i = 0; i < bytes; i++) {
		if (got[i] == pattern_at(seed, position + i))
			continue;
		note_wrong("stream %u, position %llu: %#x instead of %#x", seed, (unsigned long long)position + i,
			   (unsigned char)got[i], (unsigned char)pattern_at(seed, position + i));
		return false;
	}
	return true;
}

void give(int fd, const void *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t rc = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);

		if (rc > 0) {
			done += (size_t)rc;
		} else if (errno == EAGAIN) {
			struct pollfd wait = { .fd = fd, .events = POLLOUT };

			poll(&wait, 1, -1);
		} else if (errno != EINTR) {
			note_wrong("send after %zu of %zu: %s", done, bytes, errno_name(errno));
			return;
		}
	}
}

/*
 * Memory that goes behind a send. ThreadSanitizer's free() takes large blocks out of the program by bare instructions, and the bytes that
 * the library has yet to keep: there it is the program that unmaps.
 */
#ifdef __SANITIZE_THREAD__
static void *room_for(size_t bytes)
{
	return (void *)MUST((long)mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void room_goes(void *room, size_t bytes)
{
	MUST(munmap(room, bytes + 1));
}
#else
static void *room_for(size_t bytes)
{
	return malloc(bytes ? bytes : 1);
}

static void room_goes(void *room, size_t bytes)
{
	free(room);
}
#endif

void give_pattern(int fd, size_t bytes, unsigned int seed, uint64_t position)
{
	char *data = room_for(bytes);

	pattern_fill(data, bytes, seed, position);
	give(fd, data, bytes);
	room_goes(data, bytes);
}

static size_t take(int fd, size_t bytes, unsigned int seed, uint64_t position)
{
	char *data = malloc(CHUNK);
	size_t done = 0;

	while (done < bytes) {
		ssize_t rc = recv(fd, data, bytes - done < CHUNK ? bytes - done : CHUNK, 0);

		if (rc > 0) {
			if (!pattern_check(data, (size_t)rc, seed, position + done))
				break;
			done += (size_t)rc;
		} else if (rc < 0 && errno == EAGAIN) {
			struct pollfd wait = { .fd = fd, .events = POLLIN };

			poll(&wait, 1, -1);
		} else if (!rc || errno != EINTR) {
			note("ended: %s", rc ? errno_name(errno) : "end of file");
			break;
		}
	}
	free(data);
	return done;
}

size_t take_pattern(int fd, size_t bytes, unsigned int seed, uint64_t position)
{
	size_t done = take(fd, bytes, seed, position);

	note("took %zu", done);
	return done;
}

void take_quietly(int fd, size_t bytes, unsigned int seed, uint64_t position)
{
	size_t done = take(fd, bytes, seed, position);

	if (done != bytes)
		note_wrong("took %zu of %zu", done, bytes);
}

void take_to_end(int fd, unsigned int seed, uint64_t position)
{
	take_pattern(fd, SIZE_MAX, seed, position);
}

void await_bytes(int fd, int count)
{
	int there = 0;

	for (;;) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };

		MUST(ioctl(fd, FIONREAD, &there));
		if (there >= count)
			return;
		/* It tells of the first byte again and again; SO_RCVLOWAT would mend that, and make the connection another. */
		poll(&wait, 1, there ? 0 : -1);
		sched_yield();
		if (wait.revents & (POLLHUP | POLLERR))
			return;
	}
}

void note_poll(int fd, short events)
{
	struct pollfd look = { .fd = fd, .events = events };
	int rc = poll(&look, 1, 0);

	note("poll(%s): %d %s", event_names((uint32_t)(unsigned short)events), rc,
	     event_names((uint32_t)(unsigned short)look.revents));
}

void note_error(int fd)
{
	int error = -1;
	socklen_t bytes = sizeof(error);

	MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes));
	note("SO_ERROR: %s", errno_name(error));
}

void take_notices(int fd, uint32_t last)
{
	uint32_t next = 0;

	while (next <= last) {
		char control[128];
		struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
		struct sock_extended_err *notice;
		struct cmsghdr *header;
		ssize_t rc = recvmsg(fd, &message, MSG_ERRQUEUE);

		if (rc < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){ .fd = fd }, 1, -1);
			continue;
		}
		header = CMSG_FIRSTHDR(&message);
		if (rc || !header) {
			note("notice: %zd, flags %#x, control %zu", rc, (unsigned int)message.msg_flags,
			     message.msg_controllen);
			return;
		}
		notice = (void *)CMSG_DATA(header);
		if (notice->ee_origin != SO_EE_ORIGIN_ZEROCOPY || notice->ee_errno || notice->ee_info != next)
			note_wrong("notice of origin %u, error %u, %u to %u instead of from %u", notice->ee_origin,
				   notice->ee_errno, notice->ee_info, notice->ee_data, next);
		next = notice->ee_data + 1;
	}
	note("notices to %u", next - 1);
}

void set_nonblocking(int fd, bool on)
{
	int flags = (int)MUST(fcntl(fd, F_GETFL));

	MUST(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void set_buffers(int fd, int bytes)
{
	MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)));
	MUST(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)));
}

uint64_t kernel_taken(int fd)
{
	struct tcp_info info;
	socklen_t bytes = sizeof(info);

	memset(&info, 0, sizeof(info));
	sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0);
	return info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes;
}

int kernel_state(int fd)
{
	struct tcp_info info;
	socklen_t bytes = sizeof(info);

	memset(&info, 0, sizeof(info));
	sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&bytes, 0);
	return info.tcpi_state;
}

int keep_last_number(int fd)
{
	int fds[5] = { fd }, last = sizeof(fds) / sizeof(fds[0]) - 1;

	for (int i = 1; i <= last; i++)
		fds[i] = (int)MUST(dup(fd));
	for (int i = 0; i < last; i++)
		CALL(close(fds[i]));
	return fds[last];
}

void pass_descriptor(int over, int fd)
{
	char control[CMSG_SPACE(sizeof(fd))] = { 0 };
	struct iovec iov = { (void *)"fd", 2 };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	MUST(sendmsg(over, &message, 0));
}

int take_descriptor(int over)
{
	char control[CMSG_SPACE(sizeof(int))], data[2];
	struct iovec iov = { data, 2 };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	int fd = -1;

	MUST(recvmsg(over, &message, 0));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}
