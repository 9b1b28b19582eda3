/* SPDX-License-Identifier: MIT */
/*
 * The agent of far.h: a thread that exists once a connection may be reached by RDMA. It loads the plug-in, listens and connects, and
 * answers for connections whose program makes no call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common/clock.h"
#include "common/room.h"
#include "common/sys.h"
#include "common/thread.h"
#include "preload/apart.h"
#include "preload/engine_out.h"
#include "preload/far_compare.h"
#include "preload/far_internal.h"
#include "preload/far_linger.h"
#include "preload/gate.h"
#include "preload/pool.h"

#define STACK_BYTES (256 * 1024)
#define ROUNDS 16
#define ADOPTS_NS NS_PER_SEC	    /* until a child looks again whether it holds a connection alone */
#define LOCK_NS (60 * NS_PER_MS)    /* for a lane that somebody else is at: it asks for the holder meanwhile */
#define LEAVES_NS (200 * NS_PER_MS) /* for the agent to leave one connection; it may wait for a lock of each lane's */
#define TICK_MS 4		    /* after which it looks whether the program serves yet what was left to it */
_Static_assert(LOCK_NS > LOCK_PATIENCE_NS, "that a holder was killed is found out");

enum { ABSENT, STARTING, RUNNING, FAILED };

static _Atomic int state;
static int events = -1;
static _Atomic int kick = -1;
static struct far *_Atomic graveyard;
static _Atomic bool ticks;
static uint64_t ticked;			    /* ns */
static const struct conn *_Atomic agent_at; /* just now */
static struct pool pool = { .bytes = sizeof(struct far),
			    .link = offsetof(struct far, next),
			    .each = 16,
			    .slabs_max = 4096,
			    .sharing = MAP_PRIVATE };

bool far_failed(void)
{
	return atomic_load(&state) == FAILED;
}

void far_kick(void)
{
	uint64_t one = 1;

	if (atomic_load(&kick) >= 0)
		sys_call(SYS_write, atomic_load(&kick), (long)&one, sizeof(one), 0, 0, 0);
}

/*
 * The TCP stream itself is in the set, by its edges. A number that is closed is in it no more, unless another process or number has the
 * socket, too: the same number may come back to it. Returns false if there is no room (epoll(7), max_user_watches; or no memory).
 */
static bool follow(struct far *far, int fd, bool on)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = far };
	long rc;

	if (atomic_load(&far->follows) == on)
		return true;
	rc = sys_call(SYS_epoll_ctl, events, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, (long)&event, 0, 0);
	if (on && rc == -EEXIST)
		rc = sys_call(SYS_epoll_ctl, events, EPOLL_CTL_MOD, fd, (long)&event, 0, 0);
	if (on && rc < 0)
		return false;
	atomic_store(&far->follows, on);
	return true;
}

bool far_bury(struct conn *conn, struct channel *channel)
{
	struct far *far = conn->far;

	if (!far)
		return false;
	follow(far, conn_fd(conn), false);
	conn->far = NULL;
	far->ended = *channel;
	far->ended.out.out = NULL; /* the engine's, which ends here */
	far->ended.in.in = NULL;
	far->next = atomic_load(&graveyard);
	while (!atomic_compare_exchange_weak(&graveyard, &far->next, far))
		;
	far_kick();
	return true;
}

bool far_agent_ticks(void)
{
	return atomic_load(&ticks);
}

static void watch(struct far *far, int fd, int how)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.ptr = far };

	sys_call(SYS_epoll_ctl, events, how, fd, (long)&event, 0, 0);
}

void far_watch(struct far *far, int fd)
{
	table_own_keep(fd);
	watch(far, fd, EPOLL_CTL_ADD);
}

/* It may be another process's, too, and then stays in the set. */
void far_unwatch(int fd)
{
	sys_call(SYS_epoll_ctl, events, EPOLL_CTL_DEL, fd, 0, 0, 0);
	table_own_drop(fd);
}

/*
 * Who takes a lane to where it ends, for a program that is to be executed, holds its lock until the peer has answered. Others are served
 * meanwhile, and the break that the peer is to answer is told.
 */
static bool take_soon(struct lock *lock, struct lock_hold *hold, bool *busy)
{
	bool taken = lock_take_until(lock, hold, clock_now() + LOCK_NS);

	*busy |= !taken && !lock_is_lost(lock);
	return taken;
}

/*
 * Returns false if somebody else is at it, or nobody would tell what comes: then it comes again. The socket's number is asked for under each
 * lock: one that the program has closed before, as it has others, may be another socket's by now (engine_number_goes).
 */
