/* SPDX-License-Identifier: MIT */
/* A session's plan, and its steps: one thread that polls, or one for each direction that blocks. */
#define _GNU_SOURCE
#include "fire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#define PHASE_BYTES_MAX (3u << 17)
#define TURNS_MAX 60
#define TURN_BYTES_MAX (24u << 10)

int session_wrong(const struct state *state, const char *format, ...)
{
	char text[256];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	fprintf(stderr,
		"fire: --seed %llu, session %u, %s, step %u, handed on %u times, sent %llu, received %llu, process %d: %s\n",
		(unsigned long long)state->seed, state->number, state->side == SIDE_CLIENT ? "client" : "server",
		state->step, state->handed, (unsigned long long)state->sent, (unsigned long long)state->received,
		(int)getpid(), text);
	return -1;
}

/*
 * Draws what a side does in a step. A step in which the other one sends last is no moment for SCM_RIGHTS. Behind this and an exec
 * a connection has no rings any more: so most sessions do without.
 */
static enum event draw_event(uint64_t *random, bool quiet, bool leaves)
{
	if (fire_below(random, 3))
		return EVENT_NONE;
	if (!leaves)
		return fire_below(random, 2) ? EVENT_FORK : EVENT_FORK_BACK;
	if (quiet && fire_below(random, 2))
		return EVENT_PASS;
	return (enum event)(EVENT_FORK + fire_below(random, EVENT_PASS - EVENT_FORK));
}

/* A step in which both ends send: they stream, or take turns. Puts where it ends for each of them. */
static void plan_bytes(struct plan *plan, unsigned int step, uint64_t *random, uint64_t end[2])
{
	static const uint64_t most[] = { 1500, 6000, 24000, FIRE_BLOCK_MAX };
	uint64_t turns = 2 + fire_below(random, TURNS_MAX);

	plan->most[step] = most[fire_below(random, 4)];
	if (fire_below(random, 8)) {
		for (int side = 0; side < 2; side++) {
			plan->turn[side][step] = 1 + fire_below(random, TURN_BYTES_MAX);
			end[side] += plan->turn[side][step] * (turns - fire_below(random, 2)) - 1;
		}
		return;
	}
	for (int side = 0; side < 2; side++)
		end[side] += fire_below(random, 2) ? fire_below(random, PHASE_BYTES_MAX) :
						     fire_size(random, PHASE_BYTES_MAX);
}

void plan_make(struct plan *plan, uint64_t seed, uint32_t number)
{
	uint64_t random = fire_mix(seed ^ fire_mix(number + 1)), end[2] = { 0, 0 }, begin;
	bool leaves = !fire_below(&random, 5);

	memset(plan, 0, sizeof(*plan));
	plan->steps = 3 * (1 + (unsigned int)fire_below(&random, FIRE_PHASES_MAX));
	plan->key[SIDE_CLIENT] = fire_draw(&random);
	plan->key[SIDE_SERVER] = fire_draw(&random);
	plan->closes = fire_below(&random, 2);
	for (unsigned int step = 0; step < plan->steps; step++) {
		begin = end[0] + end[1];
		plan->most[step] = FIRE_BLOCK_MAX;
		if (step % 3 == 0)
			plan_bytes(plan, step, &random, end);
		else
			end[step % 3 - 1]++;
		plan->until[0][step] = end[0];
		plan->until[1][step] = end[1];
		for (int side = 0; side < 2; side++) {
			bool quiet = step % 3 == (unsigned int)side + 1;

			plan->event[side][step] =
				quiet || step % 3 == 0 ? draw_event(&random, quiet, leaves) : EVENT_NONE;
			plan->at[side][step] = begin + (quiet ? 0 : fire_below(&random, end[0] + end[1] - begin + 1));
		}
	}
}

bool plan_has_turns(uint64_t seed, uint32_t number)
{
	struct plan plan;

	plan_make(&plan, seed, number);
	for (unsigned int step = 0; step < plan.steps; step++)
		if (plan.turn[SIDE_CLIENT][step])
			return true;
	return false;
}

/* Waiting ---------------------------------------------------------------------------------------------------------- */

struct waiter {
	int set; /* of epoll; -1: none */
	bool edge, once;
	bool added;
	uint32_t last;
};

static int wait_epoll(struct waiter *waiter, int fd, uint32_t events)
{
	struct epoll_event event = { .events = waiter->edge ? EPOLLIN | EPOLLOUT | EPOLLET : events };

	if (waiter->once)
		event.events |= EPOLLONESHOT;
	if (!waiter->added || waiter->once || (!waiter->edge && waiter->last != events)) {
		if (epoll_ctl(waiter->set, waiter->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) < 0)
			return -1;
		waiter->added = true;
		waiter->last = events;
	}
	if (epoll_wait(waiter->set, &event, 1, FIRE_STALL_MS) < 1)
		return 0;
	return event.events & EPOLLERR ? POLLERR : POLLIN;
}

