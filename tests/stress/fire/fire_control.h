/* SPDX-License-Identifier: MIT */
/* A word between the driver and a process. */
#ifndef ZC_FIRE_CONTROL_H
#define ZC_FIRE_CONTROL_H

#include <stdint.h>

struct control {
	char word;
	uint32_t value; /* the server's port; ms; sessions */
	uint32_t least; /* of sessions, however long they take */
	uint32_t wrong;
};

#endif
