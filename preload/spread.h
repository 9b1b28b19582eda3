/* SPDX-License-Identifier: MIT */
/*
 * Two ends that spin for each other on one core only wait for the scheduler, which leaves them there: at any moment one of them
 * runs. When both have met on a core, one end moves to another, and the scheduler has its way again; if it puts them together
 * again, the next try is a good while later.
 */
#ifndef ZC_PRELOAD_SPREAD_H
#define ZC_PRELOAD_SPREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "preload/engine.h"

/* Tells the peer where this end runs. Under the lock `out`. */
void spread_tell(struct engine *engine);

/* Whether the peer runs on another core, as far as is known; moves this thread to a free one if that is worth a try. */
bool spread_apart(struct engine *engine);

#endif
