/* SPDX-License-Identifier: MIT */
/* What is remembered of hosts that did not answer by RDMA: the end that asks is here, and whether somebody listens is the test's. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "common/clock.h"
#include "met_testing.h"
#include "cable_testing.h"
#include "preload/far_compare.h"

#define CLIENT 0
#define SERVER 1
#define HOSTS 64   /* far_meet.c has room for */
#define LAST_TRY 9 /* that finds nobody */

static struct far fars[2];
static uint64_t host;		   /* another one for each test: what is remembered stays */
static enum verbs_trouble trouble; /* of who finds nobody */

static struct engine *engine_of(int end)
{
	return atomic_load(&conns[end]->engine);
}

static void open_ends(void)
{
	memset(&cable, 0, sizeof(cable));
	cable.trouble = trouble;
	connect_pair(ends);
	for (int end = 0; end < 2; end++) {
		conn_open(ends[end], end == CLIENT ? ROLE_CLIENT : ROLE_SERVER, false);
		conns[end] = table_conn(ends[end]);
		engine_of(end)->far.host = host;
		fars[end] = (struct far){ .conn = conns[end], .channel.fd = -1, .ended.fd = -1 };
		conns[end]->far = &fars[end];
		atomic_store(&engine_of(end)->far.state, FAR_APART);
	}
}

static void shut_ends(void)
{
	for (int end = 0; end < 2; end++) {
		struct engine *engine = engine_of(end);

		far_drop_all(&fars[end]);
		channel_close(&fars[end].channel);
		conns[end]->far = NULL;
		if (engine)
			atomic_store(&engine->far.state, FAR_NONE);
		conn_close(ends[end]);
		close(ends[end]);
	}
}

/* What a thread of the program's finds, that has named the host. */
static bool is_left_alone(uint64_t key)
{
	struct engine engine = { .far.host = key };

	return far_leaves_alone(&engine);
}

