/* SPDX-License-Identifier: MIT */
/* An engine over a fork: both processes hold it, whether it has met or not; one whose fork fails has gained nobody. */
#define _GNU_SOURCE
#include <string.h>

#include "preload/conn.h"
#include "preload/engine.h"
#include "preload/engine_meet.h"
#include "preload/far.h"
#include "preload/hot.h"

#define PREMADE_MAX 8 /* channels made for connections that a fork finds apart */

uint32_t engine_premade;

/* Where both processes could meet, only a channel that both have can serve them; or, by RDMA, whoever asks first. */
static bool may_meet_after_fork(struct conn *conn, struct engine *engine)
{
	if (engine->names.peer.ss_family && !meet_is_local(&engine->names))
		return !conn->far;
	return engine->role != ROLE_CLIENT && engine_premade++ < PREMADE_MAX && engine_make_channel(conn, engine) >= 0;
}

/* Of that number, or a place for it. */
static struct heir *heir_of(struct conn *conn, uint64_t fork)
{
	struct heir *oldest = &conn->heirs[0];

	for (int i = 0; i < CONN_HEIRS; i++) {
		if (conn->heirs[i].fork == fork)
			return &conn->heirs[i];
		if (conn->heirs[i].fork < oldest->fork)
			oldest = &conn->heirs[i];
	}
	return oldest;
}

void engine_before_fork(struct conn *conn, uint64_t fork)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct lock_hold in, out;

	if (!engine)
		return;
	/* From here on nobody meets a peer on another host (far_meet.c). */
	*heir_of(conn, fork) = (struct heir){ fork, holders_expect(&engine->holders) };
	if (lock_take(&engine->in, &in)) {
		if (lock_take(&engine->out, &out)) {
			engine_meeting_ends(engine); /* it would be both's: whoever comes to it begins again */
			if (atomic_load(&engine->state) == ENGINE_APART && !engine->channel.header &&
			    !may_meet_after_fork(conn, engine))
				engine_stays_alone(conn, engine, REASON_SHARED);
			lock_give(&engine->out, &out);
		}
		lock_give(&engine->in, &in);
	}
	if (far_is(engine) && conn_fd(conn) >= 0)
		far_parts(conn, engine, conn_fd(conn));
	hot_cool(conn);
}

void engine_forked(struct conn *conn, uint64_t fork, pid_t child, bool far)
{
	struct engine *engine = atomic_load(&conn->engine);
	struct heir *own = heir_of(conn, fork);
	struct holder heir = { 0 };

	if (own->fork == fork) {
		heir = own->holder;
		*own = (struct heir){ 0 };
	}
	if (!child) {
		memset(conn->heirs, 0, sizeof(conn->heirs)); /* the parent's other forks are its own */
		conn->holder = heir;			     /* not the parent's, in any case */
		conn->made = false;
		far_forget(conn);
	}
	if (!child && !heir.counts)
		atomic_store(&conn->engine, NULL); /* it began behind the fork's back: the parent's alone */
	if (!engine || !heir.counts)
		return;
	if (child < 0) {
		holders_leave(&engine->holders, &heir);
		holders_forget(&engine->holders, &heir);
		return;
	}
	if (far) { /* before it can take a lock, or be asked for */
		atomic_store(&engine->in.kind, LOCK_FAR);
		atomic_store(&engine->out.kind, LOCK_FAR);
		atomic_store(&engine->holders.far, true);
	}
	holders_name(&engine->holders, &heir, child ? child : conn_process());
}
