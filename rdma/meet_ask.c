/* SPDX-License-Identifier: MIT */
/* What the kernel tells of a connection's other end: who owns it, and whether a packet filter has put another in its place. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "rdma/meet.h"
#include "rdma/meet_internal.h"

/* SO_ORIGINAL_DST of IPv4, IP6T_SO_ORIGINAL_DST: their headers do not go with libc's. */
#define ORIGINAL_DST 80
#define NO_DATA 1 /* a SYN or a FIN is a byte to some of the counts */

struct diag_request {
	struct nlmsghdr head;
	struct inet_diag_req_v2 body;
};

union diag_answer {
	struct nlmsghdr head;
	char bytes[2048];
};

static void fill_request(struct diag_request *request, const struct meet_names *names)
{
	/* The other end's socket: its own address is our peer. */
	struct meet_place own = meet_place_of(&names->peer), peer = meet_place_of(&names->local);

	memset(request, 0, sizeof(*request));
	request->head.nlmsg_len = sizeof(*request);
	request->head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
	request->head.nlmsg_flags = NLM_F_REQUEST;
	request->body.sdiag_family = (uint8_t)own.family;
	request->body.sdiag_protocol = IPPROTO_TCP;
	request->body.idiag_ext = 1 << (INET_DIAG_INFO - 1);
	request->body.idiag_states = ~0u;
	request->body.id.idiag_sport = own.port;
	request->body.id.idiag_dport = peer.port;
	memcpy(request->body.id.idiag_src, own.address, 16);
	memcpy(request->body.id.idiag_dst, peer.address, 16);
	request->body.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
	request->body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
}

/* Returns the answer's length, which is that of a socket's description, or -errno. */
static int read_answer(long fd, union diag_answer *answer)
{
	long got = sys_call(SYS_recvfrom, fd, (long)answer, sizeof(*answer), MSG_DONTWAIT, 0, 0);

	if (got < (long)sizeof(answer->head))
		return got < 0 ? (int)got : -EPROTO;
	if (answer->head.nlmsg_type == NLMSG_ERROR) {
		const struct nlmsgerr *refused = NLMSG_DATA(&answer->head);

		return got >= (long)NLMSG_LENGTH(sizeof(*refused)) && refused->error < 0 ? refused->error : -EPROTO;
	}
	return got < (long)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ? -EPROTO : (int)got;
}

/* Asks for the socket whose addresses are those of `names` swapped. Returns as read_answer. */
static int ask(const struct meet_names *names, union diag_answer *answer)
{
	struct diag_request request;
	long fd, rc;

	if (!meet_is_inet(names))
		return -EAFNOSUPPORT;
	fd = sys_call(SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG, 0, 0, 0);
	if (fd < 0)
		return (int)fd;
	fill_request(&request, names);
	rc = sys_call(SYS_sendto, fd, (long)&request, sizeof(request), MSG_DONTWAIT, 0, 0);
	if (rc >= 0)
		rc = read_answer(fd, answer); /* the kernel answers while it takes the request */
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return (int)rc;
}

int meet_owner(const struct meet_names *names, uid_t *out)
{
	union diag_answer answer;
	int got = ask(names, &answer);
	const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);

	if (got < 0)
		return got;
	*out = found->idiag_uid;
	return 0;
}

/* Before Linux 4.19 nobody tells what has been sent: it is taken for enough. */
static void fill_up(struct tcp_info *counts, size_t bytes)
{
	if (bytes < offsetof(struct tcp_info, tcpi_bytes_retrans))
		counts->tcpi_bytes_sent = UINT64_MAX - NO_DATA;
}

static int own_counts(int fd, struct tcp_info *out)
{
	socklen_t bytes = sizeof(*out);
	int rc;

	memset(out, 0, sizeof(*out));
	rc = (int)sys_call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)out, (long)&bytes, 0);
	fill_up(out, bytes);
	return rc;
}

static int other_counts(const struct meet_names *names, struct tcp_info *out)
{
	union diag_answer answer;
	int got = ask(names, &answer);
	const struct rtattr *at =
		(const void *)((const char *)NLMSG_DATA(&answer.head) + NLMSG_ALIGN(sizeof(struct inet_diag_msg)));
	long left = got - (long)((const char *)at - answer.bytes);

	for (; got >= 0 && RTA_OK(at, left); at = RTA_NEXT(at, left)) {
		size_t bytes = RTA_PAYLOAD(at);

		if (at->rta_type != INET_DIAG_INFO)
			continue;
		memset(out, 0, sizeof(*out));
		memcpy(out, RTA_DATA(at), bytes < sizeof(*out) ? bytes : sizeof(*out));
		fill_up(out, bytes);
		return 0;
	}
	return got < 0 ? got : -EPROTO;
}

/* Whether what one end has sent, and what has been acknowledged of it, goes with what the other has received. */
static bool go_together(const struct tcp_info *from, const struct tcp_info *from_later, const struct tcp_info *to,
			const struct tcp_info *to_later)
{
	return from->tcpi_bytes_acked <= to_later->tcpi_bytes_received + NO_DATA &&
	       to->tcpi_bytes_received <= from_later->tcpi_bytes_sent + NO_DATA;
}

/* Whether two times in milliseconds, taken one after the other, may be the same moment's: by the kernel's tick. */
static bool is_one_moment(uint32_t a, uint32_t b)
{
	struct timespec tick = { 0 };

	clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
	return (a > b ? a - b : b - a) <= 2 * (uint64_t)tick.tv_nsec / NS_PER_MS + 1;
}

int meet_counts_agree(const struct meet_names *names, int fd)
{
	struct tcp_info before, other, after;
	int rc = own_counts(fd, &before);

	if (rc >= 0)
		rc = other_counts(names, &other);
	if (rc >= 0)
		rc = own_counts(fd, &after);
	if (rc < 0)
		return rc;
	if (!go_together(&before, &after, &other, &other) || !go_together(&other, &other, &before, &after))
		return -EXDEV;
	/* At first these are the times since the handshake's end. */
	if (!is_one_moment(after.tcpi_last_data_sent, other.tcpi_last_data_recv) ||
	    !is_one_moment(other.tcpi_last_data_sent, after.tcpi_last_data_recv))
		return -EAGAIN;
	return 0;
}

/* Returns whether a packet filter has seen the connection, with where it went at first. */
static bool is_tracked(const struct meet_place *own, int fd, struct meet_place *asked)
{
	struct sockaddr_storage to = { 0 };
	socklen_t bytes = sizeof(to);

	if (sys_call(SYS_getsockopt, fd, own->family == AF_INET ? SOL_IP : SOL_IPV6, ORIGINAL_DST, (long)&to,
		     (long)&bytes, 0) < 0)
		return false;
	*asked = meet_place_of(&to);
	return true;
}

int meet_is_redirected(const struct meet_names *names, int fd)
{
	struct meet_place own = meet_place_of(&names->local), asked;

	return is_tracked(&own, fd, &asked) && memcmp(&own, &asked, sizeof(own)) != 0;
}

int meet_is_peer(const struct meet_names *names, int fd)
{
	struct meet_place own = meet_place_of(&names->local), asked;

	if (!is_tracked(&own, fd, &asked))
		return 0;
	return memcmp(&own, &asked, sizeof(own)) ? -EXDEV : meet_counts_agree(names, fd);
}
