/* SPDX-License-Identifier: MIT */
/* What newer kernels have for userfaultfd, and older headers have not. */
#ifndef ZC_COMMON_UFFD_H
#define ZC_COMMON_UFFD_H

#include <linux/userfaultfd.h>
#include <stdint.h>
#include <sys/ioctl.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* UFFDIO_POISON and its feature, Linux 6.6. */
struct uffd_poison {
	struct uffdio_range range;
	uint64_t mode;
	int64_t updated;
};
#define UFFD_POISON_FEATURE (1ull << 14)
#define UFFD_POISON_IOCTL _IOWR(UFFDIO, 0x08, struct uffd_poison)

#define UFFD_DONTNEED_LOCKED 24 /* MADV_DONTNEED_LOCKED, Linux 5.18 */

#endif