static bool serve_lanes(struct conn *conn, struct engine *engine)
{
	struct lock_hold hold;
	bool busy = false;
	int fd;

	if (!conn->holder.counts)
		return true; /* left to others meanwhile */
	if (take_soon(&engine->in, &hold, &busy)) {
		fd = conn_fd(conn);
		if (!engine_is_closing(conn)) {
			far_look(conn, engine, fd);
			if (conn->far) /* else it looks by the clock */
				busy |= !follow(conn->far, fd, far_follows(conn, engine));
		}
		lock_give(&engine->in, &hold);
	}
	if (take_soon(&engine->out, &hold, &busy)) {
		fd = conn_fd(conn);
		if (!engine_is_closing(conn)) {
			far_step_out(conn, engine, fd);
			if (far_compare_needs_none(engine))
				atomic_store(&conn->far->unwanted, true);
			if (far_link(conn))
				atomic_store(&conn->far->stuck, !far_hands_over(conn, engine));
			engine_ring_late(conn, engine, fd);
		}
		lock_give(&engine->out, &hold);
	}
	if (busy && conn->far)
		atomic_store(&conn->far->tells, true);
	return !busy;
}

/* What there is at present: of a meeting, or of the lanes. */
static struct verbs_conn *link_of(struct far *far)
{
	return far->opening ? far->opening : atomic_load(&far->link);
}

/* Returns false if somebody else is at it. */
static bool look_at_link(struct conn *conn, struct engine *engine, struct far *far)
{
	if (far->opening)
		far_meet_step(conn, engine, far);
	else if (atomic_load(&far->link)) /* else given up by now */
		return serve_lanes(conn, engine);
	return true;
}

/* Before it sleeps. Returns whether there is nothing more to do. */
static bool arm(struct far *far)
{
	struct verbs_conn *link = link_of(far);
	unsigned int what = atomic_load(&far->stuck) ? VERBS_IN | VERBS_OUT | VERBS_SENT : VERBS_SOLICITED;

	return !link || far_verbs->arm(link, what) || far_verbs->state(link, NULL) == VERBS_BROKEN;
}

static void serve_link(struct conn *conn, struct engine *engine, struct far *far)
{
	struct verbs_conn *link;
	bool armed = false, served = true;

	if (far_leaves_to_program(conn, engine, far))
		return;
	/* Before it arms: whoever takes its event from here on tells it. */
	atomic_store(&far->left, false);
	link = link_of(far);
	if (link && far_verbs->state(link, NULL) == VERBS_BROKEN) /* by a child of vfork, it may be */
		far_verbs->tell_broken(link);
	for (int i = 0; i < ROUNDS && !armed && served && link_of(far); i++) {
		if (far->opening)
			far_open_goes_on(far);
		else
			far_verbs->woke(link_of(far));
		served = look_at_link(conn, engine, far);
		armed = arm(far);
		/* What a thread of the program has taken from the device before there was an event to come. */
		served = served && look_at_link(conn, engine, far);
	}
	link = link_of(far);
	if (link && far_verbs->state(link, NULL) != VERBS_BROKEN) /* a broken one is readable for ever */
		watch(far, far_verbs->fd(link), EPOLL_CTL_MOD);
	if (link && !armed && served)
		far_kick();
}

static void follow_no_more(const struct conn *conn, struct engine *engine, struct far *far)
{
	struct lock_hold hold;
	bool busy = false;

	if (!take_soon(&engine->in, &hold, &busy))
		return;
	follow(far, conn_fd(conn), false);
	lock_give(&engine->in, &hold);
}

/*
 * `meets`: within the gate, and what is to be opened may be. What is asked for only now, by the program or on the way here, comes again, and
 * is within it then; but not at the end of the process, where meetings stay as they are.
 */
static void serve_held(struct conn *conn, struct engine *engine, bool meets)
{
	struct far *far = conn->far;

	if (far && atomic_exchange(&far->tells, false) && far_link(conn))
		serve_lanes(conn, engine);
	if (far && atomic_exchange(&far->unwanted, false))
		far_settles(conn, engine);
	if (far && !meets && atomic_load(&far->asked) && far_opens())
		far_kick();
	else if (far && meets && atomic_exchange(&far->asked, false))
		far_try_to_reach(conn, engine, far);
	if (far)
		far_drop_meeting_if_over(engine, far);
	if (far && far->listener && meets) {
		far_take_visitor(conn, engine, far);
		if (far->listener)
			watch(far, far_verbs->listener_fd(far->listener), EPOLL_CTL_MOD);
	}
	if (far && far->opening && !meets)
		return;
	if (far && link_of(far))
		serve_link(conn, engine, far);
	else if (far && atomic_load(&far->follows))
		follow_no_more(conn, engine, far);
}

