/* SPDX-License-Identifier: MIT */
/* Sources between hosts, with a device by hand: both ends are here, met as on one host, and are told that they are far apart. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include "common/clock.h"
#include "common/sys.h"
#include "met_testing.h"
#include "rdma/guard.h"
#include "preload/engine_source.h"
#include "preload/far_internal.h"
#include "idle_device_testing.h"
#include "rdma/spans.h"

static struct engine *engine_of(int end)
{
	return atomic_load(&conns[end]->engine);
}

/* GETs and exposures: of the connecting end's device. */
static struct {
	int gets, ended, exposed, hidden, reserved, ahead;
	bool silent, guarded, late; /* late: those ahead have not ended yet */
	uint64_t cookies[64];
	uint64_t registration_ns;
	bool refused;	      /* what is to be reserved */
	uint64_t told_at_get; /* up to where the peer had been told that all is known */
} reads;

static ssize_t get(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
		   int count, size_t skip, unsigned int how, uint64_t cookie)
{
	reads.told_at_get = atomic_load(&engine_of(1)->channel.in.shared->seen);
	reads.cookies[reads.gets++ % 64] = cookie;
	reads.ahead += cookie != 0;
	if (!reads.silent && bytes == sizeof(uint64_t)) { /* a word, which the peer may change meanwhile */
		uint64_t word = atomic_load((_Atomic uint64_t *)(uintptr_t)from->address);

		scatter(iov, count, skip, (void *)&word, bytes);
	} else if (!reads.silent)
		scatter(iov, count, skip, (void *)(uintptr_t)from->address, bytes);
	return (ssize_t)bytes;
}

static int got(struct verbs_conn *conn, struct verbs_got *out)
{
	/* In turn, but that those ahead may be held up. */
	for (int i = reads.ended; i < reads.gets; i++) {
		uint64_t cookie = reads.cookies[i % 64];

		if ((reads.silent && !device_given_up) || (cookie && reads.late))
			continue;
		reads.cookies[i % 64] = reads.cookies[reads.ended % 64];
		reads.ended++;
		*out = (struct verbs_got){ .cookie = cookie, .error = device_given_up ? -ENOTCONN : 0 };
		return 1;
	}
	return 0;
}

static int gets_left(struct verbs_conn *conn)
{
	return 16;
}

static uint64_t registration_ns(size_t bytes)
{
	return reads.registration_ns;
}

static int reserve(struct verbs_conn *conn, const void *at, size_t bytes, bool spares, struct verbs_region **out)
{
	static int region;

	assert_ptr_equal(at, engine_of(1)->channel.in.area);
	reads.reserved++;
	assert_int_equal(spares, !settings.recv_async);
	if (reads.refused)
		return -ENOMEM;
	*out = (struct verbs_region *)&region;
	return 0;
}

static int expose(struct verbs_conn *conn, const void *at, size_t bytes, struct verbs_remote *remote,
		  struct verbs_region **out)
{
	static int regions[64];

	if (reads.guarded)
		return -EFAULT;
	*remote = (struct verbs_remote){ (uintptr_t)at, 1 };
	*out = (struct verbs_region *)&regions[reads.exposed++ % 64];
	return 0;
}

static void hide(struct verbs_conn *conn, struct verbs_region *region)
{
	reads.hidden++;
}

static size_t no_sink(struct verbs_conn *conn)
{
	return 0;
}

static const struct verbs_table reading_device = {
	IDLE_DEVICE,	   .get = get,	       .got = got,
	.gets = gets_left, .reserve = reserve, .sink = no_sink,
	.expose = expose,  .hide = hide,       .registration_ns = registration_ns,
};

static struct far fars[2];

