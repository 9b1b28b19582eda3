/* SPDX-License-Identifier: MIT */
/*
 * How long a wait for bytes that a device moves looks at memory before it sleeps: a send's, until its peer has what was announced, and a
 * receive's, for its GETs. To look for as long as the bytes take keeps a processor busy. It saves what waking costs: little beside many bytes
 * here, as much as the bytes themselves there, and where processors are few it takes from others what it saves. So what waits take is measured,
 * as they are made, with both kinds in turn by all of the process's connections together, and the longer look is taken where it saves a good
 * part of the time.
 */
#ifndef ZC_PRELOAD_FAR_SPIN_H
#define ZC_PRELOAD_FAR_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAR_LOOKS_NS 20000u /* any wait between hosts looks, before it sleeps: hardly more than that costs */

/*
 * Waits are of one kind for a turn. The first turn is not looked at, then there is one of either kind; later, one of so many is of the kind that
 * is not better, the second where that is half again as dear.
 */
#define FAR_SPIN_ANEW 32u
#define FAR_SPIN_SELDOM 256u

/* Waits for less are of the least kind, and say nothing: what they take is not the bytes'. */
#define FAR_SPIN_LEAST_BYTES 16384u

enum far_look { FAR_LOOK_LEAST, FAR_LOOK_BYTES, FAR_LOOKS };

/* Of this process's waits for one thing. Hints: several threads may change one at a time. */
struct far_spin {
	uint32_t
		turn; /* waits. Both ends of a connection wait as often as each other, and must not find out at the same time */
	_Atomic uint32_t waits;
	_Atomic uint32_t byte_ps[FAR_LOOKS]; /* picoseconds a byte, lately; 0: not known */
};

/* One wait: zeroes but for the first two at first. */
struct far_wait {
	uint64_t
		begun; /* ns: before the device was asked; 0: what it takes is not to be known, and it looks the least */
	size_t bytes;  /* that it is for */
	enum far_look look;
	uint32_t looks_ns; /* 0: it has not begun to */
};

/* Looks on for a moment, if it is not to sleep: nothing has moved for so long. Returns whether it has. */
bool far_wait_looks(struct far_wait *wait, struct far_spin *spin, uint64_t quiet_ns);

/* It is over, at `now` (ns). `all`: what it was for is there; else it would have taken longer. */
void far_wait_ends(const struct far_wait *wait, struct far_spin *spin, bool all, uint64_t now);

#endif
