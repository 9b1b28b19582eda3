/* SPDX-License-Identifier: MIT */
/*
 * What the agent of far.h has the libraries of RDMA open: apart from the program's descriptors, until it is known that the device is open. From
 * there on a step of a meeting takes no time, and a thread for it would be dear.
 */
#define _GNU_SOURCE
#include "preload/apart.h"
#include "preload/far_internal.h"

static _Atomic bool is_open;

void far_device_is_open(bool open)
{
	atomic_store(&is_open, open);
}

static void run(void (*body)(void *arg), void *arg)
{
	if (atomic_load(&is_open))
		body(arg);
	else
		apart_run(body, arg);
}

static void load(void *loaded)
{
	*(bool *)loaded = far_load();
}

bool far_open_plug_in(void)
{
	bool loaded;

	atomic_store(&is_open, false);
	run(load, &loaded);
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

int far_open_listener(const struct sockaddr *address, struct verbs_listener **out)
{
	struct listening asked = { .address = address, .out = out };

	run(listen_there, &asked);
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

int far_open_conn(const struct sockaddr *from, const struct sockaddr *to, const struct verbs_tuple *tuple,
		  const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct connecting asked = { .from = from, .to = to, .tuple = tuple, .setup = setup, .out = out };

	run(connect_there, &asked);
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

int far_open_admitted(struct verbs_request *request, const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct admitting asked = { .request = request, .setup = setup, .out = out };

	run(admit_there, &asked);
	return asked.rc;
}

static void wake_there(void *link)
{
	far_verbs->woke(link);
}

void far_open_goes_on(struct verbs_conn *opening)
{
	run(wake_there, opening);
}
