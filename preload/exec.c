/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/exec.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "common/log.h"
#include "common/sys.h"
#include "preload/actions.h"
#include "preload/engine_source.h"
#include "preload/evict.h"
#include "preload/exec_names.h"
#include "preload/far.h"
#include "preload/far_linger.h"
#include "preload/guest.h"

#define VARIABLE EXEC_VARIABLE "="
#define VARIABLE_BYTES 16384 /* some 600 connections with unread bytes; more are reset */
#define KEPT_MAX 1024

enum kept_what { KEPT_REST, KEPT_BURIED, KEPT_SPAWNED };

/* What has to be put back if the exec fails. */
struct kept {
	enum kept_what what;
	struct conn *conn;
	uint64_t cookie;
	int fd;	   /* that names its socket here; or that was buried */
	int other; /* what goes along, or the buried one's socket; -1: that is at its number, and closed by the exec */
	uint64_t there; /* the cookie of what is at a buried one's number instead */
	/* The buried one, by its close: the first of its numbers, as long as that is counted; and what the program had said of closes. */
	struct kept *resets;
	struct linger linger;
	struct channel rest; /* without a header: not mapped here any more */
};

struct exec_memory {
	size_t bytes;
	int count;
	size_t used; /* of the variable */
	char variable[VARIABLE_BYTES];
	struct kept kept[KEPT_MAX];
	char *envp[];
};

/* Open descriptors that are no close-on-exec, by the cookies of their sockets: also those that nobody has told us of. */
struct scan {
	uint64_t cookies[EXEC_SCAN];
};

static void scan_descriptors(struct scan *scan)
{
	for (int fd = 0; fd < EXEC_SCAN; fd++)
		scan->cookies[fd] = conn_stays_open(fd) ? conn_cookie_of(fd) : 0;
}

/* What the actions make of those numbers, too, the new program finds by its cookie. Returns whether they name the connection. */
static bool add_spawned(const void *actions, const struct conn *conn, struct exec_names *names)
{
	struct action action;
	bool named = false;

	for (uint32_t at = 0; actions_next(actions, &at, &action);) {
		if (table_conn(action.fd) != conn)
			continue;
		exec_names_add(names, action.fd); /* here, and there */
		exec_names_add(names, action.to);
		named = true;
	}
	return named;
}

static size_t count_variables(char *const envp[])
{
	size_t count = 0;

	while (envp && envp[count])
		count++;
	return count;
}

/* After a filter was installed it can't be asked whether this is a child of vfork: then it may be one. */
static bool is_ours(void)
{
	return !guest_sandboxed() && conn_process_is_ours();
}

/*
 * What a child of vfork maps stays with its parent when it is gone. The parent's thread waits for it, and its next child, which
 * has the same thread variables, takes that again.
 */
static __thread struct exec_memory *left_by_child __attribute__((tls_model("initial-exec")));

static void unmap(struct exec_memory *memory)
{
	if (memory == left_by_child)
		left_by_child = NULL;
	sys_call(SYS_munmap, (long)memory, (long)memory->bytes, 0, 0, 0, 0);
}

static struct exec_memory *map(size_t bytes)
{
	struct exec_memory *memory = left_by_child;
	bool ours = is_ours();

	if (memory && !ours && memory->bytes >= bytes) {
		memory->count = 0;
		memory->used = 0;
		return memory;
	}
	if (memory)
		unmap(memory);
	memory = sys_map(bytes, MAP_PRIVATE | MAP_NORESERVE);
	if (memory)
		memory->bytes = bytes;
	if (!ours)
		left_by_child = memory;
	return memory;
}

/* Whether there is room for so many to put back. */
static bool has_room(struct exec *exec, int count)
{
	size_t bytes = sizeof(struct exec_memory) + (count_variables(exec->envp) + 2) * sizeof(char *);

	if (!exec->memory)
		exec->memory = map(bytes);
	return exec->memory && exec->memory->count + count <= KEPT_MAX;
}

