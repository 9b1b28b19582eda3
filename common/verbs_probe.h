/* SPDX-License-Identifier: MIT */
/* What the plug-in for RDMA (libzc-verbs.so) tells a program that knows nothing of verbs: whether its devices can be used here. */
#ifndef ZC_COMMON_VERBS_PROBE_H
#define ZC_COMMON_VERBS_PROBE_H

#include <stddef.h>

enum verbs_probe {
	VERBS_PROBE_OPENED,	/* one of them at least is of use */
	VERBS_PROBE_NO_DEVICE,	/* libibverbs knows none */
	VERBS_PROBE_NO_ADDRESS, /* an active port, but no GID */
	VERBS_PROBE_USELESS,	/* else */
};

#define VERBS_PROBE_SYMBOL "zc_verbs_probe"

/* Opens the devices. `said` gets what they can do, or why none of them is of use, in a sentence of at most `bytes`. */
typedef enum verbs_probe verbs_probe_function(char *said, size_t bytes);

#endif
