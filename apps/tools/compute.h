/* SPDX-License-Identifier: MIT */
/*
 * Work for the processor: a chain of multiplications in registers, so that it takes no memory bandwidth from what is being
 * measured. The amount is fixed by calibration instead of by looking at the clock: work that is kept waiting, by another
 * thread on its core, then takes longer, as a program's own work would.
 */
#ifndef ZC_TOOLS_COMPUTE_H
#define ZC_TOOLS_COMPUTE_H

#include <stdint.h>

/* Returns how many steps take a microsecond when nothing disturbs. Takes about 20 ms. */
double compute_calibrate(void);

void compute(uint64_t steps);

#endif
