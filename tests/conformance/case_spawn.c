/* SPDX-License-Identifier: MIT */
/*
 * A connection that is meant for a child's program, and its unread bytes with it: by fork, vfork, and by what posix_spawn's file actions
 * say, whatever else is done with those. And children for which nothing of that is said.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

extern char **environ;

#define NUMBER 300 /* nobody's yet */

static char *const cat[] = { (char *)"cat", NULL };

static pid_t execute(struct end *end, pid_t child)
{
	if (!child) {
		dup2(end->fd, 0);
		dup2(end->fd, 1);
		execvp("cat", cat);
		_exit(9);
	}
	return child;
}

static void add_both(posix_spawn_file_actions_t *actions, int fd)
{
	EXPECT(!posix_spawn_file_actions_adddup2(actions, fd, 0));
	EXPECT(!posix_spawn_file_actions_adddup2(actions, fd, 1));
}

/* What the actions are given, and is done with them or others before they are used. */
static void prepare(struct end *end, enum exec_by how, posix_spawn_file_actions_t *actions,
		    posix_spawn_file_actions_t *others)
{
	pid_t child;

	switch (how) {
	case EXEC_BY_SPAWN_BEFORE:
		add_both(actions, NUMBER);
		EXPECT(dup3(end->fd, NUMBER, O_CLOEXEC) == NUMBER);
		return;
	case EXEC_BY_SPAWN_CHAIN:
		EXPECT(!posix_spawn_file_actions_adddup2(actions, end->fd, NUMBER));
		add_both(actions, NUMBER);
		return;
	case EXEC_BY_SPAWN_AGAIN:
		add_both(actions, end->fd);
		EXPECT(posix_spawn(&child, "/nowhere/nothing", actions, NULL, cat, environ) == ENOENT);
		return;
	case EXEC_BY_SPAWN_OTHERS:
		add_both(actions, end->fd);
		add_both(others, end->fd);
		return;
	default:
		add_both(actions, end->fd);
	}
}

static pid_t spawn(struct end *end, enum exec_by how)
{
	posix_spawn_file_actions_t actions, others;
	pid_t child;

	MUST(fcntl(end->fd, F_SETFD, FD_CLOEXEC));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_init(&others);
	prepare(end, how, &actions, &others);
	EXPECT(!posix_spawnp(&child, "cat", &actions, NULL, cat, environ));
	posix_spawn_file_actions_destroy(&actions);
	posix_spawn_file_actions_destroy(&others);
	if (how == EXEC_BY_SPAWN_BEFORE)
		MUST(close(NUMBER));
	return child;
}

/* The first bytes are the server's, the rest its program's: `cat`, which sends it back. */
void exec_inetd(struct end *end, long how)
{
	pid_t child;

	meet_and_go(end);
	if (!end->server) {
		give_pattern(end->fd, 20000, 6, 0);
		tell(end, "sent");
		MUST(shutdown(end->fd, SHUT_WR));
		take_to_end(end->fd, 6, 10);
		return;
	}
	take_pattern(end->fd, 10, 6, 0);
	await(end, "sent");
	if (how == EXEC_BY_VFORK)
		child = execute(end, vfork());
	else if (how == EXEC_BY_FORK)
		child = execute(end, fork());
	else
		child = spawn(end, (enum exec_by)how);
	MUST(child);
	MUST(close(end->fd));
	reap(child);
}

/* Actions that have named it and were destroyed; others in the same place do not. */
void spawn_leaks(struct end *end, long bytes)
{
	char *const argv[] = { (char *)"true", NULL };
	posix_spawn_file_actions_t actions;
	pid_t child;

	meet_and_go(end);
	if (end->server) {
		give_pattern(end->fd, (size_t)bytes, 6, 0);
		tell(end, "sent");
		take_to_end(end->fd, 7, 0);
		return;
	}
	await(end, "sent");
	await_bytes(end->fd, 100);
	for (int i = 0; i < 3; i++) {
		posix_spawn_file_actions_init(&actions);
		if (!i)
			add_both(&actions, end->fd);
		else
			EXPECT(!posix_spawnp(&child, "true", &actions, NULL, argv, environ));
		posix_spawn_file_actions_destroy(&actions);
		if (i)
			reap(child);
	}
	take_pattern(end->fd, (size_t)bytes, 6, 0);
	give_pattern(end->fd, 1000, 7, 0);
	CALL(close(end->fd));
}
