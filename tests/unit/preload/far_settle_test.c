/* SPDX-License-Identifier: MIT */
/* Path `auto` has found TCP better than RDMA: the queue pair goes, and the connection is as cheap as one that never had one. */
#define _GNU_SOURCE
#include <time.h>

#include "far_pair_testing.h"
#include "preload/far_compare.h"
#include "rdma/guard.h"

#define RUNS 40u
#define MESSAGE 64
#define HOST 4711 /* any */

static uint64_t ahead; /* ns, of the clock */

/* This program's clock, in the place of the library's. */
uint64_t clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_SEC + (uint64_t)now.tv_nsec + ahead;
}

static uint64_t told(int end, enum stat_reason why)
{
	return atomic_load(&stats->slot[conns[end]->slot].reason[why]);
}

/* As long as nothing is known of the host, what compares goes by TCP. */
static void compare(int end, bool compares)
{
	engine_of(end)->far.host = HOST;
	engine_of(end)->far.compares = compares;
}

static void both_compare(void)
{
	compare(CLIENT, true);
	compare(SERVER, true);
}

/* That it has no use for RDMA, as both ends see it. */
static void says_that_it_needs_none(int end)
{
	atomic_store(&engine_of(end)->channel.in.shared->use, LANE_USE_NONE);
	atomic_store(&engine_of(1 - end)->channel.out.shared->use, LANE_USE_NONE);
}

/* What one end has found for what it sends, the other's later connections go by. */
static enum far_pays later_connection_of_server(void)
{
	static struct engine later;

	later.role = ROLE_SERVER;
	later.names = engine_of(SERVER)->names;
	later.far.host = engine_of(SERVER)->far.host;
	return far_compare_pays(&later);
}

static void receiver_goes_by_what_its_sender_has_found(void **state)
{
	both_compare();
	assert_int_equal(later_connection_of_server(), FAR_PAYS_LATER);
	atomic_store(&engine_of(CLIENT)->channel.in.shared->use, LANE_USE_RING);
	serve(CLIENT);
	serve(SERVER);
	assert_int_equal(later_connection_of_server(), FAR_PAYS);
	/* It tries again, and has found otherwise. */
	atomic_store(&engine_of(CLIENT)->channel.in.shared->use, LANE_USE_UNKNOWN);
	serve(CLIENT);
	serve(SERVER);
	assert_int_equal(engine_of(SERVER)->far.peer_use, LANE_USE_UNKNOWN);
	assert_int_equal(later_connection_of_server(), FAR_PAYS);
	atomic_store(&engine_of(CLIENT)->channel.in.shared->use, LANE_USE_NONE);
	serve(CLIENT);
	serve(SERVER);
	assert_int_equal(later_connection_of_server(), FAR_PAYS_LATER);
}

/* The one gives it up, the other hears of it. */
static void settle(int end)
{
	struct verbs_conn *other = atomic_load(&fars[1 - end].link);

	says_that_it_needs_none(end);
	far_settles(conns[end], engine_of(end));
	if (other && atomic_load(&engine_of(end)->far.state) == FAR_BROKEN)
		plug_give_up(other);
	serve(1 - end);
}

static void assert_is_over(int end)
{
	assert_false(engine_reads(engine_of(end)));
	assert_false(engine_is_there(conns[end])); /* its calls don't even ask */
	assert_null(atomic_load(&fars[end].link));
	assert_int_equal(told(end, REASON_RDMA_BROKEN), 0);
	atomic_store(&fars[end].asked, false);
	ahead += 100 * NS_PER_SEC;
	far_asks_again(conns[end], engine_of(end));
	assert_false(atomic_load(&fars[end].asked));
}

static void lanes_end_where_neither_end_has_a_use_for_rdma(void **state)
{
	exchange();
	assert_true(on_ring(CLIENT) && on_ring(SERVER));
	both_compare();
	exchange();
	assert_false(on_ring(CLIENT) || on_ring(SERVER));
	settle(CLIENT);
	assert_int_equal(told(CLIENT, REASON_RDMA_UNUSED), 1);
	for (int end = 0; end < 2; end++) {
		assert_true(atomic_exchange(&fars[end].asked, false)); /* so the agent goes on */
		assert_true(rests(end));
		assert_is_over(end);
	}
	assert_int_equal(cable.open, 0);
	exchange();
	put(CLIENT, PART);
	put(CLIENT, PART);
	take_all(SERVER);
}

