/* SPDX-License-Identifier: MIT */
/* The meeting of an engine, between its own files. All under the engine's locks, or by the only one who knows it yet. */
#ifndef ZC_PRELOAD_ENGINE_MEET_H
#define ZC_PRELOAD_ENGINE_MEET_H

#include "preload/engine.h"

/* The lanes take over what was counted. Under both locks. */
void engine_lanes_begin(struct conn *conn, struct engine *engine);

/* Makes the channel, as the accepting end. Returns 0 or -errno. */
int engine_make_channel(struct conn *conn, struct engine *engine);

/* The descriptors that this process has open for the meeting are closed. */
void engine_meeting_ends(struct engine *engine);

/* It will not meet: TCP for good. */
void engine_stays_alone(struct conn *conn, struct engine *engine, enum stat_reason why);

/* Closes a descriptor of the library's own, if there is one. */
void engine_drop_own(int *fd);

#endif
