/* SPDX-License-Identifier: MIT */
/* Looking at a ring again and again, for a while, before a thread sleeps for it: whether that may pay, and what it has paid. */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/sys.h"
#include "preload/engine_in.h"
#include "preload/far.h"
#include "preload/signals.h"
#include "preload/spread.h"

#define LOOKS 64
#define TRIPS 8 /* measured: 4 are too few for answers of 4 KB and more (docs/design.md) */
#define TRIPS_OF_SOURCES                                                                                               \
	16 /* where the peer hears that its bytes have been fetched before it announces more (docs/rdma.md) */
#define TRIP_MOST_NS 100000u
#define SOME_COME_NS                                                                                                   \
	3000 /* less than any way through the kernel takes; a pause takes 5 to 50 ns, as the processor likes */

/* Whether spinning for the lane may pay now. */
bool engine_may_spin(struct engine *engine)
{
	if (!atomic_load_explicit(&engine->channel.in.shared->from_ring, memory_order_relaxed) || !settings.spin_us)
		return false;
	if (!spin_may(&engine->spin))
		return false;
	return far_is(engine) || spread_apart(engine);
}

/*
 * Between hosts no answer can be there before the device's round trip is over, nor that of a peer that sleeps before it has woken: of two
 * that sleep, neither would else find out how soon an answer is there for who does not.
 */
void engine_has_spun(struct spin *spin, const struct engine *engine, bool paid)
{
	uint32_t most_ns = (uint32_t)settings.spin_us * 1000, trip, trips;

	if (!far_is(engine)) {
		spin_ends(spin, paid, most_ns);
		return;
	}
	trip = atomic_load_explicit(&engine->far.trip_ns, memory_order_relaxed);
	trips = atomic_load_explicit(&engine->far.fetches, memory_order_relaxed) ? TRIPS_OF_SOURCES : TRIPS;
	spin_ends_far(spin, paid, most_ns + trips * (trip < TRIP_MOST_NS ? trip : TRIP_MOST_NS));
}

/*
 * Some looks at the ring. The core is not offered to others in between (sched_yield): who gives way to a busy thread waits for
 * its time slice, milliseconds, where a sleeper is woken at once. The peer is on another core.
 */
bool engine_spin_once(struct conn *conn, struct engine *engine)
{
	for (int i = 0; i < LOOKS; i++) {
		far_poll(conn, engine);
		if (!lane_is_empty(&engine->channel.in))
			return true;
		cpu_relax();
	}
	return false;
}

/*
 * Whoever only receives lets some come together first: each look at the ring takes the line with its end away from the producer,
 * who then waits for it at the next send, several times as long as a send takes. Not so after a send of this end, to whom an
 * answer may come.
 */
static void let_some_come(struct engine *engine)
{
	uint32_t sends = atomic_load_explicit(&engine->told, memory_order_relaxed);
	uint64_t until;

	if (atomic_exchange_explicit(&engine->sends_seen, sends, memory_order_relaxed) != sends)
		return;
	until = clock_now() + SOME_COME_NS;
	do {
		cpu_relax_some();
	} while (clock_now() < until);
}

/*
 * Before the kernel is asked whether the socket is one that waits: if it was the last time, a few looks. So whoever waits for a
 * peer that is at it makes no system call; a socket that has become one that does not wait finds out a microsecond later, once.
 */
bool engine_glance(struct conn *conn, struct engine *engine, int flags)
{
	if (!atomic_load_explicit(&engine->waited, memory_order_relaxed) || flags & MSG_DONTWAIT || engine->spin.skip ||
	    !engine_may_spin(engine))
		return false;
	if (!far_is(engine))
		let_some_come(engine);
	if (!engine_spin_once(conn, engine))
		return false;
	engine_has_spun(&engine->spin, engine, true);
	stats_conn(conn->slot, STAT_CONN_SPINS, 1);
	return true;
}

bool engine_spin(struct conn *conn, int fd, struct pollfd *fds, nfds_t count, uint64_t until)
{
	struct engine *engine = engine_enter(conn, fd);
	uint32_t before = signals_run;
	uint64_t now = clock_now();

	if (!engine)
		return true;
	if (engine_met(engine) && now < until && engine_may_spin(engine)) {
		bool found = false;

		until = until - now < engine->spin.ns ? until : now + engine->spin.ns;
		do {
			found = engine_spin_once(conn, engine);
		} while (!found && signals_run == before && clock_now() < until &&
			 (count == 1 || sys_call(SYS_poll, (long)fds, (long)count, 0, 0, 0, 0) == 0));
		if (found)
			stats_conn(conn->slot, STAT_CONN_SPINS, 1);
		if (found || clock_now() >= until)
			engine_has_spun(&engine->spin, engine, found);
	}
	engine_leave(conn);
	return signals_run == before;
}
