/* SPDX-License-Identifier: MIT */
/* What the kernel tells of a connection's other end: who owns it, and whether a packet filter has put another in its place. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "rdma/counts.h"
#include "rdma/meet.h"
#include "rdma/meet_internal.h"

/* SO_ORIGINAL_DST of IPv4, IP6T_SO_ORIGINAL_DST: their headers do not go with libc's. */
#define ORIGINAL_DST 80

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

static int other_counts(const struct meet_names *names, struct counts *out)
{
	union diag_answer answer;
	int got = ask(names, &answer);
	const struct rtattr *at =
		(const void *)((const char *)NLMSG_DATA(&answer.head) + NLMSG_ALIGN(sizeof(struct inet_diag_msg)));
	long left = got - (long)((const char *)at - answer.bytes);

	for (; got >= 0 && RTA_OK(at, left); at = RTA_NEXT(at, left)) {
		if (at->rta_type != INET_DIAG_INFO)
			continue;
		counts_take(RTA_DATA(at), RTA_PAYLOAD(at), out);
		return 0;
	}
	return got < 0 ? got : -EPROTO;
}

/* Two of the kernel's ticks, by which its times are told, in milliseconds. */
static uint32_t two_ticks(void)
{
	struct timespec tick = { 0 };

	clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
	return (uint32_t)(2 * (uint64_t)tick.tv_nsec / NS_PER_MS + 1);
}

int meet_counts_agree(const struct meet_names *names, int fd)
{
	struct counts before, other, after;
	uint32_t slack = two_ticks();
	int rc = counts_own(fd, 0, &before);

	if (rc >= 0)
		rc = other_counts(names, &other);
	if (rc >= 0)
		rc = counts_own(fd, 0, &after);
	if (rc < 0)
		return rc;
	rc = counts_compare(&before, &after, &other, slack);
	/* The machine stood still meanwhile: many would agree. */
	return !rc && after.at - before.at > slack * NS_PER_MS ? -EAGAIN : rc;
}

/* Whether a packet filter has seen the connection, with where it went at first. */
static bool goes_to(const struct meet_place *own, int fd, struct meet_place *asked)
{
	struct sockaddr_storage to = { 0 };
	socklen_t bytes = sizeof(to);

	if (sys_call(SYS_getsockopt, fd, own->family == AF_INET ? SOL_IP : SOL_IPV6, ORIGINAL_DST, (long)&to,
		     (long)&bytes, 0) < 0)
		return false;
	*asked = meet_place_of(&to);
	return true;
}

bool meet_is_tracked(const struct meet_names *names, int fd)
{
	struct meet_place own = meet_place_of(&names->local), asked;

	return goes_to(&own, fd, &asked);
}

int meet_is_redirected(const struct meet_names *names, int fd)
{
	struct meet_place own = meet_place_of(&names->local), asked;

	return goes_to(&own, fd, &asked) && memcmp(&own, &asked, sizeof(own)) != 0;
}

int meet_is_peer(const struct meet_names *names, int fd)
{
	struct meet_place own = meet_place_of(&names->local), asked;

	if (!goes_to(&own, fd, &asked))
		return 0;
	return memcmp(&own, &asked, sizeof(own)) ? -EXDEV : meet_counts_agree(names, fd);
}
