/* SPDX-License-Identifier: MIT */
/*
 * What the agent of far.h has the libraries of RDMA open: apart from the program's descriptors, until it is known that the device is open. From
 * there on a step of a meeting takes no time, and a thread for it would be dear.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "common/clock.h"
#include "preload/apart.h"
#include "preload/far_internal.h"
#include "preload/gate.h"

#define ENDS_NS NS_PER_SEC /* for what is being opened at the end of the process */

static _Atomic bool is_open;
static _Atomic bool ends;
static uint64_t loading; /* ns of a processor: of the plug-in, to be booked with the first meeting */

void far_device_is_open(bool open)
{
	atomic_store(&is_open, open);
}

/*
 * exit() takes libraries apart, by what they have registered and by their destructors: not while a thread of ours is in the middle of them.
 * Registered while the program runs, so called before the loader's turn comes. A child of vfork ends nothing of ours.
 */
static void await_end(void)
{
	if (!conn_process_is_ours())
		return;
	atomic_store(&ends, true);
	gate_await(ENDS_NS);
}

void far_open_begin(void)
{
	static _Atomic bool registered;

	if (!atomic_exchange(&registered, true))
		atexit(await_end);
}

bool far_opens(void)
{
	return !atomic_load(&ends);
}

struct work {
	void (*body)(void *arg);
	void *arg;
	uint64_t took;
};

static void work(void *arg)
{
	struct work *it = arg;
	uint64_t begun = clock_thread();

	it->body(it->arg);
	it->took = clock_thread() - begun;
}

/* Returns what it took, ns of a processor. */
static uint64_t run_at_cost(void (*body)(void *arg), void *arg)
{
	struct work it = { .body = body, .arg = arg };

	if (atomic_load(&is_open))
		work(&it);
	else
		apart_run(work, &it);
	return it.took;
}

static void run(struct far *far, void (*body)(void *arg), void *arg)
{
	far->spent += run_at_cost(body, arg) + loading;
	loading = 0;
}

static void load(void *loaded)
{
	*(bool *)loaded = far_load();
}

bool far_open_plug_in(void)
{
	bool loaded;

	atomic_store(&is_open, false);
	loading = run_at_cost(load, &loaded);
	return loaded;
}

struct listening {
	const struct sockaddr *address;
	struct verbs_listener **out;
	int rc;
};

static void listen_there(void *arg)
{
	struct listening *asked = arg;

	asked->rc = far_verbs->listen(asked->address, 2, asked->out);
}

int far_open_listener(struct far *far, const struct sockaddr *address, struct verbs_listener **out)
{
	struct listening asked = { .address = address, .out = out };

	run(far, listen_there, &asked);
	return asked.rc;
}

struct connecting {
	const struct sockaddr *from, *to;
	const struct verbs_tuple *tuple;
	const struct verbs_setup *setup;
	struct verbs_conn **out;
	int rc;
};

static void connect_there(void *arg)
{
	struct connecting *asked = arg;

	asked->rc = far_verbs->connect(asked->from, asked->to, asked->tuple, asked->setup, asked->out);
}

int far_open_conn(struct far *far, const struct sockaddr *from, const struct sockaddr *to,
		  const struct verbs_tuple *tuple, const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct connecting asked = { .from = from, .to = to, .tuple = tuple, .setup = setup, .out = out };

	run(far, connect_there, &asked);
	return asked.rc;
}

struct admitting {
	struct verbs_request *request;
	const struct verbs_setup *setup;
	struct verbs_conn **out;
	int rc;
};

static void admit_there(void *arg)
{
	struct admitting *asked = arg;

	asked->rc = far_verbs->admit(asked->request, asked->setup, asked->out);
}

int far_open_admitted(struct far *far, struct verbs_request *request, const struct verbs_setup *setup,
		      struct verbs_conn **out)
{
	struct admitting asked = { .request = request, .setup = setup, .out = out };

	run(far, admit_there, &asked);
	return asked.rc;
}

static void wake_there(void *link)
{
	far_verbs->woke(link);
}

void far_open_goes_on(struct far *far)
{
	run(far, wake_there, far->opening);
}
