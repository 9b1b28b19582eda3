/* SPDX-License-Identifier: MIT */
/* What the kernel says about the program's memory (pagemap, maps), and the replacing of pages by remapping. */
#define _GNU_SOURCE
#include "rdma/guard_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "common/room.h"

#define PAGEMAP_CHUNK 64 /* entries read at one time: kept on the stack of whoever faults */

/* PROCMAP_QUERY of Linux 6.11 (linux/fs.h), for building with older headers. */
struct procmap_query {
	uint64_t size;
	uint64_t query_flags;
	uint64_t query_addr;
	uint64_t vma_start;
	uint64_t vma_end;
	uint64_t vma_flags;
	uint64_t vma_page_size;
	uint64_t vma_offset;
	uint64_t inode;
	uint32_t dev_major;
	uint32_t dev_minor;
	uint32_t vma_name_size;
	uint32_t build_id_size;
	uint64_t vma_name_addr;
	uint64_t build_id_addr;
};
#define PROCMAP_IOCTL _IOWR('f', 17, struct procmap_query)
#define PROCMAP_READABLE 0x01
#define PROCMAP_WRITABLE 0x02
#define PROCMAP_EXECUTABLE 0x04
#define PROCMAP_SHARED 0x08
#define PROCMAP_COVERING_OR_NEXT 0x10

static int pagemap_fd = -1;
static int maps_fd = -1;
static bool maps_by_text; /* the kernel is older than PROCMAP_QUERY */

static int open_high(const char *path)
{
	long fd = sys_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);

	return fd < 0 ? (int)fd : sys_fd_raise((int)fd);
}

int memory_open(void)
{
	if ((pagemap_fd < 0 || maps_fd < 0) && !room_for_own())
		return -EMFILE;
	if (pagemap_fd < 0) {
		int fd = open_high("/proc/self/pagemap");

		if (fd < 0)
			return fd;
		pagemap_fd = fd;
	}
	if (maps_fd < 0) {
		int fd = open_high("/proc/self/maps");

		if (fd < 0)
			return fd;
		maps_fd = fd;
	}
	return 0;
}

void memory_close(void)
{
	if (pagemap_fd >= 0)
		sys_call(SYS_close, pagemap_fd, 0, 0, 0, 0, 0);
	if (maps_fd >= 0)
		sys_call(SYS_close, maps_fd, 0, 0, 0, 0, 0);
	pagemap_fd = maps_fd = -1;
}

int memory_descriptors(int *out, int count)
{
	int used = 0;

	if (used < count)
		out[used++] = pagemap_fd;
	if (used < count)
		out[used++] = maps_fd;
	return used;
}

bool memory_pages_are(uintptr_t start, uintptr_t end, uint64_t mask, uint64_t want)
{
	uint64_t entries[PAGEMAP_CHUNK];

	while (start < end) {
		size_t pages = (end - start) >> GUARD_PAGE_SHIFT;
		long got;

		if (pages > PAGEMAP_CHUNK)
			pages = PAGEMAP_CHUNK;
		got = sys_call(SYS_pread64, pagemap_fd, (long)entries, (long)(pages * sizeof(entries[0])),
			       (long)((start >> GUARD_PAGE_SHIFT) * sizeof(entries[0])), 0, 0);
		if (got != (long)(pages * sizeof(entries[0])))
			return false;
		for (size_t i = 0; i < pages; i++)
			if ((entries[i] & mask) != want)
				return false;
		start += pages << GUARD_PAGE_SHIFT;
	}
	return true;
}

/* The text form of /proc/self/maps, read in pieces through one buffer (the lock is held). */
static struct {
	char bytes[4096];
	size_t used;
	size_t at;
} text;

static int text_char(void)
{
	if (text.at == text.used) {
		long got = sys_call(SYS_read, maps_fd, (long)text.bytes, sizeof(text.bytes), 0, 0, 0);

		if (got <= 0)
			return -1;
		text.used = (size_t)got;
		text.at = 0;
	}
	return (unsigned char)text.bytes[text.at++];
}

static void text_rewind(void)
{
	sys_call(SYS_lseek, maps_fd, 0, SEEK_SET, 0, 0, 0);
	text.at = text.used = 0;
}

/* Reads a number in hex up to the next character that is none; that one goes to *stop. */
static uint64_t text_hex(int *stop)
{
	uint64_t number = 0;

	for (;;) {
		int c = text_char();
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

		if (digit < 0) {
			*stop = c;
			return number;
		}
		number = number << 4 | (uint64_t)digit;
	}
}

