/* SPDX-License-Identifier: MIT */
/* The segment of stats.h. */
#define _GNU_SOURCE
#include "common/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/room.h"
#include "common/sys.h"
#include "common/version.h"

#define ROW(id, name, help) { name, help },
const struct stat_row stat_path_rows[STAT_PATH_COUNT] = {
#define ZC_STAT_PATH ROW
#include "common/stats.def"
};
const struct stat_row stat_conn_rows[STAT_CONN_COUNT] = {
#define ZC_STAT_CONN ROW
#include "common/stats.def"
};
const struct stat_row stat_process_rows[STAT_PROCESS_COUNT] = {
#define ZC_STAT_PROCESS ROW
#include "common/stats.def"
};
const struct stat_row stat_reason_rows[REASON_COUNT] = {
#define ZC_REASON ROW
#include "common/stats.def"
};

struct stats_segment *stats;
static _Atomic int stats_fd = -1;

#define PUBLISH_WAIT_S 10
#define NAME_BYTES 512
#define FILE_UNFINISHED "%s/.zc-%d.unfinished"
#define FILE_FINISHED "%s/zc-%d.stats"
/* Whether the segment is where readers find it; while it is being put there, the number of the thread that does. */
enum { PUBLISHED = -1, PRIVATE };
static _Atomic int stats_public = PRIVATE;
_Atomic bool stats_inherited;

static uint64_t hash_text(uint64_t hash, const char *text)
{
	do {
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull; /* FNV-1a */
	} while (*text++);
	return hash;
}

uint64_t stats_layout(void)
{
	uint64_t hash = 0xcbf29ce484222325ull ^ sizeof(struct stats_segment);

#define ZC_STAT_PATH(id, name, help) hash = hash_text(hash, name);
#define ZC_STAT_CONN(id, name, help) hash = hash_text(hash, name);
#define ZC_STAT_PROCESS(id, name, help) hash = hash_text(hash, name);
#define ZC_REASON(id, name, help) hash = hash_text(hash, name);
#include "common/stats.def"
	for (int i = 0; i < PATH_COUNT; i++)
		hash = hash_text(hash, path_name((enum zc_path)i));
	return hash;
}

static void *map_at(void *address, int flags, int fd)
{
	long at = sys_call(SYS_mmap, (long)address, sizeof(struct stats_segment), PROT_READ | PROT_WRITE,
			   flags | MAP_NORESERVE, fd, 0);

	return at < 0 && at > -4096 ? MAP_FAILED : (void *)at;
}