static void what_is_under_way_by_tcp_is_received(void **state)
{
	both_compare();
	put(CLIENT, PART);
	put(SERVER, PART);
	settle(SERVER);
	assert_true(rests(CLIENT) && rests(SERVER));
	put(CLIENT, PART);
	take_all(CLIENT);
	take_all(SERVER);
	assert_is_over(CLIENT);
	assert_is_over(SERVER);
}

/* As behind a move that was not answered in time: neither end has said that it has no use for it. */
static void break_that_nobody_has_spoken_of_is_no_end(void **state)
{
	both_compare();
	exchange();
	assert_false(on_ring(CLIENT) || on_ring(SERVER));
	break_both();
	for (int end = 0; end < 2; end++) {
		serve(end);
		assert_false(atomic_load(&engine_of(end)->far.settles));
		assert_false(atomic_load(&engine_of(end)->far.over));
		assert_int_equal(told(end, REASON_RDMA_BROKEN), 1);
	}
}

/* The SWITCH was passed, and FAR_GO is to come. */
static void end_that_is_still_to_be_told_where_raw_bytes_begin_is_not_at_rest(void **state)
{
	struct engine *client = engine_of(CLIENT);
	struct lock_hold hold;

	compare(SERVER, true);
	exchange();
	assert_true(on_ring(CLIENT) && !on_ring(SERVER));
	assert_true(lock_take(&client->out, &hold));
	engine_switch_back(conns[CLIENT], client, ends[CLIENT]);
	lock_give(&client->out, &hold);
	take_some(SERVER, PART, 0);
	assert_true(engine_of(SERVER)->far.expects);
	compare(CLIENT, true);
	says_that_it_needs_none(CLIENT);
	break_both();
	serve(SERVER);
	assert_true(atomic_load(&engine_of(SERVER)->far.settles));
	assert_false(rests(SERVER));
	serve(CLIENT);
	assert_true(rests(SERVER));
	exchange();
	assert_is_over(SERVER);
}

static void queue_pair_that_either_end_uses_stays(void **state)
{
	compare(CLIENT, true);
	exchange();
	assert_true(!on_ring(CLIENT) && on_ring(SERVER));
	settle(CLIENT);
	settle(SERVER);
	assert_int_equal(atomic_load(&engine_of(CLIENT)->far.state), FAR_UP);
	assert_int_equal(atomic_load(&engine_of(SERVER)->far.state), FAR_UP);
	exchange();
}

static void end_that_is_on_its_ring_when_it_goes_looks_for_another(void **state)
{
	compare(CLIENT, true);
	exchange();
	compare(SERVER, true);
	break_both();
	serve(CLIENT);
	serve(SERVER);
	assert_int_equal(told(SERVER, REASON_RDMA_BROKEN), 1);
	assert_false(atomic_load(&engine_of(SERVER)->far.over));
}

/* Its queue pair goes with it, and nothing is wrong. */
static void end_of_a_connection_is_no_break(void **state)
{
	exchange();
	assert_int_equal(shutdown(conn_fd(conns[CLIENT]), SHUT_WR), 0);
	plug_give_up(atomic_load(&fars[SERVER].link));
	plug_give_up(atomic_load(&fars[CLIENT].link));
	far_is_up(conns[SERVER], engine_of(SERVER));
	far_is_up(conns[CLIENT], engine_of(CLIENT));
	assert_int_equal(told(SERVER, REASON_RDMA_BROKEN), 0);
	assert_int_equal(told(CLIENT, REASON_RDMA_BROKEN), 1); /* to which the peer may send yet */
}

/* RDMA's end may be told before TCP's is. */
static void end_of_a_peer_that_has_said_so_is_no_break(void **state)
{
	struct engine *server = engine_of(SERVER);
	struct lock_hold hold;

	exchange();
	assert_true(lock_take(&server->in, &hold));
	far_says_bye(conns[SERVER], server, ends[SERVER]);
	lock_give(&server->in, &hold);
	plug_give_up(atomic_load(&fars[CLIENT].link));
	far_is_up(conns[CLIENT], engine_of(CLIENT));
	assert_int_equal(atomic_load(&engine_of(CLIENT)->far.state), FAR_BROKEN);
	assert_int_equal(told(CLIENT, REASON_RDMA_BROKEN), 0);
}