/* One line: START-END rwxp OFFSET MAJOR:MINOR INODE [NAME]. Returns false at the end of the file. */
static bool text_line(struct guard_mapping *out)
{
	char mode[4];
	uint64_t device;
	int c;

	out->start = text_hex(&c);
	if (c != '-')
		return false;
	out->end = text_hex(&c);
	for (int i = 0; i < 4; i++)
		mode[i] = (char)text_char();
	text_char();
	text_hex(&c);
	device = text_hex(&c);
	device |= text_hex(&c);
	device |= text_hex(&c); /* the inode is decimal; all that counts is whether it is 0 */
	while (c != '\n' && c >= 0)
		c = text_char();
	out->protection =
		(mode[0] == 'r' ? PROT_READ : 0) | (mode[1] == 'w' ? PROT_WRITE : 0) | (mode[2] == 'x' ? PROT_EXEC : 0);
	out->plain = mode[3] == 'p' && !device;
	return true;
}

static int mapping_by_text(uintptr_t address, struct guard_mapping *out)
{
	text_rewind();
	while (text_line(out))
		if (out->end > address)
			return 0;
	return -ENOENT;
}

int memory_mapping(uintptr_t address, struct guard_mapping *out)
{
	struct procmap_query query = { .size = sizeof(query),
				       .query_flags = PROCMAP_COVERING_OR_NEXT,
				       .query_addr = address };
	long rc;

	if (maps_by_text)
		return mapping_by_text(address, out);
	rc = sys_call(SYS_ioctl, maps_fd, (long)PROCMAP_IOCTL, (long)&query, 0, 0, 0);
	if (rc == -ENOTTY) {
		maps_by_text = true;
		return mapping_by_text(address, out);
	}
	if (rc < 0)
		return (int)rc;
	out->start = query.vma_start;
	out->end = query.vma_end;
	out->protection = (query.vma_flags & PROCMAP_READABLE ? PROT_READ : 0) |
			  (query.vma_flags & PROCMAP_WRITABLE ? PROT_WRITE : 0) |
			  (query.vma_flags & PROCMAP_EXECUTABLE ? PROT_EXEC : 0);
	out->plain = !(query.vma_flags & PROCMAP_SHARED) && !query.inode && !query.dev_major && !query.dev_minor &&
		     query.vma_page_size == GUARD_PAGE;
	return 0;
}

unsigned long memory_mappings(void)
{
	struct guard_mapping mapping;
	unsigned long count = 0;

	text_rewind();
	while (text_line(&mapping))
		count++;
	return count;
}

unsigned long memory_mappings_max(void)
{
	static unsigned long most;
	char digits[24];
	long fd, got;

	if (most)
		return most;
	most = 65530; /* the kernel's default */
	fd = sys_call(SYS_openat, AT_FDCWD, (long)"/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC, 0, 0, 0);
	if (fd < 0)
		return most;
	got = sys_call(SYS_read, fd, (long)digits, sizeof(digits), 0, 0, 0);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	if (got > 0)
		most = 0;
	for (long i = 0; i < got && digits[i] >= '0' && digits[i] <= '9'; i++)
		most = most * 10 + (unsigned long)(digits[i] - '0');
	return most;
}

int memory_copy(void *to, uintptr_t from, size_t bytes)
{
	struct iovec local = { to, bytes };
	struct iovec remote = { (void *)from, bytes };
	long pid = sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	long got = sys_call(SYS_process_vm_readv, pid, (long)&local, 1, (long)&remote, 1, 0);

	if (got == -ENOSYS || got == -EPERM) { /* not built in, or a sandbox: then a plain copy has to do */
		memcpy(to, (const void *)from, bytes);
		return 0;
	}
	return got == (long)bytes ? 0 : -EFAULT;
}

int memory_replace(uintptr_t start, uintptr_t end, uintptr_t from, bool (*sure)(uintptr_t start, uintptr_t end))
{
	size_t bytes = end - start;
	long fresh = sys_call(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	long moved;
	int rc;

	if (fresh < 0 && fresh > -4096)
		return (int)fresh;
	rc = memory_copy((void *)fresh, from, bytes);
	if (rc)
		goto unmap;
	rc = -ECANCELED;
	if (!sure(start, end))
		goto unmap;
	moved = sys_call(SYS_mremap, fresh, (long)bytes, (long)bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (long)start, 0);
	if (moved == (long)start)
		return 0;
	rc = (int)moved;
unmap:
	sys_call(SYS_munmap, fresh, (long)bytes, 0, 0, 0, 0);
	return rc;
}
