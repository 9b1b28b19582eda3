/* SPDX-License-Identifier: MIT */
/* Names instead of numbers in transcripts. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "end.h"

const char *errno_name(int error)
{
	const char *name = error ? strerrorname_np(error) : "no error";

	return name ? name : "unknown errno";
}

static const struct {
	uint32_t bit;
	const char *name;
} event_bits[] = {
	{ EPOLLIN, "IN" },	   { EPOLLPRI, "PRI" },	      { EPOLLOUT, "OUT" },	 { EPOLLERR, "ERR" },
	{ EPOLLHUP, "HUP" },	   { POLLNVAL, "NVAL" },      { EPOLLRDNORM, "RDNORM" }, { EPOLLRDBAND, "RDBAND" },
	{ EPOLLWRNORM, "WRNORM" }, { EPOLLWRBAND, "WRBAND" }, { EPOLLMSG, "MSG" },	 { EPOLLRDHUP, "RDHUP" },
};

const char *event_names(uint32_t events)
{
	static _Thread_local char buffers[4][128];
	static _Thread_local unsigned int next;
	char *out = buffers[next++ % 4];
	size_t used = 0;

	out[0] = 0;
	for (size_t i = 0; i < sizeof(event_bits) / sizeof(event_bits[0]); i++) {
		if (!(events & event_bits[i].bit))
			continue;
		used += (size_t)snprintf(out + used, 128 - used, "%s%s", used ? "|" : "", event_bits[i].name);
		events &= ~event_bits[i].bit;
	}
	if (events)
		snprintf(out + used, 128 - used, "|%#x", events);
	return out[0] ? out : "-";
}