/* Where there is room. */
static struct kept *new_kept(struct exec *exec, enum kept_what what, struct conn *conn, int fd)
{
	struct kept *kept = &exec->memory->kept[exec->memory->count++];

	*kept = (struct kept){ .what = what,
			       .conn = conn,
			       .cookie = conn->cookie,
			       .fd = fd,
			       .other = -1,
			       .rest.fd = -1 };
	return kept;
}

/* Before there is a child: when it is there, the connection may be closed by another thread before posix_spawn has returned. */
static void is_spawned(struct exec *exec, struct conn *conn)
{
	atomic_fetch_add(&conn->spawned, 1);
	if (has_room(exec, 1))
		new_kept(exec, KEPT_SPAWNED, conn, -1);
}

static void find_names(struct exec *exec, struct conn *conn, const struct scan *scan, struct exec_names *names)
{
	uint64_t cookie = conn_identify(conn, conn_fd(conn));

	*names = (struct exec_names){ .handed = !exec->spawns && conn->handed };
	if (exec->actions && conn->descriptors && add_spawned(exec->actions, conn, names)) {
		names->handed = true;
		is_spawned(exec, conn);
	}
	if (!cookie)
		return; /* it can't be told */
	for (int i = 0; i < conn->descriptors; i++) {
		if (conn_stays_open(conn->fds[i]) && conn_cookie_of(conn->fds[i]) == cookie)
			exec_names_add(names, conn->fds[i]);
	}
	for (int fd = 0; fd < EXEC_SCAN; fd++) {
		if (scan->cookies[fd] != cookie)
			continue;
		names->handed |= !exec->spawns && table_conn(fd) != conn;
		exec_names_add(names, fd);
	}
	for (int fd = EXEC_SCAN; conn->extra && fd < (int)table_size; fd++) {
		if (table_conn(fd) == conn && conn_stays_open(fd) && conn_cookie_of(fd) == cookie)
			exec_names_add(names, fd);
	}
}

static enum target target(struct exec *exec)
{
	if (!exec->looked)
		exec->target = guest_sandboxed() ? TARGET_FOREIGN : target_of(exec->name, exec->envp);
	exec->looked = true;
	return exec->target;
}

/* The buried one's socket. */
static int socket_of(const struct kept *kept)
{
	return kept->other >= 0 ? kept->other : kept->fd;
}

/*
 * The new program gets a socket without a connection instead: what it would find there is not in order. If there is none, or no number
 * for what is put aside, it gets nothing. Where there is room for it; returns what takes it back, or NULL: another thread has closed it.
 */
static struct kept *bury(struct exec *exec, struct conn *conn, int fd)
{
	struct kept *kept;
	long dead, backup;

	if (conn_cookie_of(fd) != conn->cookie)
		return NULL;
	kept = new_kept(exec, KEPT_BURIED, conn, fd);
	dead = backup = sys_call(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0, 0, 0, 0);
	if (dead >= 0)
		backup = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, SYS_FD_HIGH, 0, 0, 0);
	if (dead >= 0 && backup < 0)
		backup = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0, 0, 0, 0);
	if (backup >= 0)
		kept->there = conn_cookie_of((int)dead);
	if (backup >= 0 && sys_call(SYS_dup3, dead, fd, 0, 0, 0, 0) >= 0) {
		kept->other = (int)backup;
	} else {
		if (backup >= 0)
			sys_call(SYS_close, backup, 0, 0, 0, 0, 0);
		kept->there = kept->cookie;
		sys_call(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC, 0, 0, 0);
	}
	if (dead >= 0)
		sys_call(SYS_close, dead, 0, 0, 0, 0, 0);
	return kept;
}

