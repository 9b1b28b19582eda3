/* SPDX-License-Identifier: MIT */
/* A host that has a device, and no plug-in: connections that would have met by it go on over TCP. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sched.h>

#include "common/clock.h"
#include "met_testing.h"
#include "preload/far_internal.h"

static struct far fars[2];

static struct engine *engine_of(int end)
{
	return atomic_load(&conns[end]->engine);
}

/* A connection that may meet a peer on another host. */
static void open_far(int end)
{
	struct sockaddr_in *peer;

	conn_open(ends[end], end ? ROLE_SERVER : ROLE_CLIENT, false);
	conns[end] = table_conn(ends[end]);
	peer = (struct sockaddr_in *)&engine_of(end)->names.peer;
	peer->sin_family = AF_INET;
	assert_int_equal(inet_pton(AF_INET, "192.0.2.1", &peer->sin_addr), 1);
	engine_of(end)->far.begun = 1; /* it knows its names */
	atomic_store(&engine_of(end)->far.state, FAR_APART);
}

static void await_over(int end)
{
	uint64_t until = clock_now() + 20 * NS_PER_SEC;

	while (atomic_load(&engine_of(end)->state) != ENGINE_OVER) {
		assert_true(clock_now() < until);
		sched_yield();
	}
	assert_int_equal(atomic_load(&stats->slot[conns[end]->slot].reason[REASON_RDMA_DEVICE]), 1);
}

/* One that comes later. */
static void opens_without(void)
{
	struct sockaddr_storage peer = { 0 };
	struct sockaddr_in *address = (struct sockaddr_in *)&peer;
	int fds[2];

	connect_pair(fds);
	address->sin_family = AF_INET;
	assert_int_equal(inet_pton(AF_INET, "192.0.2.1", &address->sin_addr), 1);
	conn_open(fds[0], ROLE_CLIENT, &peer);
	assert_int_equal(atomic_load(&stats->slot[table_conn(fds[0])->slot].reason[REASON_RDMA_DEVICE]), 1);
	close_pair(fds);
}

static void connections_go_on_without(void **state)
{
	/* The agent's, that has asked. */
	open_far(0);
	fars[0] = (struct far){ .conn = conns[0], .channel.fd = -1, .ended.fd = -1, .asked = true };
	conns[0]->far = &fars[0];
	far_ready(); /* by the time that it returns the agent may have failed */
	far_kick();
	await_over(0);
	assert_true(far_failed());
	/* One that is about to ask. */
	open_far(1);
	engine_step(conns[1], engine_of(1), ends[1]);
	await_over(1);
	assert_false(far_possible());
	conns[0]->far = NULL;
	opens_without();
	for (int end = 0; end < 2; end++)
		conn_close(ends[end]);
	close_pair(ends);
}

static int start(void **state)
{
	settings.path = PATH_BSDP;
	settings.transport = TRANSPORT_VERBS;
	settings.ring_bytes = 1 << 16;
	if (stats_start() || table_start())
		return -1;
	connect_pair(ends);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(connections_go_on_without) };

	return cmocka_run_group_tests(tests, start, NULL);
}
