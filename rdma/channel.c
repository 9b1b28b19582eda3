/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "rdma/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/sys.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert(sizeof(struct channel_header) <= CHANNEL_HEADER_BYTES, "the header has one page");

static uint64_t segment_bytes(uint32_t ring_bytes)
{
	return CHANNEL_HEADER_BYTES + 2ull * ring_bytes;
}

/* Maps header and rings of a segment whose size and ring_bytes are known to fit. */
static int map_segment(struct channel *channel, int fd, uint32_t ring_bytes, enum channel_end end)
{
	long at = sys_call(SYS_mmap, 0, CHANNEL_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct lane lanes[2];
	int rc;

	if (at < 0 && at > -4096)
		return (int)at;
	channel->header = (struct channel_header *)at;
	for (int i = 0; i < 2; i++) {
		rc = lane_map(&lanes[i], &channel->header->lane[i], fd, CHANNEL_HEADER_BYTES + (off_t)i * ring_bytes,
			      ring_bytes);
		if (rc < 0)
			goto unmap;
		*(i == (int)end ? &channel->out : &channel->in) = lanes[i];
	}
	return 0;
unmap:
	channel_close(channel);
	return rc;
}

int channel_make(struct channel *channel, uint32_t ring_bytes)
{
	long fd, rc;

	memset(channel, 0, sizeof(*channel));
	channel->fd = -1;
	if (ring_bytes < LANE_RING_MIN || ring_bytes > LANE_RING_MAX || ring_bytes & (ring_bytes - 1))
		return -EINVAL;
	fd = sys_call(SYS_memfd_create, (long)"zc-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING, 0, 0, 0, 0);
	if (fd < 0)
		return (int)fd;
	fd = sys_fd_raise((int)fd);
	rc = sys_call(SYS_ftruncate, fd, (long)segment_bytes(ring_bytes), 0, 0, 0, 0);
	if (rc >= 0)
		rc = sys_call(SYS_fcntl, fd, F_ADD_SEALS, SEALS, 0, 0, 0);
	if (rc >= 0)
		rc = map_segment(channel, (int)fd, ring_bytes, CHANNEL_ACCEPTING);
	if (rc >= 0)
		rc = sys_call(SYS_getrandom, (long)channel->header->nonce, CHANNEL_NONCE_BYTES, 0, 0, 0, 0);
	if (rc < 0)
		goto close_all;
	channel->fd = (int)fd;
	channel->header->ring_bytes = ring_bytes;
	channel->header->version = CHANNEL_VERSION;
	channel->header->magic = CHANNEL_MAGIC;
	return 0;
close_all:
	channel_close(channel);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return (int)rc;
}

/* Reads the part of the header that decides how to map, once, by read: the peer may change it at any time. */
static int read_header(int fd, struct channel_header *out)
{
	long got = sys_call(SYS_pread64, fd, (long)out, sizeof(*out), 0, 0, 0);

	if (got != (long)sizeof(*out))
		return got < 0 ? (int)got : -EPROTO;
	if (out->magic != CHANNEL_MAGIC)
		return -EPROTO;
	return out->version == CHANNEL_VERSION ? 0 : -EPROTONOSUPPORT;
}

int channel_take(struct channel *channel, int fd)
{
	struct channel_header header;
	struct stat info;
	uint32_t ring;
	int rc;

	memset(channel, 0, sizeof(*channel));
	channel->fd = -1;
	if ((sys_call(SYS_fcntl, fd, F_GET_SEALS, 0, 0, 0, 0) & (SEALS | F_SEAL_WRITE)) != SEALS)
		return -EPROTO; /* an error number has other bits too, and F_SEAL_WRITE would leave us unable to answer */
	if (sys_call(SYS_fstat, fd, (long)&info, 0, 0, 0, 0) < 0)
		return -EPROTO;
	rc = read_header(fd, &header);
	if (rc < 0)
		return rc;
	ring = header.ring_bytes;
	if (ring < LANE_RING_MIN || ring > LANE_RING_MAX || ring & (ring - 1) ||
	    (uint64_t)info.st_size != segment_bytes(ring))
		return -EPROTO;
	return map_segment(channel, fd, ring, CHANNEL_CONNECTING);
}

void channel_close(struct channel *channel)
{
	lane_unmap(&channel->out);
	lane_unmap(&channel->in);
	if (channel->header)
		sys_call(SYS_munmap, (long)channel->header, CHANNEL_HEADER_BYTES, 0, 0, 0, 0);
	if (channel->fd >= 0)
		sys_call(SYS_close, channel->fd, 0, 0, 0, 0, 0);
	channel->header = NULL;
	channel->fd = -1;
}
