/* SPDX-License-Identifier: MIT */
/*
 * How long a wait for bytes that a device moves looks at memory before it sleeps: a send's, until its peer has what was announced, and a
 * receive's, for its GETs. Any wait between hosts looks for some round trips (spin.h), which is enough for few bytes or a fast device. To look
 * as long as many bytes take keeps a processor busy, and saves what waking costs, which is little here and more than the bytes themselves
 * there: so what both kinds of wait take is measured, as they are made, and the longer look is taken where it saves a good part of the time.
 */
#ifndef ZC_PRELOAD_FAR_SPIN_H
#define ZC_PRELOAD_FAR_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "preload/spin.h"

struct engine;

#define FAR_LOOKS_NS 20000u /* in any case: hardly more than a sleep costs */

/* The first waits are of either kind, so many in a row; later, one of FAR_SPIN_ANEW is of the kind that is not better. */
#define FAR_SPIN_FIRST 8u
#define FAR_SPIN_ANEW 64u

enum far_look { FAR_LOOK_TRIPS, FAR_LOOK_BYTES, FAR_LOOKS };

/* Of the waits of a connection for one thing. Hints, as in spin.h. */
struct far_spin {
	struct spin spin;
	_Atomic uint32_t waits;
	_Atomic uint32_t byte_ps[FAR_LOOKS]; /* picoseconds a byte, lately; 0: not known */
};

/* One wait: zeroes but for the first three at first. */
struct far_wait {
	struct far_spin *spin; /* NULL: it only looks for FAR_LOOKS_NS */
	uint64_t begun;	       /* ns: before the device was asked; 0: what it takes is not to be known */
	size_t bytes;	       /* that it is for */
	enum far_look look;
	uint32_t trips_ns, bytes_ns; /* it looks for */
	uint64_t quiet_ns;	     /* at the last look */
	bool looks, slept;
};

/* Looks on for a moment, if it is not to sleep: nothing has moved for so long. Returns whether it has. */
bool far_wait_looks(struct far_wait *wait, const struct engine *engine, uint64_t quiet_ns);

/* It is over, at `now` (ns), and has looked at least once. `all`: what it was for is there. */
void far_wait_ends(const struct far_wait *wait, const struct engine *engine, bool all, uint64_t now);

#endif