static void queue_pair_that_breaks_by_itself_gets_a_successor(void **state)
{
	both_compare();
	exchange();
	for (int end = 0; end < 2; end++) {
		plug_at(end)->state = VERBS_BROKEN;
		plug_at(end)->trouble = VERBS_SILENCE;
	}
	exchange();
	assert_true(meet_again());
	assert_int_equal(told(CLIENT, REASON_RDMA_BROKEN), 1);
	compare(CLIENT, false);
	compare(SERVER, false);
	exchange();
	assert_true(on_ring(CLIENT) && on_ring(SERVER));
}

static void former_queue_pair_is_closed_when_nobody_is_at_it(void **state)
{
	both_compare();
	exchange();
	settle(CLIENT);
	far_hold(&fars[CLIENT]);
	atomic_store(&fars[CLIENT].asked, false);
	assert_false(rests(CLIENT));
	assert_true(atomic_load(&fars[CLIENT].asked));
	far_release(&fars[CLIENT]);
	/* However long it has to rest. */
	atomic_store(&engine_of(CLIENT)->far.again_at, UINT64_MAX);
	far_try_again(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	assert_null(fars[CLIENT].former);
	assert_is_over(CLIENT);
}

/* One send of a program that gets an answer each time, and waits ten times as long for it by the ring. */
static void exchange_slowly_by_ring(void)
{
	struct engine *engine = engine_of(CLIENT);
	struct lock_hold hold;

	assert_true(lock_take(&engine->out, &hold));
	if (far_compare_way(conns[CLIENT], engine, MESSAGE) == FAR_BY_TCP) {
		ahead += 10 * NS_PER_US;
	} else {
		ahead += 100 * NS_PER_US;
		engine->ring_bytes += MESSAGE;
	}
	atomic_fetch_add(&engine->channel.out.shared->sent, MESSAGE);
	lock_give(&engine->out, &hold);
	far_compare_came(conns[CLIENT], engine);
}

/* The peer may not be done yet. */
static void end_waits_for_twice_the_time_that_it_took_to_find_out(void **state)
{
	struct far_part *far = &engine_of(CLIENT)->far;
	uint64_t lost;

	compare(CLIENT, true);
	ahead += 5 * NS_PER_SEC;
	while (!told(CLIENT, REASON_RDMA_SLOWER))
		exchange_slowly_by_ring();
	lost = clock_now();
	while (clock_now() - lost < 2 * (lost - atomic_load(&far->up_at)) - 100 * NS_PER_MS) {
		exchange_slowly_by_ring();
		assert_false(atomic_load(&fars[CLIENT].unwanted));
		ahead += 10 * NS_PER_MS;
	}
	/* Something has come by the ring: it begins anew. */
	atomic_fetch_add(&engine_of(CLIENT)->channel.in.shared->head, LANE_LINE);
	exchange_slowly_by_ring();
	ahead += 200 * NS_PER_MS;
	exchange_slowly_by_ring();
	assert_false(atomic_load(&fars[CLIENT].unwanted));
	ahead += 3 * (clock_now() - atomic_load(&far->up_at));
	exchange_slowly_by_ring();
	assert_true(atomic_load(&fars[CLIENT].unwanted));
}

static void client_finds_tcp_better(void)
{
	both_compare();
	ahead += 5 * NS_PER_SEC;
	while (!told(CLIENT, REASON_RDMA_SLOWER))
		exchange_slowly_by_ring();
	serve(CLIENT);
	serve(SERVER);
}

/* It says so at once, and who only receives has no use for it either. */
static void who_only_receives_follows_at_once(void **state)
{
	both_compare();
	assert_false(far_compare_needs_none(engine_of(SERVER)));
	client_finds_tcp_better();
	assert_true(far_compare_needs_none(engine_of(SERVER)));
	assert_true(atomic_load(&fars[SERVER].tells)); /* its agent is to look */
	assert_false(atomic_load(&fars[CLIENT].unwanted));
}

static void who_sends_is_asked_for_what_it_found(void **state)
{
	struct far_trial *trial = &engine_of(SERVER)->far.trial;

	client_finds_tcp_better();
	trial->class = 1; /* a stream, of which nothing is known */
	assert_false(far_compare_needs_none(engine_of(SERVER)));
	trial->class =
		FAR_CLASSES; /* turns, of which nothing is known: they follow, but not in the middle of a trial */
	trial->tries = FAR_CLASSES;
	assert_false(far_compare_needs_none(engine_of(SERVER)));
	trial->tries = 0;
	assert_true(far_compare_needs_none(engine_of(SERVER)));
	trial->class = engine_of(CLIENT)->far.trial.class;
	assert_true(far_compare_needs_none(engine_of(SERVER)));
}

static void nobody_waits_for_a_peer_that_has_said_so(void **state)
{
	client_finds_tcp_better();
	exchange_slowly_by_ring();
	assert_false(atomic_load(&fars[CLIENT].unwanted));
	atomic_store(&engine_of(SERVER)->channel.in.shared->use, LANE_USE_NONE);
	serve(SERVER);
	serve(CLIENT);
	exchange_slowly_by_ring();
	assert_true(atomic_load(&fars[CLIENT].unwanted));
}

/* Steps of all kinds in any order --------------------------------------------------------------------------------- */

static void step(void)
{
	int end = (int)any(2);
	uint32_t what = any(100);

	if (what < 35)
		put_some(end, 1 + any(any(2) ? 40 : any(2) ? PART : LARGE - 1));
	else if (what < 75)
		take_some(end, 1 + any(any(2) ? 2 * PART : LARGE), any(8) ? 0 : MSG_PEEK);
	else if (what < 90)
		serve(end);
	else if (what < 95)
		compare(end, any(2));
	else if (what < 98)
		rests(end);
	else
		settle(end);
}

static uint64_t settled;

static void any_order(uint32_t with, enum zc_path path)
{
	uint64_t until;

	seed = with;
	conns[CLIENT]->policy = conns[SERVER]->policy = path;
	for (int i = 0; i < 400; i++)
		step();
	/* One whose peer had a use for it looks for another, in vain. */
	until = clock_now() + HANG_NS;
	while (clock_now() < until && (received[CLIENT] != sent[SERVER] || received[SERVER] != sent[CLIENT])) {
		for (int end = 0; end < 2; end++) {
			serve(end);
			take_some(end, 2 * PART, 0);
		}
	}
	assert_int_equal(received[CLIENT], sent[SERVER]);
	assert_int_equal(received[SERVER], sent[CLIENT]);
	settled += !engine_reads(engine_of(CLIENT)) && !engine_reads(engine_of(SERVER));
	conns[CLIENT]->policy = conns[SERVER]->policy = PATH_BSDP;
}

static void no_byte_is_lost_whenever_it_goes(void **state)
{
	static const enum zc_path paths[] = { PATH_BSDP, PATH_ZSDP };

	settings.source_min = 4096;
	settings.zerocopy_keep = 1;
	settled = 0;
	for (uint32_t i = 0; i < RUNS; i++) {
		any_order(i, paths[i % 2]);
		finish(state);
		assert_int_equal(cable.open, 0);
		assert_int_equal(begin(state), 0);
	}
	settings.source_min = 65536;
	assert_true(settled > RUNS / 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, finish)
		CASE(lanes_end_where_neither_end_has_a_use_for_rdma),
		CASE(receiver_goes_by_what_its_sender_has_found),
		CASE(what_is_under_way_by_tcp_is_received),
		CASE(break_that_nobody_has_spoken_of_is_no_end),
		CASE(end_that_is_still_to_be_told_where_raw_bytes_begin_is_not_at_rest),
		CASE(queue_pair_that_either_end_uses_stays),
		CASE(end_that_is_on_its_ring_when_it_goes_looks_for_another),
		CASE(end_of_a_connection_is_no_break),
		CASE(end_of_a_peer_that_has_said_so_is_no_break),
		CASE(queue_pair_that_breaks_by_itself_gets_a_successor),
		CASE(former_queue_pair_is_closed_when_nobody_is_at_it),
		CASE(end_waits_for_twice_the_time_that_it_took_to_find_out),
		CASE(who_only_receives_follows_at_once),
		CASE(who_sends_is_asked_for_what_it_found),
		CASE(nobody_waits_for_a_peer_that_has_said_so),
		CASE(no_byte_is_lost_whenever_it_goes),
	};
#undef CASE

	use_rings(1 << 16);
	settings.rdma_again_ms = 1000;
	guard_start(GUARD_AUTO);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
