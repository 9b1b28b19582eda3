/* SPDX-License-Identifier: MIT */
/*
 * Connections that are held by several processes: fork, vfork, exec, posix_spawn, descriptors that are inherited. The client
 * end has the family; the server takes one stream and must find it whole and in order.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"
#include "first.h"

extern char **environ;

/* Small sends in close succession, or one large one. */
static void send_part(int fd, size_t bytes, int part)
{
	uint64_t position = (uint64_t)part * bytes;

	if (bytes > 1000) {
		give_pattern(fd, bytes, 4, position);
		return;
	}
	for (size_t i = 0; i < bytes / 10; i++)
		give_pattern(fd, 10, 4, position + i * 10);
}

static bool serve_stream(struct end *end)
{
	meet(end);
	if (!end->server)
		return false;
	take_to_end(end->fd, 4, 0);
	give(end->fd, "0123456789", 10);
	return true;
}

static void finish_stream(struct end *end)
{
	char reply[10];

	MUST(shutdown(end->fd, SHUT_WR));
	EXPECT(recv(end->fd, reply, sizeof(reply), MSG_WAITALL) == 10);
	EXPECT(!memcmp(reply, "0123456789", 10));
}

/* What each end maps from here on is locked, and so filled at once, by a daemon that must not wait for memory. */
void process_locked(struct end *end, long bytes)
{
	CALL(mlockall(MCL_FUTURE));
	if (!serve_stream(end)) {
		for (int i = 0; i < 6; i++)
			send_part(end->fd, (size_t)bytes, i);
		finish_stream(end);
	}
	CALL(munlockall());
}

/* Parent and child take turns on one connection. */
void process_turns(struct end *end, long bytes)
{
	int to_child[2], to_parent[2];
	pid_t child;
	char c;

	if (serve_stream(end))
		return;
	MUST(pipe(to_child));
	MUST(pipe(to_parent));
	send_part(end->fd, (size_t)bytes, 0);
	child = (pid_t)MUST(fork());
	if (!child) {
		for (int i = 0; i < 3; i++) {
			MUST(read(to_child[0], &c, 1));
			send_part(end->fd, (size_t)bytes, 2 * i + 2);
			MUST(write(to_parent[1], "p", 1));
		}
		exit(0);
	}
	for (int i = 0; i < 3; i++) {
		send_part(end->fd, (size_t)bytes, 2 * i + 1);
		MUST(write(to_child[1], "c", 1));
		MUST(read(to_parent[0], &c, 1));
	}
	send_part(end->fd, (size_t)bytes, 7);
	reap(child);
	send_part(end->fd, (size_t)bytes, 8);
	finish_stream(end);
}

/* The parent sends, forks at once, and leaves the connection to the child. */
void process_handed_down(struct end *end, long bytes)
{
	pid_t child;

	if (serve_stream(end))
		return;
	send_part(end->fd, (size_t)bytes, 0);
	child = (pid_t)MUST(fork());
	if (!child) {
		send_part(end->fd, (size_t)bytes, 1);
		finish_stream(end);
		_exit(0);
	}
	MUST(close(end->fd));
	reap(child);
}

/* A child that does nothing but exit, or exec, takes nothing away. */
void process_child_leaves(struct end *end, long bytes)
{
	if (serve_stream(end))
		return;
	for (int i = 0; i < 6; i++) {
		pid_t child;

		send_part(end->fd, (size_t)bytes, i);
		child = i == 2 ? vfork() : fork();
		MUST(child);
		if (!child && (i == 1 || i == 2))
			execlp("true", "true", NULL);
		if (!child && i == 3)
			exit(0);
		if (!child)
			_exit(0);
		reap(child);
	}
	send_part(end->fd, (size_t)bytes, 6);
	finish_stream(end);
}

/* One process sends, the other receives. */
void process_split(struct end *end, long bytes)
{
	pid_t child;

	meet(end);
	child = (pid_t)MUST(fork());
	if (!child) {
		take_pattern(end->fd, (size_t)bytes * 3, 4, 0);
		_exit(0);
	}
	for (int i = 0; i < 3; i++)
		send_part(end->fd, (size_t)bytes, i);
	reap(child);
	meet_at(end, "done");
}

/* exec: what was sent before arrives; the new program goes on with the descriptor, and its first call is a recv. */
void process_exec(struct end *end, long bytes)
{
	char data[16];

	if (!stage()) {
		meet(end);
		if (end->server) {
			take_pattern(end->fd, (size_t)bytes, 4, 0);
			give(end->fd, "again", 5);
			take_to_end(end->fd, 4, (uint64_t)bytes);
			return;
		}
		send_part(end->fd, (size_t)bytes, 0);
		exec_stage(end, 1);
	}
	CALL(recv(end->fd, data, 5, MSG_WAITALL));
	send_part(end->fd, (size_t)bytes, 1);
	CALL(close(end->fd));
}

/* Close-on-exec: the connection ends with the exec. */
void process_exec_closes(struct end *end, long bytes)
{
	if (!stage()) {
		meet(end);
		if (end->server) {
			take_to_end(end->fd, 4, 0);
			return;
		}
		MUST(fcntl(end->fd, F_SETFD, FD_CLOEXEC));
		send_part(end->fd, (size_t)bytes, 0);
		exec_stage(end, 1);
	}
	CALL(send(end->fd, "x", 1, 0));
}

