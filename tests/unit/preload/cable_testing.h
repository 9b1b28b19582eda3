/* SPDX-License-Identifier: MIT */
/*
 * A device by hand, whose two ends are here: what is pushed is there at once, or, when the cable is cut, never. A broken queue pair is told of
 * at that end alone where it was given up, or where the test says so.
 */
#ifndef ZC_TESTS_CABLE_TESTING_H
#define ZC_TESTS_CABLE_TESTING_H

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "preload/far_internal.h"
#include "rdma/spans.h"

struct plug {
	struct verbs_setup setup;
	struct plug *other; /* NULL: not answered yet */
	struct verbs_offer offer;
	_Atomic enum verbs_state state;
	_Atomic enum verbs_trouble trouble;
	uint64_t pushed;
	_Atomic unsigned int found; /* what has come; until poll() has told it, arm() refuses */
	bool cut;
	int fd, got;
};

static struct {
	struct plug *asks; /* who has asked, and is not answered */
	bool listens, silent;
	enum verbs_trouble trouble; /* of who finds nobody; VERBS_FINE: nobody listens */
	int closed, open, regions;
	void (*agent)(struct plug *sleeper); /* what goes on while somebody sleeps */
} cable;

static struct plug *plug_of(const struct verbs_conn *conn)
{
	return (struct plug *)(uintptr_t)conn;
}

static struct plug *plug_make(const struct verbs_setup *setup)
{
	struct plug *plug = calloc(1, sizeof(*plug));

	plug->setup = *setup;
	plug->pushed = atomic_load(&setup->out.shared->tail);
	plug->fd = eventfd(0, EFD_CLOEXEC);
	cable.open++;
	return plug;
}

static int plug_listen(const struct sockaddr *address, int backlog, struct verbs_listener **out)
{
	cable.listens = true;
	*out = (struct verbs_listener *)&cable;
	return 0;
}

static int plug_listener_fd(const struct verbs_listener *listener)
{
	return -1;
}

static enum verbs_trouble plug_listener_heard(const struct verbs_listener *listener)
{
	return cable.trouble ? cable.trouble : VERBS_REFUSED;
}

static void plug_listener_close(struct verbs_listener *listener)
{
	cable.listens = false;
}

static int plug_connect(const struct sockaddr *from, const struct sockaddr *to, const struct verbs_tuple *tuple,
			const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct plug *plug = plug_make(setup);
	struct verbs_tuple peer;

	verbs_tuple_make(from, from, &peer);
	plug->offer.tuple = *tuple;
	memcpy(plug->offer.nonce, setup->nonce, sizeof(setup->nonce));
	memcpy(plug->offer.from, peer.address[0], sizeof(plug->offer.from));
	cable.asks = cable.listens ? plug : NULL;
	if (!cable.listens && !cable.silent) {
		plug->state = VERBS_BROKEN;
		plug->trouble = cable.trouble ? cable.trouble : VERBS_REFUSED;
	}
	*out = (struct verbs_conn *)plug;
	return 0;
}

static int plug_take(struct verbs_listener *listener, struct verbs_request **out, struct verbs_offer *offer)
{
	if (!cable.asks)
		return -EAGAIN;
	*out = (struct verbs_request *)cable.asks;
	*offer = cable.asks->offer;
	cable.asks = NULL;
	return 0;
}

static int plug_admit(struct verbs_request *request, const struct verbs_setup *setup, struct verbs_conn **out)
{
	struct plug *plug = plug_make(setup), *other = (struct plug *)request;

	plug->other = other;
	other->other = plug;
	plug->state = other->state = setup->tells && other->setup.judges ? VERBS_OPENING : VERBS_UP;
	*out = (struct verbs_conn *)plug;
	return 0;
}

static void plug_refuse(struct verbs_request *request, enum verbs_trouble why)
{
	((struct plug *)request)->state = VERBS_BROKEN;
	((struct plug *)request)->trouble = VERBS_REFUSED;
}

static enum verbs_state plug_state(struct verbs_conn *conn, enum verbs_trouble *trouble)
{
	if (trouble)
		*trouble = plug_of(conn)->trouble;
	return plug_of(conn)->state;
}

static bool plug_answered(struct verbs_conn *conn, struct counts *told)
{
	const struct plug *plug = plug_of(conn);

	if (plug->state != VERBS_OPENING || !plug->other)
		return false;
	*told = plug->other->setup.counts;
	return true;
}

static void plug_agree(struct verbs_conn *conn, bool may)
{
	struct plug *plug = plug_of(conn);

	plug->state = plug->other->state = may ? VERBS_UP : VERBS_BROKEN;
	plug->trouble = may ? VERBS_FINE : VERBS_ANOTHER;
	plug->other->trouble = may ? VERBS_FINE : VERBS_PEER_GONE;
}

static int plug_fd(const struct verbs_conn *conn)
{
	return plug_of(conn)->fd;
}

static int plug_nothing(struct verbs_conn *conn)
{
	return 0;
}

static int plug_poll(struct verbs_conn *conn)
{
	return (int)atomic_exchange(&plug_of(conn)->found, 0);
}

static bool plug_reaches(const struct plug *plug)
{
	return plug->state == VERBS_UP && plug->other && plug->other->state == VERBS_UP && !plug->cut;
}

