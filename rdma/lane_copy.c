/* SPDX-License-Identifier: MIT */
#include "rdma/lane_copy.h"

#ifdef __x86_64__

#define LINE 64u
#define STEP (2 * LINE) /* more lines under way than one */

typedef long long vector __attribute__((vector_size(32), may_alias));
typedef long long vector_anywhere __attribute__((vector_size(32), may_alias, aligned(1)));

/* The ring's lines are written whole; where the program's bytes are is its own affair. */
static __attribute__((target("avx2"))) void copy_by_vectors(uint8_t *to, const uint8_t *from, size_t bytes)
{
	size_t at = -(uintptr_t)to % LINE;

	memcpy(to, from, LINE);
	for (; at + STEP <= bytes; at += STEP) {
		const vector_anywhere *in = (const vector_anywhere *)(from + at);
		vector *out = (vector *)(to + at);
		const vector a = in[0], b = in[1], c = in[2], d = in[3];

		out[0] = a;
		out[1] = b;
		out[2] = c;
		out[3] = d;
	}
	memcpy(to + at, from + at, bytes - at);
}

void lane_copy_lines(void *to, const void *from, size_t bytes)
{
	if (__builtin_cpu_supports("avx2"))
		copy_by_vectors(to, from, bytes);
	else
		memcpy(to, from, bytes);
}

#else

void lane_copy_lines(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

#endif