int stats_start(void)
{
	void *at = map_at(NULL, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	if (at == MAP_FAILED)
		return -ENOMEM;
	stats = at;
	return 0;
}

static void read_program(char *out, size_t bytes)
{
	long fd = sys_call(SYS_openat, AT_FDCWD, (long)"/proc/self/comm", O_RDONLY | O_CLOEXEC, 0, 0, 0);
	long got = fd < 0 ? 0 : sys_call(SYS_read, fd, (long)out, (long)bytes - 1, 0, 0, 0);

	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	if (got < 0)
		got = 0;
	if (got && out[got - 1] == '\n')
		got--;
	out[got] = '\0';
}

/*
 * Opens the segment's file, or a memfd where no directory is set. The file gets its name from name_segment() once it is
 * complete: a reader may come at any time. Returns a descriptor or -errno.
 */
static long open_segment(int pid)
{
	char name[NAME_BYTES];

	if (!settings.stats_dir)
		return sys_call(SYS_memfd_create, (long)STATS_MEMFD_NAME, MFD_CLOEXEC, 0, 0, 0, 0);
	if (log_format(name, sizeof(name), FILE_UNFINISHED, settings.stats_dir, pid) >= sizeof(name))
		return -ENAMETOOLONG;
	return sys_call(SYS_openat, AT_FDCWD, (long)name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600, 0,
			0);
}

static void name_segment(int pid)
{
	char from[NAME_BYTES], to[NAME_BYTES];
	long status;

	if (!settings.stats_dir)
		return;
	log_format(from, sizeof(from), FILE_UNFINISHED, settings.stats_dir, pid);
	log_format(to, sizeof(to), FILE_FINISHED, settings.stats_dir, pid);
	status = sys_call(SYS_renameat2, AT_FDCWD, (long)from, AT_FDCWD, (long)to, 0, 0);
	if (status < 0) {
		log_warn("statistics can't be named %s: errno %d", to, (int)-status);
		sys_call(SYS_unlinkat, AT_FDCWD, (long)from, 0, 0, 0, 0);
	}
}

static void copy_words(void *to, const void *from, size_t bytes)
{
	_Atomic uint64_t *into = to;
	const _Atomic uint64_t *out = from;

	for (size_t i = 0; i < bytes / sizeof(*into); i++)
		atomic_store_explicit(&into[i], atomic_load_explicit(&out[i], memory_order_relaxed),
				      memory_order_relaxed);
}

/* Copies what was counted privately so far into the new segment, word by word: other threads go on counting. */
static void carry_over(struct stats_segment *to, const struct stats_segment *from)
{
	uint32_t used = atomic_load(&from->slots_used);

	copy_words(to->process, from->process, sizeof(to->process));
	copy_words(to->trial, from->trial, sizeof(to->trial));
	copy_words(to->host, from->host, sizeof(to->host));
	copy_words(to->slot, from->slot, (used ? used : 1) * sizeof(to->slot[0]));
	atomic_store(&to->slots_used, used);
}

/*
 * What is counted while the counters move is lost, so others wait: a few system calls, however late the machine gets to them.
 * Not if it is this very thread that moves them, interrupted by a signal.
 */
static void await_publisher(int self)
{
	const struct timespec most = { PUBLISH_WAIT_S, 0 };
	int state = atomic_load(&stats_public);

	while (state != PUBLISHED && state != PRIVATE && state != self) {
		if (sys_call(SYS_futex, (long)&stats_public, FUTEX_WAIT_PRIVATE, state, (long)&most, 0, 0) ==
		    -ETIMEDOUT) /* its thread was cancelled in the middle: as it is, then */
			atomic_store(&stats_public, PUBLISHED);
		state = atomic_load(&stats_public);
	}
}

static void publishing_ends(void)
{
	atomic_store(&stats_inherited, false);
	atomic_store(&stats_public, PUBLISHED);
	sys_call(SYS_futex, (long)&stats_public, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

void stats_publish(void)
{
	struct stats_segment *segment;
	int expected = PRIVATE, self, pid;
	long fd;

	if (atomic_load_explicit(&stats_public, memory_order_acquire) == PUBLISHED)
		return;
	self = (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
	pid = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	if (!atomic_compare_exchange_strong(&stats_public, &expected, self)) {
		await_publisher(self);
		return;
	}
	fd = !room_for_own() ? -EMFILE : !sys_file_may_have(sizeof(*segment)) ? -EFBIG : open_segment(pid);
	if (fd < 0 || sys_call(SYS_ftruncate, fd, sizeof(*segment), 0, 0, 0, 0) < 0)
		goto close_fd;
	fd = sys_fd_raise((int)fd);
	segment = map_at(NULL, MAP_SHARED, (int)fd);
	if (segment == MAP_FAILED)
		goto close_fd;
	segment->layout = stats_layout();
	segment->bytes = sizeof(*segment);
	segment->pid = pid;
	segment->slots = STATS_SLOTS;
	segment->started_ns = clock_now();
	read_program(segment->program, sizeof(segment->program));
	log_format(segment->version, sizeof(segment->version), "%s", ZC_VERSION);
	carry_over(segment, stats);
	atomic_store(&segment->magic, STATS_MAGIC);
	name_segment(pid);
	/* Same address, so that nobody's pointer changes. */
	if (map_at(stats, MAP_SHARED | MAP_FIXED, (int)fd) != MAP_FAILED)
		atomic_store(&stats_fd, (int)fd);
	sys_call(SYS_munmap, (long)segment, sizeof(*segment), 0, 0, 0, 0);
	publishing_ends();
	return;
close_fd:
	log_warn("statistics stay private: errno %d", fd < 0 ? (int)-fd : ENOSPC);
	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	publishing_ends(); /* once is enough */
}

void stats_after_fork(void)
{
	int fd = atomic_load(&stats_fd);

	if (!stats || atomic_load(&stats_public) == PRIVATE)
		return;
	/* Same address, so that nobody's pointer changes. */
	if (map_at(stats, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1) == MAP_FAILED)
		return;
	if (fd >= 0)
		sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	atomic_store(&stats_fd, -1);
	atomic_store(&stats_inherited, true);
	atomic_store(&stats_public, PRIVATE);
}

static void use_slot(uint32_t i, enum stats_role role, enum zc_path policy, int fd)
{
	struct stats_slot *slot = &stats->slot[i];
	uint32_t used = atomic_load(&stats->slots_used);

	slot->role = role;
	slot->policy = policy;
	slot->fd = fd;
	slot->opened_ns = clock_now();
	while (used <= i && !atomic_compare_exchange_weak(&stats->slots_used, &used, i + 1))
		;
}

void stats_slot_keep(uint32_t slot, enum stats_role role, enum zc_path policy, int fd)
{
	if (!slot)
		return;
	atomic_store(&stats->slot[slot].state, STATS_OPEN);
	use_slot(slot, role, policy, fd);
}

void stats_slot_name(uint32_t slot, const void *local, const void *peer)
{
	if (!slot)
		return;
	memcpy(stats->slot[slot].local, local, STATS_ADDRESS_BYTES);
	memcpy(stats->slot[slot].peer, peer, STATS_ADDRESS_BYTES);
}

/* Claims a free slot, looking from where the last one was found. Returns 0 if there is none. */
static uint32_t claim_slot(void)
{
	static _Atomic uint32_t hint = 1;
	uint32_t start = atomic_load_explicit(&hint, memory_order_relaxed);

	for (uint32_t n = 0; n < STATS_SLOTS - 1; n++) {
		uint32_t i = 1 + (start - 1 + n) % (STATS_SLOTS - 1);
		uint32_t state = STATS_FREE;

		if (!atomic_compare_exchange_strong(&stats->slot[i].state, &state, STATS_OPEN))
			continue;
		atomic_store_explicit(&hint, i, memory_order_relaxed);
		return i;
	}
	return 0;
}

uint32_t stats_slot_open(enum stats_role role, enum zc_path policy, int fd)
{
	uint32_t i = claim_slot();

	stats_process(STAT_PROCESS_CONNECTIONS, 1);
	if (i)
		use_slot(i, role, policy, fd);
	return i;
}

static void drain(_Atomic uint64_t *into, _Atomic uint64_t *from, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		/* Nearly all are zero. */
		if (atomic_load_explicit(&from[i], memory_order_relaxed))
			stats_add(&into[i], atomic_exchange_explicit(&from[i], 0, memory_order_relaxed));
	}
}

void stats_slot_close(uint32_t i)
{
	struct stats_slot *slot = &stats->slot[i], *sum = &stats->slot[0];
	uint32_t timed;

	if (!i)
		return;
	drain(&sum->path[0][0], &slot->path[0][0], PATH_COUNT * STAT_PATH_COUNT);
	/* Two counters of three are latencies, of which a connection that ends soon has none: to look at them was most of what its close cost. */
	timed = atomic_exchange_explicit(&slot->timed, 0, memory_order_acquire);
	for (uint32_t path = 0; timed >> path; path++) {
		if (timed >> path & 1)
			drain(sum->latency[path], slot->latency[path], STATS_LATENCY_BUCKETS);
	}
	drain(sum->reason, slot->reason, REASON_COUNT);
	drain(sum->conn, slot->conn, STAT_CONN_COUNT);
	memset(slot->local, 0, sizeof(slot->local));
	memset(slot->peer, 0, sizeof(slot->peer));
	atomic_store_explicit(&slot->state, STATS_FREE, memory_order_release);
}

int stats_hide(void)
{
	return atomic_exchange(&stats_fd, -1);
}

int stats_descriptor(void)
{
	return atomic_load_explicit(&stats_fd, memory_order_relaxed);
}

/* Says whether a segment with this header, in a file of `bytes`, is one that this build can read. */
static int check(const struct stats_segment *header, off_t bytes)
{
	if (atomic_load(&header->magic) != STATS_MAGIC)
		return -EPROTO;
	if (header->layout != stats_layout() || header->bytes != sizeof(*header))
		return -EPROTONOSUPPORT;
	return bytes == sizeof(*header) && atomic_load(&header->slots_used) <= STATS_SLOTS ? 0 : -EPROTO;
}

/* Returns the size of what can be a segment, or -errno. */
static off_t size_of(int fd)
{
	struct stat info;

	if (fstat(fd, &info) < 0)
		return -errno;
	return S_ISREG(info.st_mode) && info.st_size >= (off_t)offsetof(struct stats_segment, slot) ? info.st_size :
												      -EPROTO;
}

int stats_map(int fd, const struct stats_segment **out)
{
	off_t bytes = size_of(fd);
	struct stats_segment *segment;
	int rc;

	if (bytes < 0)
		return (int)bytes;
	segment = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (segment == MAP_FAILED)
		return -errno;
	rc = check(segment, bytes);
	if (rc)
		munmap(segment, (size_t)bytes);
	else
		*out = segment;
	return rc;
}

/* Returns 0 with all of the bytes, -EPROTO where the file ends early, or -errno. */
static int read_all(int fd, void *out, size_t bytes, off_t offset)
{
	while (bytes) {
		ssize_t got = pread(fd, out, bytes, offset);

		if (got <= 0)
			return got ? -errno : -EPROTO;
		out = (char *)out + got;
		offset += got;
		bytes -= (size_t)got;
	}
	return 0;
}

int stats_read(int fd, const struct stats_segment **out)
{
	const size_t header = offsetof(struct stats_segment, slot);
	off_t bytes = size_of(fd);
	struct stats_segment *copy;
	uint32_t used;
	int rc;

	if (bytes < 0)
		return (int)bytes;
	copy = mmap(NULL, sizeof(*copy), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (copy == MAP_FAILED)
		return -ENOMEM;
	rc = read_all(fd, copy, header, 0);
	if (!rc)
		rc = check(copy, bytes);
	if (rc)
		goto unmap;
	used = atomic_load(&copy->slots_used);
	rc = read_all(fd, copy->slot, (used ? used : 1) * sizeof(copy->slot[0]), (off_t)header);
	if (rc)
		goto unmap;
	*out = copy;
	return 0;
unmap:
	munmap(copy, sizeof(*copy));
	return rc;
}

void stats_unmap(const struct stats_segment *segment)
{
	munmap((void *)segment, sizeof(*segment));
}