/* A connection whose peer listens, or has no library. Returns whether its server has asked at all. */
static bool connects(bool listens)
{
	bool asked;

	open_ends();
	if (listens)
		far_seek(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	fars[SERVER].tries = LAST_TRY;
	far_try_to_reach(conns[SERVER], engine_of(SERVER), &fars[SERVER]);
	asked = fars[SERVER].opening;
	if (asked && listens)
		far_take_visitor(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	if (asked)
		far_meet_step(conns[SERVER], engine_of(SERVER), &fars[SERVER]);
	assert_int_equal(engine_met(engine_of(SERVER)), asked && listens);
	shut_ends();
	return asked;
}

static int begin(void **state)
{
	far_verbs = &cable_device;
	host++;
	trouble = VERBS_FINE;
	return (!stats && stats_start()) || (!table && table_start()) ? -1 : 0;
}

static void silence_ends_however_many_connect_meanwhile(void **state)
{
	uint64_t until = clock_now() + 10 * NS_PER_SEC;
	int left_alone = 0;

	/* So that the silence is the short one. */
	assert_true(connects(true));
	for (int i = 0; i < 3; i++)
		assert_true(connects(false));
	while (!connects(true)) {
		left_alone++;
		assert_true(clock_now() < until);
	}
	assert_true(left_alone > 0);
}

static void one_that_answers_has_not_been_in_vain(void **state)
{
	for (int i = 0; i < 4; i++) {
		assert_true(connects(false));
		assert_true(connects(false));
		assert_true(connects(true));
	}
}

static void host_that_never_answered_is_left_alone_for_long(void **state)
{
	uint64_t until = clock_now() + 1500 * NS_PER_MS; /* longer than a host that has answered is left alone */

	for (int i = 0; i < 3; i++) {
		assert_false(is_left_alone(host));
		assert_true(connects(false));
	}
	while (clock_now() < until) {
		assert_true(is_left_alone(host));
		assert_false(connects(true));
	}
	/* Another one is not, be it in the place where this one stands, which forgets it then. */
	assert_false(is_left_alone(host + 1) || is_left_alone(host + HOSTS));
	host += HOSTS;
	assert_true(connects(false));
	assert_false(is_left_alone(host) || is_left_alone(host - HOSTS));
}

static uint64_t counted(int end, enum stat_reason reason)
{
	return atomic_load(&stats->slot[conns[end]->slot].reason[reason]);
}

/* Whether one that does not even ask any more is told what three have found. */
static bool is_left_alone_for(enum verbs_trouble found, enum stat_reason reason)
{
	uint64_t before;
	bool is;

	host++;
	trouble = found;
	for (int i = 0; i < 3; i++)
		assert_true(connects(false));
	open_ends();
	before = counted(SERVER, reason);
	far_try_to_reach(conns[SERVER], engine_of(SERVER), &fars[SERVER]);
	assert_null(fars[SERVER].opening);
	is = counted(SERVER, reason) == before + 1;
	shut_ends();
	return is;
}

static void who_is_left_alone_is_told_why(void **state)
{
	assert_true(is_left_alone_for(VERBS_MEMLOCK, REASON_RDMA_MEMLOCK));
	assert_true(is_left_alone_for(VERBS_NO_QUEUE_PAIR, REASON_RDMA_DEVICE));
	assert_true(is_left_alone_for(VERBS_OTHER_VERSION, REASON_MEETING_FAILED));
	assert_true(is_left_alone_for(VERBS_PEER_FAILED, REASON_MEETING_FAILED));
	assert_true(is_left_alone_for(VERBS_FINE, REASON_RDMA_UNREACHABLE)); /* the next program there may have one */
}

/* Whether an offer to which nobody has come in time, but those that were refused, is told so. */
static bool offers_in_vain(enum verbs_trouble heard, enum stat_reason reason)
{
	uint64_t before;
	bool is;

	host++;
	trouble = heard;
	open_ends();
	before = counted(CLIENT, reason);
	far_seek(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	fars[CLIENT].since = clock_now() - 6 * NS_PER_SEC;
	far_try_to_reach(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	is = counted(CLIENT, reason) == before + 1;
	shut_ends();
	return is;
}

static void offer_that_only_strangers_took_is_told_why(void **state)
{
	assert_true(offers_in_vain(VERBS_FINE, REASON_NO_PEER));
	assert_true(offers_in_vain(VERBS_OTHER_VERSION, REASON_MEETING_FAILED));
}

/* Under `auto` the peer's end may not know yet that it is to meet. */
static void one_that_compares_is_sought_again(void **state)
{
	struct engine *engine;

	open_ends();
	engine = engine_of(SERVER);
	engine->far.compares = true;
	for (uint32_t vain = 0; vain <= FAR_VAIN_MAX; vain++) {
		fars[SERVER].tries = LAST_TRY;
		fars[SERVER].since = 0;
		atomic_store(&engine->far.state, FAR_APART);
		far_try_to_reach(conns[SERVER], engine, &fars[SERVER]);
		if (fars[SERVER].opening)
			far_meet_step(conns[SERVER], engine, &fars[SERVER]);
		assert_int_equal(atomic_load(&engine->far.state), FAR_NONE);
		assert_int_equal(atomic_load(&engine->state), vain < FAR_VAIN_MAX ? ENGINE_APART : ENGINE_OVER);
		if (vain == FAR_VAIN_MAX)
			break;
		/* Not now, and then with all its tries. */
		assert_int_equal(fars[SERVER].tries, 0);
		assert_true(engine->far.rests_until > clock_now());
		atomic_store(&fars[SERVER].asked, false);
		far_try_to_reach(conns[SERVER], engine, &fars[SERVER]);
		assert_null(fars[SERVER].opening);
		assert_int_equal(far_compare_pays(engine), FAR_PAYS_LATER);
	}
	shut_ends();
}

/* What a connection to it finds that would have asked so long ago. */
static bool lasts_first(uint64_t key, uint64_t ns)
{
	struct engine engine = { .far.host = key, .meets_since = clock_now() - ns };

	return far_lasts_first(&engine);
}

/* The program closes it in the middle of its meeting. */
static void is_brief(int end)
{
	open_ends();
	fars[end].asks = host; /* by far_step() */
	far_try_to_reach(conns[end], engine_of(end), &fars[end]);
	assert_true(end == CLIENT ? fars[end].listener != NULL : fars[end].opening != NULL);
	shut_ends();
}

static void brief_ones_have_the_next_last_first(void **state)
{
	const uint64_t second = NS_PER_SEC, moment = NS_PER_SEC / 1000;

	for (int end = 0; end < 2; end++, host++) {
		for (int i = 0; i < 3; i++) {
			assert_false(lasts_first(host, moment));
			is_brief(end);
		}
		assert_true(lasts_first(host, moment));
		assert_false(lasts_first(host, second)); /* it has lasted, and asks */
		assert_false(lasts_first(host + 1, moment) || lasts_first(host + HOSTS, moment));
		assert_false(is_left_alone(host)); /* a long one asks all the same */
		assert_true(connects(true));
		assert_false(lasts_first(host, moment)); /* from a host that has answered */
	}
}

/* It opens its devices first, or is behind. */
static void those_that_the_agent_comes_too_late_for_are_brief(void **state)
{
	for (int i = 0; i < 3; i++) {
		struct far *its;

		assert_false(lasts_first(host, 0));
		open_ends();
		conns[SERVER]->far = NULL;
		far_step(conns[SERVER], engine_of(SERVER));
		its = conns[SERVER]->far;
		assert_true(its && its->asked);
		far_drop_all(its);
		shut_ends();
	}
	assert_true(lasts_first(host, 0));
}

static void answers_make_none_brief(void **state)
{
	/* Two with a no, two that meet, and two too few that are brief. */
	for (int listens = 0; listens < 2; listens++, host++) {
		for (int i = 0; i < 2; i++)
			assert_true(connects(listens));
		for (int i = 0; i < 2; i++)
			is_brief(CLIENT);
		assert_false(lasts_first(host, 0));
	}
}

static void who_waits_for_rdma_does_not_wait_for_that(void **state)
{
	for (int i = 0; i < 3; i++)
		is_brief(CLIENT);
	assert_true(lasts_first(host, 0));
	settings.rdma_wait_ms = 1;
	assert_false(lasts_first(host, 0));
	settings.rdma_wait_ms = 0;
}

static struct counts told;

static int admit_and_tell(struct verbs_request *request, const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct verbs_setup tells = *setup;

	tells.tells = true;
	tells.counts = told;
	return plug_admit(request, &tells, out);
}

static struct counts counts_of(int end)
{
	struct counts its;

	assert_int_equal(counts_own(ends[end], atomic_load(&conns[end]->opened), &its), 0);
	return its;
}

/* The other end's counts are as `change` makes them. Returns whether the server's end has met. */
static bool meets_who_tells(void (*change)(struct counts *))
{
	bool met;

	open_ends();
	atomic_store(&conns[CLIENT]->opened, clock_now() - NS_PER_SEC);
	atomic_store(&conns[SERVER]->opened, clock_now() - NS_PER_SEC / 2);
	far_seek(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	far_try_to_reach(conns[SERVER], engine_of(SERVER), &fars[SERVER]);
	told = counts_of(CLIENT);
	if (change)
		change(&told);
	far_take_visitor(conns[CLIENT], engine_of(CLIENT), &fars[CLIENT]);
	far_meet_step(conns[SERVER], engine_of(SERVER), &fars[SERVER]);
	met = engine_met(engine_of(SERVER));
	assert_int_equal(atomic_load(&stats->slot[conns[SERVER]->slot].reason[REASON_REDIRECTED]), !met);
	shut_ends();
	return met;
}

static void began_later(struct counts *its)
{
	its->open_ns = NS_PER_SEC / 4;
}

static void has_received(struct counts *its)
{
	its->received += 1000;
}

static void has_been_idle(struct counts *its)
{
	its->sent_ms += 60000;
}

/* Its client's port was changed, and another connection's client has that. */
static void another_s_end_is_not_met(void **state)
{
	struct verbs_table device = cable_device;

	device.admit = admit_and_tell;
	far_verbs = &device;
	assert_true(meets_who_tells(NULL));
	assert_false(meets_who_tells(began_later));
	assert_false(meets_who_tells(has_received));
	assert_false(meets_who_tells(has_been_idle));
	assert_false(is_left_alone(host)); /* it is not the host's fault */
	assert_true(meets_who_tells(NULL));
}

/* As before a fork, or where a number is wanted. */
static void offer_ends_with_the_wish_to_meet(void **state)
{
	struct engine *engine;

	open_ends();
	engine = engine_of(CLIENT);
	far_seek(conns[CLIENT], engine, &fars[CLIENT]);
	assert_true(cable.listens);
	far_drop_meeting_if_over(engine, &fars[CLIENT]);
	assert_true(cable.listens);
	engine_before_fork(conns[CLIENT], 1);
	far_drop_meeting_if_over(engine, &fars[CLIENT]);
	assert_false(cable.listens);
	shut_ends();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup(name, begin)
		CASE(one_that_answers_has_not_been_in_vain),
		CASE(silence_ends_however_many_connect_meanwhile),
		CASE(host_that_never_answered_is_left_alone_for_long),
		CASE(who_is_left_alone_is_told_why),
		CASE(offer_that_only_strangers_took_is_told_why),
		CASE(one_that_compares_is_sought_again),
		CASE(brief_ones_have_the_next_last_first),
		CASE(those_that_the_agent_comes_too_late_for_are_brief),
		CASE(answers_make_none_brief),
		CASE(who_waits_for_rdma_does_not_wait_for_that),
		CASE(another_s_end_is_not_met),
		CASE(offer_ends_with_the_wish_to_meet),
	};
#undef CASE

	use_rings(1 << 16);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
