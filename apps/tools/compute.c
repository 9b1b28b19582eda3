/* SPDX-License-Identifier: MIT */
#include "apps/tools/compute.h"

#include "common/clock.h"

#define TRIALS 20
#define TRIAL_STEPS 500000u

void compute(uint64_t steps)
{
	uint64_t x = steps | 1;

	for (uint64_t i = 0; i < steps; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		__asm__ volatile("" : "+r"(x));
	}
}

double compute_calibrate(void)
{
	uint64_t best = UINT64_MAX;

	/* The fastest trial is the one that was disturbed least. */
	for (int i = 0; i < TRIALS; i++) {
		uint64_t before = clock_now(), took;

		compute(TRIAL_STEPS);
		took = clock_now() - before;
		best = took < best ? took : best;
	}
	return (double)TRIAL_STEPS * NS_PER_US / (double)(best ? best : 1);
}