static ssize_t plug_push(struct verbs_conn *conn, unsigned int how)
{
	struct plug *plug = plug_of(conn);
	const struct lane *out = &plug->setup.out;
	uint64_t tail = atomic_load(&out->shared->tail);

	if (plug->state != VERBS_UP)
		return -ENOTCONN;
	if (!plug_reaches(plug))
		return 0;
	atomic_fetch_or(&plug->other->found, plug->pushed != tail ? VERBS_IN : 0);
	for (; plug->pushed != tail; plug->pushed++)
		plug->other->setup.in.ring[plug->pushed % out->bytes] = out->ring[plug->pushed % out->bytes];
	assert_true(atomic_load(&plug->other->setup.in.shared->tail) <= tail);
	atomic_store(&plug->other->setup.in.shared->tail, tail);
	return 0;
}

static int plug_credit(struct verbs_conn *conn, unsigned int how)
{
	struct plug *plug = plug_of(conn);

	if (plug_reaches(plug)) {
		memcpy((void *)&plug->other->setup.out.shared->head, (void *)&plug->setup.in.shared->head, LANE_LINE);
		atomic_fetch_or(&plug->other->found, VERBS_OUT);
	}
	return plug->state == VERBS_UP ? 0 : -ENOTCONN;
}

static bool plug_flushed(struct verbs_conn *conn)
{
	return true;
}

static bool plug_arm(struct verbs_conn *conn, unsigned int what)
{
	if (cable.agent)
		cable.agent(plug_of(conn));
	return !(atomic_load(&plug_of(conn)->found) & what);
}

static void plug_positions(struct verbs_conn *conn, struct verbs_positions *out)
{
	*out = (struct verbs_positions){ .settled = plug_of(conn)->state == VERBS_BROKEN };
}

#define PLUG_TRIP_NS 30000u

static uint32_t plug_trip(struct verbs_conn *conn)
{
	(void)conn;
	return PLUG_TRIP_NS;
}

static ssize_t plug_get(struct verbs_conn *conn, const struct verbs_remote *from, size_t bytes, const struct iovec *iov,
			int count, size_t skip, unsigned int how, uint64_t cookie)
{
	if (!plug_reaches(plug_of(conn)))
		return -ENOTCONN;
	plug_of(conn)->got++;
	return (ssize_t)scatter(iov, count, skip, (const uint8_t *)(uintptr_t)from->address, bytes);
}

static int plug_got(struct verbs_conn *conn, struct verbs_got *out)
{
	*out = (struct verbs_got){ 0 };
	return plug_of(conn)->got ? plug_of(conn)->got-- : 0;
}

static int plug_expose(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_remote *remote,
		       struct verbs_region **out)
{
	cable.regions++;
	*remote = (struct verbs_remote){ (uintptr_t)address, 1 };
	*out = (struct verbs_region *)conn;
	return 0;
}

static int plug_gets(struct verbs_conn *conn)
{
	return plug_reaches(plug_of(conn)) ? 16 : 0;
}

static uint64_t plug_registration_ns(size_t bytes)
{
	return 0; /* nothing is known of it */
}

static int plug_reserve(struct verbs_conn *conn, const void *address, size_t bytes, bool spares,
			struct verbs_region **out)
{
	struct verbs_remote unused;

	return plug_expose(conn, address, bytes, &unused, out);
}

static void plug_hide(struct verbs_conn *conn, struct verbs_region *region)
{
	assert_ptr_equal(region, conn); /* of no other queue pair */
	cable.regions--;
}

static unsigned int plug_invalidate(const void *address, size_t bytes)
{
	return 0;
}

static void plug_give_up(struct verbs_conn *conn)
{
	plug_of(conn)->state = VERBS_BROKEN;
	plug_of(conn)->trouble = VERBS_PEER_GONE;
}

static void plug_tells_itself(struct verbs_conn *conn)
{
}

static void plug_close(struct verbs_conn *conn)
{
	struct plug *plug = plug_of(conn);

	if (plug->other)
		plug->other->other = NULL;
	if (cable.asks == plug)
		cable.asks = NULL;
	close(plug->fd);
	free(plug);
	cable.closed++;
	cable.open--;
}

static size_t plug_no_sink(struct verbs_conn *conn)
{
	return 0;
}

static const char *plug_tell(enum verbs_trouble trouble)
{
	return "";
}

static const struct verbs_table cable_device = {
	.tell = plug_tell,
	.listen = plug_listen,
	.listener_fd = plug_listener_fd,
	.listener_take = plug_take,
	.listener_heard = plug_listener_heard,
	.listener_close = plug_listener_close,
	.admit = plug_admit,
	.refuse = plug_refuse,
	.connect = plug_connect,
	.state = plug_state,
	.answered = plug_answered,
	.agree = plug_agree,
	.fd = plug_fd,
	.woke = plug_nothing,
	.poll = plug_poll,
	.push = plug_push,
	.credit = plug_credit,
	.flushed = plug_flushed,
	.arm = plug_arm,
	.positions = plug_positions,
	.trip = plug_trip,
	.get = plug_get,
	.got = plug_got,
	.gets = plug_gets,
	.registration_ns = plug_registration_ns,
	.reserve = plug_reserve,
	.sink = plug_no_sink,
	.expose = plug_expose,
	.hide = plug_hide,
	.invalidate = plug_invalidate,
	.give_up = plug_give_up,
	.tell_broken = plug_tells_itself,
	.close = plug_close,
};

#endif
