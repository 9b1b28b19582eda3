/* SPDX-License-Identifier: MIT */
/* Checks of what the network stack offers. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/zc/doctor.h"

#define ZEROCOPY_BYTES (64 * 1024)
#define NOTICE_WAIT_MS 5000
#define OPTMEM_GOOD 131072 /* the kernel's default since 6.7 */
#define OPTMEM_OF_ONE 1024 /* about what a notice takes, by its struct sk_buff and what hangs on it */

int doctor_connect(int fds[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int rc;

	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fds[1] = -1;
	if (listener >= 0 && fds[0] >= 0 && !bind(listener, (struct sockaddr *)&address, bytes) &&
	    !listen(listener, 1) && !getsockname(listener, (struct sockaddr *)&address, &bytes) &&
	    !connect(fds[0], (struct sockaddr *)&address, bytes))
		fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	rc = fds[1] < 0 ? -errno : 0;
	if (rc && fds[0] >= 0)
		close(fds[0]);
	if (listener >= 0)
		close(listener);
	return rc;
}

/* Waits for the completion of one send. Returns 1 if the kernel copied, 0 if not, or -errno. */
static int read_notice(int fd)
{
	struct pollfd wait = { .fd = fd };
	char control[128];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };
	const struct sock_extended_err *error;
	struct cmsghdr *part;

	if (poll(&wait, 1, NOTICE_WAIT_MS) != 1)
		return -ETIMEDOUT;
	if (recvmsg(fd, &message, MSG_ERRQUEUE) < 0)
		return -errno;
	part = CMSG_FIRSTHDR(&message);
	if (!part)
		return -EPROTO;
	error = (const void *)CMSG_DATA(part);
	return error->ee_origin != SO_EE_ORIGIN_ZEROCOPY   ? -EPROTO :
	       error->ee_code & SO_EE_CODE_ZEROCOPY_COPIED ? 1 :
							     0;
}

/* Returns as read_notice(); *step names what failed. */
static int try_zerocopy(const int fds[2], const char **step)
{
	char *data = mmap(NULL, ZEROCOPY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int on = 1;
	ssize_t got;
	int rc;

	*step = "setsockopt(SO_ZEROCOPY)";
	rc = data == MAP_FAILED || setsockopt(fds[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) ? -errno : 0;
	if (!rc) {
		*step = "send(MSG_ZEROCOPY)";
		got = send(fds[0], data, ZEROCOPY_BYTES, MSG_ZEROCOPY | MSG_DONTWAIT | MSG_NOSIGNAL);
		rc = got < 0 ? -errno : 0;
		for (ssize_t left = got; !rc && left > 0;) {
			ssize_t part = recv(fds[1], data, ZEROCOPY_BYTES, 0);

			rc = part < 0 ? -errno : 0;
			left -= part > 0 ? part : left;
		}
	}
	if (!rc) {
		*step = "the completion notice";
		rc = read_notice(fds[0]);
	}
	if (data != MAP_FAILED)
		munmap(data, ZEROCOPY_BYTES);
	return rc;
}

void doctor_so_zerocopy(struct finding *out)
{
	const char *step = "a loopback connection";
	int fds[2], rc = doctor_connect(fds);

	if (!rc) {
		rc = try_zerocopy(fds, &step);
		close(fds[0]);
		close(fds[1]);
	}
	if (rc < 0) {
		finding_is(out, HEALTH_MISSING, "%s: %s%s", step, strerror(-rc),
			   rc == -ENOBUFS ? ": see the row memlock limit" : "");
		finding_means(out, "nothing is sent by zerocopy");
	} else {
		finding_is(out, HEALTH_OK, "works; over loopback the kernel %s",
			   rc ? "copies all the same, so that auto does without it there" : "did not copy");
	}
}

void doctor_optmem_max(struct finding *out)
{
	char line[32];
	unsigned long bytes;
	int rc = doctor_read_line("/proc/sys/net/core/optmem_max", line, sizeof(line));

	if (rc) {
		/* Before Linux 6.7 other network namespaces than the first did not show it. */
		finding_is(out, HEALTH_LIMITED, "not shown here (%s)", strerror(-rc));
		finding_means(out, "it is the machine's; to be seen in its first network namespace");
		return;
	}
	bytes = strtoul(line, NULL, 10);
	finding_is(out, bytes >= OPTMEM_GOOD ? HEALTH_OK : HEALTH_LIMITED, "%lu bytes", bytes);
	if (bytes < OPTMEM_GOOD)
		finding_means(out,
			      "room for about %lu zero-copy sends of a connection at one time: those beyond take copy, "
			      "with the reason enobufs",
			      bytes / OPTMEM_OF_ONE);
}