/* Where the connection is shared and only others have a use for it. Returns whether they go on without the new program. */
static bool leave_to_others(struct exec *exec, struct conn *conn, struct engine *engine, const struct exec_names *names)
{
	bool shared = !is_ours() || (conn->inherited && holders_alive(&engine->holders, &conn->holder) > 1);

	if (!shared || names->handed || exec->spawns || !evict_has_rest(engine))
		return false;
	for (int i = 0; i < names->count; i++) {
		log_info("fd %d: does not go along: others have bytes to receive on it", names->fds[i]);
		if (!guest_sandboxed() && has_room(exec, 1))
			bury(exec, conn, names->fds[i]);
		else if (conn_cookie_of(names->fds[i]) == conn->cookie && /* which stays so if the exec fails */
			 sys_call(SYS_fcntl, names->fds[i], F_SETFD, FD_CLOEXEC, 0, 0, 0) < 0)
			sys_call(SYS_close, names->fds[i], 0, 0, 0, 0, 0); /* a filter refuses it */
	}
	return true;
}

/*
 * Where nobody has a use for it behind the exec: it is reset when that has come about, by the last close of the socket, and by nothing if it
 * fails. Returns false if that can't be had.
 */
static bool reset_behind(struct exec *exec, struct conn *conn, struct engine *engine, const struct exec_names *names)
{
	const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
	struct linger before = { 0 };
	socklen_t bytes = sizeof(before);
	struct kept *first = NULL;

	if (exec->spawns || !is_ours() || guest_sandboxed() || holders_alive(&engine->holders, &conn->holder) != 1)
		return false;
	/* Under a number that is left out it would go along. */
	if (names->more || !has_room(exec, names->count))
		return false;
	for (int i = 0; i < names->count; i++) {
		struct kept *kept = bury(exec, conn, names->fds[i]);

		if (!kept)
			continue;
		if (!first) {
			first = kept;
			sys_call(SYS_getsockopt, socket_of(kept), SOL_SOCKET, SO_LINGER, (long)&before, (long)&bytes,
				 0);
		}
		kept->resets = first;
		kept->linger = before;
	}
	if (!first)
		return false;
	sys_call(SYS_setsockopt, socket_of(first), SOL_SOCKET, SO_LINGER, (long)&reset, sizeof(reset), 0);
	stats_reason(conn->slot, REASON_LOST);
	log_info("fd %d: is reset: what its ring holds can't go along", first->fd);
	return true;
}

static size_t room_to_tell(const struct exec_memory *memory)
{
	return sizeof(memory->variable) - memory->used;
}

/* NUMBER.COOKIE.FD,FD,...; for each. */
static void tell(struct exec_memory *memory, int number, const struct conn *conn, const struct exec_names *names)
{
	char *at = memory->variable + memory->used;
	size_t room = room_to_tell(memory), used = 0;

	if (!memory->used)
		used = log_format(at, room, VARIABLE);
	used += log_format(at + used, room - used, "%d.%lx.", number, (unsigned long)conn->cookie);
	for (int i = 0; i < names->count; i++)
		used += log_format(at + used, room - used, "%d,", names->fds[i]);
	used += log_format(at + used, room - used, ";");
	memory->used += used;
}

/*
 * Puts what is unread where the new program finds it, or resets the connection. Under the lock `in`. Returns false if it can do neither, with
 * all as it was.
 */
static bool carry(struct exec *exec, struct conn *conn, struct engine *engine, const struct exec_names *names)
{
	bool alone = is_ours() && holders_alive(&engine->holders, &conn->holder) == 1;
	struct channel rest;
	struct kept *kept;
	int rc;

	if (target(exec) != TARGET_OURS || names->more || !has_room(exec, 1) ||
	    room_to_tell(exec->memory) < sizeof(VARIABLE) + 64 + (size_t)names->count * 12)
		return false;
	rc = evict_rest(conn, engine, names->fds[0], &rest);
	if (rc < 0)
		return rc == -ECONNRESET;
	kept = new_kept(exec, KEPT_REST, conn, names->fds[0]);
	kept->rest = rest;
	kept->other = rest.fd;
	kept->rest.fd = -1;
	/* Only who has the engine for himself can take it back; and what vfork's child maps stays with its parent. */
	if (!alone)
		channel_close(&kept->rest);
	sys_call(SYS_fcntl, kept->other, F_SETFD, 0, 0, 0, 0);
	stats_reason(conn->slot, REASON_CARRIED);
	tell(exec->memory, kept->other, conn, names);
	return true;
}