static void serve_engine(struct conn *conn, bool meets)
{
	int fd = conn_fd(conn);
	struct engine *engine = conn->far && fd >= 0 ? engine_enter(conn, fd) : NULL;

	if (!engine)
		return;
	atomic_store(&agent_at, conn);
	atomic_thread_fence(memory_order_seq_cst);
	/* Else it is left to others, whose queue pair and lanes may be new, and not in this process. */
	if (conn->holder.counts)
		serve_held(conn, engine, meets);
	engine_leave(conn);
	atomic_store(&agent_at, NULL);
}

/* Whether it is at a connection that others hold, and that this process has let go of, or is closing. */
static bool is_at_others(void)
{
	const struct conn *conn = atomic_load(&agent_at);
	const struct engine *engine = conn ? atomic_load(&conn->engine) : NULL;
	bool counts = engine && conn->holder.counts;

	if (!engine || (counts && !engine_is_closing(conn)))
		return false;
	return atomic_load(&engine->holders.count) > (counts ? 1u : 0u);
}

void far_awaits_agent(void)
{
	uint64_t until = clock_now() + LEAVES_NS;

	atomic_thread_fence(memory_order_seq_cst);
	while (is_at_others() && clock_now() < until)
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}

/*
 * Who looks for devices loads their drivers, and a child that is forked in the middle of that has a loader whose lists are not whole: its
 * exit() walks through them. So a fork waits for it, and so does exit(). Entered before the engine: who closes is inside, and may wait for this thread.
 */
static void serve(struct conn *conn)
{
	const struct far *far = conn->far;
	bool meets = far && (atomic_load(&far->asked) || far->listener || far->opening);

	if (meets)
		gate_enter();
	serve_engine(conn, meets && far_opens());
	if (meets)
		gate_leave();
}

static void load(void)
{
	gate_enter();
	if (!far_opens() || !far_open_plug_in())
		atomic_store(&state, FAILED);
	gate_leave();
}

static void bury_all(void)
{
	struct far *far = atomic_exchange(&graveyard, NULL);

	if (!far)
		return;
	gate_enter(); /* for the allocator's locks */
	while (far) {
		struct far *next = far->next;

		far_drop_all(far);
		channel_close(&far->channel);
		channel_close(&far->ended);
		far->conn = NULL;
		pool_give(&pool, far);
		far = next;
	}
	gate_leave();
}

static bool owes(struct conn *conn)
{
	const struct engine *engine = atomic_load(&conn->engine);
	const struct far *far = conn->far;

	/* To TCP what the queue pair has not brought; to the device, what somebody is at yet; or a look at lanes that somebody had. */
	return far && engine &&
	       (engine->far.out == FAR_OUT_OWES || far->former || (atomic_load(&far->tells) && conn_fd(conn) >= 0));
}

static void serve_all(void)
{
	struct conn *conn;

	for (uint32_t at = 0; (conn = conn_next(&at));) {
		if (conn->far)
			serve(conn);
	}
}

static bool anybody_owes(void)
{
	struct conn *conn;

	for (uint32_t at = 0; (conn = conn_next(&at));) {
		if (owes(conn))
			return true;
	}
	return false;
}

/*
 * Whether the program may stop to serve some that were left to it, with no thread that would tell. One that rests would, and asks for ticks
 * when it ends its rest: but who rests again and again would ask each time.
 */
static bool any_to_look_after(void)
{
	struct conn *conn;

	for (uint32_t at = 0; (conn = conn_next(&at));) {
		const struct far *far = conn->far;

		if (far && atomic_load(&far->left) && (far->was_used || !atomic_load(&far->rests)))
			return true;
	}
	return false;
}

/* Takes back what the program does not serve any more. */
static void tick(void)
{
	struct conn *conn;

	ticked = clock_now();
	for (uint32_t at = 0; (conn = conn_next(&at));) {
		struct far *far = conn->far;

		if (!far || !atomic_load(&far->left))
			continue;
		far->was_used = atomic_exchange(&far->used, false);
		if (!far->was_used && !atomic_load(&far->rests))
			serve(conn);
	}
}

/* A thread that ends its rest asks for it if there are no ticks: one of the two sees the other. */
static void decide_on_ticks(void)
{
	atomic_store(&ticks, any_to_look_after());
	if (!atomic_load(&ticks))
		atomic_store(&ticks, any_to_look_after());
}

/* Returns in how many ms there is more to be done, or -1. */
static int go_on_with_ended(void)
{
	int ms;

	if (!far_lingers())
		return -1;
	gate_enter();
	ms = far_linger_step();
	gate_leave();
	return ms;
}