static int wait_select(int fd, bool in, bool out)
{
	struct timeval time = { FIRE_STALL_MS / 1000, 0 };
	fd_set ins, outs;

	FD_ZERO(&ins);
	FD_ZERO(&outs);
	if (in)
		FD_SET(fd, &ins);
	if (out)
		FD_SET(fd, &outs);
	return select(fd + 1, &ins, &outs, NULL, &time) > 0 ? POLLERR : 0; /* it may be an error as well */
}

/* Waits for one of the directions. Returns 0 if it was in vain. */
static int wait_for(struct state *state, struct waiter *waiter, int fd, bool in, bool out, uint64_t *random)
{
	struct pollfd look = { .fd = fd, .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0)) };
	struct timespec time = { FIRE_STALL_MS / 1000, 0 };
	int found;

	errno = 0;
	if (waiter->set >= 0) {
		found = wait_epoll(waiter, fd, (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u));
	} else if (fire_below(random, 4) == 0 && fd < FD_SETSIZE) {
		found = wait_select(fd, in, out);
	} else {
		found = fire_below(random, 2) ? poll(&look, 1, FIRE_STALL_MS) : ppoll(&look, 1, &time, NULL);
		found = found > 0 ? look.revents : 0;
	}
	if (found & POLLERR && state->zerocopy)
		move_notices(fd);
	if (!found && errno == EINTR)
		return POLLIN; /* who knows */
	if (!found)
		session_wrong(state, "nothing came for %d s: in %d, out %d, %s", FIRE_STALL_MS / 1000, in, out,
			      waiter->set < 0 ? "poll or select" :
			      waiter->edge    ? "epoll, edges" :
						"epoll");
	return found;
}

/* Steps ------------------------------------------------------------------------------------------------------------ */

static int lost(const struct state *state, const char *way, ssize_t got)
{
	if (got == -EBADMSG)
		return -1;
	return session_wrong(state, "%s: %s", way, got ? strerror((int)-got) : "end of the stream");
}

/*
 * How far a side may send by now. With turns the client begins, and each waits for all of the other's turn; who has received all
 * of the step has no other to wait for. Follows from positions alone, so whoever goes on with the session knows it.
 */
static uint64_t may_send(const struct state *state, const struct plan *plan)
{
	unsigned int step = state->step, side = state->side;
	uint64_t out = plan->until[side][step], turn = plan->turn[!side][step], begin[2] = { 0, 0 }, turns, most;

	if (!turn || state->received >= plan->until[!side][step])
		return out;
	for (int i = 0; step && i < 2; i++)
		begin[i] = plan->until[i][step - 1];
	turns = (state->received - begin[!side]) / turn + (side == SIDE_CLIENT);
	most = begin[side] + turns * plan->turn[side][step];
	return most < out ? most : out;
}

/* As far as the other one is certain to send before it waits for this side: a receive may wait for all of that. */
static uint64_t may_receive(const struct state *state, const struct plan *plan)
{
	unsigned int step = state->step, side = !state->side;
	uint64_t in = plan->until[side][step], turn = plan->turn[side][step], begin, most;

	if (!turn)
		return in;
	begin = step ? plan->until[side][step - 1] : 0;
	most = begin + ((state->received - begin) / turn + 1) * turn;
	return most < in ? most : in;
}

/* Stops as soon as sent + received reach `pause`. */
static int step_polling(struct state *state, const struct plan *plan, int fd, uint64_t pause, uint64_t *random)
{
	uint64_t out = plan->until[state->side][state->step], in = plan->until[!state->side][state->step];
	uint64_t how = fire_below(random, 6);
	struct waiter waiter = { .set = how < 4 ? epoll_create1(EPOLL_CLOEXEC) : -1, .edge = how < 2, .once = how % 2 };
	bool room = true, more = true;
	ssize_t got;
	int rc = 0;

	while ((state->sent < out || state->received < in) && state->sent + state->received < pause) {
		uint64_t most = may_send(state, plan);
		bool sends = state->sent < most && room, receives = state->received < in && more;

		if (sends && (!receives || fire_below(random, 2))) {
			got = move_out(state, plan, fd, most - state->sent, false, random);
			room = got != -EAGAIN;
		} else if (receives) {
			got = move_in(state, plan, fd, may_receive(state, plan) - state->received, false, random);
			more = got != -EAGAIN;
		} else {
			got = wait_for(state, &waiter, fd, state->received < in, state->sent < most, random) > 0 ?
				      1 :
				      -EBADMSG;
			room = more = true;
		}
		if (got <= 0 && got != -EAGAIN && got != -EINTR) {
			rc = lost(state, sends ? "send or receive" : "receive", got);
			break;
		}
	}
	if (waiter.set >= 0)
		close(waiter.set);
	return rc;
}

struct sender {
	struct state state;
	const struct plan *plan;
	int fd, rc;
	uint64_t until, random;
};

