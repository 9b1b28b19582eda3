/* SPDX-License-Identifier: MIT */
/* The symbols of libzc-verbs.so: all that the library needs, and what others may ask. */
#define _GNU_SOURCE
#include <stdio.h>

#include "common/verbs_probe.h"
#include "rdma/verbs_internal.h"

extern const struct verbs_table zc_verbs;

__attribute__((visibility("default"))) const struct verbs_table zc_verbs = {
	.version = VERBS_TABLE_VERSION,
	.bytes = sizeof(struct verbs_table),
	.devices = verbs_devices,
	.tell = verbs_tell,
	.set_budget = verbs_set_budget,
	.set_owner = verbs_set_owner,
	.listen = verbs_listen,
	.listener_fd = verbs_listener_fd,
	.listener_port = verbs_listener_port,
	.listener_take = verbs_listener_take,
	.listener_heard = verbs_listener_heard,
	.listener_close = verbs_listener_close,
	.admit = verbs_admit,
	.refuse = verbs_refuse,
	.connect = verbs_connect,
	.state = verbs_state,
	.answered = verbs_answered,
	.agree = verbs_agree,
	.fd = verbs_fd,
	.woke = verbs_woke,
	.poll = verbs_poll,
	.push = verbs_push,
	.credit = verbs_credit,
	.flushed = verbs_flushed,
	.arm = verbs_arm,
	.rest = verbs_rest,
	.rise = verbs_rise,
	.positions = verbs_positions,
	.trip = verbs_trip,
	.get = verbs_get,
	.got = verbs_got,
	.gets = verbs_gets,
	.offer = verbs_offer,
	.retract = verbs_retract,
	.sink = verbs_sink,
	.fill = verbs_fill,
	.registration_ns = verbs_registration_ns,
	.reserve = verbs_reserve,
	.expose = verbs_expose,
	.hide = verbs_hide,
	.invalidate = verbs_invalidate,
	.give_up = verbs_give_up,
	.tell_broken = verbs_tell_broken,
	.close = verbs_close,
};

#define DEVICES_MAX 16

__attribute__((visibility("default"))) verbs_probe_function zc_verbs_probe;

enum verbs_probe zc_verbs_probe(char *said, size_t bytes)
{
	struct verbs_device devices[DEVICES_MAX];
	enum verbs_trouble trouble;
	size_t memlock;
	int count = verbs_devices(devices, DEVICES_MAX, &trouble, &memlock);
	uint32_t queue_pairs = 0;

	if (trouble != VERBS_FINE) {
		snprintf(said, bytes, "%s", verbs_tell(trouble));
		return trouble == VERBS_NO_DEVICE ? VERBS_PROBE_NO_DEVICE :
		       trouble == VERBS_NO_GID	  ? VERBS_PROBE_NO_ADDRESS :
						    VERBS_PROBE_USELESS;
	}
	for (int i = 0; i < count && i < DEVICES_MAX; i++)
		queue_pairs = devices[i].queue_pairs > queue_pairs ? devices[i].queue_pairs : queue_pairs;
	snprintf(said, bytes, "%u queue pairs", queue_pairs);
	return VERBS_PROBE_OPENED;
}