/*
 * The new program takes of the stream what nobody counts here: so that it is not here is no reason for a close to reset what others have.
 * Who has it by chance may take nothing: to a process that receives on, an end before all has come is none.
 */
static void goes_along(const struct exec *exec, struct engine *engine, bool takes)
{
	engine->far.elsewhere = true;
	if (takes && (exec->spawns || !is_ours()))
		engine->far.owed = 0;
}

/* A connection that the new program inherits. Under the lock `in`. Returns whether its descriptors name it yet. */
static bool hand_over_lane(struct exec *exec, struct conn *conn, struct engine *engine, const struct exec_names *names)
{
	if (leave_to_others(exec, conn, engine, names))
		return false;
	if (evict_in(conn, engine, names->fds[0])) {
		goes_along(exec, engine, names->handed);
		return true;
	}
	if (leave_to_others(exec, conn, engine, names))
		return false;
	if (exec->spawns && !names->handed)
		return true; /* it has leaked to a child in which nothing can be put in its place */
	if (!carry(exec, conn, engine, names)) {
		if (reset_behind(exec, conn, engine, names))
			return false;
		evict_reset(conn, names->fds[0]);
	}
	goes_along(exec, engine, true);
	return true;
}

static void hand_over_held(struct exec *exec, struct conn *conn, struct engine *engine, const struct exec_names *names)
{
	bool goes = true;

	engine_stays_apart(conn, engine);
	if (engine_met(engine))
		goes = hand_over_lane(exec, conn, engine, names);
	/* Where it does not go along, the others' agent sends what is owed: here its number is another socket's. */
	if (goes && engine_met(engine) && lane_leaves(&engine->channel.in))
		evict_out(conn, engine, names->fds[0]);
	if (!exec->spawns && is_ours())
		engine_gives_up(conn, engine);
}

/* Another thread may close the connection meanwhile, and its number be another's. */
static void hand_over(struct exec *exec, struct conn *conn, const struct exec_names *names)
{
	struct engine *engine = engine_enter(conn, conn_fd(conn));
	struct lock_hold hold;

	if (!engine)
		return;
	if (!exec->spawns && is_ours())
		sources_keep(conn, engine);
	if (target(exec) != TARGET_NONE && lock_take(&engine->in, &hold)) {
		if (engine_is_held(conn, names->fds[0]))
			hand_over_held(exec, conn, engine, names);
		lock_give(&engine->in, &hold);
	}
	engine_leave(conn);
}

/* All connections. Returns whether there was anything to be done. */
static void look_at_all(struct exec *exec)
{
	struct scan scan;
	struct exec_names names;
	struct conn *conn;
	bool scanned = false;

	if (!exec->spawns && is_ours())
		sources_stop(true);
	for (uint32_t at = 0; (conn = conn_next(&at));) {
		if (!engine_is_there(conn))
			continue;
		if (!scanned)
			scan_descriptors(&scan);
		scanned = true;
		find_names(exec, conn, &scan, &names);
		if (names.count)
			hand_over(exec, conn, &names);
		else if (!exec->spawns && is_ours() && target(exec) != TARGET_NONE)
			engine_goes(conn);
	}
	if (exec->spawns || !is_ours())
		return;
	far_awaits_agent();
	far_linger_end();
}

/* The program's environment with one more variable. */
static char *const *with_variable(struct exec *exec)
{
	struct exec_memory *memory = exec->memory;
	size_t count = 0;

	for (char *const *at = exec->envp; at && *at; at++) {
		if (strncmp(*at, VARIABLE, sizeof(VARIABLE) - 1) != 0)
			memory->envp[count++] = *at;
	}
	memory->envp[count++] = memory->variable;
	memory->envp[count] = NULL;
	return memory->envp;
}

