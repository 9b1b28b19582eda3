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

/* The kind of the next wait. */
static enum far_look choose(struct far_spin *spin)
{
	uint32_t waits = atomic_fetch_add_explicit(&spin->waits, 1, memory_order_relaxed);
	uint32_t trips = spin_get(&spin->byte_ps[FAR_LOOK_TRIPS]), bytes = spin_get(&spin->byte_ps[FAR_LOOK_BYTES]);
	bool better = bytes && trips > bytes + bytes / SAVES;

	if (waits < 2 * FAR_SPIN_FIRST)
		return waits < FAR_SPIN_FIRST ? FAR_LOOK_TRIPS : FAR_LOOK_BYTES;
	if (waits % FAR_SPIN_ANEW == 0)
		better = !better;
	return better ? FAR_LOOK_BYTES : FAR_LOOK_TRIPS;
}

/* Half as much again as it takes, as it varies. What takes longer than the longest look is not looked for. */
static uint32_t bytes_ns(const struct far_wait *wait)
{
	uint32_t lately = spin_get(&wait->spin->byte_ps[FAR_LOOK_BYTES]);
	uint32_t ps = lately ? lately : spin_get(&wait->spin->byte_ps[FAR_LOOK_TRIPS]);
	uint64_t ns = wait->bytes * ps / PS_PER_NS * 3 / 2;

	return ns > BYTES_MOST_NS ? 0 : (uint32_t)ns;
}

static void begin(struct far_wait *wait, const struct engine *engine)
{
	wait->looks = true;
	if (!wait->spin || !settings.spin_us)
		return;
	wait->trips_ns = engine_far_spins(&wait->spin->spin, engine);
	if (wait->begun)
		wait->look = choose(wait->spin);
	if (wait->look == FAR_LOOK_BYTES)
		wait->bytes_ns = bytes_ns(wait);
}

bool far_wait_looks(struct far_wait *wait, const struct engine *engine, uint64_t quiet_ns)
{
	if (!wait->looks)
		begin(wait, engine);
	wait->quiet_ns = quiet_ns;
	if (quiet_ns >= FAR_LOOKS_NS && quiet_ns >= wait->trips_ns && quiet_ns >= wait->bytes_ns) {
		wait->slept = true;
		return false;
	}
	cpu_relax_some(); /* and asks nobody: the device writes what is waited for into memory */
	return true;
}

/* Of a wait in vain, that it took at least so long. */
static void learn(const struct far_wait *wait, uint64_t took_ns)
{
	_Atomic uint32_t *lately = &wait->spin->byte_ps[wait->look];
	uint64_t known = spin_get(lately), ps = took_ns * PS_PER_NS / wait->bytes;

	ps = known && ps > OUTLIER * known ? OUTLIER * known : ps;
	ps = known ? (known * (LATELY - 1) + ps) / LATELY : ps;
	spin_set(lately, (uint32_t)(ps < UINT32_MAX ? ps : UINT32_MAX));
}

void far_wait_ends(const struct far_wait *wait, const struct engine *engine, bool all, uint64_t now)
{
	if (wait->trips_ns)
		engine_has_spun(&wait->spin->spin, engine, all && !wait->slept && wait->quiet_ns < wait->trips_ns);
	if (wait->spin && wait->begun && wait->bytes)
		learn(wait, now - wait->begun);
}
