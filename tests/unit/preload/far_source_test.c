/* SPDX-License-Identifier: MIT */
/* Sources between hosts, with a device by hand: both ends are here, met as on one host, and are told that they are far apart. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "common/clock.h"
#include "common/sys.h"
#include "rdma/guard.h"
#include "preload/engine_source.h"
#include "preload/guest.h"
#include "reading_device_testing.h"

static void source_is_registered_until_the_peer_has_passed_it(void **state)
{
	announce(source, sizeof(source));
	assert_int_equal(reads.exposed, 3); /* with the area and the slots */
	assert_int_equal(receive_some(1, sink, 30000, 0), 30000);
	far_sources_serve(conns[0], engine_of(0));
	assert_int_equal(reads.hidden, 0);
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), 10000);
	far_sources_serve(conns[0], engine_of(0));
	assert_int_equal(reads.hidden, 1);
}

/* Guarded memory. The owner has no place to copy to: what is written is a fresh page's. */
static _Alignas(4096) char pages[40960];

static void ask_nobody(void *owner)
{
}

static const struct guard_owner_ops no_owner = { .poll = ask_nobody };

static struct guard_record *guard_pages(void)
{
	struct guard_record *record;

	if (guard_start(GUARD_UFFD) != GUARD_UFFD)
		skip();
	memset(pages, 'g', sizeof(pages));
	assert_int_equal(guard_protect(pages, sizeof(pages), &no_owner, NULL, &record), 0);
	return record;
}

static void guarded_memory_that_is_exposed_already_is_not_registered_again(void **state)
{
	struct guard_record *record = guard_pages();
	uint64_t first = announce(pages, sizeof(pages));

	reads.guarded = true; /* as Linux before 6.2 says of such memory */
	announce(pages, sizeof(pages));
	assert_int_equal(reads.exposed, 3);
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), sizeof(sink));
	assert_int_equal(receive_some(1, sink, sizeof(pages) - sizeof(sink), 0), sizeof(pages) - sizeof(sink));
	far_sources_serve(conns[0], engine_of(0));
	assert_true(source_is_passed(lane_from(0), first));
	assert_int_equal(reads.hidden, 0); /* the second one's, too */
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), sizeof(sink));
	assert_int_equal(receive_some(1, sink, sizeof(pages) - sizeof(sink), 0), sizeof(pages) - sizeof(sink));
	far_sources_serve(conns[0], engine_of(0));
	assert_int_equal(reads.hidden, 1);
	guard_release(record);
}

static void memory_of_which_a_page_was_written_is_registered_anew(void **state)
{
	struct guard_record *record = guard_pages();

	announce(pages, sizeof(pages));
	pages[8192]++;
	announce(pages, sizeof(pages));
	assert_int_equal(reads.exposed, 4);
	guard_release(record);
}

