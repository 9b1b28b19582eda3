/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/far_spin.h"

#include "common/clock.h"
#include "common/settings.h"
#include "preload/engine_in.h"

#define BYTES_MOST_NS (8 * NS_PER_MS) /* what takes longer is slept for */
#define PS_PER_NS 1000ul
#define SAVES 8	   /* at least one part in so many */
#define LATELY 8   /* waits */
#define OUTLIER 2u /* times what is known: others had the processor */

static uint32_t lately(const struct far_spin *spin, enum far_look look)
{
	return atomic_load_explicit(&spin->byte_ps[look], memory_order_relaxed);
}

/* Whether a turn is of the kind that is not better: often at first, seldom where that costs much. */
static bool finds_out(uint32_t turn, uint64_t least, uint64_t bytes)
{
	uint64_t dearer = least > bytes ? least : bytes, other = least > bytes ? bytes : least;
	uint32_t every = dearer > other + other / 2 ? FAR_SPIN_SELDOM : FAR_SPIN_ANEW;

	return turn % every == 0 || !(turn & (turn - 1));
}

/* The kind of a wait. The first ones are registrations', too, and what else is done once. */
static enum far_look choose(struct far_wait *wait, struct far_spin *spin)
{
	uint32_t turn = atomic_fetch_add_explicit(&spin->waits, 1, memory_order_relaxed) / spin->turn;
	uint64_t least = lately(spin, FAR_LOOK_LEAST), bytes = lately(spin, FAR_LOOK_BYTES);
	bool better = bytes && least > bytes + bytes / SAVES;

	if (!turn)
		wait->begun = 0;
	if (turn <= FAR_LOOKS)
		return turn == FAR_LOOKS ? FAR_LOOK_BYTES : FAR_LOOK_LEAST;
	if (finds_out(turn, least, bytes))
		better = !better;
	return better ? FAR_LOOK_BYTES : FAR_LOOK_LEAST;
}

/* Half as much again as it takes, as it varies. What takes longer than the longest look is not looked for. */
static uint32_t bytes_ns(const struct far_spin *spin, size_t bytes)
{
	uint32_t known = lately(spin, FAR_LOOK_BYTES), ps = known ? known : lately(spin, FAR_LOOK_LEAST);
	uint64_t ns = bytes * ps / PS_PER_NS * 3 / 2 + (uint64_t)settings.spin_us * 1000;

	return ns < FAR_LOOKS_NS || ns > BYTES_MOST_NS ? FAR_LOOKS_NS : (uint32_t)ns;
}

bool far_wait_looks(struct far_wait *wait, struct far_spin *spin, uint64_t quiet_ns)
{
	if (!wait->looks_ns) {
		if (wait->bytes < FAR_SPIN_LEAST_BYTES || !settings.spin_us)
			wait->begun = 0;
		if (wait->begun)
			wait->look = choose(wait, spin);
		wait->looks_ns = wait->look == FAR_LOOK_BYTES ? bytes_ns(spin, wait->bytes) : FAR_LOOKS_NS;
	}
	if (quiet_ns >= wait->looks_ns)
		return false;
	cpu_relax_some(); /* and asks nobody: the device writes what is waited for into memory */
	return true;
}

void far_wait_ends(const struct far_wait *wait, struct far_spin *spin, bool all, uint64_t now)
{
	uint64_t known = lately(spin, wait->look), ps;

	if (!wait->looks_ns || !wait->begun)
		return;
	ps = (now - wait->begun) * PS_PER_NS / wait->bytes;
	if (known) {
		ps = ps > OUTLIER * known ? OUTLIER * known : ps;
		ps = !all && ps < known ? known : ps;
		ps = (known * (LATELY - 1) + ps + LATELY / 2) / LATELY;
	}
	atomic_store_explicit(&spin->byte_ps[wait->look], (uint32_t)(ps < UINT32_MAX ? ps : UINT32_MAX),
			      memory_order_relaxed);
}