static void *agent_run(void *unused)
{
	static struct far marker; /* of nobody */
	struct epoll_event ready[32];
	uint64_t drained;

	load();
	far_linger_begin(events, &marker);
	for (;;) {
		int ms = go_on_with_ended();
		bool owe = anybody_owes();
		long count;

		decide_on_ticks();
		count = sys_call(SYS_epoll_pwait, events, (long)ready, 32,
				 atomic_load(&ticks) ? TICK_MS :
				 owe		     ? 5 :
						       ms,
				 0, 8);
		if (atomic_load(&ticks) && clock_now() - ticked >= TICK_MS * NS_PER_MS)
			tick();
		bool all = owe;

		for (long i = 0; i < count; i++) {
			struct far *far = ready[i].data.ptr;

			if (!far) {
				sys_call(SYS_read, atomic_load(&kick), (long)&drained, sizeof(drained), 0, 0, 0);
				all = true;
			} else if (far->conn && far->conn->far == far) {
				serve(far->conn);
			}
		}
		if (all)
			serve_all();
		bury_all();
	}
	return unused;
}

static bool open_descriptors(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	long fd = room_for_own() ? sys_call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0, 0, 0) : -EMFILE;

	if (fd < 0)
		return false;
	events = sys_fd_raise((int)fd);
	fd = sys_call(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK, 0, 0, 0, 0);
	if (fd < 0)
		return false;
	fd = sys_fd_raise((int)fd);
	table_own_keep(events);
	table_own_keep((int)fd);
	atomic_store(&kick, (int)fd);
	apart_prepare();
	return sys_call(SYS_epoll_ctl, events, EPOLL_CTL_ADD, fd, (long)&event, 0, 0) >= 0;
}

bool far_ready(void)
{
	int now = atomic_load_explicit(&state, memory_order_acquire);
	int saved = errno;

	if (now == RUNNING)
		return true;
	if (now != ABSENT || !atomic_compare_exchange_strong(&state, &now, STARTING))
		return false;
	now = open_descriptors() ? RUNNING : FAILED;
	atomic_store(&state, now);
	gate_enter(); /* libc's locks for stacks: a child of a fork past libc would find them taken for ever */
	far_open_begin();
	if (now == RUNNING && thread_start(agent_run, NULL, STACK_BYTES))
		atomic_store(&state, FAILED);
	gate_leave();
	errno = saved;
	return atomic_load(&state) == RUNNING;
}

/* Under both locks. Returns whether there is one now. */
static bool make(struct conn *conn)
{
	struct far *far = conn->far ? conn->far : pool_take(&pool);

	if (!far || conn->far)
		return far;
	memset(far, 0, sizeof(*far));
	far->conn = conn;
	far->channel.fd = far->ended.fd = -1;
	conn->far = far;
	return true;
}

void far_step(struct conn *conn, struct engine *engine)
{
	int self = conn_process(), none = 0;

	/* Others that hold it know nothing of a queue pair of this process. One that forks to serve closes its own end soon. */
	if (holders_alive(&engine->holders, &conn->holder) > 1)
		return;
	if (!conn->far) {
		if (!atomic_compare_exchange_strong(&engine->far.seeker, &none, self) && none != self)
			return; /* another process is at it */
		if (!make(conn))
			return;
		conn->far->asks = engine->far.host;
	}
	if (!atomic_exchange(&conn->far->asked, true))
		far_kick();
}

void far_adopts_there(struct conn *conn, struct engine *engine)
{
	struct far_both both;
	uint64_t now;

	if (atomic_load(&engine->far.over))
		return;
	now = clock_now();
	if (now < atomic_load(&engine->far.again_at))
		return;
	atomic_store(&engine->far.again_at, now + ADOPTS_NS);
	if (!far_possible() || !far_ready() || holders_alive(&engine->holders, &conn->holder) != 1 ||
	    !far_take_both(engine, &both))
		return;
	if (!conn->far && !engine_is_closing(conn) && make(conn)) {
		conn->far->adopted = true;
		atomic_store(&engine->far.again_at, now);
	}
	far_give_both(engine, &both);
}

void far_forget(struct conn *conn)
{
	if (conn->far)
		channel_close(&conn->far->channel);
	conn->far = NULL;
}

/* The device is the parent's, and so is what serves it: the child begins anew, when it first looks for a peer on another host. */
void far_after_fork(void)
{
	int was = atomic_load(&state);

	if (was == ABSENT || was == FAILED)
		return;
	far_linger_after_fork();
	table_own_close(events); /* the parent's set: what the child took out of it, the parent would miss */
	table_own_close(atomic_load(&kick));
	apart_after_fork();
	events = -1;
	atomic_store(&kick, -1);
	atomic_store(&graveyard, NULL);
	atomic_store(&agent_at, NULL);
	atomic_store(&ticks, false);
	/* The agent may have been at it. */
	atomic_store(&pool.lock.word, 0);
	pool.free = NULL;
	atomic_store(&state, far_loads_anew() ? ABSENT : FAILED);
}
