/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: what a visitor hands over at the rendezvous. The input says how his message is made (length, descriptors of
 * which kind), how the segment is (size, seals) and what stands in it; the real parser takes it from a real socket. It is
 * refused, or mapped whole; either way no descriptor is left.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/sys.h"
#include "rdma/meet.h"

#define MESSAGE_MAX 64
#define GIVEN_MAX 4

/* The first bytes of the input. */
struct recipe {
	uint8_t seals;
	uint8_t descriptors; /* how many, and of which kind */
	uint8_t message_bytes;
	uint8_t same_nonce;
	uint32_t size; /* of the segment, unless it is what the header asks for */
};

static void must(bool holds)
{
	if (!holds)
		abort();
}

static int again(int fd, int flags)
{
	char path[64];
	int other;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	other = open(path, flags | O_CLOEXEC);
	must(other >= 0);
	close(fd);
	return other;
}

static int make_segment(const struct recipe *recipe, const struct channel_header *header, size_t bytes)
{
	uint64_t size = recipe->size % (1u << 24);
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0);
	if (recipe->seals & 0x80)
		size = CHANNEL_HEADER_BYTES + 2ull * header->ring_bytes + 2ull * SOURCE_AREA_BYTES;
	must(!ftruncate(fd, (off_t)size));
	must(pwrite(fd, header, bytes < size ? bytes : size, 0) >= 0);
	must(!fcntl(fd, F_ADD_SEALS, recipe->seals & 0x1f));
	return fd;
}

static int make_descriptor(const struct recipe *recipe, const struct channel_header *header, size_t bytes)
{
	switch (recipe->descriptors >> 5) {
	case 0:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 1:
		return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	case 2:
		return again(make_segment(recipe, header, bytes), O_RDONLY);
	case 3:
		return again(make_segment(recipe, header, bytes), O_PATH);
	default:
		return make_segment(recipe, header, bytes);
	}
}

static void say(int to, const struct recipe *recipe, const struct channel_header *header, size_t bytes)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(GIVEN_MAX * sizeof(int))] = { 0 };
	uint8_t text[MESSAGE_MAX] = { 0 };
	int given[GIVEN_MAX], count = (recipe->descriptors & 0x1f) % (GIVEN_MAX + 1);
	struct iovec iov = { text, recipe->message_bytes % (MESSAGE_MAX + 1) };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *head = (struct cmsghdr *)control;

	for (int i = 0; i < count; i++)
		given[i] = make_descriptor(recipe, header, bytes);
	if (recipe->same_nonce & 1)
		memcpy(text, header->nonce, sizeof(header->nonce));
	if (count) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
		*head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
					  .cmsg_type = SCM_RIGHTS,
					  .cmsg_len = CMSG_LEN((size_t)count * sizeof(int)) };
		memcpy(CMSG_DATA(head), given, (size_t)count * sizeof(int));
	}
	must(sendmsg(to, &message, MSG_DONTWAIT) >= 0);
	for (int i = 0; i < count; i++)
		close(given[i]);
}

/* All of what was mapped can be touched, and is gone afterwards. */
static void use(struct channel *channel)
{
	uint8_t *rings[2] = { channel->out.ring, channel->in.ring };
	uint8_t *areas[2] = { channel->out.area, channel->in.area };
	uint32_t bytes = channel->out.bytes;
	size_t got;

	must(bytes >= LANE_RING_MIN && bytes <= LANE_RING_MAX && !(bytes & (bytes - 1)));
	lane_get(&channel->in, NULL, 0, false, &got);
	must(!got);
	for (int i = 0; i < 2; i++) {
		rings[i][0] = 1;
		rings[i][bytes] = 2;
		rings[i][2 * bytes - 1] = 3;
		must(rings[i][0] == 2 && rings[i][bytes - 1] == 3);
		areas[i][0] = areas[i][SOURCE_AREA_BYTES - 1] = 4;
	}
	channel_close(channel);
	for (int i = 0; i < 2; i++)
		must(msync(rings[i], 2ul * bytes, MS_ASYNC) && errno == ENOMEM);
}

/* Which descriptors are open, of those that one input could leave. */
static uint64_t open_descriptors(int from)
{
	uint64_t mask = 0;

	for (int i = 0; i < 4 * GIVEN_MAX; i++)
		mask |= (uint64_t)(fcntl(from + i, F_GETFD) >= 0) << i;
	return mask;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	uint64_t low = open_descriptors(0), high = open_descriptors(SYS_FD_HIGH);
	struct meet_names names = { .local.ss_family = AF_INET, .peer.ss_family = AF_INET };
	struct channel_header header;
	struct channel channel;
	struct recipe recipe;
	int ends[2], rc;

	if (count < sizeof(recipe))
		return 0;
	memcpy(&recipe, bytes, sizeof(recipe));
	bytes += sizeof(recipe);
	count -= sizeof(recipe);
	count = count < sizeof(header) ? count : sizeof(header);
	memset(&header, 0, sizeof(header));
	memcpy(&header, bytes, count);
	must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	say(ends[0], &recipe, &header, sizeof(header));
	close(ends[0]);
	rc = meet_pick_up(&names, -1, &ends[1], &channel);
	must(rc <= 0 && rc != -EAGAIN && ends[1] == -1);
	if (!rc) {
		/* Nobody can take the memory away again, and both ends can write. */
		must((recipe.seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE)) ==
		     (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
		use(&channel);
	}
	must(open_descriptors(0) == low && open_descriptors(SYS_FD_HIGH) == high);
	return 0;
}