/* A failed exec changes nothing. */
void process_exec_fails(struct end *end, long bytes)
{
	if (serve_stream(end))
		return;
	for (int i = 0; i < 4; i++) {
		send_part(end->fd, (size_t)bytes, i);
		CALL(execl("/nowhere/nothing", "nothing", NULL));
	}
	finish_stream(end);
}

/* As inetd would: a program of others with the connection as its standard input and output. */
static void spawn_cat(struct end *end, bool by_fork)
{
	char *const argv[] = { (char *)"cat", NULL };
	posix_spawn_file_actions_t actions;
	pid_t child;

	if (by_fork) {
		child = (pid_t)MUST(fork());
		if (!child) {
			dup2(end->fd, 0);
			dup2(end->fd, 1);
			close(end->fd);
			execvp("cat", argv);
			_exit(9);
		}
	} else {
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_adddup2(&actions, end->fd, 0);
		posix_spawn_file_actions_adddup2(&actions, end->fd, 1);
		posix_spawn_file_actions_addclose(&actions, end->fd);
		EXPECT(!posix_spawnp(&child, "cat", &actions, NULL, argv, environ));
		posix_spawn_file_actions_destroy(&actions);
	}
	MUST(close(end->fd));
	reap(child);
}

void process_inetd(struct end *end, long by_fork)
{
	meet(end);
	if (end->server) {
		spawn_cat(end, by_fork);
		return;
	}
	give_pattern(end->fd, 10, 4, 0);
	take_pattern(end->fd, 10, 4, 0);
	give_pattern(end->fd, 100000, 4, 10);
	MUST(shutdown(end->fd, SHUT_WR));
	take_to_end(end->fd, 4, 10);
}

/* Workers that share a listener, forked before the first connection. */
void process_workers(struct end *end, long workers)
{
	int port, listening;
	pid_t children[8];

	if (!end->server) {
		port = (int)await_number(end);
		for (long i = 0; i < workers; i++) {
			end->fd = connect_to(addresses.ipv4, port);
			give_pattern(end->fd, 50000, 4, 0);
			MUST(shutdown(end->fd, SHUT_WR));
			take_to_end(end->fd, 5, 0);
			MUST(close(end->fd));
		}
		return;
	}
	listening = listen_on(addresses.ipv4, &port);
	for (long i = 0; i < workers; i++) {
		children[i] = (pid_t)MUST(fork());
		if (children[i])
			continue;
		end->fd = (int)MUST(accept(listening, NULL, NULL));
		take_quietly(end->fd, 50000, 4, 0);
		give_pattern(end->fd, 30000, 5, 0);
		_exit(0);
	}
	tell_number(end, port);
	for (long i = 0; i < workers; i++)
		reap(children[i]);
}

/* The child is killed, and the parent, which is alone then, leaves bytes unread: a reset. Argument: whether it knows of the death. */
void process_child_killed(struct end *end, long waits)
{
	siginfo_t info;
	pid_t child;
	char c;

	meet(end);
	for (int i = 0; i < 20; i++) {
		if (!end->server)
			give_pattern(end->fd, 10, 4, (uint64_t)i * 10);
		take_pattern(end->fd, 10, 4, (uint64_t)i * 10);
		if (end->server)
			give_pattern(end->fd, 10, 4, (uint64_t)i * 10);
	}
	if (!end->server) {
		await(end, "killed");
		give_pattern(end->fd, 100, 4, 200);
		tell(end, "sent");
		await(end, "closed");
		CALL(recv(end->fd, &c, 1, 0));
		return;
	}
	child = (pid_t)MUST(fork());
	if (!child) {
		for (;;)
			pause();
	}
	MUST(kill(child, SIGKILL));
	MUST(waitid(P_PID, (id_t)child, &info, WEXITED | (waits ? 0 : WNOWAIT)));
	tell(end, "killed");
	await(end, "sent"); /* no wait on the connection: that would have it hold something else that is unread */
	MUST(close(end->fd));
	tell(end, "closed");
}

/* A daemon's way: the parent forks and is gone, the child goes on. */
void process_daemon(struct end *end, long bytes)
{
	if (serve_stream(end))
		return;
	send_part(end->fd, (size_t)bytes, 0);
	if (MUST(fork()))
		_exit(0);
	send_part(end->fd, (size_t)bytes, 1);
	finish_stream(end);
	_exit(0);
}

/* The first call of the new program, before any constructor, is a recv on what it has inherited. */
void process_first_call(struct end *end, long bytes)
{
	char number[16];

	if (!stage()) {
		meet(end);
		if (end->server) {
			take_pattern(end->fd, (size_t)bytes, 4, 0);
			give(end->fd, "first", 5);
			take_to_end(end->fd, 4, (uint64_t)bytes);
			return;
		}
		send_part(end->fd, (size_t)bytes, 0);
		snprintf(number, sizeof(number), "%d", end->fd);
		setenv(FIRST_FD, number, 1);
		exec_stage(end, 1);
	}
	note("%zd %s '%.5s'", first.got, errno_name(first.error), first.data);
	send_part(end->fd, (size_t)bytes, 1);
	CALL(close(end->fd));
}