/* By a system call instruction, which nobody sees: the books go on saying that it is guarded. */
static void memory_of_which_a_page_was_replaced_is_registered_anew(void **state)
{
	struct guard_record *record = guard_pages();

	announce(pages, sizeof(pages));
	assert_int_equal(sys_call(SYS_mmap, (long)pages + 4096, 4096, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 (long)pages + 4096);
	pages[4096] = 'n';
	announce(pages, sizeof(pages));
	assert_int_equal(reads.exposed, 4);
	guard_release(record);
}

/* Another length, or a source that the peer reads elsewhere by now: what is registered says nothing of that. */
static void memory_that_was_taken_back_is_registered_anew(void **state)
{
	struct guard_record *record = guard_pages();
	uint64_t first = announce(pages, sizeof(pages));
	struct lock_hold hold;

	assert_true(lock_take(&engine_of(0)->out, &hold));
	assert_int_equal(far_expose(conns[0], engine_of(0), pages, sizeof(pages) - 4096), 0);
	assert_int_equal(reads.exposed, 4);
	source_keep(lane_from(0), first);
	lock_give(&engine_of(0)->out, &hold);
	announce(pages, sizeof(pages));
	assert_int_equal(reads.exposed, 5);
	guard_release(record);
}

/* The guard of a source that has a part of it is given up. */
static void memory_that_is_refused_loses_its_guard_and_is_asked_for_again(void **state)
{
	struct guard_record *record = guard_pages();
	struct lock_hold hold;

	reads.guarded = true;
	assert_true(lock_take(&engine_of(0)->out, &hold));
	assert_true(guard_holds(pages, sizeof(pages)));
	assert_int_equal(far_expose(conns[0], engine_of(0), pages, sizeof(pages)), -EFAULT);
	assert_false(guard_holds(pages, sizeof(pages)));
	lock_give(&engine_of(0)->out, &hold);
	guard_release(record);
}

static void sources_are_kept_when_the_queue_pair_breaks(void **state)
{
	uint64_t number = announce(source, sizeof(source));

	assert_int_equal(source_taken(lane_from(0), number), 0);
	engine_of(0)->far.entry_at = 0;
	device_given_up = true;
	far_parts(conns[0], engine_of(0), ends[0]);
	assert_int_equal(source_taken(lane_from(0), number), SIZE_MAX);
	assert_int_equal(reads.hidden, 3);
}

static void peer_is_told_of_a_switch_when_what_was_announced_is_here(void **state)
{
	uint64_t before;

	memset(source, 'x', sizeof(source));
	assert_int_equal(far_look(conns[1], engine_of(1), ends[1]), 0); /* at the TAKEOVER */
	announce(source, sizeof(source));
	assert_int_equal(far_look(conns[1], engine_of(1), ends[1]), 0);
	assert_int_equal(reads.gets, 0);
	assert_true(lane_switch(lane_from(0)));
	before = atomic_load(&lane_from(0)->shared->seen);
	assert_int_equal(far_look(conns[1], engine_of(1), ends[1]), 0);
	assert_int_equal(reads.told_at_get, before);
	assert_true(atomic_load(&lane_from(0)->shared->seen) > before);
	/* Nothing else brings it now. */
	memset(source, 'y', sizeof(source));
	device_given_up = true;
	far_is_up(conns[1], engine_of(1));
	assert_int_equal(receive_some(1, sink, sizeof(sink), MSG_DONTWAIT), sizeof(sink));
	assert_int_equal(sink[0], 'x');
	assert_int_equal(sink[sizeof(sink) - 1], 'x');
}

static void switch_behind_what_can_t_be_fetched_does_not_count(void **state)
{
	struct lock_hold hold;

	memset(source, 'x', sizeof(source));
	announce(source, sizeof(source));
	assert_true(lock_take(&engine_of(0)->out, &hold));
	engine_switch_back(conns[0], engine_of(0), ends[0]);
	lock_give(&engine_of(0)->out, &hold);
	far_parts(conns[0], engine_of(0), ends[0]);
	memset(source, 'y', sizeof(source));
	assert_int_equal(receive_some(1, sink, sizeof(sink), MSG_WAITALL), sizeof(sink));
	assert_int_equal(sink[0], 'x');
	assert_int_equal(sink[sizeof(sink) - 1], 'x');
}

static void get_that_never_ends_gives_the_queue_pair_up(void **state)
{
	int bytes = -1;

	announce(source, sizeof(source));
	reads.silent = true;
	assert_int_equal(receive_some(1, sink, sizeof(sink), MSG_DONTWAIT), -EAGAIN);
	assert_true(device_given_up);
	assert_int_equal(atomic_load(&engine_of(1)->far.state), FAR_BROKEN);
	/* Until the peer goes on over TCP there is nothing. */
	assert_true(engine_unread(conns[1], ends[1], &bytes));
	assert_int_equal(bytes, 0);
	assert_int_equal(receive_some(1, sink, sizeof(sink), MSG_DONTWAIT), -EAGAIN);
}

/* TCP is faster than the ring now and then. */
static void doorbell_that_comes_before_its_bytes_is_asked_for_again(void **state)
{
	uint32_t said;

	atomic_fetch_add(&conns[1]->attention, 1);
	engine_watch(conns[1], ends[1]);
	said = atomic_load(&lane_from(0)->shared->waits);
	assert_true(said & 1);
	assert_int_equal(real.send(ends[0], "\1", 1, 0), 1);
	assert_int_equal(real.recv(ends[1], &sink, 1, MSG_PEEK), 1);
	assert_int_equal(engine_look(conns[1], ends[1]), ENGINE_SPURIOUS);
	assert_true(atomic_load(&lane_from(0)->shared->waits) & 1);
	assert_int_not_equal(atomic_load(&lane_from(0)->shared->waits), said);
}

/* How long the receiver looks for what comes next: `trips` of the device, if it was told in time now. */
static void assert_looks_for(uint32_t trips)
{
	struct spin spin = { 0 };

	engine_of(1)->far.trip_ns = 1000;
	engine_has_spun(&spin, engine_of(1), true);
	assert_int_equal(spin.ns, (uint32_t)settings.spin_us * 1000 + trips * 1000);
}

static void wait_behind_announced_bytes_looks_for_longer(void **state)
{
	assert_looks_for(8);
	announce(source, sizeof(source));
	assert_looks_for(8);
	assert_int_equal(receive_some(1, sink, sizeof(sink), 0), sizeof(sink));
	assert_looks_for(16);
	assert_int_equal(
		engine_send(conns[0], ends[0], &(struct iovec){ source, 1 }, 1, 0, &(enum zc_path){ PATH_BSDP }), 1);
	assert_int_equal(receive_some(1, sink, 1, 0), 1);
	assert_looks_for(8);
}

/* Where the clock may be a fault: nothing is asked that looks at it. */
static void process_in_a_sandbox_sends_by_tcp(void **state)
{
	enum zc_path path;

	atomic_store(&guest_sandbox, true);
	assert_int_equal(engine_send(conns[0], ends[0], &(struct iovec){ source, 1 }, 1, 0, &path), ENGINE_BY_KERNEL);
	atomic_store(&guest_sandbox, false);
	assert_int_equal(engine_send(conns[0], ends[0], &(struct iovec){ source, 1 }, 1, 0, &path), 1);
}

/* Ahead ------------------------------------------------------------------------------------------------------------- */

static uint64_t later_bytes(void)
{
	return atomic_load(&stats->slot[conns[1]->slot].conn[STAT_CONN_LATER_BYTES]);
}

/* Two are announced, and the first one is received. */
static void receive_first(void)
{
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (char)(i * 7 + i / 251);
	announce(source, 20000);
	announce(source + 20000, 20000);
	assert_int_equal(receive_some(1, sink, 20000, 0), 20000);
}

static void must_be_second(void)
{
	assert_memory_equal(sink, source + 20000, 20000);
}

static int connect_ahead(void **state)
{
	settings.recv_async = true;
	return connect_far(state);
}

static int close_ahead(void **state)
{
	settings.recv_async = false;
	return close_far(state);
}

static void source_is_fetched_before_it_is_asked_for(void **state)
{
	int gets;

	receive_first();
	assert_int_equal(reads.reserved, 1);
	assert_int_equal(reads.ahead, 2); /* bytes and word */
	gets = reads.gets;
	assert_int_equal(receive_some(1, sink, 20000, 0), 20000);
	must_be_second();
	assert_int_equal(reads.gets, gets);
	assert_int_equal(reads.reserved, 1);
	assert_int_equal(later_bytes(), 20000);
}

static void receive_without_the_setting_fetches_what_it_takes(void **state)
{
	receive_first();
	assert_int_equal(reads.ahead, 0);
	assert_int_equal(reads.reserved, 0);
	assert_int_equal(receive_some(1, sink, 20000, 0), 20000);
	must_be_second();
	assert_int_equal(later_bytes(), 0);
}

/* The first one is received in two parts: the second part's GET ends while those ahead are under way. */
static void end_of_a_get_ahead_is_not_taken_for_another_s(void **state)
{
	announce(source, 20000);
	memset(source + 20000, 'n', 20000);
	announce(source + 20000, 20000);
	reads.late = true;
	assert_int_equal(receive_some(1, sink, 17000, 0), 17000);
	assert_int_equal(conns[1]->far->ahead, 2);
	assert_int_equal(receive_some(1, sink, 3000, 0), 3000);
	assert_int_equal(conns[1]->far->ahead, 2);
	reads.late = false;
	assert_int_equal(receive_some(1, sink, 20000, 0), 20000);
	assert_int_equal(conns[1]->far->ahead, 0);
	must_be_second();
}

static void break_ends_what_is_fetched_ahead(void **state)
{
	reads.late = true;
	receive_first();
	device_given_up = true;
	reads.late = false;
	assert_int_equal(receive_some(1, sink, 20000, MSG_DONTWAIT), -EAGAIN);
	assert_int_equal(atomic_load(&engine_of(1)->far.state), FAR_BROKEN);
	assert_int_equal(lane_unread(&engine_of(1)->channel.in), 0);
	assert_int_equal(later_bytes(), 0);
}

/* Straight or by the area --------------------------------------------------------------------------------------------- */

static uint64_t copied_bytes(void)
{
	return atomic_load(&stats->slot[conns[1]->slot].conn[STAT_CONN_GET_COPIED_BYTES]);
}

/* Receives so many. Returns how many of their bytes came by the area. */
static uint64_t receive_messages(int count)
{
	uint64_t before = copied_bytes();

	for (int i = 0; i < count; i++) {
		memset(source, 'a' + i % 26, 20000);
		announce(source, 20000);
		assert_int_equal(receive_some(1, sink, 20000, 0), 20000);
		assert_memory_equal(sink, source, 20000);
	}
	return copied_bytes() - before;
}

static void dear_registrations_are_spared_by_copies(void **state)
{
	/* Nothing is known of what they cost. */
	assert_int_equal(receive_messages(FAR_AREA_BYTES / 20000 + 1), 0);
	assert_int_equal(reads.reserved, 0);
	reads.registration_ns = NS_PER_SEC;
	/* But for those that measure anew what the other way costs. */
	assert_in_range(receive_messages(1000), 900 * 20000, 999 * 20000);
	assert_int_equal(reads.reserved, 1);
	reads.registration_ns = 1;
	assert_in_range(receive_messages(1000), 20000, 100 * 20000);
}

static void area_is_not_registered_for_little(void **state)
{
	reads.registration_ns = NS_PER_SEC;
	assert_int_equal(receive_messages(FAR_AREA_BYTES / 20000), 0);
	assert_int_equal(reads.reserved, 0);
	assert_in_range(receive_messages(10), 8 * 20000, 10 * 20000);
	assert_int_equal(reads.reserved, 1);
}

static void area_that_can_t_be_registered_is_asked_for_once(void **state)
{
	reads.registration_ns = NS_PER_SEC;
	reads.refused = true;
	engine_of(1)->channel.sources_in.fetched = FAR_AREA_BYTES;
	assert_int_equal(receive_messages(10), 0);
	assert_int_equal(reads.reserved, 1);
}

static void area_is_let_go_with_the_queue_pair(void **state)
{
	receive_first();
	assert_non_null(conns[1]->far->reserved);
	far_reserves_nothing(conns[1]->far, (struct verbs_conn *)&reading_device);
	assert_int_equal(reads.hidden, 1);
	assert_null(conns[1]->far->reserved);
	far_reserves_nothing(conns[1]->far, (struct verbs_conn *)&reading_device);
	assert_int_equal(reads.hidden, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, connect_far, close_far)
#define AHEAD_CASE(name) cmocka_unit_test_setup_teardown(name, connect_ahead, close_ahead)
		CASE(source_is_registered_until_the_peer_has_passed_it),
		CASE(guarded_memory_that_is_exposed_already_is_not_registered_again),
		CASE(memory_of_which_a_page_was_written_is_registered_anew),
		CASE(memory_of_which_a_page_was_replaced_is_registered_anew),
		CASE(memory_that_was_taken_back_is_registered_anew),
		CASE(memory_that_is_refused_loses_its_guard_and_is_asked_for_again),
		CASE(sources_are_kept_when_the_queue_pair_breaks),
		CASE(peer_is_told_of_a_switch_when_what_was_announced_is_here),
		CASE(switch_behind_what_can_t_be_fetched_does_not_count),
		CASE(doorbell_that_comes_before_its_bytes_is_asked_for_again),
		CASE(get_that_never_ends_gives_the_queue_pair_up),
		CASE(wait_behind_announced_bytes_looks_for_longer),
		CASE(process_in_a_sandbox_sends_by_tcp),
		CASE(receive_without_the_setting_fetches_what_it_takes),
		CASE(dear_registrations_are_spared_by_copies),
		CASE(area_is_not_registered_for_little),
		CASE(area_that_can_t_be_registered_is_asked_for_once),
		AHEAD_CASE(source_is_fetched_before_it_is_asked_for),
		AHEAD_CASE(end_of_a_get_ahead_is_not_taken_for_another_s),
		AHEAD_CASE(break_ends_what_is_fetched_ahead),
		AHEAD_CASE(area_is_let_go_with_the_queue_pair),
#undef CASE
#undef AHEAD_CASE
	};

	use_rings(1 << 20);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
