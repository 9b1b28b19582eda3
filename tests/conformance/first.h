/* SPDX-License-Identifier: MIT */
#ifndef ZC_CONFORMANCE_FIRST_H
#define ZC_CONFORMANCE_FIRST_H

#include <sys/types.h>

#define FIRST_FD "CORPUS_FIRST_FD" /* environment: the descriptor to receive from */

/* What that recv brought. */
extern struct first {
	ssize_t got;
	int error;
	char data[5];
} first;

#endif