static char *const *begin(struct exec *exec, const struct target_name *name, char *const envp[], bool spawns,
			  const void *actions)
{
	*exec = (struct exec){ .name = name, .envp = envp, .spawns = spawns, .actions = actions };
	if (!engine_possible())
		return envp;
	look_at_all(exec);
	return exec->memory && exec->memory->used ? with_variable(exec) : envp;
}

char *const *exec_begins(struct exec *exec, const struct target_name *name, char *const envp[])
{
	return begin(exec, name, envp, false, NULL);
}

char *const *exec_spawns(struct exec *exec, const struct target_name *name, char *const envp[], const void *actions)
{
	return begin(exec, name, envp, true, actions);
}

/* Unless it was closed meanwhile, by another thread: with unread bytes, that is a reset, and the number is another's. */
static void dig_up(const struct kept *kept)
{
	if (conn_cookie_of(kept->fd) != kept->there)
		return;
	if (kept->resets) {
		sys_call(SYS_setsockopt, socket_of(kept), SOL_SOCKET, SO_LINGER, (long)&kept->linger,
			 sizeof(kept->linger), 0);
		if (kept->resets->resets)
			stats_add(&stats->slot[kept->conn->slot].reason[REASON_LOST], -1);
		kept->resets->resets = NULL;
	}
	if (kept->other >= 0)
		sys_call(SYS_dup3, kept->other, kept->fd, 0, 0, 0, 0);
	else
		sys_call(SYS_fcntl, kept->fd, F_SETFD, 0, 0, 0, 0);
}

/* Unless another thread has closed it meanwhile: then the object may be another connection's. */
static bool is_it_yet(const struct kept *kept, int fd)
{
	return atomic_load(&kept->conn->cookie) == kept->cookie && fd >= 0 && conn_cookie_of(fd) == kept->cookie;
}

static void take_back(struct kept *kept)
{
	int fd = conn_fd(kept->conn);
	struct engine *engine = engine_enter(kept->conn, fd);
	bool taken = false;
	struct lock_hold hold;

	if (engine && kept->rest.header && lock_take(&engine->in, &hold)) {
		taken = is_it_yet(kept, fd);
		if (taken)
			engine_take_back(engine, &kept->rest);
		lock_give(&engine->in, &hold);
	}
	if (engine)
		engine_leave(kept->conn);
	if (taken)
		return;
	channel_close(&kept->rest);
	if (conn_cookie_of(kept->fd) == kept->cookie)
		evict_reset(kept->conn, kept->fd);
}

static void put_back(struct kept *kept)
{
	switch (kept->what) {
	case KEPT_BURIED:
		dig_up(kept);
		return;
	case KEPT_REST:
		take_back(kept);
		return;
	case KEPT_SPAWNED:
		if (atomic_load(&kept->conn->cookie) == kept->cookie)
			atomic_fetch_sub(&kept->conn->spawned, 1);
	}
}

static void end(struct exec *exec, bool done)
{
	struct exec_memory *memory = exec->memory;

	for (int i = 0; memory && i < memory->count; i++) {
		struct kept *kept = &memory->kept[i];

		if (!done)
			put_back(kept);
		else if (kept->what == KEPT_REST)
			channel_close(&kept->rest);
		if (kept->other >= 0)
			sys_call(SYS_close, kept->other, 0, 0, 0, 0, 0);
	}
	if (memory)
		unmap(memory);
	exec->memory = NULL;
}

void exec_failed(struct exec *exec)
{
	int saved = errno;

	end(exec, false);
	if (engine_possible() && is_ours()) {
		sources_stop(false);
		conn_each(engine_stays);
	}
	errno = saved;
}

void exec_spawned(struct exec *exec, bool done)
{
	end(exec, done);
}