/* Both ends are far, with a device that reads. */
static int connect_far(void **state)
{
	if (connect_ends(state))
		return -1;
	memset(&reads, 0, sizeof(reads));
	device_given_up = false;
	far_verbs = &reading_device;
	for (int end = 0; end < 2; end++) {
		fars[end] = (struct far){ .conn = conns[end], .link = (struct verbs_conn *)&reading_device };
		conns[end]->far = &fars[end];
		far_sources_begin(conns[end], engine_of(end));
		lane_from(end)->codes = engine_of(end)->channel.in.passed_codes = 0x030201;
		atomic_store(&engine_of(end)->far.state, FAR_UP);
	}
	return 0;
}

static int close_far(void **state)
{
	for (int end = 0; end < 2; end++) {
		conns[end]->far = NULL;
		engine_of(end)->far.out = FAR_OUT_FREE;
		atomic_store(&engine_of(end)->far.state, FAR_NONE);
	}
	return close_ends(state);
}

/* Announces by the connecting end. Returns the source's number. */
static uint64_t announce(const void *bytes, size_t count)
{
	struct lock_hold hold;
	uint64_t number;

	assert_true(lock_take(&engine_of(0)->out, &hold));
	assert_int_equal(far_sources_open(conns[0], engine_of(0)), 0);
	assert_int_equal(far_expose(conns[0], engine_of(0), bytes, count), 0);
	assert_int_equal(far_announce(conns[0], engine_of(0), bytes, count, &(bool){ false }, &number), 0);
	lock_give(&engine_of(0)->out, &hold);
	return number;
}

static char source[40000], sink[40000];

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

/* zsdp's wait -------------------------------------------------------------------------------------------------------- */

static char megabyte[1 << 20], megabyte_sink[1 << 20];

/* Has all of it 8 ms later: nothing was heard of it for longer than a small source is given. */
static void *take_late(void *unused)
{
	struct timespec late = { .tv_nsec = 8 * (long)NS_PER_MS };

	nanosleep(&late, NULL);
	for (size_t got = 0; got < sizeof(megabyte_sink);)
		got += (size_t)receive_some(1, megabyte_sink + got, sizeof(megabyte_sink) - got, 0);
	return NULL;
}

/* Whether the send ended before the peer had it, which is then to fetch it once more from where it is kept. */
static bool is_kept_in_a_wait(void)
{
	struct announced announced = { .count = 1, .bytes = sizeof(megabyte), .path = PATH_ZSDP, .waits = true };
	pthread_t peer;

	announced.number[0] = announce(megabyte, sizeof(megabyte));
	announced.until = clock_now() + 20 * NS_PER_MS;
	assert_int_equal(pthread_create(&peer, NULL, take_late, NULL), 0);
	sources_wait(conns[0], engine_of(0), &announced);
	pthread_join(peer, NULL);
	return atomic_exchange(&lane_from(0)->out->has_kept, false);
}

static int sleeps;

static bool count_sleep(struct verbs_conn *conn, unsigned int what)
{
	sleeps++;
	return true;
}

static void send_that_may_not_wait_does_not_sleep(void **state)
{
	static struct verbs_table counting;
	struct iovec iov = { source, sizeof(source) }; /* which the peer does not take */
	enum zc_path path;

	counting = reading_device;
	counting.arm = count_sleep;
	far_verbs = &counting;
	conns[0]->policy = PATH_ZSDP;
	settings.source_min = sizeof(source);
	assert_int_equal(engine_send(conns[0], ends[0], &iov, 1, MSG_DONTWAIT, &path), sizeof(source));
	assert_int_equal(path, PATH_ZSDP);
	assert_int_equal(sleeps, 0);
	assert_int_equal(engine_send(conns[0], ends[0], &iov, 1, 0, &path), sizeof(source));
	assert_true(sleeps > 0);
}

/* The machine may be late, too, but not each time. */
static void wait_for_a_large_source_is_as_long_as_it_is_large(void **state)
{
	for (int tries = 0; tries < 200; tries++) {
		if (!is_kept_in_a_wait())
			return;
	}
	fail_msg("each of them was kept");
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
		CASE(receive_without_the_setting_fetches_what_it_takes),
		CASE(send_that_may_not_wait_does_not_sleep),
		CASE(wait_for_a_large_source_is_as_long_as_it_is_large),
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
