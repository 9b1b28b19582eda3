/* SPDX-License-Identifier: MIT */
/* What an end writes and the runner reads: text in a memfd that both have mapped. It outlives an end that is killed. */
#ifndef ZC_CONFORMANCE_TRANSCRIPT_H
#define ZC_CONFORMANCE_TRANSCRIPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define TRANSCRIPT_LINE 512
#define TRANSCRIPT_WRONG "WRONG: "

struct transcript {
	_Atomic size_t used;
	_Atomic bool has_pair;
	char text[(1 << 20) - 2 * sizeof(size_t)];
};

/* Where the runner leaves the descriptors of an end: far above what a case counts, below what it may not raise. */
#define CONTROL_FD 900
#define TRANSCRIPT_FD 901

#endif
