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

_Atomic bool channel_is_locked;

#define MAPPINGS 3u	      /* of each channel */
#define MAPPINGS_USUAL 65530u /* vm.max_map_count, where the kernel does not say */

static _Atomic uint32_t mapped_channels; /* a child has its parent's */
static _Atomic uint32_t channels_max;	 /* 0: not known yet */

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert(sizeof(struct channel_header) <= CHANNEL_HEADER_BYTES, "the header has one page");

static uint64_t segment_bytes(uint32_t ring_bytes)
{
	return CHANNEL_HEADER_BYTES + 2ull * ring_bytes + 2ull * SOURCE_AREA_BYTES;
}

/* vm.max_map_count: asked once, for it costs three system calls. */
static uint32_t mappings_max(void)
{
	char text[16] = "";
	uint32_t most = 0;
	long fd = sys_call(SYS_openat, AT_FDCWD, (long)"/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC, 0, 0, 0);

	if (fd >= 0) {
		sys_call(SYS_read, fd, (long)text, sizeof(text) - 1, 0, 0, 0);
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	}
	for (const char *at = text; *at >= '0' && *at <= '9' && most < UINT32_MAX / 16; at++)
		most = most * 10 + (uint32_t)(*at - '0');
	return most ? most : MAPPINGS_USUAL;
}

bool channel_has_room(void)
{
	uint32_t most = atomic_load_explicit(&channels_max, memory_order_relaxed);

	if (!most) {
		most = mappings_max() / 2 / MAPPINGS;
		atomic_store_explicit(&channels_max, most ? most : 1, memory_order_relaxed);
	}
	return atomic_load_explicit(&mapped_channels, memory_order_relaxed) < most;
}

/* In memory each ring is there twice. */
static long mapped_bytes(uint32_t ring_bytes)
{
	return (long)segment_bytes(ring_bytes) + 2l * ring_bytes;
}

/* Returns 0 or -errno. */
static long unlock(long at, long bytes, int access)
{
	long rc = sys_call(SYS_munlock, at, bytes, 0, 0, 0, 0);

	return rc < 0 ? rc : sys_call(SYS_mprotect, at, bytes, access, 0, 0, 0);
}

/*
 * Maps the segment as header, ring 0 | ring 0, ring 1 | ring 1, areas: what is neighbour in the segment is in memory, too, so
 * that three mappings do for all; a process has only some 65000 of them. Returns the address or -errno.
 */
static long map_twice(int fd, uint32_t ring_bytes)
{
	/* Memory that is locked as it is mapped is filled as well, all 12 MiB, but for what can't be accessed yet. */
	const bool locked = atomic_load_explicit(&channel_is_locked, memory_order_relaxed);
	const int access = PROT_READ | PROT_WRITE;
	const long ring = ring_bytes;
	const struct {
		long offset, bytes;
	} pieces[] = { { 0, CHANNEL_HEADER_BYTES + ring },
		       { CHANNEL_HEADER_BYTES, 2 * ring },
		       { CHANNEL_HEADER_BYTES + ring, ring + 2l * SOURCE_AREA_BYTES } };
	long base = sys_call(SYS_mmap, 0, mapped_bytes(ring_bytes), PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	long at = base;

	if (base < 0 && base > -4096)
		return base;
	for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
		long rc = sys_call(SYS_mmap, at, pieces[i].bytes, locked ? PROT_NONE : access, MAP_SHARED | MAP_FIXED,
				   fd, pieces[i].offset);

		if (rc >= 0 && locked)
			rc = unlock(at, pieces[i].bytes, access);
		if (rc < 0 && rc > -4096) {
			sys_call(SYS_munmap, base, mapped_bytes(ring_bytes), 0, 0, 0, 0);
			return rc;
		}
		at += pieces[i].bytes;
	}
	return base;
}

/* Maps a segment whose size and ring_bytes are known to fit. */
static int map_segment(struct channel *channel, int fd, uint32_t ring_bytes, enum channel_end end)
{
	long base = map_twice(fd, ring_bytes);
	uint8_t *rings;

	if (base < 0 && base > -4096)
		return (int)base;
	atomic_fetch_add_explicit(&mapped_channels, 1, memory_order_relaxed);
	rings = (uint8_t *)base + CHANNEL_HEADER_BYTES;
	channel->header = (struct channel_header *)base;
	for (uint32_t i = 0; i < 2; i++) {
		*(i == end ? &channel->out : &channel->in) = (struct lane){
			.shared = &channel->header->lane[i],
			.ring = rings + (size_t)i * 2 * ring_bytes,
			.bytes = ring_bytes,
			.area = rings + 4ull * ring_bytes + (size_t)i * SOURCE_AREA_BYTES,
			.area_bytes = SOURCE_AREA_BYTES,
			.sources = &channel->header->sources[i],
		};
	}
	return 0;
}

void channel_open_sources(struct channel *channel, const struct transport_ops *transport, const uint8_t *identity)
{
	source_out_open(&channel->sources_out, transport, identity);
	source_in_open(&channel->sources_in, transport, identity, channel->peer);
	channel->out.out = &channel->sources_out;
	channel->in.in = &channel->sources_in;
}

int channel_make(struct channel *channel, uint32_t ring_bytes)
{
	long fd, rc;

	memset(channel, 0, sizeof(*channel));
	channel->fd = -1;
	if (ring_bytes < LANE_RING_MIN || ring_bytes > LANE_RING_MAX || ring_bytes & (ring_bytes - 1))
		return -EINVAL;
	if (!sys_file_may_have(segment_bytes(ring_bytes)))
		return -EFBIG;
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
	long seals;
	int rc;

	memset(channel, 0, sizeof(*channel));
	channel->fd = -1;
	/* Before anything else: what has seals is memory, and no file system of the peer's that lets us wait. */
	seals = sys_call(SYS_fcntl, fd, F_GET_SEALS, 0, 0, 0, 0);
	if (seals < 0 || (seals & (SEALS | F_SEAL_WRITE)) != SEALS)
		return -EPROTO; /* F_SEAL_WRITE would leave us unable to answer */
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

static void begin_lane(struct lane *lane, uint64_t position)
{
	memset(lane->shared, 0, sizeof(*lane->shared));
	memset(lane->sources, 0, sizeof(*lane->sources));
	atomic_store(&lane->shared->tail, position);
	atomic_store(&lane->shared->head, position);
	atomic_store(&lane->shared->seen, position);
	lane->head_known = lane->tail_known = position;
	lane->codes = lane->passed_codes = 0;
}

void channel_begin_at(struct channel *channel, uint64_t position)
{
	begin_lane(&channel->out, position);
	begin_lane(&channel->in, position);
}

bool channel_died_unread(const struct channel *channel)
{
	const struct lane_shared *in = channel->in.shared, *out = channel->out.shared;

	return !atomic_load(&in->shut) && !atomic_load(&out->gone) && !lane_leaves(&channel->out) &&
	       !lane_has_left(&channel->in) && lane_backlog(&channel->out) > 0;
}

void channel_empty(struct channel *channel)
{
	sys_call(SYS_madvise, (long)channel->header, mapped_bytes(channel->out.bytes), MADV_REMOVE, 0, 0, 0);
}

void channel_close(struct channel *channel)
{
	if (channel->out.out)
		source_out_close(channel->out.out);
	if (channel->header) {
		sys_call(SYS_munmap, (long)channel->header, mapped_bytes(channel->out.bytes), 0, 0, 0, 0);
		atomic_fetch_sub_explicit(&mapped_channels, 1, memory_order_relaxed);
	}
	if (channel->fd >= 0)
		sys_call(SYS_close, channel->fd, 0, 0, 0, 0, 0);
	channel->header = NULL;
	channel->out.out = NULL;
	channel->in.in = NULL;
	channel->fd = -1;
}