static void *send_blocking(void *argument)
{
	struct sender *sender = argument;
	ssize_t sent;

	while (sender->state.sent < sender->until) {
		sent = move_out(&sender->state, sender->plan, sender->fd, sender->until - sender->state.sent, true,
				&sender->random);
		if (sent <= 0 && sent != -EINTR) {
			sender->rc = lost(&sender->state, "send", sent);
			shutdown(sender->fd, SHUT_RDWR);
			break;
		}
	}
	return NULL;
}

static int receive_blocking(struct state *state, const struct plan *plan, int fd, uint64_t *random)
{
	uint64_t in = plan->until[!state->side][state->step];
	ssize_t got;

	while (state->received < in) {
		got = move_in(state, plan, fd, in - state->received, true, random);
		if (got <= 0 && got != -EINTR)
			return lost(state, "receive", got);
	}
	return 0;
}

/* Who takes turns needs no second thread. Stops as soon as sent + received reach `pause`. */
static int step_turns(struct state *state, const struct plan *plan, int fd, uint64_t pause, uint64_t *random)
{
	uint64_t out = plan->until[state->side][state->step], in = plan->until[!state->side][state->step];
	uint64_t most;
	bool sends;
	ssize_t got;

	while ((state->sent < out || state->received < in) && state->sent + state->received < pause) {
		most = may_send(state, plan);
		sends = state->sent < most;
		got = sends ? move_out(state, plan, fd, most - state->sent, true, random) :
			      move_in(state, plan, fd, may_receive(state, plan) - state->received, true, random);
		if (got <= 0 && got != -EINTR)
			return lost(state, sends ? "send" : "receive", got);
	}
	return 0;
}

/* What is sent is sent by a thread of its own; with nothing to send, or to receive, none is needed. */
static int step_blocking(struct state *state, const struct plan *plan, int fd, uint64_t *random)
{
	struct sender sender = { *state, plan, fd, 0, plan->until[state->side][state->step], fire_draw(random) };
	bool both = state->received < plan->until[!state->side][state->step];
	pthread_t thread;
	int rc = 0;

	if (!both)
		send_blocking(&sender);
	else if (sender.until > state->sent && pthread_create(&thread, NULL, send_blocking, &sender))
		abort();
	if (both) {
		rc = receive_blocking(state, plan, fd, random);
		if (rc < 0)
			shutdown(fd, SHUT_RDWR);
		if (sender.until > state->sent)
			pthread_join(thread, NULL);
	}
	state->sent = sender.state.sent;
	return rc < 0 || sender.rc < 0 ? -1 : 0;
}

static uint64_t local_random(struct state *state)
{
	return fire_mix(state->seed + state->number * 64 + state->side) +
	       (uint64_t)state->drawn++ * 0x5851f42d4c957f2du;
}

static int step_run(struct state *state, const struct plan *plan, int fd, uint64_t pause)
{
	uint64_t random = local_random(state);
	bool turns = plan->turn[0][state->step];
	bool blocking = (turns || pause == UINT64_MAX) && fire_below(&random, 2);
	int flags = fcntl(fd, F_GETFL);

	fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
	if (!blocking)
		return step_polling(state, plan, fd, pause, &random);
	return turns ? step_turns(state, plan, fd, pause, &random) : step_blocking(state, plan, fd, &random);
}

int session_step(struct state *state, int fd)
{
	struct plan plan;

	plan_make(&plan, state->seed, state->number);
	return step_run(state, &plan, fd, UINT64_MAX);
}

/* Behind the last byte there is the end of the stream, and nothing else. */
static int session_end(struct state *state, const struct plan *plan, int fd)
{
	char byte;
	ssize_t got = 0;

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	if (!plan->closes || state->side == SIDE_SERVER) {
		if (!plan->closes)
			shutdown(fd, SHUT_WR);
		got = recv(fd, &byte, 1, 0);
	}
	if (got)
		return session_wrong(state, "at the end: %s", got < 0 ? strerror(errno) : "a byte too many");
	return 0;
}

int session_run(struct state *state, int fd)
{
	uint64_t random = local_random(state), pause;
	struct plan plan;
	enum event event;
	int rc = 0;

	plan_make(&plan, state->seed, state->number);
	while (!rc && state->step < plan.steps) {
		event = state->fired & 1u << state->step ? EVENT_NONE : plan.event[state->side][state->step];
		pause = event ? plan.at[state->side][state->step] : UINT64_MAX;
		if (event && state->sent + state->received >= pause) {
			state->fired |= 1u << state->step;
			rc = handover(state, fd, event, &random);
			if (rc != HANDOVER_BACK)
				return rc;
			rc = 0;
			continue;
		}
		rc = step_run(state, &plan, fd, pause);
		if (!rc && !event)
			state->step++;
	}
	if (!rc)
		rc = session_end(state, &plan, fd);
	close(fd);
	return rc;
}
